"""The reader of metrics.jsonl."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import epoch_line, run_line, validation_line, write_lines

from analysis.metrics import read_metrics
from errors import UserError

RUN = run_line("batching_strategy=semi_sorted")
LINES = [RUN, epoch_line(1), epoch_line(2), validation_line(2), RUN | {"epoch": 3}, epoch_line(3)]


def test_records_come_in_their_order_and_by_kind(tmp_path):
    metrics = read_metrics(write_lines(tmp_path, LINES))
    assert [record.kind for record in metrics.records] == [line["kind"] for line in LINES]
    assert [record.epoch for record in metrics.epochs] == [1, 2, 3]
    assert [record.validation_loss_unpadded for record in metrics.validations] == [2.0]
    assert [record.epoch for record in metrics.runs] == [1, 3]
    assert metrics.runs[0].corpus.training_clips == 48
    assert metrics.runs[0].time.isoformat() == "2026-11-20T10:00:00+00:00"
    assert metrics.epochs[0].minutes == 3.0
    assert metrics.cut_off == ""


def test_unknown_entries_blank_lines_and_runs_that_begin_later_are_accepted(tmp_path):
    later = RUN | {"epoch": 7, "world_size": 4}  # went on from a checkpoint of another folder
    lines = [later, "", epoch_line(7) | {"new": [1]}, validation_line(7) | {"sharp": "very"}]
    assert len(read_metrics(write_lines(tmp_path, lines)).records) == 3


def test_half_a_last_line_is_left_out_and_mentioned(tmp_path):
    metrics = read_metrics(write_lines(tmp_path, [*LINES, '{"kind": "ep'], end=""))
    assert len(metrics.records) == len(LINES)
    assert metrics.cut_off.startswith(f"{tmp_path / 'metrics.jsonl'}:7: only half a line")
    assert len(read_metrics(write_lines(tmp_path, LINES, end="")).records) == len(LINES)


def without(line, name):
    return {key: value for key, value in line.items() if key != name}


EPOCH, VALIDATION = epoch_line(1), validation_line(1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([RUN, '{"kind": "epo', EPOCH], "metrics.jsonl:2: not JSON"),
        ([RUN, "[1]"], "metrics.jsonl:2: [1]: expected an object"),
        ([RUN, {"epoch": 1}], "metrics.jsonl:2: kind=None, expected one of run, epoch, validation"),
        ([RUN, EPOCH | {"minutes": float("nan")}], ":2: minutes=nan, expected a finite number"),
        ([RUN, EPOCH | {"minutes": "3"}], ":2: minutes='3', expected a valid number"),
        ([RUN, EPOCH | {"minutes": True}], ":2: minutes=True, expected a valid number"),
        ([RUN, without(EPOCH, "minutes")], ":2: minutes is missing"),
        ([RUN, EPOCH, without(VALIDATION, "validation_loss")], ":3: validation_loss is missing"),
        ([RUN | {"time": "x"}], ":1: time='x', expected a valid datetime"),
        ([without(RUN, "corpus")], ":1: corpus is missing"),
        ([RUN | {"corpus": {}}], ":1: corpus.fingerprint is missing; corpus.training_clips is"),
        ([RUN | {"machine": 3}], ":1: machine=3, expected a"),
        ([RUN | {"hparams": {"batch_size": 0}}], ":1: hyper-parameters refused"),
        ([], "metrics.jsonl: no `run` line"),
        ([EPOCH], ":1: epoch before any `run` line"),
        ([RUN, EPOCH, epoch_line(3)], ":3: epoch 3 after epoch 1"),
        ([RUN, EPOCH, EPOCH], ":3: epoch 1 after epoch 1"),
        ([RUN, EPOCH, validation_line(2)], ":3: validation of epoch 2, expected right after"),
        ([RUN, EPOCH, VALIDATION, VALIDATION], ":4: validation of epoch 1, expected"),
    ],
)
def test_a_bad_line_is_refused_with_file_number_and_value(tmp_path, lines, message):
    with pytest.raises(UserError) as caught:
        read_metrics(write_lines(tmp_path, lines))
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_all_bad_lines_are_listed(tmp_path):
    lines = [RUN, *({"kind": "x"} for _ in range(30)), epoch_line(5), epoch_line(9)]
    with pytest.raises(UserError) as caught:
        read_metrics(write_lines(tmp_path, lines))
    assert str(caught.value).count("kind='x'") == 20
    assert "... and 10 more" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(UserError, match="no such file; train"):
        read_metrics(tmp_path)
    (tmp_path / "metrics.jsonl").write_bytes(b"\xff")
    with pytest.raises(UserError, match="not readable as UTF-8"):
        read_metrics(tmp_path)


# ---------------------------------------------------------------------------- absurd values


@pytest.mark.parametrize("name", ["num_batches", "minutes", "epoch", "zero_padding_rate"])
@pytest.mark.parametrize("number", [400 * "9", 5000 * "9", "1e300", "1e999"])
def test_numbers_that_nothing_can_be_computed_with_are_refused_by_line(tmp_path, name, number):
    line = json.dumps(epoch_line(1) | {name: "HERE"}).replace('"HERE"', number)
    write_lines(tmp_path, [run_line(), line, epoch_line(2)])
    with pytest.raises(UserError, match=r"metrics\.jsonl:2: ") as refusal:
        read_metrics(tmp_path)
    assert len(str(refusal.value)) < 600


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00", "0001-01-01T00:00:00+00:00", "9999-12-31"])
def test_a_time_that_some_time_zones_do_not_have_is_refused(tmp_path, time):
    write_lines(tmp_path, [run_line(time=time)])
    with pytest.raises(UserError, match=r"metrics.jsonl:1: .*time"):
        read_metrics(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_line_of_metrics_is_read_or_refused_with_its_file(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp()
    valid = data.draw(st.sampled_from([run_line(), epoch_line(1), validation_line(1)]))
    name = data.draw(st.sampled_from(sorted(valid)))
    line = json.dumps(valid | {name: data.draw(JSON)})
    line = data.draw(st.sampled_from([line, line[:40], "[" * 5000, "7" * 5000, "\0", "{}"]))
    write_lines(folder, [run_line(), line])
    metrics, message = None, ""
    try:
        metrics = read_metrics(folder)
    except UserError as refusal:
        message = str(refusal)
    assert metrics is not None or "metrics.jsonl" in message
