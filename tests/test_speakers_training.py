"""Test training with several speakers: balanced batches, memory, and validation losses."""

import math
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora import refusal
from helpers import (
    LONG,
    SAMPLING_RATE,
    TINY,
    Child,
    Corpus,
    Together,
    assert_same_run,
    curves,
    flags,
    load,
    make_corpus,
    metrics,
    newest,
    tiny,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_distributed import SETTINGS, assert_same_result, check_all
from training_runs import kill_at, run

import train
from batch import Batch, collate, synthetic_batch
from batching import (
    balancing_weights,
    describe_costs,
    draws_of_clips,
    make_sampler,
    validation_batches,
)
from corpus.cache import ClipTable
from corpus.clips import Clip
from corpus.filelist import read_filelist
from data_utils import TextMelDataset
from hparams import HParams, create_hparams, hparams_from_dict
from length_batching import STRATEGIES
from loss import Tacotron2Loss, sums_of_clips
from model import Outputs, Tacotron2
from scripts import compare_batching
from tacotron2_voice.utils.errors import UserError
from training import validation
from training.clips import Clips
from training.memory_check import check_memory, worst_case_shapes
from training.speakers import MAX_SHOWN, describe_speakers, first_positions
from training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("clean_process")
few = settings(max_examples=60)
SPEAKERS = replace(HParams(), speaker_embedding_dim=64, batch_size=3, random_epochs=1)


def with_speakers(corpus: Corpus, **names: str) -> Corpus:
    """Write filelists with a speaker in each line.

    For `train="ab"`, the lines alternate between speakers a and b.
    """
    for name, of_clips in names.items():
        path = corpus.folder / f"{name}.txt"
        lines = path.read_text().splitlines()
        speakers = (of_clips[i % len(of_clips)] for i in range(len(lines)))
        pairs = zip(lines, speakers, strict=True)
        path.write_text("".join(f"{line}|{speaker}\n" for line, speaker in pairs))
    return corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Corpus:
    """Return a corpus whose validation set forms two batches, with 3 and 2 clips.

    The first clips of speakers a and b are in the first batch. The first clip of speaker c is in
    the second batch.
    """
    corpus = make_corpus(tmp_path_factory.mktemp("speakers"))
    return with_speakers(corpus, train="aabca", val="abcca")


MANY = {"speaker_embedding_dim": 4, "epochs_per_validation": 1, "epochs": 1}


# ---------------------------------------------------------------------------- balance

corpora = st.lists(st.tuples(st.integers(1, 90), st.integers(0, 3)), min_size=4, max_size=40)


@few
@given(corpus=corpora, balance=st.floats(0, 1))
def test_training_time_per_speaker_depends_on_speaker_balance(corpus, balance):
    """With speaker_balance b, the mean number of frames of a speaker per epoch is proportional to
    frames ** (1 - b)."""
    frames, speakers = map(np.array, zip(*corpus, strict=True))
    weights = balancing_weights(frames, speakers, replace(SPEAKERS, speaker_balance=balance))
    if balance == 0 or len(set(speakers)) == 1:
        assert weights is None
        return
    draws = draws_of_clips(weights)
    assert draws.sum() == pytest.approx(len(frames))
    rates = set()
    for speaker in set(speakers):
        own = speakers == speaker
        assert len(set(draws[own])) == 1  # each clip of a speaker is drawn equally often
        rates.add((draws @ (frames * own)) / frames[own].sum() ** (1 - balance))
    assert max(rates) == pytest.approx(min(rates))


@few
@given(
    corpus=corpora,
    balance=st.floats(0.01, 1),
    strategy=st.sampled_from(STRATEGIES),
    epoch=st.integers(0, 3),
    update=st.integers(1, 2),
)
def test_epochs_with_balanced_speakers_follow_the_sampling_rules(
    corpus, balance, strategy, epoch, update
):
    """An epoch draws as many clips as the corpus contains. Each clip is drawn as often as expected,
    rounded down or up. Draws depend only on the seed and the epoch. Batches stay within the frame
    budget. The batches are distributed among the processes. Runs can resume inside an epoch."""
    frames, speakers = map(np.array, zip(*corpus, strict=True))
    hparams = replace(
        SPEAKERS,
        speaker_balance=balance,
        batching_strategy=strategy,
        bucket_size=9,
        num_bins=2,
        num_buckets=2,
        batches_per_update=update,
    )
    weights = balancing_weights(frames, speakers, hparams)
    sampler, again = (make_sampler(frames, hparams, weights=weights) for _ in range(2))
    for each in (sampler, again):
        each.set_epoch(epoch)
    batches = list(sampler)
    assert batches == list(again)
    times = Counter(i for batch in batches for i in batch)
    assert times.total() == len(frames)
    for i, share in enumerate(np.ones(len(frames)) if weights is None else draws_of_clips(weights)):
        assert math.floor(share + 1e-9) <= times[i] <= math.ceil(share - 1e-9)
    largest = 3 * max(frames)
    assert all(len(batch) * max(frames[batch]) <= largest for batch in batches) or epoch == 0
    parts = []
    for rank in range(update):
        part = make_sampler(frames, hparams, rank, update, weights)
        part.set_epoch(epoch)
        parts += list(part)
    assert sorted(map(sorted, parts)) == sorted(map(sorted, batches))
    trained = int(sampler.update_starts[-1])
    resumed = make_sampler(frames, hparams, weights=weights)
    resumed.load_state_dict(sampler.state_at(trained))
    assert list(resumed) == batches[trained:]


FRAMES = np.array([*[100] * 90, *[50] * 10])
# One speaker has 9,000 frames, and the other speaker has 500 frames.
NUMBERS = np.array([*[0] * 90, *[1] * 10])


def test_draws_of_clips_equal_values_computed_by_hand_when_speakers_are_balanced():
    """The speaker with long clips gets half of the training time, and the speaker with short clips
    gets the other half. The short clips are half as long, so the speaker with short clips is drawn
    twice as often."""
    weights = balancing_weights(FRAMES, NUMBERS, replace(SPEAKERS, speaker_balance=1))
    draws = draws_of_clips(weights)
    assert draws[0] * 90 == pytest.approx(100 / 3)
    assert draws[-1] * 10 == pytest.approx(200 / 3)


def test_costs_are_compared_for_the_same_drawn_clips_when_speakers_are_balanced():
    """The costs of a plan are compared with the costs of random batches of the same drawn clips. In
    this test, the batches of the plan are random too, so the saving is 0."""
    same = {"batching_strategy": "random", "dynamic_batch_size": False, "speaker_balance": 1.0}
    hparams = replace(SPEAKERS, batch_randomization=False, **same)
    weights = balancing_weights(FRAMES, NUMBERS, hparams)
    sampler = make_sampler(FRAMES, hparams, weights=weights)
    lines = describe_costs(sampler, hparams, weights).splitlines()
    assert lines[0].startswith("batching strategy: random, speaker_balance=1")
    assert all(", 0.0% fewer than with random batches" in line for line in lines[2:])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("speaker_balance=0.5", "speaker_balance=0.5: .* speaker_embedding_dim=0"),
        ("speaker_balance=1.5,speaker_embedding_dim=8", "speaker_balance=1.5: .* less than or"),
    ],
)
def test_speaker_balance_is_rejected_when_it_is_out_of_range_or_there_are_no_speakers(
    overrides, message
):
    with pytest.raises(UserError, match=message):
        create_hparams(overrides)
    # The settings that the error suggests are valid.
    assert create_hparams("speaker_balance=0.5,speaker_embedding_dim=64")


