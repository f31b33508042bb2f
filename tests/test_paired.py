"""analysis/paired.py: differences paired by seed and the test of them."""

import math

import numpy as np
import pytest
from scipy.stats import ttest_rel

from analysis.paired import holm, paired_difference


def test_the_test_is_scipys_paired_t_test_over_the_seeds_that_both_have():
    first = {1: 0.31, 2: 0.27, 3: 0.36, 9: 5.0}
    second = {3: 0.44, 2: 0.39, 1: 0.35, 8: 7.0}
    found = paired_difference(first, second)
    expected = ttest_rel([0.35, 0.39, 0.44], [0.31, 0.27, 0.36])
    assert found.num_seeds == 3
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.mean == pytest.approx(0.08)  # of 0.04, 0.12 and 0.08
    assert found.standard_error == pytest.approx(0.04 / math.sqrt(3))


def test_per_cents_are_taken_seed_by_seed():
    found = paired_difference({1: 1.0, 2: 10.0}, {1: 0.5, 2: 9.0}, in_per_cent=True)
    assert found.mean == pytest.approx((-50 - 10) / 2)


def test_an_error_known_from_elsewhere_counts_where_it_is_larger():
    first, second = {1: 1.0, 2: 2.0, 3: 3.0}, {1: 2.1, 2: 2.9, 3: 4.0}
    assert paired_difference(first, second).p_value < 0.01
    careful = paired_difference(first, second, least_error=0.5)
    assert careful.standard_error == 0.5
    assert careful.p_value > 0.1
    assert paired_difference(first, second, least_error=1e-6) == paired_difference(first, second)


def test_one_seed_decides_nothing_and_none_is_no_difference():
    found = paired_difference({1: 1.0}, {1: 2.0}, least_error=0.1)
    assert (found.mean, found.standard_error, found.p_value) == (1.0, 0.1, None)
    assert paired_difference({1: 1.0}, {2: 2.0}) is None


@pytest.mark.parametrize(("second", "p_value"), [({1: 1.0, 2: 2.0}, 1), ({1: 3.0, 2: 4.0}, 0)])
def test_differences_without_any_spread_are_certain(second, p_value):
    assert paired_difference({1: 1.0, 2: 2.0}, second).p_value == p_value


def test_holms_method_adjusts_the_smallest_most_and_keeps_their_order():
    # Times 4, 3, 2, 1 in order of size, never below the one before, at most 1.
    assert holm([0.03, 0.01, None, 0.04, 0.005]) == pytest.approx([0.06, 0.03, None, 0.06, 0.02])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([]) == []
    rejected = np.array(holm([0.01, 0.02, 0.03])) < 0.05
    assert rejected.tolist() == [True, True, True]
