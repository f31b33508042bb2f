"""`Trainer`: model, optimizer, gradient scaler and precision, and `step`, one update."""

import contextlib
import importlib.util
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import BatchNorm1d, SyncBatchNorm

from data_utils import Batch, synthetic_batch
from hparams import HParams
from loss import Tacotron2Loss, guided_attention_loss
from model import Tacotron2, packed_lstm, teacher_forced
from training.distributed import ALONE, Processes, batch_norm_alone

# The dtype of autocast in each precision; None trains in float32. tf32 is float32 whose products
# a GPU may round.
AUTOCAST_DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
CAPABILITY_OF_BF16 = (8, 0)  # of the first GPUs that compute in bf16 and tf32
CPUS_OF_BF16 = {"avx512_bf16", "amx_bf16"}  # what CPUs have that multiply in it
PRECISIONS = tuple(AUTOCAST_DTYPES)
DECODERS = ("reference", "fast")
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # the same sums in every run
    # On a CPU, oneDNN and torch's wrapper each cache programs for the last 1,024 shapes: half a
    # gigabyte, and our shapes rarely repeat.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
    "LRU_CACHE_CAPACITY": "64",
}


class LossWeights(NamedTuple):
    """The loss weights of a micro-batch: its share of its update."""

    padded_frames: float = 1.0
    frames: float = 1.0  # real ones
    steps: float = 1.0  # real ones of the decoder


NO_WEIGHT = LossWeights(0.0, 0.0, 0.0)


class MicroBatch(NamedTuple):
    """A batch of an update; one process trains it in one forward and backward pass."""

    batch: Batch
    weights: LossWeights = LossWeights()
    seed: int | None = None  # of the dropout; None continues the generator


class LossTerms(NamedTuple):
    """The terms of the loss that are logged: tensors of a batch's part of its update, or numbers of
    a whole update. `Trainer.losses_of` makes them in this order, `LoopState` keeps their sums."""

    loss: Any  # padded, the reference's mean
    loss_unpadded: Any
    guided_attention: Any  # not a number where its weight is 0


class StepValues(NamedTuple):
    """The results of an update, over all its batches and processes."""

    terms: LossTerms
    gradient_norm: float
    skipped: float  # 1 if the update was skipped
    stop_requests: float  # processes that were asked to stop
    failures: float  # processes that found no next batch

    @classmethod
    def of(cls, row: Sequence[float]) -> "StepValues":
        """Make one from `StepLosses.values`, which have the same order."""
        terms = len(LossTerms._fields)
        return cls(LossTerms(*row[:terms]), *row[terms:])


class StepLosses(NamedTuple):
    """The results of an update that the device may still be computing."""

    values: torch.Tensor  # on the CPU; `StepValues.of` names them
    copied: torch.cuda.Event | None  # when `values` may be read; None: at once
    waited: Callable[[], float] | None  # seconds for other processes' gradients, after `copied`


class TrainingFunctions(NamedTuple):
    """What computes the recurrences of training; `description` is a phrase on how."""

    decoder: Callable[..., Any]  # as `model.teacher_forced`
    encoder_lstm: Callable[..., torch.Tensor]  # as `model.packed_lstm`
    description: str


