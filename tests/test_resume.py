"""Test how a run resumes: its checkpoint, logs and clips, and the options that it rejects."""

import errno
import functools
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from helpers import (
    DATA,
    LONG,
    ROOT,
    Child,
    Corpus,
    act_at,
    assert_same,
    assert_same_run,
    curves,
    flags,
    kill_self,
    load,
    metrics,
    newest,
)
from same_run import compare_runs
from training_runs import (
    StopHere,
    act_at_patched,
    copied_corpus,
    kill_at,
    refused,
    run,
    snapshot,
    stop_here,
    stopped_inside_an_epoch,
)

import train
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams
from model import Tacotron2
from tacotron2_voice.text.rules import rules_version
from tacotron2_voice.utils import files
from tacotron2_voice.utils.files import json_lines
from training import checkpoint, optimizer, start
from training.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("clean_process")


# ---------------------------------------------------------------------------- damaged checkpoints


@pytest.mark.thorough
def test_resume_uses_an_earlier_checkpoint_when_the_newest_checkpoint_is_damaged(
    copied, whole, capsys
):
    broken = newest(copied)
    os.truncate(broken, 1000)  # best.pt is a hard link to this checkpoint, so it is damaged too
    train.main([*flags(copied, ""), "--resume"])
    assert f"warning: skipped a checkpoint: {broken}: damaged" in capsys.readouterr().out
    assert_same_run(copied, whole)
    assert (copied / f"{broken.name}.superseded").stat().st_size == 1000


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_resume_fails_when_no_checkpoint_is_valid(how, copied, capsys):
    for path in copied.glob("*.pt"):
        path.unlink() if how == "gone" else path.write_bytes(b"nothing")
    before = snapshot(copied)
    message = refused(flags(copied, "", "--resume"), capsys)
    assert f"{copied} contains a run but no usable checkpoint" in message
    for path in copied.glob("*.pt"):
        assert f"{path}: damaged" in message
    assert "different -o" in message
    assert snapshot(copied) == before


@pytest.mark.parametrize("which", ["newest", "best"])
def test_resume_reports_the_read_error_when_a_checkpoint_is_unreadable(
    which, copied, monkeypatch, capsys
):
    """`best.pt` is also read, because it might be newer than the newest numbered checkpoint."""
    unreadable = newest(copied) if which == "newest" else copied / "best.pt"
    open_file = files.open_file

    def fail(path, if_missing):
        if path == unreadable:
            raise OSError(errno.EIO, "broken disk")
        return open_file(path, if_missing)

    before = snapshot(copied)
    monkeypatch.setattr(files, "open_file", fail)
    message = refused(flags(copied, "epochs=9", "--resume"), capsys)
    assert f"{unreadable}: cannot be read" in message
    assert "broken disk" in message
    assert snapshot(copied) == before


@pytest.mark.parametrize("how", ["missing", "changed"])
def test_resume_renames_the_metrics_file_of_a_different_run(how, copied, capsys, monkeypatch):
    path = copied / "metrics.jsonl"
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    other = path.read_bytes() if path.exists() else None
    monkeypatch.setattr(train, "train", stop_here)  # stop the run before the next checkpoint
    for first in (True, False):
        with pytest.raises(StopHere):
            train.main(flags(copied, "epochs=5", "--resume"))
        assert (f"warning: {path} has changed since" in capsys.readouterr().out) == first
        assert [line["kind"] for line in metrics(copied)] == ["run"]
    aside = copied / "metrics.jsonl.damaged"
    assert (aside.read_bytes() if aside.exists() else None) == other


# ---------------------------------------------------------------------------- choice of the checkpoint


def test_resume_changes_nothing_when_the_run_is_finished(copied, capsys):
    before = snapshot(copied)
    train.main([*flags(copied, ""), "--resume"])
    assert "this run is already finished (epoch 4)" in capsys.readouterr().out
    assert snapshot(copied) == before


def test_resumed_run_equals_an_uninterrupted_run_when_the_number_of_epochs_is_increased(
    copied, corpus, tmp_path
):
    train.main([*flags(copied, "epochs=5"), "--resume"])
    run(tmp_path / "out", corpus, **LONG | {"epochs": 5})
    assert_same_run(copied, tmp_path / "out")


