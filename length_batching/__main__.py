"""Print what each batching costs for a file of lengths.

    python -m length_batching lengths.csv
    python -m length_batching lengths.csv --column samples
    python -m length_batching lengths.csv batch_size=32 local_randomization_factor=0.035

The file has a length on each line, in any unit, or is a CSV, of which the last column is taken if
--column names no other. name=value are arguments of plan_epoch. The table's columns:

    padding %    padding over everything that is computed
    steps        sum of the batches' longest lengths: what a recurrent model does one by one
    of random %  the same over that of random batches of fixed size
    largest      the largest batch (clips x longest) over batch_size x the longest of all
    novelty %    of the pairs that share a batch, how many shared none in the epoch before
    ms           milliseconds to plan an epoch
"""

import argparse
import bisect
import contextlib
import csv
import math
import os
import re
import sys
import time
from typing import Any

import numpy as np

from length_batching.checks import MAX_COUNT, BatchingError
from length_batching.costs import ENOUGH_NOVELTY, padding_stats, pair_novelty
from length_batching.plan import plan_epoch
from length_batching.strategies import PARAMETERS, STRATEGIES

TITLES = "padding %", "batches", "steps", "of random %", "largest", "novelty %", "ms"
FORMATS = "{:.2f}", "{:,.0f}", "{:,.0f}", "{:.1f}", "{:.3f}", "{:.1f}", "{:.1f}"
OPTIONS = "batch_size batch_capacity max_clips too_long size_multiple draw".split()
OPTIONS += [parameter.name for parameter in PARAMETERS]
FACTORS = [round(1.1**n / 1000, 4) for n in range(66)]  # to 0.5


def read_lengths(path: str, column: str | None = None) -> np.ndarray:
    """The lengths in a file or, for "-", in stdin. BatchingError naming the line without one."""
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
    for i, (number, row) in enumerate(rows):
        with contextlib.suppress(ValueError, IndexError):
            lengths[i] = float(row[place])
        if not 0 < lengths[i] <= MAX_COUNT:
            line = ",".join(row)[:60]
            raise BatchingError(f"{path}:{number}: {line!r}: expected a length, a number above 0")
    return lengths


def costs(
    lengths: np.ndarray, strategy: str, options: dict[str, Any], random_steps: float = math.nan
) -> dict[str, float]:
    """The table's columns for one batching; BatchingError where it is not possible."""
    plans, seconds = [], []
    for epoch in (0, 1):
        start = time.perf_counter()
        plans.append(plan_epoch(lengths, strategy=strategy, epoch=epoch, **options))
        seconds.append(time.perf_counter() - start)
    stats, novelty = padding_stats(lengths, plans[1]), math.nan
    with contextlib.suppress(ValueError):  # epochs of other clips, drawn anew
        novelty = 100 * pair_novelty(plans[1], plans[0])
    capacity = options.get("batch_capacity") or options["batch_size"] * lengths.max()
    return {
        "padding %": 100 * stats.padded_fraction,
        "batches": stats.num_batches,
        "steps": stats.decoder_steps,
        "of random %": 100 * stats.decoder_steps / random_steps,
        "largest": stats.largest_batch_frames / capacity,
        "novelty %": novelty,
        "ms": 1000 * min(seconds),
    }


def print_table(lengths: np.ndarray, given: dict[str, Any]) -> None:
    """A row for each strategy with fixed and with dynamic sizes, and the call that costs least."""
    fixed = {name: value for name, value in given.items() if name != "batch_capacity"}
    dynamic = given | {"dynamic_batch_size": True}
    plan_epoch(lengths, strategy="random", **dynamic)  # refuses what no strategy allows
    random_steps = costs(lengths, "random", fixed)["steps"]
    shortest, longest, size = lengths.min(), lengths.max(), given["batch_size"]
    print(f"{len(lengths):,} lengths, {shortest:,.10g} to {longest:,.10g}; batch size {size}\n")
    print(f"{'strategy':24}{'sizes':7}", *(f"{title:>11}" for title in TITLES))

    def print_row(strategy: str, options: dict[str, Any]) -> None:
        name = f"{strategy:24}{'dynamic' if 'dynamic_batch_size' in options else 'fixed':7}"
        try:
            values = costs(lengths, strategy, options, random_steps).values()
        except BatchingError as error:  # so few lengths
            print(f"{name}  not possible: {error}")
            return
        cells = (form.format(value) for form, value in zip(FORMATS, values, strict=True))
        print(name, *(f"{cell:>11}" for cell in cells))

    for options in (fixed, dynamic):
        for strategy in STRATEGIES:
            print_row(strategy, options)
    # How much novelty is enough follows Ge et al. With as much, exponential noise costs less than
    # theirs for most corpora, and more where a few clips are far longer than the others.
    name, strategy = "local_randomization_factor", "semi_sorted_exponential"
    paper = costs(lengths, "semi_sorted", dynamic)
    wanted = min(paper["novelty %"], ENOUGH_NOVELTY)

    def novelty(factor: float) -> float:
        return costs(lengths, strategy, dynamic | {name: factor})["novelty %"]

    if math.isnan(wanted):
        return
    best = dynamic | {name: FACTORS[bisect.bisect_left(FACTORS[:-1], wanted, key=novelty)]}
    cheapest = costs(lengths, strategy, best)
    if cheapest["novelty %"] < wanted or cheapest["steps"] > paper["steps"]:
        strategy, best = "semi_sorted", dynamic
    print(
        f"\nThe cheaper noise with {wanted:.1f} % novelty, that of the dynamic semi_sorted or 99:"
    )
    print_row(strategy, best)
    arguments = "".join(f"\n    {name}={value!r}," for name, value in best.items())
    print(f'\nLengthBatchSampler(\n    lengths,\n    strategy="{strategy}",{arguments}')
    print("    batch_randomization=True,\n)")


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


def main(arguments: list[str] | None = None) -> None:
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
        sys.exit(f"length_batching: {error}")
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        sys.exit(f"length_batching: {args.lengths}: {error.strerror}")


if __name__ == "__main__":
    main()
