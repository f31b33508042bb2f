"""Check lengths, counts and ranks, and raise `BatchingError` if they are invalid."""

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np

Numbers = Sequence[float] | np.ndarray  # one number per clip
# A two-dimensional array if clips have several kinds of length, such as audio and text.
Lengths = Numbers | Sequence[Sequence[float]]
MAX_COUNT = 10**15  # upper limit for counts and lengths, so that their sums are exact in float64


class BatchingError(ValueError):
    """Raised when lengths or options are invalid, or when a state belongs to a different plan."""


# ---------------------------------------------------------------------------- lengths


def check_lengths(lengths: Lengths) -> np.ndarray:
    """Return the lengths as a float64 array [clips].

    Every length must be positive. If clips have several kinds of length, the array has the shape
    [clips, kinds], and lengths of 0 are also allowed.

    Raises:
        BatchingError: if the array has the wrong shape, or if an element is not a valid length.
    """
    x = _array("lengths", lengths)
    if x.ndim not in (1, 2) or x.size == 0 or x.dtype.kind not in "iuf":
        found = f"found an array of type {x.dtype} and shape {x.shape}"
        raise BatchingError(f"lengths: expected one number per clip, {found}")
    has_several_kinds = x.size > len(x)
    return check_range("lengths", x, zero_allowed=has_several_kinds)


def check_numbers(name: str, values: Numbers, num_clips: int) -> np.ndarray:
    """Check that the values are non-negative, and return them as a float64 array [clips].

    Raises:
        BatchingError: if the array has the wrong shape, or if a value is negative or not finite.
    """
    x = _array(name, values)
    if x.shape != (num_clips,) or x.dtype.kind not in "iuf":
        found = f"found an array of type {x.dtype} and shape {x.shape}"
        raise BatchingError(f"{name}: expected {num_clips} numbers, one per clip, {found}")
    return check_range(name, x, zero_allowed=True)


def _array(name: str, values: Any) -> np.ndarray:
    if np.ma.is_masked(values):
        raise BatchingError(
            f"{name}: the array contains masked values, expected one number per clip"
        )
    if isinstance(values, (Mapping, Set, Iterator)):
        found = type(values).__name__
        raise BatchingError(f"{name}: found a {found}, expected a list, an array or a tensor")
    try:
        return np.asarray(values)
    # numpy raises RuntimeError if a tensor has gradients.
    except (ValueError, TypeError, RuntimeError) as error:
        raise BatchingError(f"{name}: expected one number per clip ({error})") from None


def check_range(name: str, x: np.ndarray, *, zero_allowed: bool = False) -> np.ndarray:
    """Return the array as float64, or raise BatchingError if an element is out of range."""
    x = x.astype(np.float64)
    least = 0 if zero_allowed else np.nextafter(0, 1)
    if x.min() >= least and x.max() <= MAX_COUNT:
        return x
    wrong = np.argwhere(~((x >= least) & (x <= MAX_COUNT)))
    index = wrong[0].tolist()
    sign = "non-negative" if zero_allowed else "positive"
    expected = f"a {sign}, finite number of at most {MAX_COUNT:.0e}"
    count = f"{len(wrong)} of {x.size} values are out of range"
    raise BatchingError(f"{name}{index}={x[tuple(index)]:g}: expected {expected} ({count})")


# ---------------------------------------------------------------------------- counts


def check_count(name: str, value: Any, low: int = 1, high: int = MAX_COUNT) -> None:
    """Raise BatchingError unless the value is a whole number from `low` to `high`."""
    for problem in count_problems(name, value, low, high):
        raise BatchingError(problem)


def count_problems(name: str, value: Any, low: int = 1, high: int = MAX_COUNT) -> Iterator[str]:
    """Yield an error message unless the value is a whole number from `low` to `high`."""
    is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not (is_whole and low <= value <= high):
        limits = f"of at least {low}" if high == MAX_COUNT else f"from {low} to {high}"
        yield f"{name}={value}: expected a whole number {limits}"


def check_equal_shares(trained: int | None, is_equal: bool, processes: int) -> None:
    """Raise BatchingError if the processes have trained on unequal numbers of batches."""
    if not is_equal:
        problem = f"{processes} processes cannot have trained on equal numbers of batches"
        raise BatchingError(f"batches_trained={trained}: {problem}")


def check_loaded_state(state: Any) -> None:
    """Raise BatchingError if a state for `load_state_dict` was not returned by `state_dict`.

    The epoch and the number of trained batches must be non-negative whole numbers. If the number of
    trained batches is not 0, the state must also contain the number of batches and the checksum of
    the plan.
    """
    if not isinstance(state, Mapping) or not {"epoch", "batches_trained"} <= state.keys():
        raise BatchingError(f"load_state_dict: {state!r:.80}, expected a result of state_dict()")
    check_count("load_state_dict: epoch", state["epoch"], 0)
    if state["batches_trained"] is not None:
        check_count("load_state_dict: batches_trained", state["batches_trained"], 0)
    for name in ("num_batches", "plan_checksum"):
        if name in state or state["batches_trained"] != 0:
            check_count(f"load_state_dict: {name}", state.get(name), 0)


def check_trained(trained: int, drawn: int) -> None:
    """Raise BatchingError if the trainer reports more batches than this process has drawn."""
    check_count("trained", trained, 0)
    if trained > 0 and drawn == 0:
        raise BatchingError(
            f"trained={trained}: no batches have been drawn since the last call of set_epoch. At the end "
            "of an epoch, save the state before you call set_epoch again. With LengthBatches, also pass sampler=RankSampler(batches, rank) "
            "to the DataLoader."
        )
    if trained > drawn:
        raise BatchingError(
            f"trained={trained}: expected at most {drawn}, the number of batches that this process "
            "has drawn since set_epoch"
        )


# ---------------------------------------------------------------------------- processes


def resolve_ranks(
    rank: int | None, world_size: int | None, batches_per_update: int | None
) -> tuple[int, int, int]:
    """Return (rank, world size, batches per optimizer step), with defaults for missing values.

    By default, there is one process. The default number of batches per optimizer step is the number
    of processes.

    Raises:
        BatchingError: if a number is out of range, or if the processes would receive unequal
            numbers of batches.
    """
    if rank is not None or world_size not in (None, 1):
        check_count("world_size", world_size)
        check_count("rank", rank, 0, (world_size or 1) - 1)
    processes = world_size or 1
    size = processes if batches_per_update is None else batches_per_update
    check_count("batches_per_update", size)
    if size % processes:
        expected = f"expected a multiple of {processes}, the number of processes"
        raise BatchingError(f"batches_per_update={size}: {expected}")
    return rank or 0, processes, size


def check_trains_alone() -> None:
    """Raise BatchingError if torch.distributed has several processes.

    Call this function if the user has not set the number of processes. Otherwise, each process would
    train on all batches.
    """
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return
    processes = distributed.get_world_size()
    if processes > 1:
        raise BatchingError(
            f"rank, world_size: not given, although torch.distributed has {processes} processes. "
            "Pass the number of processes that share the batches, or world_size=1 if each process "
            "should train on all batches."
        )
