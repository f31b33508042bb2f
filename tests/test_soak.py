"""scripts/soak.py sees what was lost; the soak itself takes too long for the suite."""

import json
import shutil
import signal

import pytest
import torch
from helpers import Child, make_corpus, metrics

from data_utils import TextMelDataset, read_filelist
from hparams import create_hparams
from scripts import soak


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, and the same with another number of workers."""
    folder = tmp_path_factory.mktemp("soak")
    corpus = make_corpus(folder)
    for name, workers in (("a", 0), ("b", 1)):
        settings = corpus.hparams(epochs=1, epochs_per_validation=1, num_workers=workers)
        assert Child(["-o", folder / name, "--hparams", settings]).end().code == 0
    return folder / "a", folder / "b"


def test_equal_runs_are_equal(trained):
    assert soak.compare(*trained) == []


def test_a_changed_bit_a_lost_line_and_a_lost_file_are_seen(trained, tmp_path):
    first, other = trained
    copy = shutil.copytree(other, tmp_path / "copy")
    checkpoint = soak.list_checkpoints(copy)[-1][1]
    saved = torch.load(checkpoint, weights_only=True)
    name, weights = next(iter(saved["state_dict"].items()))
    weights.view(-1)[0] = torch.nextafter(weights.view(-1)[0], torch.tensor(9.0))
    torch.save(saved, checkpoint)
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] != "validation"]
    (copy / "metrics.jsonl").write_text("\n".join(kept) + "\n")
    (copy / "best.pt").unlink()
    assert soak.compare(copy, first) == [
        f"metrics.jsonl: {len(metrics(copy)) - 1} entries, {len(metrics(first)) - 1}",
        f"{checkpoint.name}/state_dict/{name}",
        "best.pt: missing",
    ]


@pytest.mark.parametrize(
    ("kind", "by_itself", "code", "printed", "fault"),
    [
        ("SIGTERM", False, 143, "stopped and saved", None),
        ("SIGTERM", False, 1, "Traceback (most recent call last):\n  ...", "a traceback"),
        ("SIGINT", True, 1, "train.py: no such file", "it ended by itself (exit code 1)"),
        (soak.UNREADABLE, True, 1, "train.py: x: no file, expected a checkpoint", None),
        (soak.UNREADABLE, False, 143, "epoch 1", "an unreadable checkpoint did not stop it"),
        (soak.FULL_DISK, True, 1, "could not be written: make room", None),
        (soak.FULL_DISK, False, 143, "stopped and saved", None),
        (soak.FULL_DISK, True, 120, "", "a full disk ended it with exit code 120"),
    ],
)
def test_how_a_start_may_end(kind, by_itself, code, printed, fault):
    found = soak.fault_of(kind, by_itself, code, printed)
    assert found is None if fault is None else found.startswith(fault)


def test_the_summary_counts_every_stop_and_names_what_was_lost():
    stops = [
        soak.Stop("SIGKILL", 2, True, -signal.SIGKILL, 7, None),
        soak.Stop("SIGKILL", 0, False, -signal.SIGKILL, 7, "a traceback"),
    ]
    page = soak.summary(stops, ["best.pt: missing"], 9, 3, 61.0)
    assert "one run stopped 2 times" in page
    assert "**NOT equal**. 1 faults." in page
    assert [cell.strip() for cell in page.splitlines()[6].split("|")[1:-1]] == [
        "SIGKILL", "2", "1", "1", "2 x -9", "1",
    ]  # fmt: skip
    assert "- best.pt: missing" in page
    assert "- stop 2, SIGKILL: a traceback" in page


@pytest.mark.parametrize("cached_mels", [False, True])
def test_either_corpus_is_read_as_the_settings_that_come_with_it_say(cached_mels, tmp_path):
    overrides = soak.make_corpus(tmp_path, 0, soak.SETTINGS, cached_mels, clips=10)
    hparams = create_hparams(overrides)
    assert hparams.load_mel_from_disk == cached_mels
    clips = read_filelist(hparams.training_files, hparams)
    assert len(clips) == 8
    assert len(read_filelist(hparams.validation_files, hparams)) == 2
    text, mel, _ = TextMelDataset(clips, hparams)[0]
    assert (len(text) > 4, mel.shape) == (True, (10, int(clips.num_frames[0])))
    loudness = mel[:, 1:-1].mean(dim=1).sort().values
    assert loudness[-1] > loudness[0] + 2
