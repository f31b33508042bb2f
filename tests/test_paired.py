"""analysis/paired.py: changes paired by seed and the test of them."""

import math

import numpy as np
import pytest
from scipy.stats import t, ttest_rel

from analysis.paired import LEVEL, SeedModel, holm


def test_two_batchings_alone_are_compared_by_scipys_paired_t_test_of_the_logarithms():
    first = {1: 0.31, 2: 0.27, 3: 0.36}
    second = {3: 0.44, 2: 0.39, 1: 0.35}
    change = SeedModel([first, second]).change(0, 1)
    logs = [np.log([values[seed] for seed in (1, 2, 3)]) for values in (first, second)]
    assert change.num_seeds == 3
    assert change.p_value == pytest.approx(ttest_rel(*logs).pvalue)
    differences = logs[1] - logs[0]
    assert change.mean == pytest.approx(100 * (math.exp(differences.mean()) - 1))
    error = differences.std(ddof=1) / math.sqrt(3) * math.exp(differences.mean())
    assert change.standard_error == pytest.approx(100 * error)


def test_the_spread_is_that_of_a_two_way_analysis_of_variance():
    """By the textbook's sums of squares, for equal numbers of seeds."""
    logs = np.random.default_rng(0).normal(size=(5, 4))  # batchings, seeds
    model = SeedModel([dict(enumerate(np.exp(row))) for row in logs])
    residuals = logs - logs.mean(1, keepdims=True) - logs.mean(0, keepdims=True) + logs.mean()
    assert model.degrees_of_freedom == (5 - 1) * (4 - 1)
    error = math.sqrt(2 / 4 * (residuals**2).sum() / 12)
    difference = logs[3].mean() - logs[1].mean()
    change = model.change(1, 3)
    assert change.standard_error == pytest.approx(100 * error * math.exp(difference))
    assert change.p_value == pytest.approx(2 * t.sf(abs(difference) / error, 12))


def test_a_seed_that_one_batching_lacks_still_tells_of_the_seeds():
    """A seed that doubles all values changes no comparison."""
    first, second, third = {1: 1.0, 2: 2.0, 3: 4.0}, {1: 3.0, 2: 6.0}, {2: 1.0, 3: 2.2}
    model = SeedModel([first, second, third])
    assert model.change(0, 1).mean == pytest.approx(200, rel=0.1)
    assert model.change(1, 2).num_seeds == 1
    assert SeedModel([{1: 1.0}, {2: 2.0}]).change(0, 1) is None
    assert SeedModel([first, {}]).change(0, 1) is None


def test_chance_alone_is_beyond_chance_in_one_of_twenty_studies():
    generator = np.random.default_rng(1)
    found = 0
    for _ in range(400):
        logs = generator.normal(size=(6, 3)) + 3 * generator.normal(size=3)
        model = SeedModel([dict(enumerate(np.exp(row))) for row in logs])
        found += model.change(0, 5).p_value < LEVEL
    assert 8 <= found <= 34  # 20 expected, three standard deviations of 4.4


def test_an_error_known_from_elsewhere_counts_where_it_is_larger():
    model = SeedModel([{1: 1.0, 2: 2.0, 3: 3.0}, {1: 2.1, 2: 3.9, 3: 6.0}])
    assert model.change(0, 1).p_value < 0.01
    careful = model.change(0, 1, least_error=0.5)
    assert careful.standard_error == pytest.approx(50 * (1 + careful.mean / 100))
    assert careful.p_value > 0.1
    assert model.change(0, 1, least_error=1e-6) == model.change(0, 1)


def test_an_error_that_all_seeds_share_is_added_to_that_of_the_runs():
    model = SeedModel([{1: 1.0, 2: 2.0, 3: 3.0}, {1: 2.1, 2: 3.9, 3: 6.0}])
    own, both = model.change(0, 1), model.change(0, 1, further_error=0.04)
    shared = 0.04 * (100 + own.mean)
    assert both.mean == own.mean
    assert both.standard_error == pytest.approx(np.hypot(own.standard_error, shared))
    assert both.p_value > own.p_value


def test_one_seed_decides_nothing():
    change = SeedModel([{1: 1.0}, {1: 2.0}]).change(0, 1, least_error=0.1)
    assert change.mean == pytest.approx(100)
    assert change.standard_error == pytest.approx(20)
    assert change.p_value is None


@pytest.mark.parametrize(("second", "p_value"), [({1: 1.0, 2: 2.0}, 1), ({1: 3.0, 2: 6.0}, 0)])
def test_changes_without_any_spread_are_certain(second, p_value):
    assert SeedModel([{1: 1.0, 2: 2.0}, second]).change(0, 1).p_value == p_value


def test_holms_method_adjusts_the_smallest_most_and_keeps_their_order():
    # Times 4, 3, 2, 1 in order of size, never below the one before, at most 1.
    assert holm([0.03, 0.01, None, 0.04, 0.005]) == pytest.approx([0.06, 0.03, None, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    rejected = np.array(holm([0.01, 0.02, 0.03])) < 0.05
    assert rejected.tolist() == [True, True, True]