# ---------------------------------------------------------------------------- memory


@few
@given(corpus=corpora, balance=st.floats(0.01, 1), capacity=st.floats(1, 9), seed=st.integers(0, 9))
def test_balanced_batches_never_need_more_memory_than_the_worst_case(
    corpus, balance, capacity, seed
):
    """A batch can contain the same clip several times."""
    frames, speakers = map(np.array, zip(*corpus, strict=True))
    hparams = replace(
        SPEAKERS,
        seed=seed,
        speaker_balance=balance,
        batch_capacity=int(capacity * max(frames)),
        batching_strategy="sorted",
    )
    weights = balancing_weights(frames, speakers, hparams)
    draws = None if weights is None else np.floor(draws_of_clips(weights)) + 1
    symbols = np.ones(len(frames))
    shapes = worst_case_shapes(frames, symbols, 3, hparams.batch_capacity, draws)
    assert all(clips * length <= hparams.batch_capacity for clips, length, _ in shapes)
    most_frames = max(clips * length for clips, length, _ in shapes)
    sampler = make_sampler(frames, hparams, weights=weights)
    for epoch in range(4):
        for batch in sampler.plan_of(epoch):
            assert len(batch) <= max(clips for clips, _, _ in shapes)
            assert len(batch) * max(frames[batch]) <= most_frames


