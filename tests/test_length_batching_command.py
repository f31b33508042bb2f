"""Test `python -m length_batching`: its table, the line of code that it prints, errors, and a closed pipe."""

import re
import shlex
import subprocess
import sys

import numpy as np
import pytest
from helpers import ROOT

from length_batching import (
    REGISTRY,
    STRATEGIES,
    LengthBatchSampler,
    __main__,
    batching_name,
    padding_stats,
    plan_epoch,
    report,
)
from length_batching.search import Surveyor, survey_all

# The strategy that docs/batching/choosing-a-strategy.md recommends.
RECOMMENDED = {
    "strategy": "semi_sorted",
    "batch_size": 16,
    "local_randomization_factor": 0.1,
    "dynamic_batch_size": True,
    "batch_randomization": True,
    "random_epochs": 2,
}
LENGTHS = np.random.default_rng(0).integers(5, 80, 320)


def rows_of(printed):
    """Return the cells of the table, row by row."""
    lines = [line for line in printed.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def printed_call(capsys, path, *options):
    """Return the arguments of the call that the command prints."""
    __main__.main([str(path), *options])
    call = capsys.readouterr().out.partition("LengthBatchSampler(\n    lengths,\n")[2]
    return eval(f"dict({call.rpartition(')')[0]})")


def test_length_batching_command_prints_the_cost_of_each_strategy(tmp_path, capsys):
    rows = "".join(f"{i},{length},7\n" for i, length in enumerate(LENGTHS))
    (tmp_path / "lengths.csv").write_text(f"id,frames,text\n{rows}")
    options = "--column", "frames", "batch_size=8", "num_bins=5", "bucket_size=40"
    __main__.main([str(tmp_path / "lengths.csv"), *options])
    found = {(row[0], row[1]): row[2:] for row in rows_of(capsys.readouterr().out)}
    names = {(s, batching_name(s, dynamic, False)) for s in STRATEGIES for dynamic in (False, True)}
    assert found.keys() == names
    options = {"bucket_size": 40, "dynamic_batch_size": True}
    plans = [plan_epoch(LENGTHS, 8, "bucket", **options, epoch=epoch) for epoch in range(1, 41)]
    stats = [padding_stats(LENGTHS, plan) for plan in plans]
    padded = 100 * np.mean([one.padded_fraction for one in stats])
    batches = np.mean([one.num_batches for one in stats])
    steps = np.mean([one.decoder_steps for one in stats])
    expected = [f"{padded:.2f}", f"{batches:,.0f}", f"{steps:,.0f}"]
    assert found["bucket", "BKT-DBS"][2:5] == expected


@pytest.mark.thorough
def test_length_batching_command_recommends_the_strategy_of_the_guide(tmp_path, capsys):
    lengths = np.random.default_rng(0).integers(50, 800, 1500)
    np.savetxt(tmp_path / "lengths", lengths)
    assert printed_call(capsys, tmp_path / "lengths") == RECOMMENDED
    __main__.main([str(tmp_path / "lengths")])
    printed = " ".join(capsys.readouterr().out.split())
    [saving] = re.findall(r"an epoch with these clips needs ([\d.]+)% fewer steps", printed)
    assert "loss was 14 ± 4% higher than with RAND after the same number of epochs" in printed
    assert "loss in our study did not differ significantly from the loss with RAND" in printed
    assert "loss with SSB-exp was higher than with the recommended strategy" in printed
    assert (ROOT / report.GUIDE).is_file()
    assert report.GUIDE in printed
    stats = []
    for strategy, dynamic in (("random", False), ("semi_sorted", True)):
        plan = plan_epoch(lengths, 16, strategy, dynamic_batch_size=dynamic, epoch=1)
        stats.append(padding_stats(lengths, plan).decoder_steps)
    assert float(saving) == pytest.approx(100 * (1 - stats[1] / stats[0]), abs=1)


def test_every_strategy_listed_with_a_higher_loss_has_a_higher_loss_in_the_research_log():
    """The row of the recommended strategy contains "+12 ± 11" in the column of the loss compared
    with RAND after the same number of epochs."""
    study = (ROOT / "research" / "ten-epochs.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in study.splitlines()]
    changes = {row[0]: row[6] for row in rows if len(row) > 6 and row[6].startswith("+")}
    assert changes["SSB-DBS-BR with `random_epochs=2`"] == "+12 ± 11"
    for strategy in report.WITH_HIGHER_LOSS:
        name = REGISTRY[strategy].short_name
        found = [change for row, change in changes.items() if row.split("-DBS")[0].startswith(name)]
        assert found, strategy
        assert min(int(change.split()[0]) for change in found) > 12, strategy


@pytest.mark.thorough
def test_recommended_sampler_options_include_the_size_limits_of_the_command(tmp_path, capsys):
    np.savetxt(tmp_path / "lengths", LENGTHS)
    sizes = ["batch_capacity=2000", "max_clips=40", "size_multiple=2", "too_long=alone"]
    options = printed_call(capsys, tmp_path / "lengths", *sizes)
    expected = {"batch_capacity": 2000, "max_clips": 40, "size_multiple": 2, "too_long": "alone"}
    assert expected.items() <= options.items()
    sampler = LengthBatchSampler(LENGTHS, **options)
    sampler.set_epoch(2)  # after the epochs with random batches
    assert max(map(len, sampler)) <= 40


@pytest.mark.parametrize(
    ("lengths", "options"), [(LENGTHS, ["batch_capacity=100"]), ([30] * 50, [])]
)
def test_length_batching_command_recommends_random_batches_when_nothing_is_saved(
    tmp_path, capsys, lengths, options
):
    """The options must not contain batch_capacity, because only dynamic batches use it."""
    np.savetxt(tmp_path / "lengths", lengths)
    call = printed_call(capsys, tmp_path / "lengths", *options)
    assert call == {
        "strategy": "random",
        "batch_size": 16,
        "dynamic_batch_size": False,
        "batch_randomization": False,
    }
    assert plan_epoch(lengths, **call)


def test_length_batching_command_lists_strategies(capsys):
    with pytest.raises(SystemExit) as stop:
        __main__.main(["--strategies"])
    assert stop.value.code == 0
    rows = rows_of(capsys.readouterr().out)
    assert [row[0].strip("`") for row in rows] == list(REGISTRY)


@pytest.mark.parametrize(
    ("text", "arguments", "named"),
    [
        ("3\nfour\n", [], ":2: 'four'"),
        ("id,frames\na,3\nb,nan\n", [], ":3: 'b,nan'"),
        (
            "1x\n3\nb\n" + "4\nc\n" * 20,
            [],
            ":1: '1x': expected a length above 0; 21 more",
        ),
        ("id,frames\na,3\n", ["--column", "seconds"], ":1: the file has no column 'seconds'"),
        ("id,frames\n", [], "no lengths"),
        ("\xff\n", [], "UTF-8"),
        ("3\n4\n", ["bucket=3"], "bucket=3: unknown name"),
        ("3\n4\n", ["bucket"], "bucket: expected name=value"),
        ("3\n4\n", ["max_clips=x"], "max_clips=x"),
        ("3\n4\n", ["batch_capacity=3"], "batch_capacity=3: expected at least 4"),
    ],
)
def test_length_batching_command_error_names_the_line_or_option_when_input_is_invalid(
    text, arguments, named, tmp_path, capsys
):
    (tmp_path / "lengths").write_text(text, encoding="latin-1")
    with pytest.raises(SystemExit) as stop:
        __main__.main([str(tmp_path / "lengths"), *arguments])
    message = str(stop.value)
    assert message.startswith("error: ")
    assert named in message
    assert "\n" not in message + capsys.readouterr().out


def test_length_batching_command_succeeds_when_standard_output_is_closed(tmp_path):
    path = tmp_path / "lengths"
    path.write_text("3\n4\n5\n")
    command = shlex.join([sys.executable, "-m", "length_batching", str(path)])
    run = subprocess.run(f"{command} >&-", shell=True, cwd=ROOT, capture_output=True)
    assert (run.returncode, run.stderr) == (0, b"")


def test_higher_loss_is_stated_only_for_strategies_of_the_study():
    surveys, _ = survey_all(Surveyor(np.arange(1, 101)), 4)
    for survey in surveys:
        is_measured = "was higher" in report._loss_in_words(survey)
        assert is_measured == (survey.strategy in report.WITH_HIGHER_LOSS)
    assert len({survey.strategy for survey in surveys} - {*report.WITH_HIGHER_LOSS}) > 2
