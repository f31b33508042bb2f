"""benchmarks/epoch.py and clips.py: the sample stands for its epoch; lengths are read as given."""

import contextlib
import io
import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest

from analysis import clips as corpus
from analysis import epoch_times, fast_path
from batching import STRATEGIES
from benchmarks import epoch
from data_utils import read_filelist
from errors import UserError
from hparams import create_hparams
from text import text_to_sequence

ROOT = Path(__file__).resolve().parent.parent
LJSPEECH = ROOT.parent / "shared" / "ljspeech"
TINY = (
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8,"
    "n_mel_channels=4,batch_size=4,hop_time=400"
)
PAPER = create_hparams("batch_size=16,win_time=50,hop_time=12.5")


# ---------------------------------------------------------------------------- the sample


def test_over_all_samples_the_estimate_is_right_and_so_is_its_standard_error():
    population = [[3.0, 5.0, 10.0], [1.0, 1.5, 2.0, 7.0]]
    sizes = [len(stratum) for stratum in population]
    draws = itertools.product(*(itertools.combinations(stratum, 2) for stratum in population))
    found = [epoch_times.estimate(sizes, [list(values) for values in draw]) for draw in draws]
    totals, errors = np.array(found).T
    assert totals.mean() == pytest.approx(sum(map(sum, population)))
    assert np.square(errors).mean() == pytest.approx(totals.var())


def test_a_stratum_drawn_in_full_adds_no_error_and_one_of_many_hides_it():
    assert epoch_times.estimate([1, 2], [[4.0], [1.0, 3.0]]) == (8.0, 0.0)
    total, error = epoch_times.estimate([5], [[2.0]])
    assert total == 10.0
    assert math.isnan(error)


def test_strata_hold_every_batch_once_by_length_and_draws_are_two_of_each():
    clips = corpus.synthetic_clips(500, PAPER)
    for plan in epoch.make_plans(clips, PAPER, [30_000]):
        parts = epoch_times.strata(plan, 7)
        assert len(parts) == 3
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(plan.batches)))
        frames = [plan.shapes[part, 1] for part in parts]
        assert all(a.max() <= b.min() for a, b in itertools.pairwise(frames))
        assert np.ptp([len(part) for part in parts]) <= 1
        chosen = epoch_times.draw(parts, seed=3)
        assert [len(set(numbers)) for numbers in chosen] == [2, 2, 2]
        pairs = zip(chosen, parts, strict=True)
        assert all(set(numbers.tolist()) <= set(part.tolist()) for numbers, part in pairs)


def test_every_clip_is_in_every_plan_once_and_capacities_are_kept():
    clips = corpus.synthetic_clips(500, PAPER)
    plans = epoch.make_plans(clips, PAPER, [30_000])
    longest = clips.frames.max()
    assert [plan.capacity for plan in plans] == [16 * longest] * 2 + [30_000] * 2
    for plan in plans:
        assert sorted(np.concatenate(plan.batches).tolist()) == list(range(500))
        sizes, frames, symbols = plan.shapes.T
        assert (sizes * frames).max() <= plan.capacity
        for batch, b, t, n in zip(plan.batches, sizes, frames, symbols, strict=True):
            assert (len(batch), clips.frames[batch].max(), clips.symbols[batch].max()) == (b, t, n)
    with pytest.raises(ValueError, match="must fit"):
        epoch.make_plans(clips, PAPER, [100])


