"""Format the costs of all strategies, and the result of a search, as text.

surveys, impossible = survey_all(surveyor, 16)
print(cost_table(surveys))
print(*impossible, sep="\\n")
result = search(surveyor, 16)
print(*describe_result(result), "", *recommend(result), sep="\\n")
"""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

from length_batching.search import DEFAULTS, SearchResult, Survey, price
from length_batching.strategies import REGISTRY, batching_name

TITLES = (
    "ZPR %",
    "ABL",
    "padding %",
    "batches",
    "steps",
    "% of RAND",
    "clips",
    "frames",
    "pair novelty %",
)
LEGEND = """\
ZPR, ABL:   zero-padding rate and average batch length (Ge et al. 2021)
padding:    padding as a fraction of all computed frames
batches:    number of batches per epoch
steps:      sum of the longest length of each batch; a recurrent model runs these steps in sequence
% of RAND:  steps relative to random batches of fixed size
cost:       sum of the costs of all steps; only shown if the costs of a step are known
clips:      number of clips in the batch with the most clips
frames:     size of the largest batch (number of clips x longest length)
pair novelty: percentage of the pairs of clips in a batch that did not share a batch in
            the previous epoch
`clips` and `frames` are maxima over epochs; all other values are means over epochs."""

WIDTH = 100  # maximum length of the lines of text
RANDOM_EPOCHS = 2  # number of epochs with random batches at the start of the recommended strategy
GUIDE = "docs/batching/choosing-a-strategy.md"
# The strategies with which we trained models and measured a higher loss than with the recommended
# strategy, after the same number of epochs (research/batching-and-learning.md).
WITH_HIGHER_LOSS = ("sorted", "semi_sorted_exponential", "bucket", "alternated_sort")


