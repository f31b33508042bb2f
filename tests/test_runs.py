"""Test how the report of Table 2 reads, rejects, skips and groups run folders."""

import json

import numpy as np
import pytest
from helpers import metrics
from records import (
    CORPUS,
    LENGTHS,
    MACHINE,
    VERSIONS,
    epoch_line,
    run_line,
    validation_line,
    write_lines,
    write_run,
)

from scripts.table2 import published
from scripts.table2.runs import comparison_warnings, deviations, read_runs
from tacotron2_voice.utils.errors import UserError

CORPUS_OF_ONE = CORPUS | {"training_clips": 1, "training_frames": 100}
RUN = run_line("epochs=1", corpus=CORPUS_OF_ONE)
EPOCH = epoch_line(1)
VALIDATION = validation_line(1)


# ---------------------------------------------------------------------------- one run


def test_epoch_table_contains_losses_hours_and_optimizer_steps(tmp_path):
    """Unknown entries and empty lines in metrics.jsonl are ignored. If the file contains the
    settings twice, the second record is used."""
    folder = write_run(tmp_path / "a", minutes=lambda epoch: 30.0 * epoch, step=2, epochs=4)
    lines = metrics(folder)
    again = lines[0] | {"epoch": 3, "hparams": lines[0]["hparams"] | {"learning_rate": 0.5}}
    write_lines(folder, [*lines[:4], "", again, *(line | {"new": [1]} for line in lines[4:])])
    runs = read_runs([folder])
    [run] = runs.by_folder.values()
    assert run.hparams.learning_rate == 0.5
    np.testing.assert_array_equal(run.lengths, LENGTHS)
    assert runs.epochs["hours"].tolist() == [0.5, 1.5, 3.0, 5.0]
    assert runs.epochs["updates"].tolist() == [12, 24, 36, 48]
    assert runs.epochs["validation_loss"].isna().tolist() == [True, False, True, False]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([RUN, '{"kind": "epo', EPOCH], ":2: not JSON: "),
        ([RUN, {"epoch": 1}], "KeyError('kind')"),
        ([RUN, EPOCH | {"minutes": float("nan")}], "minutes"),
        ([RUN, {"kind": "epoch", "epoch": 1}], "finite"),
        ([RUN | {"hparams": {"batch_size": 0}}, EPOCH], "batch_size"),
        ([EPOCH], "the line with the settings"),
        ([RUN, EPOCH, EPOCH], "epochs are missing, repeated or in the wrong order"),
        ([RUN, EPOCH, VALIDATION, VALIDATION], "an epoch has several validations"),
    ],
)
def test_run_is_rejected_when_a_line_of_its_metrics_is_invalid(tmp_path, lines, message):
    (tmp_path / "lengths.csv").write_text("id,frames\na,100\n")
    with pytest.raises(UserError) as caught:
        read_runs([write_lines(tmp_path, lines)])
    reason = str(caught.value).partition(f"{tmp_path}: ")[2]
    assert message in reason


def test_last_line_of_the_metrics_is_ignored_when_it_is_incomplete(tmp_path):
    folder = write_run(tmp_path / "a")
    write_lines(folder, [*metrics(folder), '{"kind": "r'], end="")
    assert len(read_runs([tmp_path]).by_folder) == 1


# ---------------------------------------------------------------------------- skipped runs


def in_metrics(change):
    return lambda folder: write_lines(folder, change(metrics(folder)))


def in_file(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (in_metrics(lambda lines: lines[:-3]), "10 of 12"),
        (in_metrics(lambda lines: [*lines, lines[-1]]), "epoch"),
        (lambda folder: (folder / "lengths.csv").unlink(), "lengths.csv: "),
        (in_file("lengths.csv", "id,frames\nb,x\n"), "lengths.csv: "),
        (in_file("lengths.csv", "id,frames\na,100\n"), "1 clips with 100 frames"),
    ],
)
def test_invalid_run_is_skipped_and_reported(tmp_path, spoil, message):
    write_run(tmp_path / "good")
    spoil(write_run(tmp_path / "bad", "SSB-BR"))
    runs = read_runs([tmp_path])
    assert list(runs.rows.index) == ["RAND"]
    [problem] = runs.left_out
    assert problem.startswith(str(tmp_path / "bad"))
    assert message in problem


def test_report_finds_every_run_folder_once_at_any_depth(tmp_path):
    write_run(tmp_path / "out" / "rand" / "seed_0")
    write_run(tmp_path / "out" / "rand" / "seed_1", seed=1)
    runs = read_runs([tmp_path / folder for folder in ("out", "out/rand/seed_1", "empty")])
    assert runs.table["seed"].tolist() == [0, 1]
    assert runs.left_out[0].startswith(f"{tmp_path / 'empty'}: ")
    with pytest.raises(UserError, match=f"{tmp_path / 'empty'}: "):
        read_runs([tmp_path / "empty"])


def test_only_the_newest_run_is_reported_when_two_runs_have_the_same_seed(tmp_path):
    write_run(tmp_path / "a", time="2026-11-20T12:00:00+0000")
    write_run(tmp_path / "b", time="2026-11-20T13:30:00+0200")  # 11:30 UTC
    write_run(tmp_path / "warm", started_from="other.pt")  # a different experiment
    runs = read_runs([tmp_path])
    assert set(runs.by_folder) == {str(tmp_path / "a"), str(tmp_path / "warm")}
    assert runs.left_out[0].startswith(f"{tmp_path / 'b'}: ")


