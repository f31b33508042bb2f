"""Define the options of `plan_epoch` as a type, and check them.

The docstring of `plan_epoch` in plan.py explains each option.
"""

import difflib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypedDict, get_args

import numpy as np

from length_batching.checks import MAX_COUNT, BatchingError, Numbers, count_problems
from length_batching.strategies import PARAMETERS, REGISTRY, check_strategy

TooLong = Literal["reject", "alone", "leave_out"]

MAX_DRAW = 10**8  # upper limit for `draw`, because a plan contains an index for each drawn clip


class PlanOptions(TypedDict, total=False):
    """The options that `plan_epoch` and the sampler classes share.

    options: PlanOptions = {"dynamic_batch_size": True, "batch_randomization": True}
    sampler = LengthBatchSampler(lengths, 16, "semi_sorted", **options)
    """

    seed: int
    local_randomization_factor: float
    bucket_size: int
    num_bins: int
    num_buckets: int
    dynamic_batch_size: bool
    batch_capacity: float | None
    batch_randomization: bool
    max_clips: int | None
    too_long: TooLong
    size_multiple: int
    row_costs: Mapping[int, float] | None
    cost: Callable[..., float] | None
    group_sizes: Numbers | None
    draw: int | None
    draw_weights: Numbers | None


NAMES = ("batch_size", "strategy", *PlanOptions.__annotations__)


def check_options(options: Mapping[str, Any]) -> None:
    """Check options, for example from a settings file, before the lengths of the clips are known.

        check_options({"batch_size": 16, "strategy": "semi_sorted", "dynamic_batch_size": True})

    Args:
        options: `batch_size`, `strategy` and any number of `PlanOptions`. Missing options take
            their default values.

    Raises:
        BatchingError: if an option is unknown, or if its value is invalid regardless of the
            lengths. The error message has one line per problem, with the option, its value and the
            allowed values.
    """
    problems = list(_problems(options))
    if problems:
        raise BatchingError("\n".join(problems))


def check_option_names(options: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Check the names of the options that a user passed to a function.

        check_option_names(options, LengthBatchSampler.__init__)

    Args:
        options: the options that the function received as `**options`.
        function: a function that accepts keyword-only parameters and `**options`.

    Raises:
        BatchingError: if a name is unknown. The error message suggests a similar name, or lists the
            names of all parameters and options.
    """
    parameters = inspect.getfullargspec(function).kwonlyargs
    problems = list(_name_problems(options, (*parameters, *NAMES)))
    if problems:
        raise BatchingError("\n".join(problems))


def _name_problems(options: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    for name in options:
        if name not in names:
            similar = difflib.get_close_matches(name, names, n=1, cutoff=0.75)
            hint = f"did you mean {similar[0]}?" if similar else f"expected {', '.join(names)}"
            yield f"{name}: unknown option; {hint}"


def _problems(options: Mapping[str, Any]) -> Iterator[str]:
    yield from _name_problems(options, NAMES)
    yield from count_problems("batch_size", options["batch_size"])
    # torch does not accept larger seeds.
    yield from count_problems("seed", options.get("seed", 0), 0, 2**64 - 1)
    for name, most in (("max_clips", MAX_COUNT), ("size_multiple", MAX_COUNT), ("draw", MAX_DRAW)):
        if options.get(name) is not None:
            yield from count_problems(name, options[name], 1, most)
    for name in ("dynamic_batch_size", "batch_randomization"):
        if not isinstance(options.get(name, False), (bool, np.bool_)):
            yield f"{name}={options[name]!r}: expected True or False"
    too_long = options.get("too_long", "reject")
    if too_long not in get_args(TooLong):
        yield f"too_long={too_long!r}: expected {' or '.join(get_args(TooLong))}"
    yield from _row_cost_problems(options)
    try:
        check_strategy(options["strategy"])
    except BatchingError as error:
        yield str(error)
    yield from _parameter_problems(options)
    capacity = options.get("batch_capacity")
    if capacity is None:
        return
    if not isinstance(capacity, (int, float, np.integer, np.floating)):
        yield f"batch_capacity={capacity!r}: expected a number"
    elif not 0 < capacity <= MAX_COUNT:
        yield f"batch_capacity={capacity}: expected a number above 0 and at most {MAX_COUNT:.0e}"
    elif not options.get("dynamic_batch_size") and too_long != "leave_out":
        problem = "this option only limits dynamic batches. Set dynamic_batch_size=True."
        yield f"batch_capacity={capacity}: {problem}"


def _row_cost_problems(options: Mapping[str, Any]) -> Iterator[str]:
    row_costs = options.get("row_costs")
    if row_costs is None:
        return
    expected = "expected a map from the number of clips to a cost above 0, such as {16: 33, 32: 48}"
    if not isinstance(row_costs, Mapping) or not row_costs:
        yield f"row_costs={row_costs!r}: {expected}"
        return
    for size, value in row_costs.items():
        is_number = isinstance(value, (int, float, np.integer, np.floating))
        if any(count_problems("size", size)) or not is_number or not 0 < value <= MAX_COUNT:
            yield f"row_costs[{size!r}]={value!r}: {expected}"
    if options.get("size_multiple", 1) != 1:
        yield f"row_costs: cannot be combined with size_multiple={options['size_multiple']}"


def _parameter_problems(options: Mapping[str, Any]) -> Iterator[str]:
    batch_size = options["batch_size"]
    batch_size_is_wrong = any(count_problems("batch_size", batch_size))
    name = options["strategy"]
    strategy = REGISTRY.get(name) if isinstance(name, str) else None
    for parameter in PARAMETERS:
        value = options.get(parameter.name, parameter.default)
        low, high = parameter.limits()
        note = ""
        # Compare a parameter with the batch size only if the selected strategy uses the parameter,
        # because all other parameters are ignored.
        is_used = strategy is not None and parameter is strategy.parameter
        if is_used and not batch_size_is_wrong:
            low, high = parameter.limits(batch_size=batch_size)
            note = f" (for batch_size={batch_size})"
        if not parameter.is_factor:
            for problem in count_problems(parameter.name, value, low, high):
                yield problem + note
        elif (
            not isinstance(value, (int, float, np.integer, np.floating)) or not low <= value <= high
        ):
            yield f"{parameter.name}={value!r}: expected a number from {low} to {high:g}"
