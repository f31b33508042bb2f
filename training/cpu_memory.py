"""Estimate how much memory a batch needs on a CPU, and how much memory is available.

    estimate = CpuEstimate(trainer, trainer.compute_gradients, [(64, 870, 150)])
    estimate.bytes_of([(32, 870, 150)]) <= available_memory()

On a GPU, the memory check simply runs the worst-case batches, because running out of GPU memory
only raises an error. On a CPU, a batch that is too large would make the system kill the process or
swap memory for hours. Therefore, on a CPU, the memory check runs a smaller batch with clips of the
same length, measures the peak memory, and scales the result.
"""

import math
from collections.abc import Callable
from pathlib import Path

from batch import Batch, synthetic_batch
from machine import is_out_of_memory, peak_memory, reset_peak_memory
from training.optimizer import state_entries
from training.trainer import Trainer

Shape = tuple[int, int, int]  # (number of clips, frames per clip, symbols per clip)

# The batch in which memory is measured contains this fraction of the clips, but at least MIN_FRAMES
# frames and at most about MAX_FRAMES frames. Smaller batches would distort the estimate, because
# some memory does not depend on the number of frames. Larger batches would take too long.
SHARE = 1 / 16
MIN_FRAMES = 3200
MAX_FRAMES = 6400
WARM_UP_FRAMES = 50
# Fraction of the available memory that must stay free, because the estimate may be too low, and
# because memory becomes fragmented.
RESERVE = 0.1


def available_memory() -> int | None:
    """Return the number of bytes that this process can allocate without swapping; None if unknown.

    The result is the smaller of two sizes: the available memory of the machine, and the memory left
    in the process's control group. Containers and job schedulers limit memory with control groups.
    """
    of_machine = _number_in(Path("/proc/meminfo"), "MemAvailable:", scale=1024)
    values = [value for value in (of_machine, _available_of_group()) if value]
    return min(values, default=None)


def _available_of_group(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the bytes of memory left in the control group, or None if the group has no limit.

    Inactive cached files count as available, because the system frees them when memory is scarce.
    """
    for limit, usage, statistics, inactive in (
        # Names of the files in cgroup v2, followed by the names of the files in cgroup v1.
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        most = _number_in(root / limit)
        used = _number_in(root / usage)
        # If the control group has no limit, cgroup v1 reports a huge number.
        if most is not None and used is not None and most < 2**60:
            freeable = _number_in(root / statistics, inactive) or 0
            return max(most - used + freeable, 1)
    return None


def _number_in(path: Path, name: str = "", scale: int = 1) -> int | None:
    """Return the first number in a file, or the number after `name`; None if there is no number."""
    try:
        words = path.read_text(encoding="ascii").split()
        return int(words[words.index(name) + 1 if name else 0]) * scale
    except (OSError, ValueError, IndexError):
        return None


class CpuEstimate:
    """Estimate the peak memory of `step` for batches with the same clip lengths as `shapes`.

    The estimate for a batch is the memory for gradients and optimizer state, plus the number of
    padded frames times the measured memory per padded frame.

    Args:
        step: a function that runs a batch, with or without a backward pass.
        shapes: the worst-case batches. The batches that are measured contain fewer clips of the
            same lengths.
    """

    def __init__(self, trainer: Trainer, step: Callable[[Batch], object], shapes: list[Shape]):
        self._trainer = trainer
        self._step = step
        has_gradients = trainer.model.training
        parameters = sum(parameter.nbytes for parameter in trainer.model.parameters())
        self._gradients = parameters if has_gradients else 0
        self._optimizer = 0
        if has_gradients and not trainer.optimizer.state:
            # Add the optimizer state, which does not exist before the first optimizer step.
            self._optimizer = parameters * sum(state_entries(trainer.hparams).values())
        # Discard the first measurement, because the first call of `step` also loads libraries and
        # starts threads.
        self._peak((1, min(shapes[0][1], WARM_UP_FRAMES), shapes[0][2]))
        self._bytes_per_frame = [self._measure(shape) for shape in shapes]

    def bytes_of(self, shapes: list[Shape]) -> float:
        """Estimate by how many bytes the peak memory exceeds the current memory of the process.

        `shapes` must have the same order and the same clip lengths as the `shapes` of the
        constructor.
        """
        activations = [
            per_frame * clips * frames
            for per_frame, (clips, frames, _) in zip(self._bytes_per_frame, shapes, strict=True)
        ]
        return self._optimizer + self._gradients + max(activations)

    def _measure(self, shape: Shape) -> float:
        """Return the measured memory per padded frame in bytes, without the gradients of the
        parameters."""
        clips, frames, symbols = shape
        share = min(math.ceil(clips * SHARE), math.ceil(MAX_FRAMES / frames))
        fewer = min(clips, max(share, math.ceil(MIN_FRAMES / frames)))
        peak = self._peak((fewer, frames, symbols))
        return max(peak - self._gradients, 0) / (fewer * frames)

    def _peak(self, shape: Shape) -> float:
        """Return the number of bytes by which `step` increases the memory of the process."""
        clips, frames, symbols = shape
        trainer = self._trainer
        trainer.model.zero_grad(set_to_none=True)
        batch = synthetic_batch([frames] * clips, [symbols] * clips, trainer.hparams)
        reset_peak_memory(trainer.device)
        before = peak_memory(trainer.device)
        try:
            self._step(batch)
        except RuntimeError as error:
            if is_out_of_memory(error):
                return math.inf
            raise
        finally:
            trainer.model.zero_grad(set_to_none=True)
        return peak_memory(trainer.device) - before