def test_memory_check_repeats_a_short_clip_as_often_as_an_epoch_can_draw_it():
    """The memory check repeats the only short clip of a rare speaker as often as an epoch can draw
    it."""
    lengths = [(1, "rare"), *[(30, "often")] * 7]
    clips = ClipTable.of(
        "list.txt",
        enumerate((Clip("", "", (1, 2), n, speaker=name) for n, name in lengths), 1),
    )
    overrides = tiny(n_mel_channels=4, speaker_embedding_dim=4, speaker_balance=1)
    hparams = replace(create_hparams(overrides), speakers=("often", "rare"))
    trainer, batches = Trainer(hparams, torch.device("cpu")), []
    trainer.model.register_forward_pre_hook(lambda _, arguments: batches.append(arguments[0]))
    weights = balancing_weights(clips.num_frames, clips.speaker_numbers, hparams)
    check_memory(trainer, clips, clips, weights)
    validation = [(3, 4, 30)] * 2
    # On a CPU, the memory check first runs a batch with one clip.
    shapes = [tuple(batch.mel.shape) for batch in batches if len(batch.mel) > 1]
    assert shapes == [(3, 4, 30), (8, 4, 1), *validation]
    assert all("speaker" in batch.labels for batch in batches)


def test_speaker_balance_is_rejected_when_only_lengths_are_given(tmp_path):
    path, overrides = tmp_path / "lengths.csv", "speaker_embedding_dim=4,speaker_balance=0.5"
    path.write_text("id,frames\na,9\n")
    message = refusal(compare_batching.main, [str(path), "--hparams", overrides], error=UserError)
    assert "speaker_balance=0.5: " in message


# ---------------------------------------------------------------------------- validation


def noise(batch: Batch) -> Outputs:
    """Return random outputs for a batch, including its padding."""
    parts = (torch.randn(batch.mel.shape), torch.randn(batch.mel.shape))
    return Outputs(*parts, torch.randn(batch.gate.shape), torch.empty(0))