def test_resume_keeps_logs_when_the_checkpoint_is_a_link(copied, tmp_path, monkeypatch):
    """If the user has moved the newest checkpoint to another disk, best.pt is a separate file
    instead of a hard link."""
    linked = newest(copied)
    moved, before = linked.rename(tmp_path / "moved.pt"), metrics(copied)
    linked.symlink_to(moved)
    monkeypatch.setattr(train, "train", stop_here)
    with pytest.raises(StopHere):
        train.main(flags(copied, "epochs=5", "--resume"))
    assert metrics(copied)[:-1] == before
    moved.unlink()
    assert load(copied / "best.pt")


def test_resume_resets_the_best_loss_when_the_best_checkpoint_is_deleted(copied):
    """If the run was killed before it linked best.pt, resuming creates best.pt."""
    state = load(newest(copied))
    state["loop"] |= {"best_validation_loss": 0.0, "best_iteration": 1}
    (copied / "best.pt").unlink()
    torch.save(state, newest(copied))
    train.main(flags(copied, "epochs=5,epochs_per_validation=1", "--resume"))
    best = metrics(copied, "validation")[-1]["iteration"]
    assert load(copied / "best.pt")["iteration"] == best
    (copied / "best.pt").unlink()
    train.main(flags(copied, "epochs=6,epochs_per_validation=9", "--resume"))
    assert load(copied / "best.pt")["iteration"] == best


def test_new_run_fails_when_its_output_folder_contains_a_run(copied, corpus, capsys):
    before = snapshot(copied)
    arguments = flags(copied, corpus.hparams())
    assert "--resume" in refused(arguments, capsys)
    warm_start = [*arguments, "-c", str(newest(copied)), "--warm_start"]
    assert f"{copied} contains a run" in refused(warm_start, capsys)
    assert snapshot(copied) == before


def test_later_checkpoints_are_renamed_when_resuming_from_an_earlier_checkpoint(
    corpus, whole, tmp_path, capsys
):
    out = tmp_path / "out"
    run(out, corpus, **LONG | {"keep_checkpoints": 20})
    steps = [int(path.stem.split("_")[1]) for path in out.glob("checkpoint_*.pt")]
    middle = sorted(steps)[2]
    arguments = flags(
        out, "epochs=3,epochs_per_validation=20", "-c", out / f"checkpoint_{middle}.pt"
    )
    train.main(arguments)
    printed = capsys.readouterr().out
    aside = {path.name for path in out.glob("*.superseded")}
    assert aside == {f"checkpoint_{s}.pt.superseded" for s in steps if s > middle} | {
        "best.pt.superseded"
    }
    assert "renamed a checkpoint that is newer than the resumed checkpoint" in printed
    assert len(metrics(out, "epoch")) == 3
    # The run was validated once, after epoch 2. The record of this validation was removed.
    assert not metrics(out, "validation")
    steps_drawn = [step for step, _ in curves(out)["training/loss"]]
    assert steps_drawn == sorted(set(steps_drawn))
    assert max(steps_drawn) <= metrics(out, "epoch")[-1]["iteration"]
    # Without best.pt, the last printed line contains the path of the newest checkpoint.
    assert "checkpoint_" in printed.splitlines()[-1]


def kill_when_renamed() -> None:
    act_at(checkpoint, "_set_aside", kill_self, 2, after=True)


@pytest.mark.thorough
def test_run_resumed_from_an_earlier_checkpoint_can_be_killed_and_resumed(corpus, tmp_path):
    """The run resumes from a renamed checkpoint and is killed twice while it starts, but --resume
    must still continue the run."""
    whole, out = tmp_path / "whole", tmp_path / "out"
    run(whole, corpus, **LONG | {"keep_checkpoints": 20, "epochs": 3})
    shutil.copytree(whole, out)
    (out / "checkpoint_6.pt").rename(out / "mine.pt")
    back = flags(out, "", "--resume-from", out / "mine.pt")
    for hook in ([kill_when_renamed], [kill_at, "after the logs are truncated"]):
        assert Child(back, *hook).end().code == -signal.SIGKILL
    assert (out / "checkpoint_6.pt").samefile(out / "mine.pt")
    ended = Child(flags(out, "", "--resume")).end()
    assert ended.code == 0, ended.output
    assert_same_run(out, whole)


