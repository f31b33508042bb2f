"""Test models with several speakers: filelists, caches, batches, model, runs and warm starts."""

import re
import shlex
from dataclasses import replace

import pytest
import torch
from corpora import refusal, write_tone
from helpers import flags, load, newest, tiny
from hypothesis import given
from hypothesis import strategies as st

import synthesize
import train
from batch import collate, synthetic_batch
from corpus.cache import LABELS, MAX_NAMES, ClipTable, cache_path, read_cache
from corpus.clips import Clip
from corpus.filelist import ListedClip, read_filelist, split_filelist_line
from data_utils import TextMelDataset
from hparams import HParams, create_hparams
from model import Tacotron2
from tacotron2_voice.settings import types_of
from tacotron2_voice.speakers import chosen_index, speaker_index

NAMES = ("anna", "bert", "carl")
TINY_MODEL = create_hparams(tiny())


@pytest.fixture
def lists(tmp_path):
    """Return settings with nine training clips and three validation clips by three speakers."""
    lines = []
    for i in range(9):
        path = tmp_path / f"{i}.wav"
        write_tone(path, 4000 + 500 * i)
        lines.append(f"{path}|Clip number {i}.||{NAMES[i % 3]}\n")
    (tmp_path / "train.txt").write_text("".join(lines))
    (tmp_path / "val.txt").write_text("".join(lines[:3]))
    return tmp_path


# ---------------------------------------------------------------------------- filelists


def test_fourth_field_of_a_filelist_line_contains_the_speaker():
    assert split_filelist_line("a.wav|Hi.|1.5|anna") == ("a.wav", "Hi.", 1.5, "anna")
    assert split_filelist_line("a.wav|Hi.| | anna ") == ("a.wav", "Hi.", None, "anna")
    assert split_filelist_line("a.wav|Hi.|1.5|") == ("a.wav", "Hi.", 1.5, "")
    assert split_filelist_line("a.wav|Hi.") == ("a.wav", "Hi.", None, "")
    # An accented letter can consist of one or two characters.
    # Both forms must result in the same speaker name.
    assert split_filelist_line("a.wav|Hi.||Zoe\u0308").speaker == "Zo\u00eb"


def test_every_kind_of_clip_label_has_a_filelist_field_and_two_settings():
    """Filelists have no column titles, so a different order of the fields would swap their values
    without an error."""
    assert ListedClip._fields[3:] == LABELS
    assert all(
        {f"{label}s", f"{label}_embedding_dim"} <= types_of(HParams).keys() for label in LABELS
    )
    known = replace(TINY_MODEL, **{f"{label}s": (label,) for label in LABELS})
    assert known.labels == {label: (label,) for label in LABELS}


@given(st.lists(st.sampled_from(["anna", "bert", "\u00c9lo\u00efse", "0"]), min_size=1))
def test_clip_table_keeps_the_speaker_of_every_clip(tmp_path_factory, names):
    folder = tmp_path_factory.mktemp("table")
    clips = [Clip(f"{i}.wav", "x", (1,), 5, speaker=name) for i, name in enumerate(names)]
    ClipTable.of(folder / "list.txt", enumerate(clips, 1)).write()
    table = read_cache(cache_path(folder / "list.txt"))
    assert [clip.speaker for clip in table] == list(table.names_of("speaker")) == names
    assert table.speakers == tuple(dict.fromkeys(names))


def test_fingerprint_of_clips_changes_when_speakers_change():
    def fingerprint(*names):
        clips = [Clip(f"{i}.wav", "x", (1,), 5, speaker=name) for i, name in enumerate(names)]
        return ClipTable.of("list.txt", enumerate(clips, 1)).fingerprint

    nobody, anna = fingerprint("", ""), fingerprint("anna", "anna")
    assert len({nobody, anna, fingerprint("anna", "bert"), fingerprint("bert", "anna")}) == 4


def test_error_counts_lines_without_a_speaker_when_other_lines_have_speakers(lists):
    with open(lists / "train.txt", "a") as file:
        file.write(f"{lists}/0.wav|Clip.\n")
    message = refusal(read_filelist, lists / "train.txt", TINY_MODEL)
    assert (
        "train.txt:10: 1 of 10 lines have no speaker, but other lines have 'anna', 'bert', 'carl'"
        in message
    )


def test_filelist_is_rejected_when_it_has_too_many_speakers(tmp_path):
    clips = enumerate(Clip("a.wav", "x", (1,), 5, speaker=str(i)) for i in range(MAX_NAMES + 1))
    assert "10,001 different speakers, expected at most 10,000" in refusal(
        ClipTable.of, "list.txt", clips
    )


def test_message_lists_speakers_when_a_speaker_name_begins_with_a_hyphen():
    message = refusal(chosen_index, None, ("--x y", "b"), "voice/")
    assert "'--x y', 'b'" in message


