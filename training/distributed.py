"""Connect the training processes that torchrun started, and exchange values between them.

    processes = join(seconds=300)
    if processes.is_first:
        print("only the first process prints this")

`DistributedDataParallel` sums the gradients over processes during the backward pass.
"""

import atexit
import contextlib
import inspect
import os
import socket
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GradBucket, PrefixStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from tacotron2_voice.utils.console import SECONDS_BETWEEN_LINES, duration
from tacotron2_voice.utils.errors import UserError, explained

T = TypeVar("T")
SECONDS_TO_LEAVE = 0.1
# Interval in seconds at which waiting processes signal that they are alive.
SECONDS_BETWEEN_HEARTBEATS = 1


class AlreadyReported(UserError):
    """Raised to stop a process silently after another process has reported the error."""


class ReductionClock:
    """Measure how long optimizer steps wait for the gradients of other processes.

    The measured time begins when all gradients of this process are ready. The host never waits for
    the GPU because of this measurement.
    """

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self.note()

    def _now(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        moment = torch.cuda.Event(enable_timing=True)
        moment.record()
        return moment

    def note(self) -> None:
        """Record the current time. Call this method whenever gradients become ready."""
        self._ready = self._now()

    def read(self) -> Callable[[], float]:
        """Return a function that returns the time spent waiting for other processes, in seconds.

        Call `read` when the sums of the gradients over all processes are ready. Call the returned
        function after the GPU has finished the optimizer step.
        """
        ready = self._ready
        done = self._now()
        if self._on_gpu:
            return lambda: float(ready.elapsed_time(done) / 1000)
        return lambda: float(done - ready)


@dataclass(frozen=True)
class Processes:
    """The processes of a run, and the rank of the current process."""

    rank: int = 0
    world_size: int = 1
    # Device of this process; None: the GPU, or the CPU if the machine has no GPU.
    device: torch.device | None = None
    # Measures how long this process waits for other processes; None in a run with a single process.
    clock: ReductionClock | None = None
    # Rank among the processes on this machine. Rank 0 does the work that is needed once per
    # machine.
    local_rank: int = 0
    machines: int = 1

    @property
    def is_first(self) -> bool:
        """Return whether this process writes files and prints messages."""
        return self.rank == 0

    @property
    def launcher(self) -> str:
        """Return the command that starts as many processes as this run has, either "python" or
        "torchrun ..."."""
        if self.world_size == 1:
            return "python"
        nodes = f"--nnodes {self.machines} " if self.machines > 1 else ""
        meeting = " --rdzv-backend c10d --rdzv-endpoint HOST:PORT" if self.machines > 1 else ""
        return f"torchrun {nodes}--nproc-per-node {self.world_size // self.machines}{meeting}"

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """Wrap the model so that its backward pass averages gradients over all processes."""
        if self.world_size == 1:
            return model
        # Do not synchronize buffers, because the trainer averages the buffers of batch norm.
        # PyTorch 2.13 renamed the option that turns off this synchronization.
        names = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        options: dict[str, Any] = {name: False, "gradient_as_bucket_view": True}
        wrapped = DistributedDataParallel(model, **options)

        def note_and_reduce(
            clock: ReductionClock, bucket: GradBucket
        ) -> torch.futures.Future[torch.Tensor]:  # PyTorch rejects hooks without type annotations
            clock.note()
            return allreduce_hook(cast(Any, dist.group.WORLD), bucket)

        wrapped.register_comm_hook(self.clock, note_and_reduce)
        return wrapped

    def start_all_reduce(self, vector: torch.Tensor) -> dist.Work | None:
        """Start summing `vector` over all processes in place. Return a `Work` object, whose `wait`
        method waits for the sum."""
        return None if self.world_size == 1 else dist.all_reduce(vector, async_op=True)

    def all_or_none(self, action: Callable[[], T]) -> T:
        """Run `action` in every process, and return this process's result if all succeeded.

        Raises:
            UserError: in every process, if `action` raised UserError or OSError in any process. If
                the messages differ, each message starts with the rank of its process.
        """
        problem = None
        try:
            result = action()
        except (UserError, OSError) as error:
            problem = explained(error)
        problems = self.gather(problem)
        if not any(problems):
            return result
        if not self.is_first:
            raise AlreadyReported("see the error of the first process")
        if len(set(problems)) == 1:
            raise UserError(problems[0])
        messages = (f"process {rank}: {text}" for rank, text in enumerate(problems) if text)
        raise UserError("\n".join(messages))

    def all_or_none_with_heartbeat(self, action: Callable[[], T], what: str) -> T:
        """Run `all_or_none` for an action that may take longer than the process timeout.

        The action runs in a separate thread. In the meantime, the processes exchange a heartbeat
        every second, so that the processes quickly detect a dead process.

        Args:
            what: a verb phrase for the action, such as "check the filelists". While a process waits
                for this action, it prints the phrase.
        """
        if self.world_size == 1:
            return action()
        future: Future[T] = Future()

        def act() -> None:
            try:
                future.set_result(action())
            # Catch every exception here. `future.result` later raises the exception again.
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=act, daemon=True).start()
        began = last_printed = time.monotonic()
        while any(working := self.gather(not future.done())):
            wait([future], SECONDS_BETWEEN_HEARTBEATS)
            now = time.monotonic()
            if not working[self.rank] and now - last_printed >= SECONDS_BETWEEN_LINES:
                last_printed = now
                others = sum(working)
                print(
                    f"waiting for {others} other process{'es' * (others > 1)} to {what}: "
                    f"{duration(now - began)} so far",
                    flush=True,
                )
        return self.all_or_none(future.result)

    def check_same(self, facts: dict[str, Any]) -> None:
        """Check that `facts`, a dictionary of names and values, is the same in all processes.

        Raises:
            UserError: in every process, if a value differs between processes. The message lists
                each process whose value differs from the value of the first process.
        """
        first, *others = self.gather(facts | {"machine": socket.gethostname()})
        differences = [
            f"process {rank} ({other['machine']}): {name} is {str(other[name])[:60]}, expected "
            f"{str(first[name])[:60]} as in process 0 ({first['machine']})"
            for rank, other in enumerate(others, 1)
            for name in facts
            if other[name] != first[name]
        ]
        if not differences:
            return
        if not self.is_first:
            raise AlreadyReported("the processes differ; see the error of the first process")
        advice = (
            "the processes differ. Start all processes with the same files, command and version:"
        )
        raise UserError("\n".join([advice, *differences[:10]]))

    def any(self, flag: bool) -> bool:
        """Return whether `flag` is True in any process. All processes must call this method."""
        return any(self.gather(flag))

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all processes in rank order. All processes must call this method."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