@pytest.mark.thorough
def test_resume_reads_the_number_of_steps_in_the_checkpoint_when_the_file_name_differs(
    copied, capsys
):
    """Temporary files of a killed run are deleted from the events folder, because TensorBoard would
    read them."""
    shutil.copy(copied / "best.pt", copied / "checkpoint_999.pt")
    (copied / "logs" / ".events.out.tfevents.1.a.tacotron2.7.tmp").touch()
    (copied / "logs" / ".x.tmp").mkdir()
    train.main(flags(copied, "epochs=5", "--resume"))
    assert [path.name for path in (copied / "logs").glob(".*")] == [".x.tmp"]
    assert (
        "renamed a checkpoint that is newer than the resumed checkpoint" in capsys.readouterr().out
    )
    assert (copied / "checkpoint_999.pt.superseded").exists()
    assert load(newest(copied))["loop"]["epoch"] == 6
    for epochs, name in ((6, "best"), (7, "best.pt")):
        train.main(flags(copied, f"epochs={epochs}", "--resume-from", name))
        assert f"resuming from {copied / 'best.pt'}" in capsys.readouterr().out


def test_resume_in_a_new_folder_does_not_change_the_old_folder(whole, corpus, tmp_path):
    out, before = tmp_path / "new", snapshot(whole)
    train.main(flags(out, "epochs=5", "-c", newest(whole)))
    assert snapshot(whole) == before
    assert [record["epoch"] for record in metrics(out, "epoch")] == [5]
    other = shutil.copytree(whole, tmp_path / "other")
    train.main([*flags(other, "epochs=5"), "--resume"])
    assert_same(load(newest(out))["state_dict"], load(newest(other))["state_dict"])
    assert metrics(out, "run")[0]["started_from"] == str(newest(whole))


@pytest.mark.thorough
def test_warm_started_run_resumes_when_killed_before_the_first_optimizer_step(
    whole, corpus, tmp_path
):
    more = ["-c", newest(whole), "--warm_start"]
    hparams = corpus.hparams(**LONG, seed=5)
    train.main(flags(tmp_path / "one", hparams, *more))
    killed = Child(
        flags(tmp_path / "two", hparams, *more), kill_at, "before the first optimizer step"
    )
    assert killed.end().code == -9
    train.main(flags(tmp_path / "two", "", "--resume"))
    assert_same_run(tmp_path / "one", tmp_path / "two")


def reference_style(path: Path, corpus) -> dict:
    """Write a checkpoint like NVIDIA's recipe, without the state of the training loop or
    settings."""
    torch.manual_seed(99)
    other = Tacotron2(create_hparams(corpus.hparams()))
    optimizer = torch.optim.Adam(other.parameters())
    weights = other.state_dict()
    state = {"iteration": 1500, "state_dict": weights, "learning_rate": 1e-3}
    torch.save(state | {"optimizer": optimizer.state_dict()}, path)
    return weights


def test_warm_start_does_not_load_ignored_layers(corpus, tmp_path, capsys):
    path, out = tmp_path / "tacotron2.pt", tmp_path / "out"
    theirs = reference_style(path, corpus)
    ignored = {"ignore_layers": "[embedding.weight]"}
    arguments = flags(out, corpus.hparams(epochs=1, **ignored), "-c", path)
    assert "--warm_start" in refused(arguments, capsys)
    assert not out.exists()
    train.main([*arguments, "--warm_start"])
    # Only a new model needs many optimizer steps to learn attention.
    assert "warning: an epoch has only" not in capsys.readouterr().out
    torch.manual_seed(create_hparams(corpus.hparams()).seed)
    fresh = Tacotron2(create_hparams(corpus.hparams())).state_dict()
    begun = load(out / "checkpoint_0.pt")["state_dict"]
    for name, tensor in begun.items():
        expected = fresh if name == "embedding.weight" else theirs
        assert torch.equal(tensor, expected[name]), name


# ---------------------------------------------------------------------------- allowed changes


@pytest.mark.parametrize("change", ["seed=77", "prepare_trainset_per_epoch=False"])
def test_resume_rejects_changed_batch_settings_inside_an_epoch(change, corpus, tmp_path, capsys):
    out = stopped_inside_an_epoch(corpus, tmp_path / "out")
    before = snapshot(out)
    message = refused(flags(out, change, "--resume"), capsys)
    epoch = load(newest(out))["loop"]["epoch"]
    assert f"the run was interrupted inside epoch {epoch}" in message
    assert f"--resume --hparams epochs={epoch}" in message
    assert snapshot(out) == before