def test_shapes_buckets_and_idle_programs_are_counted(monkeypatch):
    monkeypatch.setattr(epoch, "bucket", lambda b, n: (-(-b // 4) * 4, -(-n // 10) * 10))
    lengths = corpus.Clips(np.array([5, 5, 5, 2, 9]), np.array([3, 8, 10, 12, 7]), "")
    batches = [np.array([0, 1, 2]), np.array([3]), np.array([4])]
    plan = epoch_times.Plan("any", 20, batches, epoch_times.shapes_of(lengths, batches, PAPER))
    found = epoch.summary(plan, lengths, 1)
    assert plan.shapes.tolist() == [[3, 5, 10], [1, 2, 12], [1, 9, 7]]
    assert (found["shapes"], found["buckets"]) == (3, 2)
    assert (found["padded_frames"], found["real_frames"]) == (26, 26)
    assert found["idle_rows"] == pytest.approx(1 - (15 + 2 + 9) / (4 * (5 + 2 + 9)))
    of_programs = 1 - (150 + 24 + 63) / (4 * (50 + 40 + 90))
    assert found["idle_rows_and_symbols"] == pytest.approx(of_programs)


# ---------------------------------------------------------------------------- the whole program


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> tuple[str, dict]:
    if not fast_path.IS_HERE:
        pytest.skip("the fast decoder was taken out")
    path, printed = tmp_path_factory.mktemp("epoch") / "epoch.json", io.StringIO()
    options = ["--device", "cpu", "--hparams", TINY, "--clips", "60", "--batches", "4"]
    with contextlib.redirect_stdout(printed):
        epoch.main([*options, "--decoder", "both", "--json", str(path)])
    return " ".join(printed.getvalue().split()), json.loads(path.read_text(encoding="utf-8"))


def test_it_reports_every_plan_with_each_decoder(measured):
    printed, result = measured
    rows = result["rows"]
    assert [row["batching"] for row in rows] == [
        "RAND, 4 clips",
        "SSB-DBS-BR",
        "RAND, 8 clips",
        "SSB-DBS-BR",
    ]
    assert rows[2]["capacity"] == 2 * rows[0]["capacity"]
    assert rows[1]["zero_padding_rate"] < rows[0]["zero_padding_rate"]
    assert "made-up lengths of 60 clips" in printed
    assert printed.count("| fast |") == printed.count("| reference |") == 4


def test_minutes_are_those_of_the_drawn_batches_times_what_they_stand_for(measured):
    _, result = measured
    for row in result["rows"]:
        for found in row["decoders"].values():
            assert sum(found["sizes"]) == row["num_batches"]
            means = [np.mean(seconds) for seconds in found["seconds"]]
            assert min(means) > 0
            minutes = np.dot(found["sizes"], means) / 60
            assert found["minutes_per_epoch"] == pytest.approx(minutes)
            rate = row["padded_frames"] / (60 * minutes)
            assert found["padded_frames_per_second"] == pytest.approx(rate)
    random = result["rows"][0]["decoders"]["fast"]
    best = result["rows"][1]["decoders"]["fast"]
    saved = 1 - best["minutes_per_epoch"] / random["minutes_per_epoch"]
    assert best["saved_against_random"] == pytest.approx(saved)


# ---------------------------------------------------------------------------- lengths and corpora


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_lengths_are_read_under_every_header(tmp_path):
    samples = write(tmp_path / "samples.csv", "id,samples", "a,2760", "b,1")
    assert corpus.clips_of_lengths_file(samples, PAPER).frames.tolist() == [
        11,
        1,
    ]  # 276 samples apart
    whole = write(tmp_path / "whole.csv", "id,frames,symbols", "a,40,7", "b,5,1")
    clips = corpus.clips_of_lengths_file(whole, PAPER)
    assert (clips.frames.tolist(), clips.symbols.tolist()) == ([40, 5], [7, 1])
    texts = write(tmp_path / "texts.csv", "b|x|Oh!", "a|Dr. Who|Doctor Who")
    frames = write(tmp_path / "frames.csv", "id,frames", "a,40", "b,5")
    assert corpus.clips_of_lengths_file(frames, PAPER, texts).symbols.tolist() == [10, 3]
    pairs = write(tmp_path / "pairs.csv", "b|Oh!", "a|Doctor Who")
    assert corpus.clips_of_lengths_file(frames, PAPER, pairs).symbols.tolist() == [10, 3]
    split = write(tmp_path / "split.csv", "id,set", "a,train", "b,val")
    assert corpus.clips_of_lengths_file(frames, PAPER, split=split).frames.tolist() == [40]
    other = write(tmp_path / "other.csv", "id,set", "a,train")
    assert len(corpus.clips_of_lengths_file(frames, PAPER, split=other).frames) == 2


def test_a_made_up_corpus_reads_back_with_the_lengths_asked_for(tmp_path):
    hparams = create_hparams(TINY + ",load_mel_from_disk=True")
    wanted = corpus.synthetic_clips(30, hparams)
    clips = read_filelist(corpus.make_corpus(tmp_path, wanted, hparams), hparams)
    assert [clip.num_frames for clip in clips] == wanted.frames.tolist()
    counts = [len(text_to_sequence(clip.text, hparams.text_cleaners)) for clip in clips]
    assert counts == wanted.symbols.tolist()


def test_a_made_up_corpus_without_room_on_the_disk_is_a_message(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(UserError, match=r"No space left on device.*TMPDIR"):
        corpus.make_corpus(tmp_path, corpus.synthetic_clips(2, PAPER), PAPER)


def test_lines_of_texts_that_cannot_be_read_are_listed(tmp_path):
    frames = write(tmp_path / "frames.csv", "id,frames", "a,40", "b,5")
    texts = write(tmp_path / "texts.csv", "a|A", "b", "a|B", "c|C|C|C")
    with pytest.raises(UserError, match="3 of 4 lines refused") as refusal:
        corpus.clips_of_lengths_file(frames, PAPER, texts)
    for problem in (":2: 1 fields", ":3: id 'a' stands in line 1 too", ":4: 4 fields"):
        assert f"{texts}{problem}" in str(refusal.value)


def test_too_few_clips_for_a_strategy_are_a_message():
    with pytest.raises(SystemExit, match=r"^epoch.py: num_bins=58: .* 1 to 20"):
        epoch.main(["--clips", "20", "--shapes"])


def test_shapes_of_every_strategy_are_counted_without_training(capsys, monkeypatch):
    monkeypatch.setattr(epoch, "Trainer", None)
    epoch.main(["--clips", "60", "--shapes", "--hparams", "batch_size=4"])
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    assert len(rows) == 2 * len(STRATEGIES)
    names = [row.split("|")[1].strip() for row in rows]
    assert names[: len(STRATEGIES)] == list(STRATEGIES)
    assert all(name.endswith(", dynamic sizes") for name in names[len(STRATEGIES) :])
