"""Print the cost of each batching strategy for a file of lengths, and recommend a strategy.

    python -m length_batching lengths.csv
    python -m length_batching lengths.csv --column samples
    python -m length_batching lengths.csv batch_size=32 local_randomization_factor=0.035

The file is a CSV or a text file with one length per line. The lengths may be in any unit. The
output is a table with two rows per strategy: one for fixed batch sizes and one for dynamic batch
sizes (DBS). Below the table, the program prints the options that need the fewest decoder steps and
still mix the clips at least as well as SSB-DBS-BR, the best strategy of Ge et al. (2021). At the
end, the program prints a call of LengthBatchSampler with the strategy that we recommend for
training: two epochs with random batches, and then SSB-DBS-BR.
"""

import argparse
import contextlib
import csv
import os
import re
import sys
from typing import Any

import numpy as np

from length_batching.checks import MAX_COUNT, BatchingError
from length_batching.report import (
    LEGEND,
    cost_table,
    describe_result,
    recommend,
    recommended_options,
    strategy_table,
)
from length_batching.search import Surveyor, search, survey_all
from length_batching.strategies import PARAMETERS

SIZES = ("batch_capacity", "max_clips", "too_long", "size_multiple")
OPTIONS = ("batch_size", *SIZES, *(parameter.name for parameter in PARAMETERS))


def read_lengths(path: str, column: str | None = None) -> np.ndarray:
    """Read the lengths from a file, or from standard input if the path is "-".

    Args:
        column: title of the CSV column that contains the lengths. Default: the last column.

    Raises:
        BatchingError: if a line contains no valid length, or if the file is empty.
    """
    try:
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BatchingError(f"{path}: not a CSV or text file in UTF-8 ({error})") from None
    titles = [cell.strip() for cell in rows[0][1]] if rows else [""]
    if column is not None and column not in titles:
        expected = f"expected one of {','.join(titles)}"
        raise BatchingError(f"{path}:1: the file has no column {column!r}; {expected}")
    index = -1 if column is None else titles.index(column)
    starts_with_number = re.match(r"[-+.\d]|nan|inf|$", titles[index], re.IGNORECASE)
    if column is not None or not starts_with_number:
        del rows[0]
    if not rows:
        raise BatchingError(f"{path}: contains no lengths (expected a CSV, or one length per line)")
    lengths = np.full(len(rows), np.nan)
    for i, (_, row) in enumerate(rows):
        with contextlib.suppress(ValueError, IndexError):
            lengths[i] = float(row[index])
    wrong = [rows[i] for i in np.flatnonzero(~((lengths > 0) & (lengths <= MAX_COUNT)))]
    if wrong:
        (line, row), *others = wrong
        text = ",".join(row)[:60]
        more = f"; {len(others):,} more lines have this problem" if others else ""
        raise BatchingError(f"{path}:{line}: {text!r}: expected a length above 0{more}")
    return lengths


def print_report(lengths: np.ndarray, batch_size: int, options: dict[str, Any]) -> None:
    """Print the cost table, the options that need the fewest decoder steps, and a call of
    LengthBatchSampler with the recommended strategy."""
    surveyor = Surveyor(lengths)
    surveys, impossible = survey_all(surveyor, batch_size, **options)
    print(
        f"{len(lengths):,} lengths from {lengths.min():,.10g} to {lengths.max():,.10g}; batch size "
        f"{batch_size}; {surveyor.epochs} epochs planned\n"
    )
    print(cost_table(surveys), *impossible, "", LEGEND, "", sep="\n")
    sizes = {name: value for name, value in options.items() if name in SIZES}
    result = search(surveyor, batch_size, **sizes)
    print(*describe_result(result), "", *recommend(result), sep="\n")
    # `recommended_options` adds `batch_capacity` if the recommended batches have a frame budget.
    sizes.pop("batch_capacity", None)
    call = recommended_options(result) | sizes
    arguments = "".join(f"\n    {name}={value!r}," for name, value in call.items())
    print(f"\nLengthBatchSampler(\n    lengths,{arguments}\n)")


def parse_option(text: str) -> tuple[str, Any]:
    """Split `name=value` into the name and the parsed value."""
    name, _, value = text.partition("=")
    if "=" not in text:
        raise BatchingError(f"{text}: expected name=value, such as batch_size=32")
    if name not in OPTIONS:
        names = ", ".join(OPTIONS)
        raise BatchingError(f"{text}: unknown name (expected one of {names})")
    if name == "too_long":
        return name, value
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise BatchingError(f"{text}: expected a number after '='") from None


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m length_batching",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("lengths", help="read the lengths from this file (-: standard input)")
    add(
        "options",
        nargs="*",
        metavar="name=value",
        help=f"set a batching option: {', '.join(OPTIONS)}",
    )
    add("--column", help="read the lengths from this CSV column (default: the last column)")
    add(
        "--strategies",
        action="version",
        version=strategy_table(),
        help="print all strategies and exit",
    )
    args = parser.parse_intermixed_args(arguments)
    try:
        options = dict(map(parse_option, args.options))
        lengths = read_lengths(args.lengths, args.column)
        print_report(lengths, options.pop("batch_size", 16), options)
        print(end="", flush=True)
    except BatchingError as error:
        sys.exit(f"error: {error}")
    except BrokenPipeError:  # the program that reads the pipe, such as `head`, has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        sys.exit(f"error: {args.lengths}: {error.strerror}")


if __name__ == "__main__":
    main()
