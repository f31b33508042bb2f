"""benchmarks/startup.py: what it starts, counts and reports, with few clips."""

import json
import time

import pytest

import data_utils
from benchmarks import startup


@pytest.fixture
def in_this_process(monkeypatch):
    """Starts in this process, which take no time to import; how often a clip was opened."""
    opened = []
    monkeypatch.setattr(data_utils, "read_header", lambda path, _: opened.append(path) or 5000)
    monkeypatch.setattr(data_utils, "check_sound", lambda path, _: opened.append(path) or 5000)
    monkeypatch.setattr(
        startup,
        "start_in_a_process",
        lambda folder, kind: startup.start(folder, kind == "new", time.monotonic()),
    )
    return opened


def test_starts_open_no_clip_and_the_report_is_against_the_fewest(
    in_this_process, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(startup, "VALIDATION_CLIPS", 3)
    monkeypatch.setattr(startup, "FILES", 5)
    output = tmp_path / "startup.json"
    options = ["--clips", "20,30", "--checked", "4", "--repeats", "2", "--json", str(output)]
    startup.main(options)
    assert in_this_process == []
    result = json.loads(output.read_text())
    kinds = [(row["clips"], row["kind"]) for row in result["starts"]]
    assert kinds == [(20, "new"), (20, "old"), (30, "new"), (30, "old")]
    for row in result["starts"]:
        assert 0 < row["clips_seconds"] < row["seconds"]
        assert 0 < row["own"] < row["resident"] <= row["peak"]
    assert result["check_seconds_a_clip"] > 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    first, second, *_ = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines[1:]]
    few, _, many, _ = result["starts"]
    assert first[:3] == ["20", "a new run", f"{few['seconds']:.2f}"]
    assert first[5:9] == ["1.00", "+0", "+0", "+0"]
    assert second[:3] == ["30", "a new run", f"{many['seconds']:.2f}"]
    assert second[5] == f"{many['seconds'] / few['seconds']:.2f}"
    checked = many["seconds"] - many["clips_seconds"] + 30 * result["check_seconds_a_clip"]
    assert second[9:] == [f"{checked:,.1f}", f"{checked / many['seconds']:.1f}"]


def test_a_process_of_its_own_is_timed_from_before_its_start(tmp_path, monkeypatch):
    monkeypatch.setattr(startup, "VALIDATION_CLIPS", 3)
    startup.make_lists(tmp_path / "10", 10)
    began = time.monotonic()
    found = startup.start_in_a_process(tmp_path / "10", "new")
    assert 0 < found["imported"] < found["seconds"] <= time.monotonic() - began


@pytest.mark.parametrize("option", ["--clips", "--checked", "--repeats"])
def test_what_cannot_be_measured_is_refused_in_a_sentence(option, capsys):
    with pytest.raises(SystemExit):
        startup.main([option, "0"])
    assert f"{option}: '0': expected" in capsys.readouterr().err
