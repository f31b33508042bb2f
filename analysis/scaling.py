"""How training scales with the number of processes: a model, from what single steps cost.

Of W processes each takes one batch of every update (`batches_per_update` is W). An update lasts as
long as its costliest batch, and then the part of the gradients' sum that no backward pass hides:

    seconds of an epoch = sum over updates of (seconds of the costliest batch + exposed reduction)

Which batches make an update is what `batching.LengthBatchSampler` does: ranked by length, cut into
groups of W, the last group cut anew. A test holds the two to be the same. Reading of data, and
processes that are slower than others for other reasons than their batches, are not in it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from analysis import published
from analysis.checked_json import parse_json
from analysis.clips import Clips, synthetic_clips
from analysis.step_costs import CHECKED, TERMS, StepCosts, fit_relative
from analysis.strategies import batching_name
from analysis.survey import batch_shapes
from batching import STRATEGIES, EpochPlan, cut_evenly, padding_stats, plan_epoch
from errors import UserError
from hparams import HParams, batching_options, create_hparams

PAPER = "batch_size=16,win_time=50,hop_time=12.5"
DEFAULT_BANDWIDTH = 12.5e9  # bytes a second: a link of 100 Gb/s for each GPU
# Seconds for one step of a ring: NCCL's own estimate for a network and large messages (its source,
# src/graph/tuning.cc: hwLat, NET, Ring, Simple: 9.6 us).
DEFAULT_LATENCY = 9.6e-6


@dataclass(frozen=True)
class Reduction:
    """What adding up the gradients of an update costs, by the textbook's ring.

    Each of W processes sends and receives 2 (W - 1) pieces of 1/W of the bytes, one after another
    (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms for clusters of
    workstations", Journal of Parallel and Distributed Computing 69). Libraries use trees where
    these are faster, so for many processes this is pessimistic.
    """

    bytes: int  # of an update, by each process
    calls: int  # of an update
    bandwidth: float = DEFAULT_BANDWIDTH  # bytes a second
    latency: float = DEFAULT_LATENCY  # seconds for a step of the ring
    overlapped: float = 0.0  # share hidden behind the backward pass: none is the pessimistic guess

    def seconds(self, processes: int) -> float:
        """Those that an update lasts longer."""
        steps = 2 * (processes - 1)
        transfer = steps * self.bytes / processes / self.bandwidth
        return (1 - self.overlapped) * (transfer + self.calls * steps * self.latency)


class BatchCosts(NamedTuple):
    """What the batches of a plan are like, [batches] each."""

    longest: np.ndarray  # frames
    padded: np.ndarray  # frames, to whole decoder steps
    seconds: np.ndarray  # of a training step


class EpochAt(NamedTuple):
    """An epoch in so many processes."""

    processes: int
    updates: int
    imbalance: float  # mean over updates of the most padded frames over the processes' mean
    seconds: float
    seconds_in_plan_order: float  # if an update took the next W batches, whatever their lengths


class ScalingCurve(NamedTuple):
    """One batching of a corpus, in growing numbers of processes."""

    strategy: str
    dynamic_batch_size: bool
    name: str
    zero_padding_rate: float
    points: list[EpochAt]
    alone: float  # seconds of an epoch in one process

    def speed_up(self, point: EpochAt) -> float:
        return self.alone / point.seconds

    def efficiency(self, point: EpochAt) -> float:
        return self.speed_up(point) / point.processes


# ---------------------------------------------------------------------------- costs


def published_costs() -> StepCosts:
    """Step costs fitted to the minutes of Ge et al.'s Table 2, a GeForce GTX 1080 in fp32.

    Ten epochs with known minutes: what a batch, a decoder step and a padded frame cost follows by
    least squares, from plans of made-up clips as long as LJSpeech's.
    """
    clips = synthetic_clips(published.TRAINING_CLIPS, create_hparams(PAPER))
    short_names = {batching_name(name, False, False): name for name in STRATEGIES}
    terms = ("per batch", "per decoder step", "per clip and decoder step")
    amounts, seconds = [], []
    for name, row in published.TABLE_2.items():
        short_name, *changes = name.split("-")
        plan = plan_epoch(
            clips.frames, 16, short_names[short_name], dynamic_batch_size="DBS" in changes
        )
        stats = padding_stats(clips.frames, plan)
        amounts.append((stats.num_batches, stats.decoder_steps, stats.padded_frames))
        seconds.append(60 * row.minutes)
    fitted = fit_relative(np.array(amounts), np.array(seconds))
    errors = np.abs(amounts @ fitted / seconds - 1)
    return StepCosts(
        description="fitted to the minutes of an epoch that Ge et al. (Interspeech 2021, Table 2) "
        f"report for one GeForce GTX 1080, fp32; wrong by {np.median(errors):.1%} in the median, "
        f"{errors.max():.1%} at most",
        machine={},
        hparams={"n_frames_per_step": 1},
        seconds_per_term=dict.fromkeys(TERMS, 0.0) | dict(zip(terms, fitted.tolist(), strict=True)),
        bytes_per_term=None,
        held_out_errors={},
        measurements=[],
    )


def faster(costs: StepCosts, factor: float) -> StepCosts:
    """The costs of a machine on which every step is `factor` times as fast."""
    per_term = {name: value / factor for name, value in costs.seconds_per_term.items()}
    return replace(costs, seconds_per_term=per_term)


def batch_costs(plan: EpochPlan, clips: Clips, costs: StepCosts) -> BatchCosts:
    sizes, longest, symbols = batch_shapes(plan, clips.frames, clips.symbols)
    r = costs.hparams["n_frames_per_step"]
    padded = sizes * r * np.ceil(longest / r)
    return BatchCosts(longest, padded, costs.seconds(sizes, longest, symbols))


# ---------------------------------------------------------------------------- epochs


def epoch_at(
    processes: int,
    plan: EpochPlan,
    batches: BatchCosts,
    clips: Clips,
    costs: StepCosts,
    reduction: Reduction,
) -> EpochAt:
    """The epoch of this plan in `processes`, each of which takes one of an update's batches.

    Args:
        batches: `batch_costs` of the plan, which every number of processes has in common.
    """
    ranked = np.argsort(-batches.longest, kind="stable")
    whole = len(ranked) // processes
    groups = ranked[: whole * processes].reshape(whole, processes)
    padded, seconds = batches.padded[groups], batches.seconds[groups]
    imbalances = padded.max(axis=1) / padded.mean(axis=1)
    slowest = seconds.max(axis=1)
    if len(ranked) > whole * processes:
        rest = plan.rearranged(ranked[whole * processes :])
        rest = batch_costs(cut_evenly(rest, processes, clips.frames), clips, costs)
        imbalance = processes * rest.padded.max() / rest.padded.sum()
        imbalances = np.append(imbalances, imbalance)
        slowest = np.append(slowest, rest.seconds.max())
    starts = np.arange(0, len(ranked), processes)
    exposed = len(slowest) * reduction.seconds(processes)
    in_plan_order = np.maximum.reduceat(batches.seconds, starts).sum()
    return EpochAt(
        processes,
        len(slowest),
        float(imbalances.mean()),
        float(slowest.sum() + exposed),
        float(in_plan_order + exposed),
    )


def scaling_curve(
    clips: Clips,
    hparams: HParams,
    costs: StepCosts,
    reduction: Reduction,
    processes: Sequence[int],
) -> ScalingCurve:
    """The batching of `hparams` on these clips.

    Raises:
        BatchingError: if it does not suit the clips.
    """
    options = batching_options(hparams)
    plan = plan_epoch(clips.frames, **options)
    batches = batch_costs(plan, clips, costs)
    strategy, dynamic = options["strategy"], options["dynamic_batch_size"]
    return ScalingCurve(
        strategy,
        dynamic,
        batching_name(strategy, dynamic, options["batch_randomization"]),
        padding_stats(clips.frames, plan).zero_padding_rate,
        [epoch_at(n, plan, batches, clips, costs, reduction) for n in processes],
        float(batches.seconds.sum()),
    )


def every_batching(hparams: HParams) -> list[HParams]:
    """The settings with every strategy, fixed and dynamic sizes, batches in random order."""
    return [
        replace(
            hparams,
            batching_strategy=strategy,
            dynamic_batch_size=dynamic,
            batch_randomization=True,
            batch_capacity=hparams.batch_capacity if dynamic else None,
        )
        for dynamic in (False, True)
        for strategy in STRATEGIES
    ]


# ---------------------------------------------------------------------------- measurements


@dataclass(frozen=True)
class MeasuredScaling:
    """What training some updates in so many processes took, in rounds."""

    processes: int
    frames_per_second: float  # real ones; median of the rounds
    speed_up: float  # over one process of the same round; median of the rounds
    speed_up_range: list[float]  # least and most
    modelled_speed_up: float
    step_imbalance: float
    waited_share: float  # of the time, for gradients of other processes; mean over processes
    reduction_seconds: float  # to add up as much as an update does, while nothing else goes on
    bytes_per_update: int  # that each process gives to be added up
    calls_per_update: int
    seconds: list[list[float]]  # of each update in each round

    __pydantic_config__ = CHECKED

    def __post_init__(self):
        if not min(self.processes, self.speed_up, *self.speed_up_range) > 0:
            raise ValueError("expected positive processes and speed-ups")


@dataclass(frozen=True)
class ScalingMeasurement:
    """What benchmarks/scaling.py measured, and on what."""

    device: str
    versions: dict
    date: str
    environment: dict
    clips: str
    updates: int
    batches_per_update: int
    rounds: int
    parameters: int
    hparams: dict
    rows: list[MeasuredScaling]

    __pydantic_config__ = CHECKED


def read_measurement(path: Path) -> ScalingMeasurement:
    """What --measure --json wrote. UserError, in one message, for a file that is anything else."""
    try:
        return parse_json(path.read_text(encoding="utf-8"), ScalingMeasurement)
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except ValueError as error:  # not UTF-8, not JSON, or other values
        problem = f"not a measurement of scaling: {error}"
    how = "measure with python benchmarks/scaling.py --measure --json FILE.json"
    raise UserError(f"{path}: {problem}; {how}")


def modelled_speed_up(
    seconds_alone: Sequence[float],
    imbalances: Sequence[float],
    processes: int,
    reduction_seconds: float,
) -> float:
    """How many times as fast as one process some updates should be in several.

    Args:
        seconds_alone: of each update, all its batches in one process.
        imbalances: of each update between the processes.
        reduction_seconds: to add up an update's gradients, and nothing else going on.
    """
    alone, imbalance = np.array(seconds_alone), np.array(imbalances)
    shared = alone * imbalance / processes + reduction_seconds
    return float(alone.sum() / shared.sum())
