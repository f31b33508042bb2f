"""The batching strategies' names and parameters for people, from batching.REGISTRY."""

import inspect

from analysis.tables import markdown_table
from batching import REGISTRY, plan_epoch

PARAMETERS = {name: s.parameter.name for name, s in REGISTRY.items() if s.parameter}
DEFAULTS = {
    name: inspect.signature(plan_epoch).parameters[name].default for name in PARAMETERS.values()
}


def batching_name(strategy: str, dynamic_batch_size: bool, batch_randomization: bool) -> str:
    """The papers' name, "SSB-DBS-BR". RAND never gets -BR: its batches are in random order."""
    name = REGISTRY[strategy].short_name
    if dynamic_batch_size:
        name += "-DBS"
    if batch_randomization and strategy != "random":
        name += "-BR"
    return name


def value_in_words(strategy: str, value: float) -> str:
    """A value of the strategy's parameter: "factor 0.1", "58 bins"."""
    return REGISTRY[strategy].parameter.value_text.format(number_text(value))


def number_text(value: float) -> str:
    return f"{value:g}" if abs(value) < 1000 else f"{value:,.0f}"


def strategy_table() -> str:
    """Markdown: every strategy, its parameter with the default, and what larger values do."""
    rows = []
    for s in REGISTRY.values():
        parameter = f"`{s.parameter.name}={DEFAULTS[s.parameter.name]}`" if s.parameter else ""
        rows.append([f"`{s.name}`", s.short_name, s.source, s.meaning, parameter, s.larger_values])
    titles = ["`batching_strategy`", "short", "source", "the clips' order", "parameter"]
    return markdown_table([*titles, "larger values"], rows, labels=6)
