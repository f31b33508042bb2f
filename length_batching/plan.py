"""One epoch's batches, planned from nothing but lengths: `plan_epoch`.

    batches = plan_epoch(lengths, 16, "semi_sorted", dynamic_batch_size=True, epoch=3)
    for batch in batches:  # an array of clip indices
        ...

A strategy orders the clips (strategies.py), the order is cut into batches of fixed or dynamic size
(DBS), and the finished batches may be shuffled (BR). Sources are cited in strategies.py.
"""

import difflib
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from length_batching.checks import (
    ELSEWHERE,
    MAX_COUNT,
    BatchingError,
    Lengths,
    Numbers,
    check_lengths,
    count_problems,
)
from length_batching.strategies import (
    FACTOR,
    PARAMETERS,
    REGISTRY,
    STRATEGIES,
    ShuffledClips,
)

TOO_LONG = ("refuse", "alone", "leave_out")  # what becomes of clips above the capacity


class EpochPlan(Sequence[np.ndarray]):
    """An epoch's batches, each an array of clip indices; kept as two arrays, whatever their number:
    `order` [clips], batch after batch, and `starts` [batches], the places where they begin."""

    def __init__(self, order: np.ndarray, starts: np.ndarray):
        self.order, self.starts = order, starts
        self.sizes = np.diff(starts, append=len(order))  # [batches] clips of each

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start = self.starts[index]
        return self.order[start : start + self.sizes[index]]

    def longest(self, lengths: np.ndarray) -> np.ndarray:
        """[batches] the longest length in each, or of each kind in each."""
        return np.maximum.reduceat(lengths[self.order], self.starts)

    def rearranged(self, chosen: np.ndarray) -> "EpochPlan":
        """The batches with these numbers, in this order."""
        sizes = self.sizes[chosen]
        starts = np.cumsum(sizes) - sizes
        places = np.arange(sizes.sum()) + np.repeat(self.starts[chosen] - starts, sizes)
        return EpochPlan(self.order[places], starts)


def plan_epoch(
    lengths: Lengths,
    batch_size: int,
    strategy: str,
    *,
    seed: int = 0,
    epoch: int = 0,
    local_randomization_factor: float = 0.1,
    bucket_size: int = 1024,
    num_bins: int = 58,
    num_buckets: int = 10,
    dynamic_batch_size: bool = False,
    batch_capacity: float | None = None,
    batch_randomization: bool = False,
    max_clips: int | None = None,
    too_long: str = "refuse",
    size_multiple: int = 1,
    cost: Callable[..., float] | None = None,
    group_sizes: Numbers | None = None,
    draw: int | None = None,
    draw_weights: Numbers | None = None,
    **unknown: Any,
) -> EpochPlan:
    """This epoch's batches: arrays of clip indices in which every clip appears exactly once, unless
    clips are left out or drawn. BatchingError names the parameter, its value and what is allowed.

    Args:
        lengths: one positive length per clip, in any unit (frames, say); or one of each kind (audio
            and text, say), [clips, kinds].
        batch_size: clips a batch (B0). The last batch may be smaller; it is kept.
        strategy: one of STRATEGIES; REGISTRY says what each does, and with which parameter.
        seed, epoch: the plan follows from this pair alone.
        local_randomization_factor, bucket_size, num_bins, num_buckets: the strategies' parameters;
            those of other strategies have no effect.
        dynamic_batch_size: each batch takes as many consecutive clips as fit into the capacity
            when all are padded to the longest of them (DBS, Ge21).
        batch_capacity: that capacity, in units of length; default batch_size * longest clip.
            Never exceeded.
        batch_randomization: shuffle the finished batches (BR, Ge21).
        max_clips: no batch has more.
        too_long: clips above batch_capacity are refused ("refuse"), batches of their own ("alone"),
            or left out ("leave_out", with fixed sizes too).
        size_multiple: a batch has a multiple of this number of clips, or fewer than it.
        cost: `cost(*largest)` of the largest length of each kind in a batch is what each of its
            clips costs, and replaces the length everywhere. It must not fall where one grows.
        group_sizes: [items] clips of each item, where items are groups, as long as their longest
            clip. They stay together; sizes and the capacity count the clips.
        draw, draw_weights: `draw` clips are drawn each epoch (default: as many as there are), each
            in proportion to its weight: its share of `draw`, rounded up or down at random.
    """
    options = dict(locals())  # the arguments, by name
    refuse_unknown_options("plan_epoch", options.pop("unknown"))
    costs = BatchCosts(lengths, options)
    check_options(options, costs)
    chosen = REGISTRY[strategy]
    value = options[chosen.parameter.name] if chosen.parameter else 0
    capacity = batch_capacity or batch_size * float(costs.own.max())
    most = max_clips or MAX_COUNT
    if not dynamic_batch_size:
        most, capacity = min(most, batch_size), math.inf
    largest = most if batch_capacity else min(most, batch_size)
    if costs.counts is not None and costs.counts.max() > largest:
        raise BatchingError(f"group_sizes: expected at most {largest} clips in each group")

    rng = np.random.default_rng(hashed_seed(seed, epoch))
    used = None if costs.share is None else _draw_clips(costs.share, draw, rng)
    x = costs.own if used is None else costs.own[used]
    # The shuffle lets clips of equal length change places between epochs, whatever the strategy.
    shuffled = ShuffledClips(x, rng.permutation(len(x)), value, dynamic_batch_size, rng)
    without_noise = chosen.parameter is FACTOR and value == 0
    order, class_starts = (REGISTRY["sorted"] if without_noise else chosen).order(shuffled)
    order = order if used is None else used[order]
    plan = EpochPlan(order, np.array(costs.starts(order, most, capacity, class_starts)))
    return plan.rearranged(rng.permutation(len(plan))) if batch_randomization else plan