def test_error_suggests_a_speaker_when_the_speaker_name_is_unknown():
    assert speaker_index(" bert", NAMES, "voice/") == 1
    message = refusal(speaker_index, "Karl", NAMES, "voice/")
    assert "speaker 'Karl': " in message
    assert "did you mean 'carl'? " in message
    message = refusal(speaker_index, "dave", NAMES, "voice/")
    assert message.endswith("it has 'anna', 'bert', 'carl'")
    many = [f"speaker {i}" for i in range(30)]
    assert "'speaker 9' and 20 more" in refusal(speaker_index, "", many, "voice/")


# ---------------------------------------------------------------------------- batches and model


def test_batches_contain_the_index_of_each_speaker_in_the_sorted_list_of_speakers(lists):
    hparams = replace(
        TINY_MODEL, speaker_embedding_dim=4, speakers=("anna", "bert", "carl", "dora")
    )
    table = read_filelist(lists / "train.txt", hparams)
    dataset = TextMelDataset(table, hparams)
    batch = collate([dataset[i] for i in (5, 0, 4)])
    assert batch.labels["speaker"].tolist() == [2, 0, 1]
    assert batch.to("cpu").labels["speaker"].tolist() == [2, 0, 1]
    assert collate([TextMelDataset(table, TINY_MODEL)[0]]).labels == {}


def speakers_model(**changes) -> tuple[Tacotron2, HParams]:
    torch.manual_seed(0)
    hparams = replace(TINY_MODEL, speaker_embedding_dim=6, speakers=NAMES, **changes)
    return Tacotron2(hparams), hparams


def test_output_of_every_decoder_step_changes_when_the_speaker_changes():
    """The log-mels of two speakers differ even in the first frame. The encoder outputs for two
    speakers differ only by the speaker vectors."""
    model, hparams = speakers_model()
    model.eval()
    text, lengths = torch.tensor([[5, 6, 7, 8]] * 2), torch.tensor([4, 4])
    memory = model.encode(text, lengths, {"speaker": torch.tensor([0, 2])})
    assert memory.shape == (2, 4, hparams.memory_dim)
    width = hparams.encoder_embedding_dim
    assert torch.equal(memory[0, :, :width], memory[1, :, :width])
    assert torch.equal(memory[1, 3, width:], model.speaker_embedding.weight[2])
    masks = model.decoder.draw_masks(3, 1, torch.Generator().manual_seed(0))
    one, other = (
        next(
            model.speak(text[:1], lengths[:1], masks, 3, labels={"speaker": torch.tensor([i])})
        ).frames
        for i in (0, 2)
    )
    assert not torch.allclose(one, other)


def test_model_raises_when_speakers_are_missing_or_unexpected():
    model, hparams = speakers_model()
    batch = synthetic_batch([6], [3], hparams)
    with pytest.raises(ValueError, match="labels"):
        model(replace(batch, labels={}))
    with pytest.raises(ValueError, match="labels"):
        Tacotron2(TINY_MODEL)(batch)
    with pytest.raises(ValueError, match="no speakers"):
        Tacotron2(replace(TINY_MODEL, speaker_embedding_dim=6))


def test_fast_decoder_outputs_and_gradients_equal_the_reference_with_speakers():
    fast_decoder = pytest.importorskip("fast_decoder")
    hparams = replace(TINY_MODEL, speaker_embedding_dim=6, speakers=NAMES)
    batch = synthetic_batch([9, 5, 7], [6, 3, 5], hparams)
    batch = replace(batch, labels={"speaker": torch.tensor([2, 0, 2])})
    gradients = []
    for decoder in (None, fast_decoder.teacher_forced):
        torch.manual_seed(0)
        model = Tacotron2(hparams, **({"training_decoder": decoder} if decoder else {}))
        torch.manual_seed(1)
        outputs = model(batch)
        sum(part.square().sum() for part in outputs[:3]).backward()
        gradients.append([outputs.mel, *(p.grad for p in model.parameters())])
    largest = max(float(one.detach().abs().max()) for one in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6 * largest)


# ---------------------------------------------------------------------------- runs


def options(lists, **changes) -> str:
    named = {"training_files": lists / "train.txt", "validation_files": lists / "val.txt"}
    defaults = {"speaker_embedding_dim": 4, "epochs": 2, "batch_size": 4}
    return tiny(**named | defaults | changes)


