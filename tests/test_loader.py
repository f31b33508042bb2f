"""benchmarks/loader.py: what it times and reports, on a tiny corpus."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import SECONDS

from batching import plan_epoch
from benchmarks import loader
from data_utils import TextMelDataset
from hparams import batching_options, create_hparams

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "benchmarks" / "loader.py"


def measured(tmp_path, *arguments) -> dict:
    output = tmp_path / "loader.json"
    loader.main([str(argument) for argument in (*arguments, "--json", output)])
    return json.loads(output.read_text())


def padded_frames(lengths: list[int], hparams, epoch: int) -> int:
    plan = plan_epoch(lengths, epoch=epoch, **batching_options(hparams))
    return sum(len(batch) * max(lengths[i] for i in batch) for batch in plan)


def test_without_a_filelist_cached_mels_are_made_up_and_no_package_for_sound_is_needed(tmp_path):
    script = (
        "import sys, runpy\n"
        "for name in ('librosa', 'soundfile', 'unidecode', 'inflect'): sys.modules[name] = None\n"
        f"sys.argv = [{str(PROGRAM)!r}, '--clips', '10', '--num-workers', '0,1', '--repeats', '1',"
        " '--rate', '1e7', '--hparams', 'batch_size=2', '--json', 'out.json']\n"
        f"sys.path.insert(0, {str(PROGRAM.parent)!r})\n"
        f"runpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n"
    )
    command = [sys.executable, "-c", script]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    result = json.loads((tmp_path / "out.json").read_text())
    (corpus,) = result["corpora"]
    assert (corpus["kind"], corpus["clips"]) == ("cached mels", 10)
    assert [workers["num_workers"] for workers in corpus["workers"]] == [0, 1]
    for workers in corpus["workers"]:
        (free,) = workers["free"]
        assert workers["clips_per_second"] == pytest.approx(10 / free["seconds"])
        assert 0 < workers["frames_per_second"] <= workers["padded_frames_per_second"]
        for name in ("first", "later"):
            (times,) = workers[name]
            assert 0 < times["waited_seconds"] < times["seconds"]
    assert "| 1 |" in " ".join(run.stdout.split())
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]  # the made-up clips are gone


def test_waiting_is_the_time_of_reading_and_training_that_of_the_rate(
    corpus, tmp_path, monkeypatch
):
    """A clock that only moves where it is told to: 0.01 s a clip read, and what is slept."""
    now, read = 0.0, TextMelDataset.__getitem__

    def sleep(seconds):
        nonlocal now
        now += seconds

    def slow(self, index):
        sleep(0.01)
        return read(self, index)

    monkeypatch.setattr(loader.time, "perf_counter", lambda: now)
    monkeypatch.setattr(loader.time, "sleep", sleep)
    monkeypatch.setattr(TextMelDataset, "__getitem__", slow)
    overrides = "batch_size=3,hop_length=800"
    options = ["--num-workers", "0", "--repeats", "2", "--rate", "500", "--hparams", overrides]
    result = measured(tmp_path, corpus.train, *options)
    (found,) = result["corpora"]
    assert (found["kind"], found["clips"]) == ("sound", 14)
    (workers,) = found["workers"]
    lengths = [1 + round(s * 22050) // 800 for s in SECONDS["train"]]
    frames = [padded_frames(lengths, create_hparams(overrides), epoch) for epoch in range(3)]
    for epoch, name in enumerate(("first", "later")):
        for times in workers[name]:
            assert times["waited_seconds"] == pytest.approx(0.14)
            assert times["seconds"] == pytest.approx(0.14 + frames[epoch] / 500)
        share = 0.14 / (0.14 + frames[epoch] / 500)
        assert workers[f"{name}_epoch_waited_share"] == pytest.approx(share)
    assert workers["padded_frames_per_second"] == pytest.approx(frames[2] / 0.14)
    assert workers["frames_per_second"] == pytest.approx(sum(lengths) / 0.14)
    assert workers["milliseconds_per_batch"] == pytest.approx(140 / found["batches"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["no/such/list.txt"], "no/such/list.txt: no such filelist"),
        (["--hparams", "batch_sise=3"], "did you mean"),
        (["--num-workers", "two"], "'two': expected a whole number from 0"),
        (["--rate", "0"], "'0': expected a number above 0"),
        (["--clips", "0"], "--clips: '0': expected a whole number from 1"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_sentence(arguments, words, capsys):
    with pytest.raises(SystemExit) as stop:
        loader.main(arguments)
    assert words in f"{stop.value.code} {capsys.readouterr().err}"