def markdown_table(titles: Sequence[str], rows: Sequence[Sequence[str]], num_text: int) -> str:
    """Return a Markdown table.

    The first `num_text` columns are left-aligned; all other columns are right-aligned.
    """
    columns = list(zip(titles, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]

    def line(cells: Sequence[str]) -> str:
        padded = [
            cell.ljust(width) if i < num_text else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return f"| {' | '.join(padded)} |"

    rules = [
        "-" * width if i < num_text else "-" * (width - 1) + ":" for i, width in enumerate(widths)
    ]
    return "\n".join([line(titles), line(rules), *map(line, rows)])


def cost_table(surveys: Sequence[Survey]) -> str:
    """Return a Markdown table with one row per set of batching options. LEGEND explains the
    columns.

    Args:
        surveys: the result of `survey_all`. The costs of RAND with fixed batch sizes must come
            first.
    """
    random = surveys[0]
    rows = [
        [
            survey.strategy,
            batching_name(survey.strategy, survey.dynamic_batch_size, False),
            _number(100 * survey.zero_padding_rate, 2),
            _number(survey.average_batch_length, 1),
            _number(100 * survey.padded_fraction, 2),
            _number(survey.num_batches, 0),
            _number(survey.decoder_steps, 0),
            _number(100 * survey.decoder_steps / random.decoder_steps, 1),
            _number(survey.largest_batch_size, 0),
            _number(survey.largest_batch_frames, 0),
            _number(100 * survey.novelty, 2),
        ]
        for survey in surveys
    ]
    titles = ["strategy", "name", *TITLES]
    if random.step_cost is not None:
        titles.append("cost")
        for row, survey in zip(rows, surveys, strict=True):
            row.append(_number(price(survey), 1))
    return markdown_table(titles, rows, num_text=2)


def _number(value: float, decimals: int) -> str:
    return "–" if math.isnan(value) else f"{value:,.{decimals}f}"


def strategy_table() -> str:
    """Return a Markdown table of all strategies, with their parameters and default values."""
    rows = []
    for strategy in REGISTRY.values():
        parameter = ""
        larger_values = ""
        if strategy.parameter:
            name = strategy.parameter.name
            parameter = f"`{name}={DEFAULTS[name]}`"
            larger_values = strategy.parameter.larger_values
        rows.append(
            [
                f"`{strategy.name}`",
                strategy.short_name,
                strategy.source,
                strategy.description,
                parameter,
                larger_values,
            ]
        )
    titles = [
        "strategy",
        "short name",
        "source",
        "order of the clips",
        "parameter",
        "larger values",
    ]
    return markdown_table(titles, rows, num_text=6)


def describe_result(result: SearchResult) -> list[str]:
    """Return lines that describe the best options, or a line that says that no strategy mixes the
    clips well enough."""
    needed = f"{100 * result.min_pair_novelty:.2f}%"
    best = result.best
    if best is None:
        most = max(result.tried, key=lambda survey: survey.novelty)
        found = f"The highest pair novelty is {100 * most.novelty:.2f}%, with {most.description()}."
        return [f"No strategy reaches a pair novelty of {needed}. {found}"]
    has_costs = best.step_cost is not None
    goal = "Lowest cost" if has_costs else "Fewest steps"
    lines = [f"{goal} with a pair novelty of at least {needed}: {best.description()}"]
    if has_costs:
        lines.append(f"- cost {price(best):,.1f} per epoch: {_cost_change(best, result.random)}")
    lines.append(
        f"- {best.decoder_steps:,.0f} steps per epoch: {_compare(best, result.random)}, "
        f"{_compare(best, result.default)}"
    )
    if math.isnan(best.novelty):
        lines.append("- pair novelty unknown, because no two clips share a batch")
    else:
        lines.append(f"- pair novelty {100 * best.novelty:.2f}%")
    frames = f"{best.largest_batch_frames:,.0f} frames"
    lines.append(f"- largest batch: {best.largest_batch_size} clips; {frames}")
    others = [survey for survey in result.ranked if survey.strategy != best.strategy]
    if others:
        compare = _cost_change if has_costs else _compare
        lines.append(f"- next best strategy: {others[0].description()}, {compare(others[0], best)}")
    return lines


def recommended_options(result: SearchResult) -> dict[str, Any]:
    """Return the recommended strategy as arguments for `LengthBatchSampler`: epochs with random
    batches, and then SSB-DBS-BR. If SSB-DBS-BR saves nothing with these clips, return the arguments
    for random batches."""
    if _saves_nothing(result):
        return result.random.options()
    return result.default.options() | {"random_epochs": RANDOM_EPOCHS}


def recommend(result: SearchResult) -> list[str]:
    """Return lines that recommend the strategy in GUIDE, with its saving for these clips and the
    loss that we measured."""
    default, best = result.default, result.best
    name = default.description()
    if _saves_nothing(result):
        return [
            "Recommended for training: random batches",
            *_item(f"With these clips, {name} saves nothing compared with RAND."),
        ]
    lines = [
        f"Recommended for training: {RANDOM_EPOCHS} epochs with random batches, then {name}",
        *_item(
            f"After the random epochs, an epoch with these clips {_saving(default, result.random)} "
            "than with random batches (RAND), but in our study, the loss was 14 ± 4% higher than "
            "with RAND after the same number of epochs."
        ),
        *_item(
            "After the same training time, the loss in our study did not differ significantly from "
            f"the loss with RAND. See {GUIDE} in the repository."
        ),
    ]
    if best is not None and price(best) < price(default):
        lines += _item(
            f"{best.description()} {_saving(best, default)} than {name}. {_loss_in_words(best)}"
        )
    return lines


def _saves_nothing(result: SearchResult) -> bool:
    return price(result.default) >= price(result.random)


def _item(text: str) -> list[str]:
    """Return the lines of an item in a Markdown list."""
    return textwrap.wrap(
        f"- {text}", WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _saving(survey: Survey, other: Survey) -> str:
    saved = 1 - price(survey) / price(other)
    if survey.step_cost is None:
        return f"needs {100 * saved:.1f}% fewer steps"
    return f"costs {100 * saved:.1f}% less"


def _loss_in_words(survey: Survey) -> str:
    """Compare the loss with these options and the loss with the recommended strategy."""
    if survey.strategy not in WITH_HIGHER_LOSS:
        return "We have not measured the loss with these options."
    name = REGISTRY[survey.strategy].short_name
    return (
        f"In our study, the loss with {name} was higher than with the recommended strategy after "
        "the same number of epochs."
    )


def _compare(survey: Survey, other: Survey) -> str:
    change = survey.decoder_steps / other.decoder_steps - 1
    more = "more" if change > 0 else "fewer"
    return f"{100 * abs(change):.1f}% {more} than {other.description()}"


def _cost_change(survey: Survey, other: Survey) -> str:
    change = price(survey) / price(other) - 1
    more = "more" if change > 0 else "less"
    return f"{100 * abs(change):.1f}% {more} than {other.description()}"