@pytest.mark.thorough
def test_run_with_several_speakers_trains_and_resumes(lists, capsys):
    out, other = lists / "run", lists / "other"
    train.main(flags(out, options(lists)))
    saved = load(newest(out))
    assert saved["hparams"]["speakers"] == NAMES
    train.main(flags(other, options(lists, epochs=1)))
    train.main(flags(other, "epochs=2", "--resume"))
    again = load(newest(other))
    for name, tensor in saved["state_dict"].items():
        assert torch.equal(tensor, again["state_dict"][name]), name
    printed = capsys.readouterr().out
    assert "as one voice" not in printed
    best = shlex.quote(str(other / "best.pt"))
    assert f"synthesize.py --checkpoint {best} --speaker anna --text" in printed


@pytest.mark.thorough
def test_filelists_are_rejected_when_a_validation_clip_has_a_new_speaker_or_no_speaker(lists):
    def message(**changes) -> str:
        return refusal(
            train.main, flags(lists / "run", options(lists, **changes)), error=SystemExit
        )

    (lists / "val.txt").write_text(f"{lists}/0.wav|Hi.||Karl\n")
    assert "val.txt:1: speaker 'Karl': " in message()
    assert "did you mean 'carl'? It has 'anna', 'bert', 'carl'. 1 of 1 lines have" in message()
    (lists / "val.txt").write_text(f"{lists}/0.wav|Hi.\n")
    assert "val.txt has no speakers. Write its lines as path|text|seconds|speaker" in message()
    assert "has no speakers. Write its lines as" in message(training_files=lists / "val.txt")
    assert not (lists / "run").exists()


def test_filelists_are_rejected_when_speaker_names_look_alike(lists):
    """Users can combine filelists by hand, so training must compare the names again."""
    with open(lists / "train.txt", "a") as file:
        file.write(f"{lists}/0.wav|Clip.||ANNA\n")
    message = refusal(train.main, flags(lists / "run", options(lists)), error=SystemExit)
    places = f"'anna' ({lists}/train.txt:1) and 'ANNA' ({lists}/train.txt:10)"
    assert f"speaker names {places} differ only in case" in message


@pytest.mark.thorough
def test_resume_is_rejected_when_filelists_contain_new_speakers(lists):
    """The error does not suggest --new-clips, because this option does not accept new speakers. The
    test also uses the option that the error suggests."""
    train.main(flags(lists / "run", options(lists, epochs=1)))
    with open(lists / "train.txt", "a") as file:
        file.write(f"{lists}/0.wav|Clip.||dora\n" * 2)
    again = flags(lists / "run", "epochs=2", "--resume", "--new-clips")
    message = refusal(train.main, again, error=SystemExit)
    assert "train.txt:10: speaker 'dora': " in message
    assert "2 of 11 lines" in message
    advised = message.partition("start a new run with ")[2].split()
    assert "--warm_start" in advised
    train.main(flags(lists / "another", options(lists, epochs=1), *advised))


@pytest.mark.thorough
def test_resume_is_rejected_when_speakers_are_added_to_a_model_without_speakers(lists, capsys):
    """The test also uses the options that the warning and the error suggest."""
    run, settings = lists / "run", options(lists, epochs=1)
    train.main(flags(run, f"{settings},speaker_embedding_dim=0"))
    train.main(flags(run, "epochs=2", "--resume"))
    again = flags(run, "epochs=3,speaker_embedding_dim=64", "--resume")
    message = refusal(train.main, again, error=SystemExit)
    assert "speaker_embedding_dim=64: " in message
    assert (
        "was trained without speaker names. Leave this setting out, or start a new run with -c "
        in message
    )
    advised = message.partition("start a new run with ")[2].split()
    assert f"speaker_embedding_dim=64, in a new run with {advised[0]}" in capsys.readouterr().out
    train.main(flags(lists / "another", settings, *advised))


@pytest.mark.thorough
def test_resume_is_rejected_when_filelists_have_no_speakers(lists):
    """The error does not suggest removing speaker_embedding_dim, because the run needs speakers."""
    train.main(flags(lists / "run", options(lists, epochs=1)))
    for name in ("train.txt", "val.txt"):
        path = lists / name
        path.write_text(re.sub(r"\|\|\w+\n", "\n", path.read_text()))
    again = flags(lists / "run", "epochs=2", "--resume", "--new-clips")
    message = refusal(train.main, again, error=SystemExit)
    fix = "Write its lines as path|text|seconds|speaker, or prepare the corpus again with --speaker NAME"
    assert f"has no speakers. {fix} (docs" in message


@pytest.mark.thorough
def test_speaker_stays_in_the_model_when_the_filelists_have_no_clips_of_this_speaker(lists, capsys):
    train.main(flags(lists / "run", options(lists, epochs=1)))
    for name in ("train.txt", "val.txt"):
        path = lists / name
        path.write_text(re.sub(r".*carl\n", "", path.read_text()))
    train.main(flags(lists / "run", "epochs=2", "--resume", "--new-clips"))
    assert "speakers of the model without clips in the filelists: 'carl'" in capsys.readouterr().out
    synthesize.main(["--checkpoint", str(newest(lists / "run")), "--list-speakers"])
    assert "carl       0.0 min in the latest filelists" in capsys.readouterr().out


