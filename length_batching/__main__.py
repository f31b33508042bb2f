"""Print what each batching costs for a file of lengths, and the cheapest that mixes enough.

    python -m length_batching lengths.csv
    python -m length_batching lengths.csv --column samples
    python -m length_batching lengths.csv batch_size=32 local_randomization_factor=0.035

The file has a length on each line, in any unit, or is a CSV, of which the last column is taken if
--column names no other. name=value are sizes (batch_size, 16; batch_capacity, max_clips, too_long,
size_multiple, draw) and parameters of strategies. The table's columns are means over epochs:

    padding %    padding over everything that is computed
    steps        sum of the batches' longest lengths: what a recurrent model does one by one
    of random %  the same over that of random batches of fixed size
    largest      the largest batch (clips x longest) over batch_size x the longest of all
    novelty %    of the pairs that share a batch, how many shared none in the epoch before
    ms           milliseconds to plan an epoch

Below the table is the call that costs least, of all strategies and values of their parameters
(search.py), among those that have as much novelty as SSB-DBS-BR, or 99 %.
"""

import argparse
import contextlib
import csv
import os
import re
import sys
import time
from typing import Any

import numpy as np

from length_batching.checks import MAX_COUNT, BatchingError
from length_batching.plan import plan_epoch
from length_batching.search import DEFAULTS, Survey, Surveyor, search
from length_batching.strategies import PARAMETERS, STRATEGIES

TITLES = "padding %", "batches", "steps", "of random %", "largest", "novelty %", "ms"
FORMATS = "{:.2f}", "{:,.0f}", "{:,.0f}", "{:.1f}", "{:.3f}", "{:.1f}", "{:.1f}"
MAX_NAMED = 20  # bad lines by their numbers
OPTIONS = "batch_size batch_capacity max_clips too_long size_multiple draw".split()
OPTIONS += [parameter.name for parameter in PARAMETERS]


def read_lengths(path: str, column: str | None = None) -> np.ndarray:
    """The lengths in a file or, for "-", in stdin. BatchingError naming the lines without one."""
    try:
        with open(0 if path == "-" else path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if any(row)]
    except (UnicodeDecodeError, csv.Error) as error:
        raise BatchingError(f"{path}: expected lines of text in UTF-8 ({error})") from None
    titles = [cell.strip() for cell in rows[0][1]] if rows else [""]
    if column is not None and column not in titles:
        raise BatchingError(f"{path}: no column {column!r} in its first line, {','.join(titles)!r}")
    place = -1 if column is None else titles.index(column)
    if column is not None or not re.match(r"[-+.\d]|nan|inf|$", titles[place], re.IGNORECASE):
        del rows[0]
    if not rows:
        raise BatchingError(f"{path}: no lengths; expected one on each line, or a CSV")
    lengths = np.full(len(rows), np.nan)
    for i, (_, row) in enumerate(rows):
        with contextlib.suppress(ValueError, IndexError):
            lengths[i] = float(row[place])
    bad = [rows[i] for i in np.flatnonzero(~((lengths > 0) & (lengths <= MAX_COUNT)))]
    if bad:
        (first, row), *others = bad
        line = ",".join(row)[:60]
        problem = f"{path}:{first}: {line!r}: expected a length, a number above 0"
        numbers = ", ".join(str(number) for number, _ in others[:MAX_NAMED])
        more = ", ..." if len(others) > MAX_NAMED else ""
        count = f"{len(others):,} more line{'s' * (len(others) > 1)}"
        same = f"; the same in {count}: {numbers}{more}" if others else ""
        raise BatchingError(f"{problem}{same}; correct or delete {'them' if others else 'it'}")
    return lengths


def cells(surveyor: Surveyor, survey: Survey, options: dict[str, Any]) -> list[str]:
    """The table's columns of one batching."""
    start = time.perf_counter()
    plan_epoch(surveyor.lengths, epoch=1, **options)
    milliseconds = 1000 * (time.perf_counter() - start)
    random = surveyor.survey(survey.batch_size, "random", **without_capacity(options))
    capacity = survey.batch_capacity or survey.batch_size * surveyor.longest
    values = (
        100 * survey.padded_fraction,
        survey.num_batches,
        survey.decoder_steps,
        100 * survey.decoder_steps / random.decoder_steps,
        survey.largest_batch_frames / capacity,
        100 * survey.novelty,
        milliseconds,
    )
    return [form.format(value) for form, value in zip(FORMATS, values, strict=True)]