@contextlib.contextmanager
def batch_norm_alone(model: torch.nn.Module) -> Iterator[None]:
    """Make SyncBatchNorm use only the batch of the current process inside this context."""
    shared = [m for m in model.modules() if isinstance(m, torch.nn.SyncBatchNorm)]
    for module in shared:
        vars(module)["forward"] = types.MethodType(torch.nn.BatchNorm1d.forward, module)
    try:
        yield
    finally:
        for module in shared:
            del module.forward


ALONE = Processes()


def shared_store(rank: int, world_size: int, seconds: float) -> PrefixStore:
    """Return a key-value store for all processes that were started together.

    When torchrun restarts processes, it keeps the same store, which still contains the addresses of
    dead processes. With the old addresses, new processes would wait forever for dead processes
    (PyTorch issue 135712). Therefore, at each start, the first process chooses a new key prefix.
    Under this prefix, the first process lists the processes that have answered.

    Raises:
        UserError: if the first process does not answer within `seconds`.
    """
    store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=seconds)))
    mine = uuid.uuid4().hex
    if rank == 0:
        store.set("start", mine)
        answers = [store.get(f"{mine}/answer {other}") for other in range(1, world_size)]
        store.set(f"{mine}/all", b" ".join(answers))
        return PrefixStore(mine, store)
    deadline = time.monotonic() + seconds
    while True:
        # After a restart, the store may still contain the key prefix of the previous start.
        start = store.get("start").decode()
        store.set(f"{start}/answer {rank}", mine)
        time.sleep(0.02)
        if store.check([f"{start}/all"]) and mine.encode() in store.get(f"{start}/all").split():
            return PrefixStore(start, store)
        if time.monotonic() > deadline:
            raise UserError(
                f"process {rank}: no answer from the first process within {seconds:g} s. Increase "
                "--process-timeout, or find out why the first process did not start"
            )


def join(seconds: float) -> Processes:
    """Join the processes that torchrun started. Without torchrun, return `ALONE`.

    Args:
        seconds: timeout in seconds of every exchange between processes.

    Raises:
        UserError: if this machine has GPUs, but fewer GPUs than processes.
    """
    # torchrun sets the environment variables WORLD_SIZE, RANK, LOCAL_RANK and GROUP_WORLD_SIZE.
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size == 1:
        return ALONE
    rank = int(os.environ["RANK"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    machines = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        count = torch.cuda.device_count()
        if local_rank >= count:
            raise UserError(
                f"process {rank}: no GPU for local rank {local_rank}, because this machine has "
                f"{count} GPUs. Start torchrun with --nproc-per-node {count}"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = shared_store(rank, world_size, seconds)
    limit = timedelta(seconds=seconds)
    dist.init_process_group(backend, None, limit, world_size, rank, store)
    return Processes(rank, world_size, device, ReductionClock(device), local_rank, machines)


def leave_at_exit() -> None:
    """Make the process wait for SECONDS_TO_LEAVE before it exits.

    During this time, a PyTorch thread releases the tensors of the last exchange between processes.
    Without the wait, the process could exit while this thread is still running, and would then
    abort.
    """
    if dist.is_initialized():
        atexit.register(time.sleep, SECONDS_TO_LEAVE)