# ---------------------------------------------------------------------------- rows of the table


def labels(folder):
    return list(read_runs([folder]).rows.index)


def test_rows_of_the_paper_come_first_and_in_the_order_of_the_paper(tmp_path):
    for name in ["BKT-width", "RAND-DBS", *reversed(published.TABLE_2)]:
        write_run(tmp_path / name, name)
    assert labels(tmp_path) == [*published.TABLE_2, "BKT-width", "RAND-DBS"]


def test_row_name_omits_settings_when_most_rows_have_them(tmp_path):
    for name in ("SB", "SSB"):
        write_run(tmp_path / name, name, overrides="batch_size=8")
    for size in (4, 8, 16):
        write_run(tmp_path / str(size), "RAND", overrides=f"batch_size={size}")
    assert labels(tmp_path) == ["RAND", "RAND (batch_size 4)", "RAND (batch_size 16)", "SB", "SSB"]
    [warning] = [w for w in comparison_warnings(read_runs([tmp_path])) if "RAND" in w]
    assert "3" in warning


def test_row_name_omits_settings_when_they_equal_the_settings_of_the_paper(tmp_path):
    write_run(tmp_path / "a", "SSB", overrides="local_randomization_factor=0.3")
    write_run(tmp_path / "b", "SSB", seed=1)
    assert labels(tmp_path) == ["SSB", "SSB (LRF 0.3)"]


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"lengths": LENGTHS, "corpus": CORPUS | {"fingerprint": "d0d0"}}, "corpus"),
        ({"machine": MACHINE | {"device": "B GPU"}}, "machine's device"),
        ({"versions": VERSIONS | {"torch": "9"}}, "version of torch"),
        ({"overrides": "prenet_dim=64"}, "prenet_dim"),
    ],
)
def test_warning_lists_the_runs_whose_settings_differ_from_each_other(tmp_path, change, what):
    """Runs that differ only in software versions are still compared."""
    write_run(tmp_path / "a", "RAND")
    write_run(tmp_path / "c", "SSB-DBS-BR", seed=1)
    assert comparison_warnings(read_runs([tmp_path])) == []
    write_run(tmp_path / "b", "SB", **change)
    runs = read_runs([tmp_path])
    warning = comparison_warnings(runs)[0]
    assert warning.startswith(f"{what}: ")
    assert str(tmp_path / "a") in warning
    assert str(tmp_path / "b") in warning
    is_software = what in ("commit", "version of torch")
    assert runs.differing("RAND", "SB") == ([] if is_software else [what])


def test_warning_lists_the_settings_that_changed_when_a_run_was_resumed(tmp_path):
    folder = write_run(tmp_path / "a", epochs=12)
    lines = metrics(folder)
    again = json.loads(json.dumps(lines[0])) | {"iteration": 6, "epoch": 7, "commit": "b" * 40}
    again["hparams"] |= {"learning_rate": 0.5, "num_workers": 9}
    seventh = next(i for i, line in enumerate(lines) if line["epoch"] == 7)
    write_lines(folder, [*lines[:seventh], again, *lines[seventh:]])
    warnings = comparison_warnings(read_runs([folder]))
    for values in (("learning_rate", "0.001", "0.5"), ("commit", "a" * 40, "b" * 40)):
        [warning] = [warning for warning in warnings if values[0] in warning]
        assert all(value in warning for value in (str(folder), "epoch 7", *values))
    assert len(warnings) == 2  # num_workers does not change the results


AS_PAPER = "batch_size=16,win_time=50,hop_time=12.5,guided_attention_weight=0,random_epochs=0"
AS_PAPER += (
    ",gate_positive_weight=1,load_mel_from_disk=True,num_workers=7,text_cleaners=[english_cleaners]"
)


def test_list_of_deviations_contains_every_setting_that_differs_from_the_paper(tmp_path):
    """The parameter of SSB-rank is not listed, because this strategy is not in the paper."""
    lengths = np.tile(LENGTHS, 219)[: published.TRAINING_CLIPS]
    same = {"overrides": AS_PAPER, "lengths": lengths, "clips": (10_480, 2_620)}
    write_run(tmp_path / "same", "SSB-BR", epochs=222, **same)
    assert deviations(read_runs([tmp_path / "same"])) == []
    tmp_path /= "others"
    options = f"{AS_PAPER},prenet_dim=64"
    write_run(tmp_path / "a", "SSB", overrides=f"{options},precision=bf16")
    write_run(tmp_path / "b", "BKT", overrides=f"{options},bucket_size=96")
    write_run(tmp_path / "c", "SSB-rank", overrides=f"{options},local_randomization_factor=0.3")
    write_run(tmp_path / "d", "SB", overrides=options, started_from="other.pt")
    assert set(deviations(read_runs([tmp_path]))) == {
        "training clips 48 instead of 10480",
        "validation clips 10 instead of 2620",
        "epochs 12 instead of 222",
        "prenet_dim 64 instead of 256",
        f"precision bf16 instead of fp32 ({tmp_path / 'a'})",
        f"bucket_size 96 instead of 1024 ({tmp_path / 'b'})",
        f"started_from other.pt instead of None ({tmp_path / 'd'})",
    }