def refuse_unknown_options(whose: str, options: Iterable[str]) -> None:
    """Raise BatchingError if `plan_epoch` has no such options, whether it or the class `whose` was
    called with them, naming what replaces those of other samplers."""
    known = [name for name in plan_epoch.__kwdefaults__ or {} if name != "epoch"]
    problems = []
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(known)}"
            problems.append(f"{whose} has no argument {name}: {ELSEWHERE.get(name, hint)}")
    if problems:
        raise BatchingError("\n".join(problems))


def _draw_clips(share: np.ndarray, draw: int | None, rng: np.random.Generator) -> np.ndarray:
    """Draw `draw` clip indices in proportion to `share`, shuffled; by default as many as have a
    share."""
    shuffled, draws = rng.permutation(len(share)), draw or int(np.count_nonzero(share))
    reached = np.cumsum(share[shuffled])
    # Systematic sampling: draws at equal distances along a line, on which each clip is as long as
    # its share. They keep off the ends of equal clips, where rounding could matter.
    places = (np.arange(draws) + (rng.integers(2**20) + 0.5) / 2**20) * (reached[-1] / draws)
    return np.asarray(shuffled[np.searchsorted(reached, places, side="right")])


def check_options(options: Mapping[str, Any], costs: "BatchCosts | None" = None) -> None:
    """Raise BatchingError if `plan_epoch` refuses these options for any clips, or for these."""
    options = {**(plan_epoch.__kwdefaults__ or {}), **options}
    strategy, batch_size, too_long = options["strategy"], options["batch_size"], options["too_long"]
    problems = [
        *count_problems("batch_size", batch_size),
        *count_problems("seed", options["seed"], 0, 2**64 - 1),  # torch's limit
        *count_problems("epoch", options["epoch"], 0),
    ]
    for name in ("max_clips", "size_multiple", "draw"):
        problems += count_problems(name, 1 if options[name] is None else options[name])
    for name in ("dynamic_batch_size", "batch_randomization"):
        if not isinstance(options[name], (bool, np.bool_)):
            problems.append(f"{name}={options[name]!r}: expected True or False")
    if too_long not in TOO_LONG:
        others = "segments_of cuts clips"
        problems.append(f"too_long={too_long!r}: expected {' or '.join(TOO_LONG)}; {others}")
    if strategy not in REGISTRY:
        near = difflib.get_close_matches(str(strategy), STRATEGIES, n=1, cutoff=0.3)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        problems.append(f"strategy={strategy!r}: expected one of {', '.join(STRATEGIES)}{hint}")
    used = None if problems else REGISTRY[strategy].parameter
    capacity, longest, num_clips = options["batch_capacity"], 0.0, MAX_COUNT
    if costs is not None:
        longest = float(costs.alone.max() if too_long == "refuse" else costs.alone.min())
        drawn = costs.own if costs.share is None else np.flatnonzero(costs.share)
        num_clips = options["draw"] or len(drawn)
    for parameter in PARAMETERS:
        value, limits, note = options[parameter.name], parameter.limits(), ""
        if parameter is used:  # those of other strategies need not suit the clips
            limits = parameter.limits(num_clips, batch_size)
            clips = "" if costs is None else f" and {num_clips} clips"
            note = f" (for batch_size={batch_size}{clips})"
        if not parameter.is_factor:
            problems += [p + note for p in count_problems(parameter.name, value, *limits)]
        elif not limits[0] <= value <= limits[1]:
            problems.append(f"{parameter.name}={value}: expected 0 <= factor <= {limits[1]:g}")
    if capacity is not None and not options["dynamic_batch_size"] and too_long != "leave_out":
        problem = "limits dynamic batches only; set dynamic_batch_size=True"
        problems.append(f"batch_capacity={capacity}: {problem}")
    elif capacity is not None and not longest <= capacity <= MAX_COUNT:
        fitting = "the longest clip" if too_long == "refuse" else "any clip"
        allowed = f"{longest:.15g}, so that {fitting} fits, to {MAX_COUNT:.0e}"
        problems.append(f"batch_capacity={capacity}: expected {allowed}")
    if problems:
        raise BatchingError("\n".join(problems))