def without_capacity(options: dict[str, Any]) -> dict[str, Any]:
    """The options that random batches of fixed size share with others."""
    own = ("batch_size", "strategy", "batch_capacity", "dynamic_batch_size", "batch_randomization")
    return {name: value for name, value in options.items() if name not in own}


def print_table(lengths: np.ndarray, options: dict[str, Any]) -> None:
    """A row for each strategy with fixed and with dynamic sizes, and the call that costs least."""
    fixed = {name: value for name, value in options.items() if name != "batch_capacity"}
    dynamic = options | {"dynamic_batch_size": True}
    plan_epoch(lengths, strategy="random", **dynamic)  # refuses what no strategy allows
    surveyor, size = Surveyor(lengths), options["batch_size"]
    shortest, longest = lengths.min(), lengths.max()
    print(f"{len(lengths):,} lengths, {shortest:,.10g} to {longest:,.10g}; batch size {size}\n")
    print(f"{'strategy':24}{'sizes':7}", *(f"{title:>11}" for title in TITLES))

    def print_row(options: dict[str, Any]) -> None:
        sizes = "dynamic" if options.get("dynamic_batch_size") else "fixed"
        name = f"{options['strategy']:24}{sizes:7}"
        try:
            row = cells(surveyor, surveyor.survey(**options), options)
        except BatchingError as error:  # so few lengths
            print(f"{name}  not possible: {error}")
            return
        print(name, *(f"{cell:>11}" for cell in row))

    for sizes in (fixed, dynamic):
        for strategy in STRATEGIES:
            print_row(sizes | {"strategy": strategy})
    if "draw" in options:  # every epoch has other clips, so nothing tells how they mix
        return
    advice = search(surveyor, size, **{k: v for k, v in options.items() if k != "batch_size"})
    if not advice.best:
        return
    own = advice.best.options()
    others = {k: v for k, v in without_capacity(options).items() if k not in DEFAULTS}
    call = own | others
    print(f"\nThe cheapest with {100 * advice.min_novelty:.1f} % novelty or more:")
    print_row(call)
    arguments = "".join(f"\n    {name}={value!r}," for name, value in call.items())
    print(f"\nLengthBatchSampler(\n    lengths,{arguments}\n)")


def option(text: str) -> tuple[str, Any]:
    """The name and value of name=value."""
    name, _, value = text.partition("=")
    if name not in OPTIONS:
        raise BatchingError(f"{text}: expected name=value, a name of {', '.join(OPTIONS)}")
    if name == "too_long":
        return name, value
    try:
        return name, int(value) if value.isdecimal() else float(value)
    except ValueError:
        raise BatchingError(f"{text}: expected a number") from None


def readable(text: object) -> str:
    """With \\xff for a byte of an argument that is no UTF-8, which Python keeps as \\udcff."""
    return str(text).encode(errors="surrogateescape").decode(errors="backslashreplace")


def main(arguments: list[str] | None = None) -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed (`>&-`)
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    parser = argparse.ArgumentParser(
        "python -m length_batching",
        description=__doc__,
        formatter_class=argparse.RawTextHelpFormatter,
    )
    parser.add_argument("lengths", help="a file, or - for stdin")
    parser.add_argument("options", nargs="*", help="name=value", metavar="option")
    parser.add_argument("--column", help="of the CSV")
    args = parser.parse_intermixed_args(arguments)
    try:
        lengths = read_lengths(args.lengths, args.column)
        print_table(lengths, {"batch_size": 16, **dict(map(option, args.options))})
        sys.stdout.flush()
    except BatchingError as error:
        sys.exit(f"length_batching: {readable(error)}")
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        sys.exit(f"length_batching: {readable(args.lengths)}: {error.strerror}")


if __name__ == "__main__":
    main()
