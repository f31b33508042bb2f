"""Compare the search for the best options with brute force and manual counts."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_length_batching_command import printed_call

from hparams import HParams
from length_batching import PARAMETERS, STRATEGIES, BatchingError, LengthBatchSampler
from length_batching.report import cost_table
from length_batching.search import (
    DEFAULTS,
    PARAMETER_OF,
    Surveyor,
    mixes,
    parameter_values,
    search,
    survey_all,
    value_in_words,
)
from scripts import compare_batching


def distinct_lengths(count, seed=0):
    return np.random.default_rng(seed).permutation(np.arange(50, 50 + count))


def survey(lengths, batch_size, strategy, *, seed=0, frames_per_step=1, **options):
    surveyor = Surveyor(lengths, seed=seed, frames_per_step=frames_per_step)
    return surveyor.survey(batch_size, strategy, **options)


def sweep(lengths, batch_size, strategy, values, **options):
    surveyor = Surveyor(lengths)
    return [surveyor.survey(batch_size, strategy, value=value, **options) for value in values]


@pytest.mark.parametrize(
    ("strategy", "batch_size", "chance"), [("random", 20, 19 / 399), ("bucket", 10, 9 / 39)]
)
def test_pair_novelty_equals_its_expected_value_when_order_is_random(strategy, batch_size, chance):
    """The strategy shuffles clips either among all 400 clips, or within buckets of 40 clips."""
    found = survey(distinct_lengths(400), batch_size, strategy, bucket_size=40, epochs=60)
    assert 1 - found.novelty == pytest.approx(chance, rel=0.03)


def test_pair_novelty_is_nan_when_no_clips_share_a_batch():
    assert np.isnan(survey([10, 20, 30], 1, "random").novelty)


def test_costs_of_a_strategy_equal_values_calculated_by_hand_for_four_clips():
    # The lengths in the two batches are (10, 20) and (30, 40). The frame budget is 80.
    found = survey([40, 10, 30, 20], 2, "sorted")
    assert found.num_batches == 2
    assert found.decoder_steps == 60
    assert found.padded_to_original_rate == pytest.approx(20 / 100)
    assert found.zero_padding_rate == pytest.approx((0.5 + 0.25) / 4)
    assert (found.largest_batch_size, found.largest_batch_frames) == (2, 80)
    dynamic = survey([40, 10, 30, 20], 2, "sorted", dynamic_batch_size=True)
    # The batches are (10, 20) and (30, 40), because three 30-frame clips exceed 80 frames.
    assert dynamic.decoder_steps == 20 + 40
    assert dynamic.batch_capacity is None
    larger = survey([40, 10, 30, 20], 2, "sorted", dynamic_batch_size=True, batch_capacity=90)
    assert larger.decoder_steps == 30 + 40  # the batches have lengths (10, 20, 30) and (40)
    assert larger.batch_capacity == 90


def test_costs_of_a_strategy_are_rounded_up_to_whole_decoder_steps():
    # The lengths in the two batches are (10, 21) and (30, 40).
    found = survey([40, 10, 30, 21], 2, "sorted", frames_per_step=4)
    assert found.decoder_steps == 6 + 10
    assert found.padded_fraction == pytest.approx(1 - 101 / (2 * 24 + 2 * 40))
    assert found.average_batch_length == pytest.approx((2 * 21 + 2 * 40) / 4)
    assert found.largest_batch_frames == 80


def test_costs_of_a_strategy_are_means_over_epochs_except_the_size_of_the_largest_batch():
    found = survey([10, 20, 40], 2, "random", epochs=9)
    assert 30 < found.decoder_steps < 60
    assert found.largest_batch_frames == 80


@settings(max_examples=60)
@given(
    strategy=st.sampled_from(STRATEGIES),
    num_clips=st.integers(1, 90),
    batch_size=st.integers(1, 20),
)
def test_search_tries_only_parameter_values_in_the_allowed_range(strategy, num_clips, batch_size):
    values = parameter_values(strategy, num_clips, batch_size)
    assert len(values) == len(set(values)) > 0
    surveys = sweep(distinct_lengths(num_clips), batch_size, strategy, values, epochs=1)
    assert [one.value for one in surveys] == values


@pytest.mark.parametrize("strategy", PARAMETER_OF)
def test_search_orders_parameter_values_from_least_to_most_random(strategy):
    values = parameter_values(strategy, 400, 8)
    least, most = sweep(distinct_lengths(400), 8, strategy, [values[0], values[-1]])
    assert least.novelty < most.novelty


def test_search_tries_eight_values_for_each_doubling_of_a_parameter():
    """Randomization factors range from 0 to 1.6 and have two significant digits. The number of bins
    ranges from 1 to the number of batches."""
    factors = np.array(parameter_values("semi_sorted", 10_000, 16))
    assert (factors[0], factors[-1]) == (0, 1.6)
    assert np.count_nonzero((factors >= 0.1) & (factors < 0.8)) == 8 * 3
    bins = np.array(parameter_values("alternated_sort", 10_000, 16))
    assert (bins[0], bins[-1]) == (1, 625)
    assert np.count_nonzero((bins >= 64) & (bins < 512)) == 8 * 3


def test_search_finds_the_same_options_as_an_exhaustive_search():
    lengths = np.random.default_rng(2).integers(80, 800, 160)
    best = search(Surveyor(lengths, epochs=3), 8, min_pair_novelty=0.8).best
    every = []
    for strategy, dynamic in product(STRATEGIES, (False, True)):
        values = parameter_values(strategy, 160, 8)
        every += sweep(lengths, 8, strategy, values, epochs=3, dynamic_batch_size=dynamic)
    assert best.novelty >= 0.8
    cheapest = min(one.decoder_steps for one in every if mixes(one, 0.8))
    assert best.decoder_steps <= 1.01 * cheapest


@pytest.mark.parametrize("count", [1, 5, 20, 59])
def test_recommended_options_never_need_more_decoder_steps_than_the_default(count):
    lengths = np.random.default_rng(count).integers(80, 800, count)
    advice = search(Surveyor(lengths, epochs=3), 4)
    assert advice.best.decoder_steps <= advice.default.decoder_steps
    assert advice.min_pair_novelty <= 0.99


def test_search_finds_no_options_when_all_pairs_of_clips_must_be_new():
    advice = search(Surveyor(distinct_lengths(40), epochs=2), 4, min_pair_novelty=1.0)
    assert advice.best is None
    assert len(advice.tried) == 2 * len(STRATEGIES)


def test_search_applies_frame_budget_and_max_clips():
    """The test checks `batch_capacity` only for dynamic batches, because this option has no effect
    on other batches."""
    lengths = np.random.default_rng(3).integers(80, 800, 90)
    surveyor = Surveyor(lengths, epochs=2)
    advice = search(surveyor, 8, batch_capacity=2 * lengths.max(), max_clips=6)
    dynamic = [one for one in advice.tried if one.dynamic_batch_size]
    assert {one.batch_capacity for one in dynamic} == {2 * lengths.max()}
    assert max(one.largest_batch_size for one in advice.tried) == 6


def test_comparison_of_all_strategies_lists_strategies_that_need_more_clips():
    surveys, impossible = survey_all(Surveyor([3, 4, 5], epochs=1), 2)
    assert [message.partition(":")[0] for message in impossible] == ["ATS", "ATS-DBS"]
    assert len(surveys) == 2 * len(STRATEGIES) - 2


def test_comparison_of_all_strategies_raises_when_no_strategy_allows_the_value_of_an_option():
    with pytest.raises(BatchingError, match="batch_capacity=3: "):
        survey_all(Surveyor([3, 4, 5], epochs=1), 2, batch_capacity=3)


def test_cost_table_has_a_row_for_every_compared_strategy():
    lengths = [40, 10, 30, 20]
    surveys, _ = survey_all(Surveyor(lengths, epochs=1), 2, bucket_size=2, num_bins=2)
    titles, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in cost_table(surveys).splitlines()
    ]
    assert len(rows) == 2 * len(STRATEGIES)
    [row] = [dict(zip(titles, cells, strict=True)) for cells in rows if cells[1] == "SB"]
    assert row["strategy"] == "sorted"
    assert (row["batches"], row["steps"], row["clips"], row["frames"]) == ("2", "60", "2", "80")
    assert row["padding %"] == "16.67"  # 20 of 120 frames are padding
    assert row["pair novelty %"] == "0.00"
    assert float(row["% of RAND"]) == pytest.approx(100 * 60 / surveys[0].decoder_steps, abs=0.05)


def test_library_and_command_find_the_same_options(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compare_batching.figures, "write_figure", lambda figure, path: path)
    lengths = np.random.default_rng(7).integers(80, 800, 21)
    path = tmp_path / "lengths.csv"
    rows = "".join(f"clip{i},{n}\n" for i, n in enumerate(lengths))
    path.write_text(f"id,frames\n{rows}")
    call = printed_call(capsys, path, "batch_size=16")
    compare_batching.main([str(path), "-o", str(tmp_path / "out"), "--hparams", "batch_size=16"])
    lines = capsys.readouterr().out.splitlines()
    [overrides] = [x.split()[-1] for x in lines if "train.py --hparams " in x]
    call["batching_strategy"] = call.pop("strategy")
    assert set(overrides.split(",")) == {f"{name}={value}" for name, value in call.items()}
    call["strategy"] = call.pop("batching_strategy")
    sampler = LengthBatchSampler(lengths, **call)
    sampler.set_epoch(0)
    assert list(sampler)


def test_search_defaults_equal_the_defaults_in_hparams():
    assert value_in_words("bucket", 1024) == "buckets of 1,024"
    assert {p.name: getattr(HParams(), p.name) for p in PARAMETERS} == DEFAULTS