def test_resume_accepts_changed_batch_settings_between_epochs(copied, capsys):
    change = "epochs=5,batching_strategy=random,dynamic_batch_size=False,batch_size=7"
    change += ",precision=fp16"
    train.main(flags(copied, change, "--resume"))
    assert "changed since the checkpoint: batch_size = 7 (was 3)" in capsys.readouterr().out
    assert metrics(copied, "epoch")[-1]["num_batches"] == 2
    assert load(newest(copied))["scaler"]["scale"] > 1


# ---------------------------------------------------------------------------- changed clips


def change_clips(corpus, filelist: Path) -> None:
    """Change a corpus: remove a clip, change a text, change a length, and add a clip."""
    lines = corpus.train.read_text().splitlines()
    lines[3] = lines[3].replace("|", "|And ", 1)
    (path, text, _), (other, _, seconds) = (lines[i].split("|") for i in (5, 9))
    longer = filelist.with_name(Path(path).name)
    shutil.copy(other, longer)
    lines[5] = f"{longer}|{text}|{seconds}"
    added = filelist.with_name("added.wav")
    shutil.copy(path, added)
    filelist.write_text("\n".join([*lines[1:], f"{added}|Ah."]))


NEW_CLIPS = "1 added, 1 gone, 2 changed"


def test_resume_error_suggests_the_option_new_clips_when_clips_have_changed(
    copied, corpus, tmp_path, capsys
):
    filelist = tmp_path / "new.txt"
    change_clips(corpus, filelist)
    before = snapshot(copied)
    arguments = flags(copied, f"epochs=9,training_files={filelist}", "--resume")
    message = refused(arguments, capsys)
    assert NEW_CLIPS in message
    assert "--resume --new-clips" in message
    assert snapshot(copied) == before


@pytest.mark.thorough
def test_resume_keeps_weights_step_count_and_epoch_count_when_clips_have_changed(
    corpus, tmp_path, monkeypatch, capsys
):
    """The interrupted epoch starts again with a new plan."""
    filelist = tmp_path / "new.txt"
    out = stopped_inside_an_epoch(corpus, tmp_path / "out")
    change_clips(corpus, filelist)
    saved, lines = load(newest(out)), metrics(out)
    change = f"epochs=5,training_files={filelist}"
    with monkeypatch.context() as patch:
        patch.setattr(train, "train", stop_here)
        with pytest.raises(StopHere):
            train.main(flags(out, change, "--resume", "--new-clips"))
    epoch = saved["loop"]["epoch"]
    assert f"new clips: {NEW_CLIPS}; epoch {epoch} is planned again" in capsys.readouterr().out
    begun = load(newest(out))
    for part in ("iteration", "state_dict", "optimizer", "learning_rate"):
        assert_same(begun[part], saved[part], part)
    assert [begun["loop"][name] for name in ("epoch", "batches_trained", "clips")] == [epoch, 0, 0]
    assert metrics(out)[:-1] == [line for line in lines if line.get("epoch", 0) < epoch]
    assert metrics(out)[-1]["changed_clips"] == {"added": 1, "gone": 1, "changed": 2}

    killed = Child(flags(out, "epochs=5", "--resume"), kill_at, "after the second optimizer step")
    whole = shutil.copytree(out, tmp_path / "whole")
    assert killed.end().code == -signal.SIGKILL
    for folder in (out, whole):
        # If the command is repeated, --new-clips has no effect.
        train.main(flags(folder, "epochs=5", "--resume", "--new-clips"))
    assert "note: --new-clips has no effect" in capsys.readouterr().out
    assert_same_run(out, whole)
    assert [line["epoch"] for line in metrics(out, "epoch")] == [1, 2, 3, 4, 5]
    assert metrics(out, "run")[-1]["changed_clips"] is None


def test_resume_warns_when_clips_were_moved_to_the_validation_set(copied, corpus, tmp_path, capsys):
    *kept, moved = corpus.train.read_text().splitlines()
    (tmp_path / "train.txt").write_text("\n".join(kept))
    (tmp_path / "val.txt").write_text(corpus.val.read_text().rstrip() + f"\n{moved}")
    lists = f"training_files={tmp_path}/train.txt,validation_files={tmp_path}/val.txt"
    train.main(flags(copied, f"epochs=5,{lists}", "--resume", "--new-clips"))
    printed = capsys.readouterr().out
    assert "new clips: 0 added, 0 gone, 0 changed, 1 moved to validation; epoch" in printed
    assert "warning: 1 validation clips were training clips" in printed


