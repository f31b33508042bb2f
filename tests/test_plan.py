"""Test the optimizer steps in a plan: their batches and weights, and where they end."""

from types import SimpleNamespace

import numpy as np
import pytest

from training.plan import next_step

# Three batches with the clips 0 to 4.
# The first optimizer step contains the first two batches.
SAMPLER = SimpleNamespace(
    plan=[np.array([0, 1]), np.array([2]), np.array([4, 3])],
    lengths=np.array([10, 7, 4, 5, 6]),
    update_starts=np.array([0, 2]),
)


def test_optimizer_step_contains_batches_and_their_weights():
    """With 2 frames per decoder step, the batches have 2 x 5 and 1 x 2 padded decoder steps."""
    step = next_step(SAMPLER, 0, frames_per_step=2)
    assert step.numbers == [0, 1]
    assert step.end == 2
    assert step.clips.tolist() == [0, 1, 2]
    assert step.frames == 21
    first, second = step.weights
    assert first == pytest.approx((10 / 12, 17 / 21, 9 / 11))
    assert second == pytest.approx((2 / 12, 4 / 21, 2 / 11))


def test_last_optimizer_step_ends_at_the_end_of_the_plan():
    step = next_step(SAMPLER, 2, frames_per_step=2)
    assert (step.numbers, step.end) == ([2], 3)
    assert step.weights == [(1.0, 1.0, 1.0)]
    assert next_step(SAMPLER, 3, frames_per_step=2) is None
