"""scripts/time_epochs.py: epochs timed in turns, and what the report makes of them."""

import json

import numpy as np
import pytest
from helpers import TINY
from records import MACHINE, write_run

from analysis.epoch_times import EPOCH_MINUTES_FILE, read_epoch_minutes
from analysis.report_figures import hours_spent
from analysis.report_measures import error_of_timing, minutes_of_epoch
from analysis.report_runs import collect_rows
from data_utils import split_filelist_line
from errors import UserError
from hparams import create_hparams
from scripts import time_epochs

FRAMES = np.arange(9, 37)


@pytest.fixture
def runs(tmp_path):
    """Runs under three batchings, one of them with random batches in its first epochs."""
    model = ",".join(f"{name}={value}" for name, value in TINY.items() if "epochs" not in name)
    hparams = create_hparams(model)
    filelist = tmp_path / "train.txt"
    lines = [
        f"{i}.wav|Some text.|{((n - 1) * hparams.hop_length + 9) / hparams.sampling_rate:.6f}\n"
        for i, n in enumerate(FRAMES)
    ]
    assert split_filelist_line(lines[0])[1] == "Some text."
    filelist.write_text("".join(lines))
    settings = f"training_files={filelist},{model}"
    for name, extra in (
        ("RAND", ""),
        ("SSB-DBS-BR", ""),
        ("SSB-BR", ",random_epochs=2,local_randomization_factor=0"),
    ):
        for seed in (1, 2):
            write_run(
                *(tmp_path / "runs" / name / str(seed), name),
                **{"epochs": 4, "seed": seed, "lengths": FRAMES, "overrides": settings + extra},
            )
    return tmp_path / "runs"


def test_every_runs_folder_gets_the_minutes_of_its_epochs(runs, capsys, monkeypatch):
    threads = []  # as many as the runs had
    monkeypatch.setattr(time_epochs.torch, "set_num_threads", threads.append)
    time_epochs.main([str(runs), "--batches", "4", "--repeats", "1"])
    assert "wrote epoch_minutes.json to the folders of 6 runs" in capsys.readouterr().out
    assert threads == [MACHINE["threads"]]
    for name in ("RAND", "SSB-DBS-BR", "SSB-BR"):
        first, second = (
            read_epoch_minutes(runs / name / seed / EPOCH_MINUTES_FILE) for seed in "12"
        )
        assert first == second
        assert len(first.minutes) == 4
        assert min(first.minutes) > 0
        assert 0 <= first.relative_error < 10
        begins_otherwise = first.minutes[0] == first.minutes[1] != first.minutes[2]
        assert begins_otherwise == (name == "SSB-BR")


def test_the_report_counts_time_as_it_was_measured_in_turns(runs):
    run = runs / "RAND" / "1"
    found = {"minutes": [2.0, 2.0, 1.0, 1.0], "relative_error": 0.125}
    (run / EPOCH_MINUTES_FILE).write_text(json.dumps(found))
    [row], left_out = collect_rows([run])
    assert left_out == []
    assert hours_spent(row.runs[0]).tolist() == pytest.approx([2 / 60, 4 / 60, 5 / 60, 6 / 60])
    assert minutes_of_epoch(row.runs[0]) == 1.5
    assert error_of_timing(row) == 0.125


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"minutes": [1.0], "relative_error": 0.1}, "of 1 epochs, and the run has 4; time them"),
        ({"minutes": [1.0] * 4}, "relative_error is missing"),
    ],
)
def test_minutes_of_other_epochs_leave_the_run_out(runs, content, message):
    run = runs / "RAND" / "1"
    (run / EPOCH_MINUTES_FILE).write_text(json.dumps(content))
    rows, [problem] = collect_rows([run])
    assert rows == []
    assert message in problem


def test_runs_that_cannot_be_timed_together_are_refused(runs, tmp_path):
    with pytest.raises(SystemExit, match="no finished run"):
        time_epochs.main([str(tmp_path / "none")])
    other = write_run(tmp_path / "other", lengths=FRAMES, overrides="prenet_dim=7")
    rows, _ = collect_rows([runs, other])
    with pytest.raises(UserError, match=r"differ in .*prenet_dim.*: time them apart"):
        time_epochs.clips_of(rows)
    (tmp_path / "train.txt").write_text("a.wav|Another text.|1.0\n")
    rows, _ = collect_rows([runs])
    with pytest.raises(UserError, match="not the clips that"):
        time_epochs.clips_of(rows)