def hashed_seed(seed: int, epoch: int) -> np.random.SeedSequence:
    """Hashes the pair, so that seed 0 epoch 1 is not seed 1 epoch 0."""
    return np.random.SeedSequence(entropy=int(seed), spawn_key=(int(epoch),))


def batch_starts(x: np.ndarray, most: int, capacity: float, classes: Sequence[int]) -> list[int]:
    """Where batches begin if each takes the longest run of clips of its class with size * longest
    <= capacity (DBS, Ge21), and at most so many; a longer clip is a batch of its own."""
    starts, lengths = [], x.tolist()
    for class_start, class_end in itertools.pairwise([*classes, len(x)]):
        start, longest = class_start, 0.0
        for i in range(class_start, class_end):
            length = lengths[i]
            if length > longest:
                longest = length
            size = i + 1 - start
            if size > most or (size * longest > capacity and size > 1):
                starts.append(start)
                start, longest = i, length
        starts.append(start)
    return starts


class BatchCosts:
    """What batches cost with options of `plan_epoch`: clips times the cost of one, padded to the
    largest length of each kind. BatchingError if an option that concerns it cannot be such."""

    def __init__(self, lengths: Lengths, options: Mapping[str, Any]):
        options = {**(plan_epoch.__kwdefaults__ or {}), **options}
        self.lengths, self.cost = check_lengths(lengths), options["cost"]  # of one clip
        clips, self.size_multiple = len(self.lengths), options["size_multiple"]
        if self.cost:
            self.lengths = self.lengths.reshape(clips, -1)
        elif self.lengths.ndim > 1:
            raise BatchingError(f"lengths: {self.lengths.shape[1]} of each clip; expected cost")
        given = {
            name: check_lengths(options[name], name, (clips,))
            for name in ("group_sizes", "draw_weights")
            if options[name] is not None
        }
        self.counts = given.get("group_sizes")
        self.own = self._of_one(self.lengths)  # [clips] what each costs; in groups, each of theirs
        self.alone = self.own if self.counts is None else self.own * self.counts  # as a batch
        if self.cost or given:
            check_lengths(self.alone, "costs of clips")
        self.share = None  # or [clips] how often each is drawn, in proportion
        leave_out = options["too_long"] == "leave_out"
        if options["draw"] or "draw_weights" in given or leave_out:
            most = options["batch_capacity"] if leave_out else None
            self.share = (self.alone <= (most or math.inf)) * given.get("draw_weights", 1)
            if not self.share.any():
                raise BatchingError("draw_weights, too_long: no clip is left to be in a batch")

    def _of_one(self, lengths: np.ndarray) -> np.ndarray:
        if self.cost is None:
            return lengths
        return np.asarray(np.frompyfunc(self.cost, lengths.shape[1], 1)(*lengths.T), np.float64)

    def sizes(self, plan: EpochPlan) -> np.ndarray:
        """[batches] the number of clips, those of groups counted."""
        if self.counts is None:
            return plan.sizes
        return np.add.reduceat(self.counts[plan.order], plan.starts)

    def longest(self, plan: EpochPlan) -> np.ndarray:
        """[batches] what a clip costs there: with one length, the longest."""
        return self._of_one(plan.longest(self.lengths))

    def starts(
        self, order: np.ndarray, most: int, capacity: float, class_starts: Sequence[int] = (0,)
    ) -> list[int]:
        """`batch_starts` of clips in this order, for any cost."""
        x, multiple = self.lengths[order], self.size_multiple
        if self.cost is None and multiple == 1 and self.counts is None:
            return batch_starts(x, min(most, len(x)), capacity, class_starts)
        cost = self.cost or float  # of the only length
        rows = x.reshape(len(x), -1).tolist()
        counts = [1] * len(x) if self.counts is None else self.counts[order].tolist()
        starts = []
        for start, class_end in itertools.pairwise([*class_starts, len(x)]):
            while start < class_end:
                starts.append(start)
                size, longest, end, whole = 0, rows[start], start, start
                while end < class_end:
                    longest = list(map(max, longest, rows[end]))
                    size += counts[end]
                    if end > start and (size > most or size * cost(*longest) > capacity):
                        break
                    end += 1
                    if size % multiple == 0:
                        whole = end
                start = end if whole == start else whole
        return starts
