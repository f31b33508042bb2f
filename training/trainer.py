"""Define `Trainer`, which trains the model of a run, one optimizer step at a time.

    trainer = Trainer(hparams, device)
    losses = trainer.step([MicroBatch(batch)], schedule_at(iteration, hparams))

`Trainer.losses_of` defines the training loss. optimizer.py defines the optimizer.
"""

import contextlib
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import BatchNorm1d, SyncBatchNorm

from batch import Batch, synthetic_batch
from hparams import HParams
from loss import Tacotron2Loss, guided_attention_loss
from model import Tacotron2
from training import optimizer as optimizers
from training.decoders import TrainingFunctions, checked_decoder
from training.distributed import ALONE, Processes, batch_norm_alone
from training.optimizer import Schedule
from training.precision import AUTOCAST_DTYPES

ENVIRONMENT = {
    # With this workspace setting, cuBLAS computes the same results in every run.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # Use smaller caches on the CPU. By default, oneDNN and its PyTorch wrapper each cache kernels
    # for the last 1,024 shapes. These caches take half a gigabyte, although shapes rarely repeat in
    # training.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}


class LossWeights(NamedTuple):
    """The loss weights of a micro-batch. Each weight is a fraction: an amount in this micro-batch,
    such as its number of frames, divided by the same amount in the whole optimizer step."""

    padded_frames: float = 1.0
    frames: float = 1.0  # real frames of the micro-batch / real frames of the optimizer step
    steps: float = 1.0  # as `frames`, but for real decoder steps


NO_WEIGHT = LossWeights(0.0, 0.0, 0.0)


class MicroBatch(NamedTuple):
    """A batch that one process runs in one forward and one backward pass."""

    batch: Batch
    weights: LossWeights = LossWeights()
    seed: int | None = None  # dropout seed; None: do not change the state of the global generator


class LossTerms(NamedTuple):
    """The loss terms to log: tensors for a micro-batch, or numbers for a whole optimizer step.

    `Trainer.losses_of` returns these terms, and `LoopState` accumulates them.
    """

    loss: Any  # padded loss, as in NVIDIA's implementation
    loss_unpadded: Any  # masked loss (mean over real frames)
    guided_attention: Any  # guided attention loss; NaN if its weight is 0


class StepValues(NamedTuple):
    """The results of an optimizer step over all its batches and processes."""

    terms: LossTerms
    gradient_norm: float
    skipped: float  # 1 if the optimizer step was skipped, otherwise 0
    stop_requests: float  # number of processes that were asked to stop
    failures: float  # number of processes that could not read their next batch

    @classmethod
    def of(cls, row: Sequence[float]) -> "StepValues":
        """Convert a row of `StepLosses.values` to StepValues."""
        terms = len(LossTerms._fields)
        return cls(LossTerms(*row[:terms]), *row[terms:])


class StepLosses(NamedTuple):
    """The results of an optimizer step, which the device may still be computing."""

    values: torch.Tensor  # vector on the CPU, in the order of the fields of `StepValues`
    # Event after which `values` are valid; None: `values` are already valid.
    copied: torch.cuda.Event | None
    # Function that returns the seconds spent waiting for the gradients of other processes. Call
    # this function after the event `copied`.
    waited: Callable[[], float] | None


class Trainer:
    """Train a model on a device, with the optimizer and the precision that `hparams` specifies.

    The trainer changes global PyTorch settings for this precision and for reproducible results.
    """

    def __init__(self, hparams: HParams, device: torch.device, processes: Processes = ALONE):
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)  # keep environment variables that the user has set
        torch.backends.cudnn.deterministic = True
        # Set both options, because by default, PyTorch uses TF32 for cuDNN (convolutions, the
        # encoder LSTM) but not for matrix products.
        torch.backends.cuda.matmul.allow_tf32 = hparams.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = hparams.precision == "tf32"
        self.hparams = hparams
        self.device = device
        self.processes = processes
        torch.manual_seed(hparams.seed)
        self.model = Tacotron2(hparams)
        # Choose the decoder before moving the model to the GPU, because choosing starts a process
        # that checks the kernels and needs GPU memory.
        self._decoders: dict[str, TrainingFunctions] = {}
        self.use_decoder(hparams.decoder)
        self.model.to(device)
        if hparams.sync_batch_norm and processes.world_size > 1:
            # Ignore the return value, because PyTorch replaces the batch norms inside the model in
            # place.
            SyncBatchNorm.convert_sync_batchnorm(self.model)
        # In a run with several processes, `parallel` averages gradients over the processes.
        self.parallel = processes.wrap(self.model)
        self.optimizer = optimizers.make_optimizer(self.model.parameters(), hparams)
        self.scaler = torch.amp.GradScaler(device.type, enabled=hparams.precision == "fp16")
        self.loss = Tacotron2Loss(hparams.gate_positive_weight)
        # Do not weight the stop-token loss, so that the validation losses of different runs are
        # comparable.
        self.validation_loss = Tacotron2Loss()
        # Default schedule for calls of `step` without a schedule, for example in benchmarks.
        self.base_schedule = Schedule(hparams.learning_rate, hparams.guided_attention_weight)
        # The exception that prevented this process from reading its next batch.
        self.failure: BaseException | None = None

    def use_decoder(self, name: str) -> None:
        """Select the decoder `name` (one of DECODERS). All processes must call this method at the
        same time."""
        if name not in self._decoders:
            self._decoders[name] = checked_decoder(
                name, self.hparams, self.model.decoder.attention_layer, self.device, self.processes
            )
        functions = self._decoders[name]
        self.model.training_decoder = functions.decoder
        self.model.encoder.run_lstm = functions.encoder_lstm
        self.decoder_description = functions.description

    def autocast(self) -> torch.autocast:
        """Return a context manager for computing in the run's precision."""
        dtype = AUTOCAST_DTYPES[self.hparams.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def losses_of(
        self,
        model: Callable[..., Any],
        batch: Batch,
        weights: LossWeights,
        guided_attention_weight: float,
    ) -> tuple[torch.Tensor, LossTerms]:
        """Return the contributions of a batch to the training loss and to the logged loss terms.

        In an optimizer step, the contributions of all micro-batches add up to the loss of a single
        batch that contains all clips.
        """
        with self.autocast():
            outputs = model(batch)
        losses = self.loss(outputs, batch)
        padded = losses.total * weights.padded_frames
        mel = losses.mel_unpadded + losses.mel_postnet_unpadded
        unpadded = mel * weights.frames + losses.gate_unpadded * weights.steps
        trained = padded if self.hparams.loss == "padded" else unpadded
        guided = torch.full_like(padded, math.nan)
        if guided_attention_weight > 0:
            steps = batch.num_steps(self.hparams.n_frames_per_step)
            sigma = self.hparams.guided_attention_sigma
            guided = guided_attention_loss(outputs.alignments, steps, batch.text_lengths, sigma)
            guided = guided * weights.steps
            trained = trained + guided_attention_weight * guided
        # Add new loss terms to `trained` here. Multiply each new term by `weights.padded_frames`,
        # `weights.frames` or `weights.steps`.
        terms = LossTerms(loss=padded, loss_unpadded=unpadded, guided_attention=guided)
        return trained, LossTerms(*(term.detach().float() for term in terms))

    def compute_gradients(self, batch: Batch) -> LossTerms:
        """Run the forward and backward pass of a batch in this process only.

        The batch must already be on the device. The new gradients are added to the existing
        gradients.
        """
        weight = self.base_schedule.guided_attention_weight
        with batch_norm_alone(self.model):
            trained, terms = self.losses_of(self.model, batch, LossWeights(), weight)
            self.scaler.scale(trained).backward()
        return terms

    def step(
        self,
        micro_batches: Iterable[MicroBatch],
        schedule: Schedule | None = None,
        *,
        num_batches: int = 1,
        stop: bool = False,
    ) -> StepLosses:
        """Run one optimizer step.

        The host does not wait for the GPU if the optimizer is fused.

        Args:
            micro_batches: this process's batches of the optimizer step; may be empty.
            schedule: learning rate and guided attention weight; None: the initial values from the
                settings.
            num_batches: number of batches in the optimizer step, over all processes.
            stop: whether this process has been asked to stop.
        """
        schedule = schedule or self.base_schedule
        for group in self.optimizer.param_groups:
            group["lr"] = schedule.learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        *terms, stop_requests, failures = self._accumulate_gradients(
            micro_batches, schedule.guided_attention_weight, num_batches, stop
        )
        loss = LossTerms(*terms).loss
        clock = self.processes.clock
        waited = clock.read() if clock is not None else None
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradient_norm = torch.nn.utils.get_total_norm(gradients)
        # Check the loss too, because a squared error can overflow although its gradient is finite.
        is_finite = torch.isfinite(gradient_norm) & torch.isfinite(loss)
        skip = ~is_finite | (failures > 0)
        divisor = (gradient_norm / self.hparams.grad_clip_thresh).clamp(min=1)
        optimizers.apply_gradients(self.optimizer, gradients, divisor, skip)
        self.scaler.update()
        # The values have the same order as the fields of StepValues. Values on a GPU are copied to
        # pinned memory.
        values = torch.stack(
            [*terms, gradient_norm.float(), skip.float(), stop_requests, failures]
        ).to("cpu", non_blocking=True)
        copied = None
        if self.device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(self.device))
        return StepLosses(values, copied, waited)

    def _accumulate_gradients(
        self,
        micro_batches: Iterable[MicroBatch],
        guided_attention_weight: float,
        num_batches: int,
        stop: bool,
    ) -> torch.Tensor:
        """Compute the gradients of the whole optimizer step in every process.

        Return a vector [terms + 2] of sums over all micro-batches and processes. The vector
        contains the LossTerms, the number of processes that have been asked to stop, and the number
        of processes that could not read a batch.

        In each micro-batch, batch norm starts from the running statistics before the optimizer
        step. After the optimizer step, the running statistics are the mean over all micro-batches.
        """
        processes = self.processes
        several = num_batches > 1 or processes.world_size > 1
        statistics = RunningStatistics(self.model) if several else None
        terms = slice(len(LossTerms._fields))
        stop_requests = -2  # `total[stop_requests]` is the number of stop requests
        failures = -1
        total = torch.zeros(len(LossTerms._fields) + 2, device=self.device)
        # Use `fill_`, because assigning a number would wait for the GPU.
        total[stop_requests].fill_(stop)
        # Synchronize gradients between processes only in the last micro-batch.
        without_sum = getattr(self.parallel, "no_sync", contextlib.nullcontext)
        left = self._all_of(micro_batches, num_batches)
        following: MicroBatch | None = next(left)
        while following is not None:
            micro_batch = following
            following = next(left, None)
            is_last = following is None
            if micro_batch.seed is not None:
                torch.manual_seed(micro_batch.seed)
            with contextlib.nullcontext() if is_last else without_sum():
                batch = micro_batch.batch.to(self.device)
                trained, losses = self.losses_of(
                    self.parallel, batch, micro_batch.weights, guided_attention_weight
                )
                total[terms] += torch.stack(losses)
                if statistics is not None and micro_batch.weights != NO_WEIGHT:
                    statistics.add()
                if is_last:
                    total[failures].fill_(self.failure is not None)
                    vector = total if statistics is None else torch.cat([total, statistics.sums])
                    # Start the sum over all processes now, so that it overlaps with the backward
                    # pass.
                    reduced = processes.start_all_reduce(vector)
                # Multiply by the world size. The optimizer step needs the sum of the gradients over
                # all processes, but DistributedDataParallel computes the mean.
                self.scaler.scale(trained * processes.world_size).backward()
            if statistics is not None:
                statistics.restore()
        if reduced is not None:
            reduced.wait()
        if statistics is not None:
            sums = vector[len(total) :]
            vector = vector[: len(total)]
            statistics.write(sums / num_batches, applied=vector[failures] == 0)
        return vector

    def _all_of(
        self, micro_batches: Iterable[MicroBatch], num_batches: int
    ) -> Iterator[MicroBatch]:
        """Yield the micro-batches, followed by any synthetic batches (weight 0) that are needed.

        Every process must run a backward pass, because the processes sum their gradients. With
        synchronized batch norm, every process must also run the same number of forward passes.

        If a batch cannot be read in a run of several processes, the error is stored in `failure`,
        and all processes skip the optimizer step.
        """
        min_count = 1
        if self.hparams.sync_batch_norm:
            min_count = -(-num_batches // self.processes.world_size)
        count = 0
        try:
            for micro_batch in micro_batches:
                count += 1
                yield micro_batch
        except Exception as error:
            if self.processes.world_size == 1:
                raise
            self.failure = self.failure or error.__cause__ or error
        for _ in range(count, min_count):
            yield MicroBatch(synthetic_batch([1], [1], self.hparams), NO_WEIGHT, 0)


class RunningStatistics:
    """Update the running statistics of batch norm in an optimizer step of several batches.

    Each batch starts from the running statistics before the optimizer step. The new running
    statistics are the mean over the batches. Therefore the new running statistics do not depend on
    the order of the batches, or on which process computes which batch.
    """

    def __init__(self, model: torch.nn.Module):
        norms = [m for m in model.modules() if isinstance(m, (BatchNorm1d, SyncBatchNorm))]
        buffers = [dict(norm.named_buffers()) for norm in norms]
        self._buffers = [b[name] for b in buffers for name in ("running_mean", "running_var")]
        self._counts = [b["num_batches_tracked"] for b in buffers]
        self._before = torch.cat(self._buffers)
        self._counts_before = torch.stack(self._counts)
        self.sums = torch.zeros_like(self._before)

    def add(self) -> None:
        """Add the current running statistics of batch norm to `sums`. Call this method after each
        forward pass."""
        self.sums += torch.cat(self._buffers)

    def restore(self) -> None:
        """Restore the running statistics of batch norm from before the optimizer step.

        Call this method only after a backward pass, because the backward pass needs the current
        running statistics.
        """
        self._put(self._before)

    def write(self, means: torch.Tensor, applied: torch.Tensor) -> None:
        """Set the running statistics of batch norm to `means` if the optimizer step was applied.

        If the optimizer step was skipped, restore the running statistics from before this optimizer
        step.
        """
        self._put(torch.where(applied, means, self._before))
        torch._foreach_copy_(self._counts, list((self._counts_before + applied).unbind()))

    def _put(self, values: torch.Tensor) -> None:
        split = torch.split(values, [len(buffer) for buffer in self._buffers])
        torch._foreach_copy_(self._buffers, list(split))


def hashed_seed(seed: int, *position: int) -> int:
    """Return a dropout seed for a batch: a hash of the run's seed and the batch's position.

    All processes compute the same seed for a batch. Runs with different seeds get different dropout
    seeds in every epoch.

    Args:
        position: the epoch and the number of the batch.
    """
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=position)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