@pytest.mark.thorough
def test_resume_error_suggests_new_clips_when_a_clip_is_missing(corpus, tmp_path, capsys):
    out, filelist = tmp_path / "out", copied_corpus(corpus, tmp_path / "clips")
    run(out, corpus, epochs=1, training_files=filelist)
    (tmp_path / "clips" / "train05.wav").unlink()
    message = refused(flags(out, "epochs=2", "--resume"), capsys)
    assert "train05.wav: no such file" in message
    assert "remove its line from the filelist and add --resume --new-clips" in message
    kept = [line for line in filelist.read_text().splitlines() if "train05" not in line]
    filelist.write_text("\n".join(kept))
    train.main(flags(out, "epochs=2", "--resume", "--new-clips"))
    assert "new clips: 0 added, 1 gone, 0 changed" in capsys.readouterr().out
    assert load(newest(out))["loop"]["epoch"] == 3
    assert len((out / "lengths.csv").read_text().splitlines()) == 14


def with_relative_paths(corpus, folder):
    """Return a copy of the corpus with relative paths in its filelists."""
    shutil.copytree(corpus.folder, folder)
    for name in ("train.txt", "val.txt"):
        lines = (folder / name).read_text().replace(f"{corpus.folder}/", "")
        (folder / name).write_text(lines)
        (folder / f"{name}.clips").unlink(missing_ok=True)
    return Corpus(folder, folder / "train.txt", folder / "val.txt")


@pytest.mark.thorough
def test_resume_accepts_new_filelists_when_the_corpus_was_moved(corpus, whole, tmp_path, capsys):
    old, out = tmp_path / "old", tmp_path / "out"
    stopped_inside_an_epoch(with_relative_paths(corpus, old), out)
    new = old.rename(tmp_path / "new")
    message = refused(flags(out, "", "--resume"), capsys)
    assert f"{old}/train.txt: no such filelist" in message
    assert "--resume --hparams @FOLDER/settings.txt" in message
    (new / "settings.txt").write_text("training_files=train.txt\nvalidation_files=val.txt\n")
    capsys.readouterr()
    train.main(flags(out, f"@{new}/settings.txt", "--resume"))
    # The caches moved with the filelists, so no clip is read.
    assert "reading" not in capsys.readouterr().out
    assert_same_run(out, whole)


@pytest.mark.thorough
def test_resume_accepts_clips_folder_when_paths_are_absolute(corpus, whole, tmp_path, capsys):
    """The resumed run keeps clips_folder, and rejects a different clip with the same name."""
    old, out = tmp_path / "old", tmp_path / "out"
    filelist = copied_corpus(corpus, old)
    moved = {"training_files": tmp_path / "train.txt"}
    shutil.copy(filelist, moved["training_files"])
    arguments = flags(out, corpus.hparams(**LONG, **moved))
    assert Child(arguments, kill_at, "in the middle of an epoch").end().code == -9
    old.rename(tmp_path / "new")
    assert "--hparams clips_folder=FOLDER" in refused(flags(out, "", "--resume"), capsys)
    clip, other = tmp_path / "new" / "train03.wav", tmp_path / "kept.wav"
    clip.rename(other)
    shutil.copy(tmp_path / "new" / "train09.wav", clip)
    there = f"clips_folder={tmp_path}/new"
    assert f"{moved['training_files']}:4: {clip}: " in refused(
        flags(out, there, "--resume"), capsys
    )
    other.rename(clip)
    train.main(flags(out, f"{there},epochs=3", "--resume"))
    train.main(flags(out, "epochs=4", "--resume"))
    assert_same_run(out, whole)


def test_resume_fails_when_the_run_is_still_training(copied, monkeypatch, capsys):
    """The checkpoint is not read, because the running process may be writing a newer checkpoint."""
    monkeypatch.setattr(train, "find_start", None)
    before = snapshot(copied)
    other = RunFolder(copied)
    message = refused(flags(copied, "epochs=9", "--resume"), capsys)
    other.close()
    assert f"{copied}: another process is training in this folder" in message
    assert snapshot(copied) == before