@pytest.mark.parametrize("r", [1, 3])
def test_loss_sums_per_clip_exclude_padding(r):
    """For each clip, the sum of its losses must equal the loss of a batch with only this clip."""
    batch = synthetic_batch([7, 2, 9], [3, 1, 2], create_hparams(tiny(n_frames_per_step=r)))
    outputs = noise(batch)
    for row, (mel, gate) in enumerate(sums_of_clips(outputs, batch).T.tolist()):
        frames = int(batch.mel_lengths[row])
        steps = -(-frames // r)
        alone = collate([(batch.text[row], batch.mel[row, :, :frames])], r)
        cut = (x[row : row + 1, :, : steps * r] for x in outputs[:2])
        losses = Tacotron2Loss()(Outputs(*cut, outputs.gate[row : row + 1, :steps], None), alone)
        expected = float(losses.mel_unpadded + losses.mel_postnet_unpadded)
        assert mel / frames == pytest.approx(expected, rel=1e-5)
        assert gate / steps == pytest.approx(float(losses.gate_unpadded), rel=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("r", [1, 2])
def test_validation_losses_per_speaker_equal_values_computed_by_hand(r, corpus, tmp_path):
    """The test computes the loss of each speaker from the outputs of the model. If r is 1, the mean
    of the losses per speaker, weighted by frames, equals the loss over all clips."""
    out = tmp_path / "out"
    run(out, corpus, **MANY, p_prenet_dropout=0, n_frames_per_step=r)
    saved = load(out / "best.pt")
    hparams = hparams_from_dict(saved["hparams"])
    model = Tacotron2(hparams).eval()
    model.load_state_dict(saved["state_dict"])
    clips = read_filelist(corpus.val, hparams)
    data, sums = TextMelDataset(clips, hparams), {}
    for numbers in validation_batches(clips.num_frames, hparams):
        batch = collate([data[i] for i in numbers], r)
        with torch.no_grad():
            outputs = model(batch)
        for i, errors in zip(numbers, sums_of_clips(outputs, batch).T.numpy(), strict=True):
            frames, speaker = clips[i].num_frames, clips[i].speaker
            parts = np.array([*errors, frames, -(-frames // r)])
            sums[speaker] = sums.get(speaker, 0) + parts
    [record] = metrics(out, "validation")
    assert record["speakers"].keys() == sums.keys() == {"a", "b", "c"}
    for name, (mel, gate, frames, steps) in sums.items():
        expected = mel / frames + gate / steps
        assert record["speakers"][name]["loss_unpadded"] == pytest.approx(expected, rel=1e-4)
    if r == 1:
        losses = [record["speakers"][name]["loss_unpadded"] for name in sums]
        weights = [each[2] for each in sums.values()]
        whole = np.average(losses, weights=weights)
        assert record["validation_loss_unpadded"] == pytest.approx(whole, rel=1e-5)


def test_validation_synthesizes_an_example_for_every_speaker(corpus, tmp_path, monkeypatch, capsys):
    """The example of a speaker is the speaker's first clip in the validation list. The validation
    record contains the means over the examples."""
    out, asked, speak = tmp_path / "out", [], validation.speak
    spy = lambda run, ids, name: asked.append((ids, name)) or speak(run, ids, name)  # noqa: E731
    monkeypatch.setattr(validation, "speak", spy)
    run(out, corpus, **MANY)
    clips = read_filelist(corpus.val, hparams_from_dict(load(newest(out))["hparams"]))
    firsts = {clips[i].speaker: clips[i] for i in reversed(range(len(clips)))}
    assert {name: ids for ids, name in asked} == {
        name: list(clip.symbols) for name, clip in firsts.items()
    }
    [record], printed = metrics(out, "validation"), capsys.readouterr().out
    for name in ("spoken_stopped", "spoken_seconds_ratio", "spoken_coverage"):
        of_speakers = [record["speakers"][speaker][name] for speaker in "abc"]
        assert record[name] == pytest.approx(np.mean(of_speakers))
    logged = curves(out)
    for name in "abc":
        kinds = (
            "alignment",
            "mel",
            "stop_token",
            "spoken/alignment",
            "predicted",
            "spoken",
            "recording",
        )
        assert {f"{kind}/{name}" for kind in kinds} <= logged.keys()
        loss = record["speakers"][name]["loss_unpadded"]
        [(step, value)] = logged[f"masked_loss_of_speakers/{name}"]
        assert (step, value) == (record["iteration"], pytest.approx(loss))
        assert f"  {name}: masked loss {loss:.4f}; free-running: " in printed
    assert "alignment" not in logged
    [layout] = EventAccumulator(str(out / "logs")).Reload().Tensors("custom_scalars__config__")
    [pattern] = re.findall(rb"masked_loss_of_speakers/\.\*", layout.tensor_proto.string_val[0])
    drawn = {tag for tag in logged if re.match(pattern.decode(), tag)}
    assert drawn == {f"masked_loss_of_speakers/{name}" for name in "abc"}


def test_validation_example_has_no_speaker_names_when_there_is_one_speaker(corpus, tmp_path):
    """The metrics, printed lines and plots contain no speaker names."""
    places = {}
    for name, dim in (("voice", 0), ("speaker", 4)):
        table = ClipTable.of(
            "list", enumerate((Clip("", "", (1,), n, speaker="x") for n in (5, 3, 9)), 1)
        )
        hparams = replace(
            create_hparams(tiny(speaker_embedding_dim=dim)), speakers=("x",) * (dim > 0)
        )
        run_of = type("Run", (), {"hparams": hparams, "clips": Clips(table, table, "")})
        places[name] = validation.example_positions(run_of)
    [(number, row)] = places["voice"].values()
    assert [*places["speaker"].values()] == [(number, row)]
    assert validation_batches(table.num_frames, hparams)[number][row] == 0
    run(tmp_path / "out", corpus, **MANY | {"speaker_embedding_dim": 0})
    [record] = metrics(tmp_path / "out", "validation")
    assert "speakers" not in record
    assert "speakers" not in metrics(tmp_path / "out", "run")[0]
    assert {"alignment", "spoken"} <= curves(tmp_path / "out").keys()
    assert isinstance(record["spoken_stopped"], int)
    assert not any("masked_loss_of_speakers/" in tag for tag in curves(tmp_path / "out"))


def test_validation_omits_only_the_example_of_the_speaker_whose_synthesis_fails(
    corpus, tmp_path, monkeypatch, capsys
):
    speak = validation.speak

    def fail_for_b(run, ids, name):
        if name == "b":
            raise ValueError("no speech")
        return speak(run, ids, name)

    monkeypatch.setattr(validation, "speak", fail_for_b)
    run(tmp_path / "out", corpus, **MANY)
    printed, [record] = capsys.readouterr().out, metrics(tmp_path / "out", "validation")
    assert printed.count("training continues: ValueError: no speech") == 1
    has_spoken = {name: "spoken_coverage" in each for name, each in record["speakers"].items()}
    assert has_spoken == {"a": True, "b": False, "c": True}
    of_others = [record["speakers"][name]["spoken_coverage"] for name in "ac"]
    assert record["spoken_coverage"] == pytest.approx(np.mean(of_others))
    assert {"alignment/b", "spoken/a"} <= curves(tmp_path / "out").keys()
    assert "spoken/b" not in curves(tmp_path / "out")


# ---------------------------------------------------------------------------- many speakers


def clips_of(counts: dict[str, int], frames: int = 100) -> ClipTable:
    names = [name for name, count in counts.items() for _ in range(count)]
    clips = (Clip(f"{i}.wav", "x", (1,), frames, speaker=name) for i, name in enumerate(names))
    return ClipTable.of("list.txt", enumerate(clips, 1))


def test_summary_at_the_start_of_a_run_lists_at_most_eight_speakers():
    many = {f"{'n' * 60} {i}": 30 - i for i in range(30)}
    training, validated = clips_of(many), clips_of(dict.fromkeys(list(many)[:28], 1))
    clips = Clips(training, validated, "")
    lines = describe_speakers(clips, SPEAKERS).splitlines()
    assert len(lines) == MAX_SHOWN + 2 == 10
    assert max(map(len, lines)) <= 100
    assert lines[0] == "30 speakers, 2 of them without validation clips:"
    assert lines[1].endswith("…: 30 training clips, 0.6 minutes; 1 validation clips")
    assert lines[-1] == "  22 more: 0.0 to 0.4 minutes"
    balanced = replace(SPEAKERS, speaker_balance=1.0)
    weights = balancing_weights(training.num_frames, training.speaker_numbers, balanced)
    lines = describe_speakers(clips, balanced, weights).splitlines()
    # 465 draws per epoch / 30 speakers / 30 clips of this speaker = 0.517
    assert ", each drawn 0.517 times per epoch; " in lines[1]
    assert lines[-1].endswith(", drawn up to 15.5 times")
    assert describe_speakers(Clips(clips_of({"a": 2}), clips_of({"a": 1}), ""), SPEAKERS) == (
        "1 speaker:\n  a: 2 training clips, 0.0 minutes; 1 validation clips"
    )


@given(st.data())
def test_validation_examples_are_the_first_clips_of_speakers(data):
    """Each example is the first clip of one of the speakers with the most speech. The clip can be
    in any batch."""
    counts = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=12))
    table = clips_of({f"s{i}": count for i, count in enumerate(counts)})
    hparams = replace(HParams(), validation_batch_size=data.draw(st.integers(1, 7)))
    batches = validation_batches(table.num_frames, hparams)
    places = first_positions(batches, table)
    speakers = list(table.names_of("speaker"))
    assert len(places) == min(len(counts), MAX_SHOWN)
    for name, (number, row) in places.items():
        assert batches[number][row] == speakers.index(name)
    shown = [counts[int(name[1:])] for name in places]
    assert shown == sorted(counts, reverse=True)[:MAX_SHOWN]


def test_number_of_curves_and_printed_lines_is_limited_when_there_are_many_speakers(
    tmp_path, monkeypatch, capsys
):
    """metrics.jsonl still contains the losses of all speakers."""
    monkeypatch.setattr(validation, "MAX_SHOWN", 2)
    monkeypatch.setattr("training.speakers.MAX_SHOWN", 2)
    monkeypatch.setattr("training.metrics.MAX_CURVES", 3)
    corpus = with_speakers(make_corpus(tmp_path), train="abcde", val="abcde")
    run(tmp_path / "out", corpus, **MANY)
    [record], logged = metrics(tmp_path / "out", "validation"), curves(tmp_path / "out")
    losses = {name: each["loss_unpadded"] for name, each in record["speakers"].items()}
    assert list(losses) == list("edcba")  # the speaker with the most speech comes first
    assert {tag for tag in logged if tag.startswith("masked_loss_of_speakers/")} == {
        f"masked_loss_of_speakers/{name}" for name in "edc"
    }
    assert {tag for tag in logged if tag.startswith("alignment/")} == {"alignment/e", "alignment/d"}
    printed = capsys.readouterr().out
    rest = {name: losses[name] for name in "cba"}
    best, worst = (pick(rest, key=rest.get) for pick in (min, max))
    line = f"  3 more: masked loss {rest[best]:.4f} ({best}) to {rest[worst]:.4f} ({worst})\n"
    assert line in printed
    assert "  c: masked" not in printed


# ---------------------------------------------------------------------------- runs


def test_metrics_file_contains_the_minutes_of_each_speaker(corpus, tmp_path, capsys):
    out = tmp_path / "out"
    run(out, corpus, **MANY, speaker_balance=1)
    [record] = metrics(out, "run")
    seconds = dict.fromkeys("abc", 0)
    clips = read_filelist(corpus.train, create_hparams(tiny()))
    for clip in clips:
        seconds[clip.speaker] += clip.num_frames * TINY["hop_length"] / SAMPLING_RATE
    assert record["speakers"].keys() == {"a", "b", "c"}
    assert [each["training_clips"] for each in record["speakers"].values()] == [8, 3, 3]
    assert [each["validation_clips"] for each in record["speakers"].values()] == [2, 2, 1]
    for name, each in record["speakers"].items():
        assert each["training_minutes"] == pytest.approx(seconds[name] / 60)
    printed = capsys.readouterr().out
    assert "\n3 speakers:\n  a: 8 training clips, 0.1 minutes, each drawn " in printed
    assert ", speaker_balance=1: " in printed
    assert record["hparams"]["speaker_balance"] == 1


@pytest.mark.thorough
def test_training_results_with_several_speakers_are_equal_in_one_and_two_processes(
    corpus, tmp_path
):
    """Both runs use the fast decoder. The weights, speaker records and examples of both runs are
    bitwise equal."""
    settings = SETTINGS | {"speaker_embedding_dim": 4, "speaker_balance": 0.5, "decoder": "fast"}
    one, two = tmp_path / "one", tmp_path / "two"
    assert Child(flags(one, corpus.hparams(**settings))).end().code == 0
    check_all(Together(2, flags(two, corpus.hparams(**settings))).end())
    assert_same_result(one, two)
    [record] = metrics(two, "validation")
    assert all("spoken_coverage" in each for each in record["speakers"].values())
    tags = [curves(out) for out in (one, two)]
    of_validation = [
        {tag: x[tag] for tag in x if not tag.startswith(("epoch", "training"))} for x in tags
    ]
    assert of_validation[0] == of_validation[1]


@pytest.mark.thorough
def test_run_with_balanced_speakers_resumes_inside_an_epoch(corpus, tmp_path):
    settings = LONG | {"speaker_embedding_dim": 4, "speaker_balance": 0.5}
    whole, out = tmp_path / "whole", tmp_path / "out"
    assert Child(flags(whole, corpus.hparams(**settings))).end().code == 0
    ended = Child(
        flags(out, corpus.hparams(**settings)), kill_at, "in the middle of an epoch"
    ).end()
    assert ended.code == -9
    assert load(newest(out))["loop"]["batches_trained"] > 0
    other = flags(out, "speaker_balance=1", "--resume")
    assert "the run was interrupted inside epoch" in refusal(train.main, other, error=SystemExit)
    assert Child(["-o", str(out), "--resume"]).end().code == 0
    assert_same_run(out, whole)


def test_speaker_balance_is_rejected_when_filelists_have_no_speakers(tmp_path):
    corpus = make_corpus(tmp_path)
    arguments = flags(tmp_path / "out", corpus.hparams(**MANY, speaker_balance=1))
    message = refusal(train.main, arguments, error=SystemExit)
    assert "has no speakers. Write its lines as path|text|seconds|speaker" in message