@pytest.mark.thorough
def test_resume_reports_a_change_when_the_speaker_of_a_clip_has_changed(lists):
    train.main(flags(lists / "run", options(lists, epochs=1)))
    first, others = (lists / "train.txt").read_text().split("\n", 1)
    (lists / "train.txt").write_text(f"{first.replace('anna', 'bert')}\n{others}")
    message = refusal(train.main, flags(lists / "run", "epochs=2", "--resume"), error=SystemExit)
    assert "0 added, 0 gone, 1 changed" in message


def test_warning_is_printed_when_several_speakers_are_treated_as_one_speaker(lists, capsys):
    train.main(flags(lists / "run", options(lists, speaker_embedding_dim=0, epochs=1)))
    printed = capsys.readouterr().out
    assert "has 3 speakers ('anna', 'bert', 'carl')" in printed
    assert load(newest(lists / "run"))["hparams"]["speakers"] == ()


# ---------------------------------------------------------------------------- warm start


def test_warm_start_gives_every_speaker_the_speech_of_a_model_with_one_speaker(lists):
    """The learning rate is nearly 0, so every speaker sounds like the model with one speaker."""
    one, many = lists / "one", lists / "many"
    train.main(flags(one, options(lists, speaker_embedding_dim=0, epochs=1)))
    still = options(lists, epochs=1, learning_rate=1e-30)
    train.main(flags(many, still, "-c", str(newest(one)), "--warm_start"))
    old, new = load(newest(one)), load(newest(many))
    width = old["hparams"]["prenet_dim"] + old["hparams"]["encoder_embedding_dim"]
    weight = "decoder.attention_rnn.weight_ih"
    assert torch.equal(new["state_dict"][weight][:, :width], old["state_dict"][weight])
    assert new["state_dict"][weight][:, width:].abs().max() < 1e-25
    assert new["state_dict"]["speaker_embedding.weight"].abs().min() > 0


@pytest.mark.thorough
def test_warm_start_is_rejected_when_filelists_lack_speakers(lists):
    train.main(flags(lists / "many", options(lists, epochs=1)))
    for name in ("train.txt", "val.txt"):
        path = lists / name
        path.write_text(re.sub(r"\|\|\w+\n", "\n", path.read_text()))
    for width in (0, 4):
        settings = options(lists, epochs=1, speaker_embedding_dim=width)
        again = flags(lists / "one", settings, "-c", str(newest(lists / "many")), "--warm_start")
        assert "speaker_embedding" in refusal(train.main, again, error=SystemExit)


@pytest.mark.thorough
def test_warm_start_is_rejected_when_speaker_vectors_have_no_names(lists, tmp_path):
    """Weights from other projects, such as Mellotron, can contain speaker vectors without names.
    The test also uses the option that the error suggests."""
    train.main(flags(lists / "run", options(lists, epochs=1)))
    weights = tmp_path / "mellotron.pt"
    torch.save({"state_dict": load(newest(lists / "run"))["state_dict"]}, weights)
    settings = options(lists, epochs=1)
    again = flags(lists / "other", settings, "-c", str(weights), "--warm_start")
    message = refusal(train.main, again, error=SystemExit)
    assert (
        f"{weights}: speaker_embedding.weight has 3 rows, but the checkpoint lists 0 speakers"
        in message
    )
    advised = f"{settings},ignore_layers=[speaker_embedding.weight]"
    assert advised.split(",")[-1] in message
    train.main(flags(lists / "other", advised, "-c", str(weights), "--warm_start"))
    assert load(newest(lists / "other"))["iteration"] > 0


@pytest.mark.thorough
def test_warm_start_matches_speaker_vectors_by_name(lists, capsys):
    """The order of speakers changes, one speaker is removed, and a new speaker starts with the mean
    of the old vectors."""
    first, second = lists / "first", lists / "second"
    train.main(flags(first, options(lists, epochs=1)))
    for name in ("train.txt", "val.txt"):
        path = lists / name
        path.write_text(path.read_text().replace("anna", "zoe"))
    still = options(lists, epochs=1, learning_rate=1e-30)
    train.main(flags(second, still, "-c", str(newest(first)), "--warm_start"))
    old = load(newest(first))["state_dict"]["speaker_embedding.weight"]
    new = load(newest(second))["state_dict"]["speaker_embedding.weight"]
    expected = torch.stack([old[1], old[2], old.mean(dim=0)])
    torch.testing.assert_close(new, expected)
    assert "2 of 3 speakers keep their embeddings, 1 are new" in capsys.readouterr().out
