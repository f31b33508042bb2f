"""analysis/strategies.py: the registry's names and words, as tables and pictures show them."""

import pytest

from analysis import published
from analysis.strategies import (
    DEFAULTS,
    PARAMETERS,
    batching_name,
    strategy_table,
    value_in_words,
)
from batching import REGISTRY, STRATEGIES
from hparams import HParams


def test_names_are_those_of_the_paper():
    short = {entry.short_name: name for name, entry in REGISTRY.items()}
    for name in published.TABLE_2:
        first, *rest = name.split("-")
        assert batching_name(short[first], "DBS" in rest, "BR" in rest) == name
    assert batching_name("random", True, True) == "RAND-DBS"
    assert batching_name("semi_sorted_exponential", True, True) == "SSB-exp-DBS-BR"
    assert len(short) == len(STRATEGIES)


@pytest.mark.parametrize(
    ("strategy", "value", "words"),
    [
        ("semi_sorted", 0.1, "factor 0.1"),
        ("bucket", 1024, "buckets of 1,024"),
        ("alternated_sort", 58, "58 bins"),
        ("bucket_by_width", 10, "10 classes"),
    ],
)
def test_values_of_a_parameter_are_put_into_words(strategy, value, words):
    assert value_in_words(strategy, value) == words


def test_parameters_and_defaults_are_hyper_parameters():
    assert set(PARAMETERS) == set(STRATEGIES) - {"random", "sorted"}
    assert {name: getattr(HParams(), name) for name in PARAMETERS.values()} == DEFAULTS


def test_the_table_has_a_row_for_every_strategy_with_what_larger_values_do():
    lines = strategy_table().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert [row[0] for row in rows] == [f"`{name}`" for name in STRATEGIES]
    for (name, entry), row in zip(REGISTRY.items(), rows, strict=True):
        assert row[1:4] == [entry.short_name, entry.source, entry.meaning]
        assert bool(row[4]) == bool(row[5]) == (name in PARAMETERS)
        if row[4]:
            assert row[4] == f"`{PARAMETERS[name]}={DEFAULTS[PARAMETERS[name]]}`"
