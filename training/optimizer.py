"""Define the optimizer and the learning-rate schedule, and apply gradients.

    optimizer = make_optimizer(model.parameters(), hparams)
    schedule = schedule_at(iteration, hparams)

To train with a different optimizer, return it from `make_optimizer`. Gradient clipping, skipped
optimizer steps, checkpoints, resuming and the memory check work with any PyTorch optimizer.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from hparams import HParams


def make_optimizer(
    parameters: Iterable[torch.nn.Parameter], hparams: HParams
) -> torch.optim.Optimizer:
    """Return the optimizer of a run. To change the optimizer, change only this function.

    `Trainer.step` sets the learning rate before every optimizer step.
    """
    return torch.optim.Adam(
        parameters, lr=hparams.learning_rate, weight_decay=hparams.weight_decay, fused=True
    )


def apply_gradients(
    optimizer: torch.optim.Optimizer,
    gradients: Sequence[torch.Tensor],
    divisor: torch.Tensor,
    skip: torch.Tensor,
) -> None:
    """Divide the gradients by `divisor`, and run an optimizer step unless `skip` is true.

    Args:
        divisor: scalar on the device, at least 1. A divisor above 1 reduces the gradient norm.
        skip: bool scalar on the device; whether to skip the optimizer step.
    """
    # Fused PyTorch optimizers read `grad_scale` and `found_inf` on the GPU, so the host does not
    # wait for the GPU. Only fused optimizers have the attribute `_step_supports_amp_scaling`.
    if getattr(optimizer, "_step_supports_amp_scaling", False):
        vars(optimizer).update(grad_scale=divisor, found_inf=skip.float())
        optimizer.step()
    elif not bool(skip):
        torch._foreach_div_(list(gradients), divisor)
        optimizer.step()


def state_entries(hparams: HParams) -> dict[str, bool]:
    """Return the names of the tensors that the optimizer stores for each parameter.

    The result maps each name to True if the tensor has the shape of the parameter, or to False if
    the tensor is a scalar. For Adam, `exp_avg` and `exp_avg_sq` are True, and `step` is False.
    """
    probe = torch.nn.Parameter(torch.zeros(2, 3))
    probe.grad = torch.zeros_like(probe)
    optimizer = make_optimizer([probe], hparams)
    optimizer.step()
    state = optimizer.state[probe]
    return {name: torch.is_tensor(x) and x.shape == probe.shape for name, x in state.items()}


class Schedule(NamedTuple):
    """The learning rate and the guided attention weight in an optimizer step."""

    learning_rate: float
    guided_attention_weight: float


def schedule_at(iteration: int, hparams: HParams) -> Schedule:
    """Return the schedule for the optimizer step that follows `iteration` optimizer steps."""
    return Schedule(
        learning_rate_at(iteration, hparams), guided_attention_weight_at(iteration, hparams)
    )


def learning_rate_at(iteration: int, hparams: HParams) -> float:
    """Return the learning rate for the optimizer step that follows `iteration` optimizer steps."""
    rate = hparams.learning_rate
    if hparams.learning_rate_schedule == "exponential":
        decaying = max(0, iteration - hparams.learning_rate_decay_start)
        halvings = decaying / hparams.learning_rate_half_life
        rate = max(rate * 0.5**halvings, min(rate, hparams.learning_rate_final))
    if iteration < hparams.learning_rate_warmup_steps:
        rate *= (iteration + 1) / hparams.learning_rate_warmup_steps
    return rate


def guided_attention_weight_at(iteration: int, hparams: HParams) -> float:
    """Return the weight of the guided attention loss after `iteration` optimizer steps.

    The weight of the guided attention loss decreases linearly to 0. A constant weight would impair
    alignments of texts in which some symbols last much longer than others.
    """
    left = max(0.0, 1 - iteration / hparams.guided_attention_steps)
    return hparams.guided_attention_weight * left
