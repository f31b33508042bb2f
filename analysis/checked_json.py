"""JSON read into dataclasses and checked by pydantic against their annotations."""

import functools
import json
from collections.abc import Mapping
from typing import Any

MOST_PROBLEMS_SHOWN = 10
MOST_DIGITS = 20  # of a whole number: the largest seed's
LARGEST_NUMBER = 1e100  # whose square can still be computed


@functools.cache
def _adapter(expected):
    import pydantic  # here, for machines that only run the GPU benchmarks do not have it

    return pydantic.TypeAdapter(expected)


def parse_json(text: str, expected):
    """`text` as `expected`, a dataclass say.

    Numbers in quotes are no numbers. A dataclass may set `__pydantic_config__`, to refuse unknown
    entries for example, and refuse values in `__post_init__`.

    Raises:
        ValueError: naming every wrong entry (the first ten), its value and what was expected; or
            a number that is too large to be computed with.
    """
    from pydantic import ValidationError

    try:
        found = _adapter(expected).validate_json(text, strict=True)
        json.loads(text, parse_int=_check_digits, parse_float=_check_size)
        return found
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
        if len(problems) > MOST_PROBLEMS_SHOWN:
            problems[MOST_PROBLEMS_SHOWN:] = [f"and {len(problems) - MOST_PROBLEMS_SHOWN} more"]
        raise ValueError("; ".join(problems)) from None


def _check_digits(digits: str) -> None:
    if len(digits.lstrip("-")) > MOST_DIGITS:
        raise ValueError(f"{_shortened(digits)}: expected a number of at most {MOST_DIGITS} digits")


def _check_size(text: str) -> None:
    if abs(float(text)) > LARGEST_NUMBER:
        raise ValueError(f"{_shortened(text)}: expected a number of at most {LARGEST_NUMBER:g}")


def _shortened(value: str) -> str:
    return value if len(value) <= 60 else value[:57] + "..."


def _problem(error: Mapping[str, Any]) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "json_invalid":
        return f"not JSON ({error['ctx']['error']})"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "unexpected_keyword_argument":
        return f"{name} is not known"
    if error["type"] == "value_error":  # of __post_init__, which names the entry
        return f"{name}: {error['ctx']['error']}" if name else str(error["ctx"]["error"])
    shown = _shortened(repr(error["input"]))
    reason = error["msg"].replace("Input should be", "expected")
    return f"{name}={shown}, {reason}" if name else f"{shown}: {reason}"