@pytest.mark.thorough
def test_run_fails_when_a_second_run_starts_in_its_folder_during_set_up(
    corpus, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    arguments = flags(out, corpus.hparams(**LONG))
    act_at_patched(monkeypatch, train, "resolve_clips", lambda: Child(arguments).end(), 1)
    assert f"{out}: another process has just started a run" in refused(
        [*arguments, "--resume"], capsys
    )
    assert_same_run(out, whole)


# ---------------------------------------------------------------------------- version 0.4.0

OLD_RUN = DATA / "run_0.4.0"


@pytest.fixture
def old_run(tmp_path, monkeypatch) -> Path:
    """Copy a run of version 0.4.0 that was stopped during its second epoch."""
    monkeypatch.chdir(ROOT)  # the filelists of the old run contain relative paths
    folder = shutil.copytree(OLD_RUN, tmp_path / "old")
    lists = ",".join(f"{x}_files={folder}/{y}.txt" for x, y in LISTS.items())
    train.main(flags(folder / "run", f"{lists},epochs=3", "--resume"))
    return folder / "run"


LISTS = {"training": "train", "validation": "val"}


def test_run_of_version_0_4_0_resumes_with_the_same_losses(old_run):
    """The expected values come from version 0.4.0."""
    found = [record for record in metrics(old_run) if record["kind"] != "run"]
    expected = json_lines(OLD_RUN / "expected.jsonl")
    for record, wanted in zip(found[-len(expected) :], expected, strict=True):
        for name, value in wanted.items():
            # Losses differ slightly, because rounding depends on the processor.
            assert record[name] == (
                pytest.approx(value, rel=1e-4) if value != str(value) else value
            )


def test_synthesizer_loads_a_checkpoint_of_version_0_4_0():
    speaker = load_checkpoint_synthesizer(OLD_RUN / "run" / "checkpoint_3.pt")
    assert speaker.settings.n_frames_per_step == 4


# ---------------------------------------------------------------------------- text rules


@pytest.mark.parametrize("cleaners", ["english_cleaners", "basic_cleaners"])
def test_resume_rejects_changed_text_normalization_rules_when_texts_are_english(
    cleaners, corpus, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    run(out, corpus, epochs=1, text_cleaners=f"[{cleaners}]")
    assert load(newest(out))["text_rules"] == rules_version()
    assert load(newest(out))["trained_phones"] == []
    before = snapshot(out)
    monkeypatch.setattr(start, "rules_version", lambda pronunciations: "another")
    arguments = flags(out, "epochs=2", "--resume")
    if cleaners == "basic_cleaners":
        train.main(arguments)
        return
    message = refused(arguments, capsys)
    for value in (str(newest(out)), rules_version(), "another", "--warm_start"):
        assert value in message
    assert snapshot(out) == before


# ---------------------------------------------------------------------------- planned batches


def test_run_stops_when_a_batch_differs_from_the_plan(corpus, tmp_path, monkeypatch, capsys):
    """The loader returns two clips in the wrong order."""
    out = tmp_path / "out"
    next_batches = train.next_batches

    def swapped(loader):
        for number, batch in enumerate(next_batches(loader)):
            yield replace(batch, clip_indices=batch.clip_indices.flip(0)) if number == 2 else batch

    monkeypatch.setattr(train, "next_batches", swapped)
    message = refused(flags(out, corpus.hparams(**LONG)), capsys)
    assert "epoch 1, batch 2: the loader returned clips [" in message
    assert load(newest(out))["iteration"] == 2


# ---------------------------------------------------------------------------- custom optimizers


@pytest.mark.thorough
def test_run_with_a_custom_optimizer_resumes_with_bitwise_equal_results(
    corpus, tmp_path, monkeypatch
):
    make = functools.partial(torch.optim.SGD, momentum=1)
    monkeypatch.setattr(
        optimizer,
        "make_optimizer",
        lambda parameters, hparams: make(parameters, lr=hparams.learning_rate),
    )
    settings = {"epochs": 2, "epochs_per_validation": 2, "learning_rate": 1e-6}
    run(tmp_path / "whole", corpus, **settings)
    run(tmp_path / "out", corpus, **settings | {"epochs": 1})
    run(tmp_path / "out", corpus, "--resume", **settings)
    assert compare_runs(tmp_path / "out", tmp_path / "whole") == []


def test_resume_rejects_the_state_of_a_different_optimizer(copied, monkeypatch, capsys):
    make = functools.partial(torch.optim.SGD, momentum=0.9)
    monkeypatch.setattr(
        optimizer, "make_optimizer", lambda parameters, hparams: make(parameters, lr=1e-3)
    )
    message = refused(flags(copied, "epochs=9", "--resume"), capsys)
    assert "optimizer: Adam, expected SGD" in message
