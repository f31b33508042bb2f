"""Measure the cost of a decoder step on this device for different numbers of clips.

    hparams = with_measured_costs(trainer, clips.training)   # for the setting row_costs=measure

GPU kernels compute full tiles of 16 clips, so a decoder step with 17 clips takes nearly as long as
a decoder step with 32 clips. With the measured costs, `plan_epoch` ends batches at the sizes with
the lowest cost per clip.
"""

import time
from dataclasses import replace

import numpy as np
import torch

from batch import Batch, synthetic_batch
from corpus.cache import ClipTable
from hparams import HParams, parse_row_costs
from machine import is_out_of_memory, seconds_of
from training.memory_check import without_trace
from training.trainer import Trainer

TILE = 16  # number of clips per tile that the GPU kernels process
SIZES = (16, 32, 48, 64)  # numbers of clips whose costs are measured
# 17 clips fill as many tiles as 32 clips, so the difference between the times of the two batches is
# the cost of 15 clips.
PARTIAL = 17
# Number of clips in the batch whose measured cost is compared with the predicted cost.
CHECK = 24
MAX_ERROR = 0.1  # maximum relative difference between the measured and the predicted cost
REPEATS = 3  # how many times the forward and backward pass of each batch is timed
FIRST_FRAMES = 256  # length of the shortest batches, in frames
MAX_FRAMES = 2048
# In short batches, the host is slower than the GPU, so additional frames take no additional time.
# In long batches, every additional frame takes the same time. A batch counts as long if the time
# per additional frame grows by at most this fraction when the length of the batch doubles.
MAX_CURVATURE = 0.05


def with_measured_costs(trainer: Trainer, clips: ClipTable) -> HParams:
    """Measure the costs of decoder steps, print the costs, and return settings that contain them.

    If the measurements are inconsistent, print a warning and return settings without costs. On a
    CPU, the costs are not measured, because each clip adds the same time and the largest batches
    are always fastest. All processes use the costs that the first process measured.
    """
    if not is_useful_on(trainer.device):
        print(
            "note: row_costs=measure has no effect on a CPU, where the largest batches are fastest"
        )
        return replace(trainer.hparams, row_costs="")
    symbols = round(float(np.mean(clips.num_symbols)))
    began = time.perf_counter()
    with without_trace(trainer):
        text, problem = measure(trainer, symbols)
    text, problem = trainer.processes.gather((text, problem))[0]
    took = f"measured in {time.perf_counter() - began:.1f} s"
    if problem:
        print(f"warning: row_costs=measure: {problem}, so the costs are not used ({took})")
        return replace(trainer.hparams, row_costs="")
    print(f"row_costs={text} (microseconds per decoder step for each number of clips; {took})")
    return replace(trainer.hparams, row_costs=text)


def is_useful_on(device: torch.device) -> bool:
    return device.type != "cpu"


def measure(trainer: Trainer, symbols: int) -> tuple[str, str]:
    """Return the value of the setting `row_costs`, and a message.

    The message contains the reason why the costs cannot be used, or is "" if the costs can be used.

    The time of a batch is a constant plus the number of decoder steps times the cost of a decoder
    step. The cost of a decoder step follows from the times of batches of two different lengths. The
    cost of a decoder step has two terms: a cost that depends on the number of tiles, and a constant
    cost per clip. `row_costs` lists the cost of the tiles for each batch size.

    Args:
        symbols: number of symbols of each clip.
    """
    cost: dict[int, float] = {}
    try:
        frames = linear_length(trainer, symbols)
        if frames is None:
            return "", "the time of a batch is not proportional to its length"
        for size in (PARTIAL, CHECK, *SIZES):
            cost[size] = step_cost(trainer, size, frames, symbols)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        # Costs for batches of more than SIZES[1] clips may be missing.
        if SIZES[1] not in cost:
            return "", f"batches of {SIZES[1]} clips do not fit into memory"
    text, difference = table_of(cost)
    costs, _ = parse_row_costs(text)
    if costs is None or min(costs.values()) <= 0:
        return "", (
            "the measured costs of the clips in a batch add up to more than the measured cost of a "
            "decoder step"
        )
    if difference > MAX_ERROR:
        return text, (
            f"the time of a batch of {CHECK} clips differs by {difference:.0%} from its prediction"
        )
    return text, ""


def table_of(cost: dict[int, float]) -> tuple[str, float]:
    """Return the value of `row_costs` for measured costs, and the relative error of its prediction
    for a batch of 24 clips.

        table_of({16: 45, 17: 58, 24: 63, 32: 68})  # ("16:34.3 32:46.7 clip:0.667", 0.005)

    Args:
        cost: {number of clips: microseconds per decoder step}, for the numbers of clips in SIZES,
            PARTIAL and CHECK.
    """
    two_tiles = 2 * TILE
    clip_cost = max(0.0, (cost[two_tiles] - cost[PARTIAL]) / (two_tiles - PARTIAL))
    by_tiles = [cost[size] - clip_cost * size for size in SIZES if size in cost]
    # A batch can always be padded to fill more tiles. Therefore, if a larger number of tiles has a
    # lower cost, use the lower cost for the smaller number too.
    lowest = np.minimum.accumulate(by_tiles[::-1])[::-1]
    predicted = cost[two_tiles] - clip_cost * (two_tiles - CHECK)
    pairs = [f"{size}:{value:.3g}" for size, value in zip(SIZES, lowest.tolist(), strict=False)]
    return " ".join([*pairs, f"clip:{clip_cost:.3g}"]), abs(cost[CHECK] / predicted - 1)


def linear_length(trainer: Trainer, symbols: int) -> int | None:
    """Return a batch length in frames above which the time of a batch grows linearly with its
    length.

    If no length up to MAX_FRAMES has this property, return None. With very short batches, the time
    does not grow linearly, because the host is slower than the GPU.
    """
    frames = FIRST_FRAMES
    while frames <= MAX_FRAMES:
        short, middle, long = (
            pass_seconds(trainer, TILE, factor * frames, symbols) for factor in (1, 2, 4)
        )
        is_proportional = middle - short >= (1 - MAX_CURVATURE) * (long - middle) / 2
        # If the host is slower than the GPU at all three lengths, all three batches take equally
        # long, and `is_proportional` is true by mistake. Therefore also require that the time grows.
        if is_proportional and long > 1.5 * middle:
            return frames
        frames *= 2
    return None


def step_cost(trainer: Trainer, num_clips: int, frames: int, symbols: int) -> float:
    """Return the time of one decoder step with `num_clips` clips, in microseconds."""
    short, long = (pass_seconds(trainer, num_clips, factor * frames, symbols) for factor in (1, 2))
    return (long - short) / (frames / trainer.hparams.n_frames_per_step) * 1e6


def pass_seconds(trainer: Trainer, num_clips: int, frames: int, symbols: int) -> float:
    """Return the median time in seconds of a forward and backward pass for clips of equal length."""
    batch = synthetic_batch([frames] * num_clips, [symbols] * num_clips, trainer.hparams)
    batch = batch.to(trainer.device)
    compute(trainer, batch)
    times = [seconds_of(trainer.device, compute, trainer, batch) for _ in range(REPEATS)]
    return float(np.median(times))


def compute(trainer: Trainer, batch: Batch) -> None:
    trainer.model.zero_grad(set_to_none=True)
    trainer.compute_gradients(batch)
