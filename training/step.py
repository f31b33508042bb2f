"""The training step: model, optimizer, scaler and precision, and one update of them all.

`train.py` and the benchmarks use the same `Trainer`, so what is measured is what trains.
"""

import importlib.util
import math
import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from alignment import guided_attention_loss
from data_utils import Batch
from hparams import HParams
from model import Losses, Tacotron2, Tacotron2Loss, teacher_forced

# The dtype of autocast in each precision; None trains in float32. tf32 is float32 whose products
# a GPU may round.
AUTOCAST_DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = tuple(AUTOCAST_DTYPES)
DECODERS = ("reference", "fast")
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same sums in every run
    # On a CPU oneDNN, and what torch puts around it, each keep the programs for the last 1,024
    # shapes, half a gigabyte of them; most shapes of ours do not come back. Read at the first
    # product.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}


class StepLosses(NamedTuple):
    """The losses of an update that the device may still be working at."""

    # [5] on the CPU: loss, unpadded loss, gradient norm, 1 if the update was skipped, and guided
    # attention loss, not a number where its weight is 0
    values: torch.Tensor
    copied: torch.cuda.Event | None  # when `values` may be read; None is at once


class Trainer:
    """The model with its optimizer on a device, in the precision that `hparams` names.

    Sets torch's switches for that precision, and for results that repeat, in the whole process.
    """

    def __init__(self, hparams: HParams, device: torch.device):
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)  # unless the user has set it
        torch.backends.cudnn.deterministic = True
        # torch's defaults would round convolutions and the encoder's LSTM, but no other product.
        torch.backends.cuda.matmul.allow_tf32 = hparams.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = hparams.precision == "tf32"
        self.hparams, self.device = hparams, device
        torch.manual_seed(hparams.seed)
        self.model = Tacotron2(hparams).to(device)
        self.use_decoder(hparams.decoder)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=hparams.learning_rate,
            weight_decay=hparams.weight_decay,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=hparams.precision == "fp16")
        self.loss = Tacotron2Loss()
        self.guided_attention_weight = hparams.guided_attention_weight  # of the next step
        self.guided_attention: torch.Tensor | None = None  # loss of the last; None without weight

    def use_decoder(self, name: str) -> None:
        """Train with one of DECODERS from here on."""
        self.model.training_decoder, self.decoder_description = choose_decoder(name, self.device)

    def autocast(self):
        dtype = AUTOCAST_DTYPES[self.hparams.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def compute_gradients(self, batch: Batch) -> Losses:
        """Forward and backward of a batch that is on the device; gradients add to those there."""
        with self.autocast():
            outputs = self.model(batch)
        losses = self.loss(outputs, batch)
        trained = losses.total if self.hparams.loss == "padded" else losses.total_unpadded
        self.guided_attention = None
        if self.guided_attention_weight > 0:
            steps = batch.num_steps(self.hparams.n_frames_per_step)
            sigma = self.hparams.guided_attention_sigma
            guided = guided_attention_loss(outputs.alignments, steps, batch.text_lengths, sigma)
            self.guided_attention = guided.detach()
            trained = trained + self.guided_attention_weight * guided
        self.scaler.scale(trained).backward()
        return losses

    def step(self, batch: Batch, learning_rate: float | None = None) -> StepLosses:
        """One update, at the optimizer's own rate unless one is given.

        Nothing here waits for the device.
        """
        if learning_rate is not None:
            self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        losses = self.compute_gradients(batch.to(self.device))
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradient_norm = torch.nn.utils.get_total_norm(gradients)
        skip = ~(torch.isfinite(gradient_norm) & torch.isfinite(losses.total.detach()))
        # Fused Adam reads both on the device. It divides gradients by the first, which clips their
        # norm without a pass of its own, and changes nothing where the second is 1.
        self.optimizer.grad_scale = (gradient_norm / self.hparams.grad_clip_thresh).clamp(min=1)
        self.optimizer.found_inf = skip.float()
        self.optimizer.step()
        self.scaler.update()
        guided = self.guided_attention
        if guided is None:
            guided = torch.full_like(losses.total, math.nan)
        values = (losses.total, losses.total_unpadded, gradient_norm, skip, guided)
        values = torch.stack([value.detach().float() for value in values])
        values, copied = values.to("cpu", non_blocking=True), None  # from a GPU to pinned memory
        if self.device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(self.device))
        return StepLosses(values, copied)


def choose_decoder(name: str, device: torch.device) -> tuple[Callable, str]:
    """The training decoder that the hyper-parameter `decoder` names, and how it runs, in a phrase.

    The recipe works without the folder `fast_decoder`: the reference decoder then does its work.
    """
    if name == "reference":
        return teacher_forced, "reference, step by step"
    found = importlib.util.find_spec("fast_decoder")
    if found is None or found.origin is None:  # gone, or nothing but compiled files left over
        return teacher_forced, "reference, step by step: no fast decoder, its files are not here"
    import fast_decoder

    return fast_decoder.teacher_forced, f"fast ({fast_decoder.describe(device)})"


def learning_rate_at(iteration: int, hparams: HParams) -> float:
    """The rate of the step that follows `iteration` finished ones."""
    rate = hparams.learning_rate
    if hparams.learning_rate_schedule == "exponential":
        halvings = max(0, iteration - hparams.learning_rate_decay_start)
        halvings /= hparams.learning_rate_half_life
        rate = max(rate * 0.5**halvings, min(rate, hparams.learning_rate_final))
    if iteration < hparams.learning_rate_warmup_steps:
        rate *= (iteration + 1) / hparams.learning_rate_warmup_steps
    return rate


def guided_attention_weight_at(iteration: int, hparams: HParams) -> float:
    """The weight of the guided attention loss in the step that follows `iteration` finished ones.

    It falls to 0 in a line: kept up, the loss would hold back texts that are not read evenly.
    """
    left = max(0.0, 1 - iteration / hparams.guided_attention_steps)
    return hparams.guided_attention_weight * left