class Trainer:
    """The model with its optimizer on a device, in the precision that `hparams` names. Sets torch's
    global switches for that precision and for reproducible results."""

    def __init__(self, hparams: HParams, device: torch.device, processes: Processes = ALONE):
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)  # unless the user has set it
        torch.backends.cudnn.deterministic = True
        # torch's defaults round convolutions and the encoder's LSTM, but no other product.
        torch.backends.cuda.matmul.allow_tf32 = hparams.precision == "tf32"
        torch.backends.cudnn.allow_tf32 = hparams.precision == "tf32"
        self.hparams, self.device, self.processes = hparams, device, processes
        # Before anything is on the GPU: the process that checks the kernels needs its memory.
        self._decoders: dict[str, TrainingFunctions] = {
            hparams.decoder: checked_decoder(hparams.decoder, hparams, device, processes)
        }
        torch.manual_seed(hparams.seed)
        self.model = Tacotron2(hparams).to(device)
        if hparams.sync_batch_norm and processes.world_size > 1:
            SyncBatchNorm.convert_sync_batchnorm(self.model)  # in place, as the norms are children
        self.use_decoder(hparams.decoder)
        self.parallel = processes.wrap(self.model)  # adds up the gradients of all processes
        self.optimizer = torch.optim.Adam(
            self.model.parameters(),
            lr=hparams.learning_rate,
            weight_decay=hparams.weight_decay,
            fused=True,
        )
        self.scaler = torch.amp.GradScaler(device.type, enabled=hparams.precision == "fp16")
        self.loss = Tacotron2Loss(hparams.gate_positive_weight)
        self.validation_loss = Tacotron2Loss()  # comparable between settings
        self.guided_attention_weight = hparams.guided_attention_weight  # of the next step
        self.failure: BaseException | None = None  # why this process has no next batch

    def use_decoder(self, name: str) -> None:
        """Train with one of DECODERS from now on; all processes must call this together."""
        if name not in self._decoders:
            self._decoders[name] = checked_decoder(name, self.hparams, self.device, self.processes)
        functions = self._decoders[name]
        self.model.training_decoder = functions.decoder
        self.model.encoder.run_lstm = functions.encoder_lstm
        self.decoder_description = functions.description

    def autocast(self) -> torch.autocast:
        dtype = AUTOCAST_DTYPES[self.hparams.precision]
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def losses_of(
        self, model: Callable[..., Any], batch: Batch, weights: LossWeights
    ) -> tuple[torch.Tensor, LossTerms]:
        """Return the batch's share of its update's losses: the trained loss and the logged terms.
        Summed over the update's batches they equal the losses of all its clips in one batch."""
        with self.autocast():
            outputs = model(batch)
        losses = self.loss(outputs, batch)
        padded = losses.total * weights.padded_frames
        mel, gate = losses.mel_unpadded + losses.mel_postnet_unpadded, losses.gate_unpadded
        unpadded = mel * weights.frames + gate * weights.steps
        trained = padded if self.hparams.loss == "padded" else unpadded
        guided = torch.full_like(padded, math.nan)
        if self.guided_attention_weight > 0:
            steps = batch.num_steps(self.hparams.n_frames_per_step)
            sigma = self.hparams.guided_attention_sigma
            guided = guided_attention_loss(outputs.alignments, steps, batch.text_lengths, sigma)
            guided = guided * weights.steps
            trained = trained + self.guided_attention_weight * guided
        terms = LossTerms(loss=padded, loss_unpadded=unpadded, guided_attention=guided)
        return trained, LossTerms(*(term.detach().float() for term in terms))

    def compute_gradients(self, batch: Batch) -> LossTerms:
        """Run forward and backward of a batch on the device, in this process alone. Gradients
        accumulate."""
        with batch_norm_alone(self.model):
            trained, terms = self.losses_of(self.model, batch, LossWeights())
            self.scaler.scale(trained).backward()
        return terms

    def step(
        self,
        micro_batches: Iterable[MicroBatch],
        learning_rate: float | None = None,
        *,
        num_batches: int = 1,
        stop: bool = False,
    ) -> StepLosses:
        """Make one update, at the optimizer's own rate by default, without synchronizing the GPU.

        Args:
            micro_batches: this process's batches of the update; it may have none.
            num_batches: of the whole update, in all processes.
            stop: whether this process was asked to stop.
        """
        if learning_rate is not None:
            self.optimizer.param_groups[0]["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        *terms, stop_requests, failures = self.compute_gradients_of_update(
            micro_batches, num_batches, stop
        )
        loss = LossTerms(*terms).loss
        clock = self.processes.clock
        waited = clock.read() if clock is not None else None
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        gradient_norm = torch.nn.utils.get_total_norm(gradients)
        skip = ~(torch.isfinite(gradient_norm) & torch.isfinite(loss)) | (failures > 0)
        # Gradient clipping. Fused Adam reads both values on the device: it divides gradients by
        # grad_scale, which clips their norm without another pass, and skips the update if found_inf
        # is 1.
        clipping = (gradient_norm / self.hparams.grad_clip_thresh).clamp(min=1)
        vars(self.optimizer).update(grad_scale=clipping, found_inf=skip.float())
        self.optimizer.step()
        self.scaler.update()
        values = torch.stack(  # in the order of StepValues
            [*terms, gradient_norm.float(), skip.float(), stop_requests, failures]
        ).to("cpu", non_blocking=True)  # from a GPU to pinned memory
        copied = None
        if self.device.type == "cuda":
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(self.device))
        return StepLosses(values, copied, waited)

    def compute_gradients_of_update(
        self, micro_batches: Iterable[MicroBatch], num_batches: int, stop: bool
    ) -> torch.Tensor:
        """Return [terms + 2]: LossTerms, the number of processes that were asked to stop, and of
        those without a next batch, summed over the update's batches and all processes.

        Afterwards every process has the gradients of the whole update. Batch norm's running
        statistics are the mean of what each of the batches alone would make of them.
        """
        processes = self.processes
        several = num_batches > 1 or processes.world_size > 1
        statistics = RunningStatistics(self.model) if several else None
        terms, stop_requests, failures = slice(len(LossTerms._fields)), -2, -1
        total = torch.zeros(len(LossTerms._fields) + 2, device=self.device)
        # Assigning a number to an element copies it from the host, which waits for the GPU.
        total[stop_requests].fill_(stop)
        # Gradients are reduced over processes with the last micro-batch only.
        without_sum = getattr(self.parallel, "no_sync", contextlib.nullcontext)
        left = self._all_of(micro_batches, num_batches)
        following: MicroBatch | None = next(left)
        while (micro_batch := following) is not None:
            following = next(left, None)
            last = following is None
            if micro_batch.seed is not None:
                torch.manual_seed(micro_batch.seed)
            with contextlib.nullcontext() if last else without_sum():
                batch = micro_batch.batch.to(self.device)
                trained, losses = self.losses_of(self.parallel, batch, micro_batch.weights)
                total[terms] += torch.stack(losses)
                if statistics is not None and micro_batch.weights != NO_WEIGHT:
                    statistics.add()
                if last:  # the reduction runs during the backward pass
                    total[failures].fill_(self.failure is not None)
                    vector = total if statistics is None else torch.cat([total, statistics.sums])
                    reduced = processes.start_all_reduce(vector)
                # DistributedDataParallel averages over processes; the update needs the sum.
                self.scaler.scale(trained * processes.world_size).backward()
            if statistics is not None:
                statistics.restore()
        if reduced is not None:
            reduced.wait()
        if statistics is not None:
            vector, sums = vector[: len(total)], vector[len(total) :]
            statistics.write(sums / num_batches, applied=vector[failures] == 0)
        return vector

    def _all_of(
        self, micro_batches: Iterable[MicroBatch], num_batches: int
    ) -> Iterator[MicroBatch]:
        """Yield the micro-batches, then synthetic ones of weight 0 as long as other processes wait
        for this one: for its gradients, or for the statistics of its batch norm.

        If reading fails and there are other processes, the error is kept in `failure`. They learn
        of it with the update, which is not applied.
        """
        count, min_count = 0, 1
        if self.hparams.sync_batch_norm:
            min_count = -(-num_batches // self.processes.world_size)
        try:
            for count, micro_batch in enumerate(micro_batches, 1):  # noqa: B007
                yield micro_batch
        except Exception as error:
            if self.processes.world_size == 1:
                raise
            self.failure = self.failure or error.__cause__ or error
        for _ in range(count, min_count):
            yield MicroBatch(synthetic_batch([1], [1], self.hparams), NO_WEIGHT, 0)


class RunningStatistics:
    """Batch norm's running statistics in an update of several batches. Each batch starts from the
    statistics before the update, and the mean of the results is kept: it does not depend on the
    order of the batches or on the process that trains each."""

    def __init__(self, model: torch.nn.Module):
        norms = [m for m in model.modules() if isinstance(m, (BatchNorm1d, SyncBatchNorm))]
        buffers = [dict(norm.named_buffers()) for norm in norms]
        self._buffers = [b[name] for b in buffers for name in ("running_mean", "running_var")]
        self._counts = [b["num_batches_tracked"] for b in buffers]
        self._before = torch.cat(self._buffers)
        self._counts_before = torch.stack(self._counts)
        self.sums = torch.zeros_like(self._before)

    def add(self) -> None:
        """Call after the forward pass of a batch."""
        self.sums += torch.cat(self._buffers)

    def restore(self) -> None:
        """Call after its backward pass; autograd forbids changing the statistics before it."""
        self._put(self._before)

    def write(self, means: torch.Tensor, applied: torch.Tensor) -> None:
        """Write the `means` over all batches of the update, in all processes. Nothing changes if
        the update was not `applied`."""
        self._put(torch.where(applied, means, self._before))
        torch._foreach_copy_(self._counts, list((self._counts_before + applied).unbind()))

    def _put(self, values: torch.Tensor) -> None:
        split = torch.split(values, [len(buffer) for buffer in self._buffers])
        torch._foreach_copy_(self._buffers, list(split))


def choose_decoder(name: str, device: torch.device) -> TrainingFunctions:
    """Return the training decoder that the hyper-parameter `decoder` names, and what goes with it.
    The recipe works without the folder fast_decoder/."""
    if name == "reference":
        return TrainingFunctions(teacher_forced, packed_lstm, "reference, step by step")
    spec = importlib.util.find_spec("fast_decoder")
    if spec is None or spec.origin is None:  # deleted, or only compiled files are left
        missing = "reference, step by step: the folder fast_decoder/ is missing"
        return TrainingFunctions(teacher_forced, packed_lstm, missing)
    import fast_decoder
    from fast_decoder.encoder import bidirectional_lstm

    description = f"fast ({fast_decoder.describe(device)})"
    return TrainingFunctions(fast_decoder.teacher_forced, bidirectional_lstm, description)


def checked_decoder(
    name: str, hparams: HParams, device: torch.device, processes: Processes
) -> TrainingFunctions:
    """`choose_decoder`, but with plain operations if the kernels fail their check on a GPU. The
    first process of each machine checks, and the worst answer holds for all."""
    chosen = choose_decoder(name, device)
    if chosen.decoder is teacher_forced:
        return chosen
    from fast_decoder import graphs, self_check

    if graphs.problem(device, torch.float32) is not None:
        return chosen

    autocast, looks = AUTOCAST_DTYPES[hparams.precision], processes.local_rank == 0
    mine = processes.all_or_none_with_heartbeat(
        lambda: self_check.check(hparams, device, autocast) if looks else None,
        "check the decoder's kernels",
    )
    answers = [answer for answer in processes.gather(mine) if answer is not None]
    modes = self_check.MODES
    worst = max(answers, key=lambda answer: (modes.index(answer.mode), answer.encoder != ""))
    decoder, description = self_check.settle(worst, warn=processes.is_first)
    is_torchs = worst.mode == "plain" or worst.encoder
    encoder_lstm = packed_lstm if is_torchs else chosen.encoder_lstm
    return TrainingFunctions(decoder, encoder_lstm, f"fast ({description})")


def what_precision_means(precision: str, capability: tuple[int, int] | None) -> str:
    """What is lost by a precision that the device does not compute in; empty if it does. None as
    the compute capability is a CPU."""
    if precision == "fp32":
        return ""
    if capability is None:
        has: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # older torch lacks it
        if precision == "bf16" and any(has.get(name) for name in CPUS_OF_BF16):
            return ""
        meaning = {
            "tf32": "has no effect on a CPU, which trains in fp32",
            "bf16": "rounds products on a CPU too, and saves time only where it multiplies in "
            "bfloat16 (AMX, AVX512_BF16), as this one does not",
            "fp16": "is for GPUs: a CPU rounds products to float16, mostly without instructions "
            "for it, and torch lacks some operations of it there",
        }[precision]
        return f"precision={precision} {meaning}; use precision=fp32 here"
    if precision == "fp16" or capability >= CAPABILITY_OF_BF16:
        return ""
    meaning = {
        "tf32": "has no effect on this GPU; use precision=fp32",
        "bf16": "is emulated on this GPU, which is slow; use precision=fp16 or fp32",
    }[precision]
    return f"precision={precision} {meaning}: bf16 and tf32 need compute capability 8.0"


def hashed_seed(seed: int, *place: int) -> int:
    """Hash the run's seed and `place` (the epoch, the batch's number in its plan) into the seed of
    a batch's dropout. It does not depend on the process that trains the batch, and runs with other
    seeds share no epoch."""
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=place)
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))


def learning_rate_at(iteration: int, hparams: HParams) -> float:
    """The learning rate of the step after `iteration` finished ones."""
    rate = hparams.learning_rate
    if hparams.learning_rate_schedule == "exponential":
        decaying = max(0, iteration - hparams.learning_rate_decay_start)
        halvings = decaying / hparams.learning_rate_half_life
        rate = max(rate * 0.5**halvings, min(rate, hparams.learning_rate_final))
    if iteration < hparams.learning_rate_warmup_steps:
        rate *= (iteration + 1) / hparams.learning_rate_warmup_steps
    return rate


def guided_attention_weight_at(iteration: int, hparams: HParams) -> float:
    """The weight of the guided attention loss in the step after `iteration` finished ones. It falls
    linearly to 0: a constant weight would hurt texts that are not read evenly."""
    left = max(0.0, 1 - iteration / hparams.guided_attention_steps)
    return hparams.guided_attention_weight * left
