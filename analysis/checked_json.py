"""JSON read into dataclasses and checked by pydantic against their annotations."""

import functools

MOST_PROBLEMS_SHOWN = 10


@functools.cache
def _adapter(expected):
    import pydantic  # here, for machines that only run the GPU benchmarks do not have it

    return pydantic.TypeAdapter(expected)


def parse_json(text: str, expected):
    """`text` as `expected`, a dataclass say.

    Numbers in quotes are no numbers. A dataclass may set `__pydantic_config__`, to refuse unknown
    entries for example, and refuse values in `__post_init__`.

    Raises:
        ValueError: naming every wrong entry (the first ten), its value and what was expected.
    """
    from pydantic import ValidationError

    try:
        return _adapter(expected).validate_json(text, strict=True)
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
        if len(problems) > MOST_PROBLEMS_SHOWN:
            problems[MOST_PROBLEMS_SHOWN:] = [f"and {len(problems) - MOST_PROBLEMS_SHOWN} more"]
        raise ValueError("; ".join(problems)) from None


def _problem(error: dict) -> str:
    name = ".".join(map(str, error["loc"]))
    if error["type"] == "json_invalid":
        return f"not JSON ({error['ctx']['error']})"
    if error["type"] == "missing":
        return f"{name} is missing"
    if error["type"] == "unexpected_keyword_argument":
        return f"{name} is not known"
    if error["type"] == "value_error":  # of __post_init__, which names the entry
        return f"{name}: {error['ctx']['error']}" if name else str(error["ctx"]["error"])
    value = repr(error["input"])
    shown = value if len(value) <= 60 else value[:57] + "..."
    reason = error["msg"].replace("Input should be", "expected")
    return f"{name}={shown}, {reason}" if name else f"{shown}: {reason}"
