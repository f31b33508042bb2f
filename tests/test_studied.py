"""What --recommend says of learning, against the study's report."""

import csv
from pathlib import Path

import pytest

from analysis.strategies import batching_name
from analysis.studied import LEARNT, WITH_RANDOM_EPOCHS, what_was_learnt
from batching import STRATEGIES

REPORT = Path(__file__).parents[1] / "benchmarks/results/table2-small-2026-11-22-cpu/report.csv"


@pytest.fixture(scope="module")
def above_random():
    with open(REPORT, encoding="utf-8", newline="") as file:
        return {
            record["row"]: (round(float(record["ours"])), round(float(record["standard_error"])))
            for record in csv.DictReader(file)
            if record["table"] == "paired"
            and record["quantity"] == "unpadded loss, late third: against RAND (%)"
            and record["ours"]
        }


@pytest.mark.parametrize("batching", LEARNT)
def test_what_is_said_of_learning_is_what_the_study_measured(batching, above_random):
    name = row = batching_name(*batching, True)
    if row == "SSB-exp-DBS-BR":
        row += " (LRF 0.039)"  # the factor that --recommend chose
    assert tuple(LEARNT[batching]) == above_random[row]
    assert above_random[row][0] > 0
    said = f" {name} by {above_random[row][0]}% ± {above_random[row][1]}"
    assert said in what_was_learnt(*batching)


def test_random_epochs_are_advised_by_what_the_study_measured(above_random):
    measured = above_random["SSB-DBS-BR (random_epochs 2)"]
    assert tuple(WITH_RANDOM_EPOCHS) == measured
    assert measured[0] < above_random["SSB-DBS-BR"][0] / 2


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_batching_that_was_not_studied_is_said_to_be_unknown(strategy, dynamic):
    studied = (strategy, dynamic) in LEARNT or (strategy, dynamic) == ("random", False)
    assert ("not known" in what_was_learnt(strategy, dynamic)) != studied
