"""The reader of run folders: what is read, refused, left out and put into one row."""

import json
import re

import numpy as np
import pytest
from helpers import metrics
from hypothesis import given, settings
from hypothesis import strategies as st
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
EPOCH, VALIDATION = epoch_line(1), validation_line(1)


# ---------------------------------------------------------------------------- one run


def test_epochs_have_validations_hours_and_updates(tmp_path):
    """Unknown entries and blank lines are accepted, and the last settings count."""
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
        ([RUN, EPOCH | {"minutes": float("nan")}], "['minutes']: expected a number up to"),
        ([RUN, EPOCH | {"minutes": 1e308}], "['minutes']: expected a number up to"),
        ([RUN, {"kind": "epoch", "epoch": 1}], "expected a number up to 1e+15"),
        ([RUN | {"time": "then"}, EPOCH], "then"),
        ([RUN | {"hparams": {"batch_size": 0}}, EPOCH], "hyper-parameters refused"),
        ([EPOCH], "expected the settings, then every epoch once and in order"),
        ([RUN, epoch_line(3)], "every epoch once"),
        ([RUN, EPOCH, VALIDATION, VALIDATION], "every epoch once"),
    ],
)
def test_a_bad_line_is_refused(tmp_path, lines, message):
    (tmp_path / "lengths.csv").write_text("id,frames\na,100\n")
    with pytest.raises(UserError, match=re.escape(message)) as caught:
        read_runs([write_lines(tmp_path, lines)])
    assert str(caught.value).startswith(f"no finished run:\n{tmp_path}: ")


def test_an_incomplete_last_line_is_ignored(tmp_path):
    folder = write_run(tmp_path / "a")
    write_lines(folder, [*metrics(folder), '{"kind": "r'], end="")
    assert len(read_runs([tmp_path]).by_folder) == 1


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=15, derandomize=True)
@given(data=st.data())
def test_any_line_is_read_or_refused(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("run")
    (folder / "lengths.csv").write_text("id,frames\na,100\n")
    valid = [RUN, EPOCH, VALIDATION]
    place = data.draw(st.sampled_from([0, 1, 2]))
    name = data.draw(st.sampled_from(sorted(valid[place])))
    line = json.dumps(valid[place] | {name: data.draw(JSON)})
    line = data.draw(st.sampled_from([line, line[:40], "[" * 5000, "7" * 5000, "\0", "{}"]))
    message = "metrics.jsonl"
    try:
        assert read_runs(
            [write_lines(folder, [*valid[:place], line, *valid[place + 1 :]])]
        ).by_folder
    except UserError as refusal:
        message = str(refusal)
    assert str(folder) in message or message == "metrics.jsonl"


# ---------------------------------------------------------------------------- left out


def in_metrics(change):
    return lambda folder: write_lines(folder, change(metrics(folder)))


def in_file(name, text):
    return lambda folder: (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (in_metrics(lambda lines: lines[:-3]), "unfinished, 10 of 12 epochs"),
        (in_metrics(lambda lines: [*lines, lines[-1]]), "every epoch once and in order"),
        (lambda folder: (folder / "lengths.csv").unlink(), "lengths.csv: no such file"),
        (in_file("lengths.csv", "id,frames\nb,x\n"), "lengths.csv: 1 of 1 lines"),
        (in_file("lengths.csv", "id,frames\na,100\n"), "1 clips with 100 frames"),
    ],
)
def test_a_broken_run_is_named_and_left_out(tmp_path, spoil, message):
    write_run(tmp_path / "good")
    spoil(write_run(tmp_path / "bad", "SSB-BR"))
    runs = read_runs([tmp_path])
    assert list(runs.rows.index) == ["RAND"]
    [problem] = runs.left_out
    assert problem.startswith(str(tmp_path / "bad"))
    assert message in problem


def test_runs_are_found_at_any_depth_once(tmp_path):
    write_run(tmp_path / "out" / "rand" / "seed_0")
    write_run(tmp_path / "out" / "rand" / "seed_1", seed=1)
    runs = read_runs([tmp_path / place for place in ("out", "out/rand/seed_1", "empty")])
    assert runs.table["seed"].tolist() == [0, 1]
    assert runs.left_out[0].startswith(f"{tmp_path / 'empty'}: no metrics.jsonl")
    with pytest.raises(UserError, match="no finished run"):
        read_runs([tmp_path / "empty"])


def test_of_a_seed_twice_the_later_run_stays(tmp_path):
    write_run(tmp_path / "a", time="2026-11-20T12:00:00+0000")
    write_run(tmp_path / "b", time="2026-11-20T13:30:00+0200")  # 11:30 UTC
    write_run(tmp_path / "warm", started_from="other.pt")  # no run of the same
    runs = read_runs([tmp_path])
    assert set(runs.by_folder) == {str(tmp_path / "a"), str(tmp_path / "warm")}
    assert runs.left_out[0].startswith(f"{tmp_path / 'b'}: ")


# ---------------------------------------------------------------------------- rows


def labels(folder):
    return list(read_runs([folder]).rows.index)


def test_the_papers_rows_come_first_in_its_order(tmp_path):
    for name in ["BKT-width", "RAND-DBS", *reversed(published.TABLE_2)]:
        write_run(tmp_path / name, name)
    assert labels(tmp_path) == [*published.TABLE_2, "BKT-width", "RAND-DBS"]


def test_bare_name_compares_with_most_others(tmp_path):
    for name in ("SB", "SSB"):
        write_run(tmp_path / name, name, overrides="batch_size=8")
    for size in (4, 8, 16):
        write_run(tmp_path / str(size), "RAND", overrides=f"batch_size={size}")
    assert labels(tmp_path) == ["RAND", "RAND (batch_size 4)", "RAND (batch_size 16)", "SB", "SSB"]
    assert "RAND has 3 rows" in "\n".join(comparison_warnings(read_runs([tmp_path])))


def test_papers_setting_has_the_bare_name(tmp_path):
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
def test_runs_that_are_not_alike_are_warned_of(tmp_path, change, what):
    """Those that differ in software alone are compared all the same."""
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


def test_what_changed_when_resumed_is_named(tmp_path):
    folder = write_run(tmp_path / "a", epochs=12)
    lines = metrics(folder)
    again = json.loads(json.dumps(lines[0])) | {"iteration": 6, "epoch": 7, "commit": "b" * 40}
    again["hparams"] |= {"learning_rate": 0.5, "num_workers": 9}
    seventh = next(i for i, line in enumerate(lines) if line["epoch"] == 7)
    write_lines(folder, [*lines[:seventh], again, *lines[seventh:]])
    resumed = f"{folder} was resumed at epoch 7 with"
    assert set(comparison_warnings(read_runs([folder]))) == {
        f"{resumed} learning_rate: 0.001, then 0.5",
        f"{resumed} commit: {'a' * 40}, then {'b' * 40}",
    }


AS_PAPER = "batch_size=16,win_time=50,hop_time=12.5,guided_attention_weight=0,random_epochs=0"
AS_PAPER += (
    ",gate_positive_weight=1,load_mel_from_disk=True,num_workers=7,text_cleaners=[english_cleaners]"
)


def test_whatever_is_not_the_papers_is_a_deviation(tmp_path):
    """A strategy that the paper does not have may have any parameter."""
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
