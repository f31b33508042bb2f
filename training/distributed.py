"""The processes that torchrun started to train together: who is who, and what they tell each other.
`DistributedDataParallel` adds up gradients while the backward pass goes on.
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

from common.errors import UserError, explained
from common.progress import SECONDS_BETWEEN_LINES, duration

T = TypeVar("T")
MAX_PROCESSES = 10**6
MAX_TIMEOUT_SECONDS = 10**6  # 11 days
SECONDS_TO_LEAVE = 0.1
SECONDS_BETWEEN_SIGNS = 1  # that processes give each other while one of them works long


class AlreadyReported(UserError):
    """Raised on other ranks: one rank has already reported the error."""


class ReductionClock:
    """How long updates wait for the gradients of other processes, from the moment when the last of
    this process's own are there. On a GPU nothing waits for the clock to be read."""

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
        """Some of this process's gradients are there."""
        self._ready = self._now()

    def read(self) -> Callable[[], float]:
        """Now that the sums are there. What this returns gives the seconds, once the GPU is done
        with the update."""
        ready, done = self._ready, self._now()
        if self._on_gpu:
            return lambda: float(ready.elapsed_time(done) / 1000)
        return lambda: float(done - ready)


@dataclass(frozen=True)
class Processes:
    """This process and those it trains with."""

    rank: int = 0
    world_size: int = 1
    device: torch.device | None = None  # of this process; None chooses as a lone process does
    clock: ReductionClock | None = None  # of several processes
    local_rank: int = 0  # among those of this machine; the first does what one of each need do
    machines: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this one writes and prints."""
        return self.rank == 0

    @property
    def launcher(self) -> str:
        """What starts as many processes again: "python", or torchrun with its options."""
        if self.world_size == 1:
            return "python"
        nodes = f"--nnodes {self.machines} " if self.machines > 1 else ""
        meeting = " --rdzv-backend c10d --rdzv-endpoint HOST:PORT" if self.machines > 1 else ""
        return f"torchrun {nodes}--nproc-per-node {self.world_size // self.machines}{meeting}"

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model, whose backward pass leaves the mean of all processes' gradients."""
        if self.world_size == 1:
            return model
        # Each Trainer looks after batch norm's buffers itself. torch 2.13 renamed the option.
        names = inspect.signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        options: dict[str, Any] = {name: False, "gradient_as_bucket_view": True}
        wrapped = DistributedDataParallel(model, **options)

        def note_and_reduce(
            clock: ReductionClock, bucket: GradBucket
        ) -> torch.futures.Future[torch.Tensor]:  # torch looks at the annotations
            clock.note()
            return allreduce_hook(cast(Any, dist.group.WORLD), bucket)

        wrapped.register_comm_hook(self.clock, note_and_reduce)
        return wrapped

    def start_all_reduce(self, vector: torch.Tensor) -> dist.Work | None:
        """Let `vector` become its sum over all processes; wait for what this returns."""
        return None if self.world_size == 1 else dist.all_reduce(vector, async_op=True)

    def all_or_none(self, action: Callable[[], T]) -> T:
        """What `action` returns in this process, if it ends well in all of them.

        Raises:
            UserError: in every process, if any raised one or an OSError; with the processes'
                numbers where not all of them say the same.
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
            raise AlreadyReported("the first process says what is wrong")
        if len(set(problems)) == 1:
            raise UserError(problems[0])
        messages = (f"process {rank}: {text}" for rank, text in enumerate(problems) if text)
        raise UserError("\n".join(messages))

    def all_or_none_with_heartbeat(self, action: Callable[[], T], what: str) -> T:
        """`all_or_none` of an action that may take longer than processes wait for each other.

        It runs in a thread, and meanwhile the processes tell each other every second that they are
        there. So one that dies is noticed at once. `what` they do is said to those who wait.
        """
        if self.world_size == 1:
            return action()
        future: Future[T] = Future()

        def act() -> None:
            try:
                future.set_result(action())
            except BaseException as error:  # raised below, where it ends the process
                future.set_exception(error)

        threading.Thread(target=act, daemon=True).start()
        began = last_printed = time.monotonic()
        while any(working := self.gather(not future.done())):
            wait([future], SECONDS_BETWEEN_SIGNS)
            now = time.monotonic()
            if not working[self.rank] and now - last_printed >= SECONDS_BETWEEN_LINES:
                last_printed = now
                print(
                    f"waiting for {sum(working)} other processes, which {what}: "
                    f"{duration(now - began)} so far",
                    flush=True,
                )
        return self.all_or_none(future.result)

    def refuse_differences(self, facts: dict[str, Any]) -> None:
        """Refuse processes whose `facts`, by name, differ; UserError in every process, naming those
        that differ from the first, and in what."""
        first, *others = self.gather(facts | {"machine": socket.gethostname()})
        differences = [
            f"process {rank} ({other['machine']}): {name} is {str(other[name])[:60]}, "
            f"in process 0 ({first['machine']}) {str(first[name])[:60]}"
            for rank, other in enumerate(others, 1)
            for name in facts
            if other[name] != first[name]
        ]
        if not differences:
            return
        if not self.is_first:
            raise AlreadyReported("the first process says how the processes differ")
        advice = "the processes differ; give all the same files, command and version:"
        raise UserError("\n".join([advice, *differences[:10]]))

    def any(self, flag: bool) -> bool:
        """Whether it is true in one of the processes; all call this at the same moment."""
        return any(self.gather(flag))

    def gather(self, value: Any) -> list[Any]:
        """Every process's value, in the order of ranks."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value)
        return values


@contextlib.contextmanager
def batch_norm_alone(model: torch.nn.Module) -> Iterator[None]:
    """Under it a model's shared batch norm (SyncBatchNorm) waits for no other process."""
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
    """A store that the processes of this very start share.

    torchrun keeps one store while it restarts processes, in which the addresses of those that are
    gone still stand, and new ones that read them wait for nobody (pytorch issue 135712). So the
    first process names this start, and lists who has answered to that name.
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
        start = store.get("start").decode()  # perhaps that of processes that are gone
        store.set(f"{start}/answer {rank}", mine)
        time.sleep(0.02)
        if store.check([f"{start}/all"]) and mine.encode() in store.get(f"{start}/all").split():
            return PrefixStore(start, store)
        if time.monotonic() > deadline:
            raise UserError(
                f"process {rank}: the first process did not answer within {seconds:g} s; give "
                "more with --process-timeout, or find out why it did not start"
            )


def read_environment(seconds: float) -> tuple[int, int, int, int]:
    """(number of processes, and of machines; of this process, and among those of its machine), as
    torchrun sets them; UserError with a line for each that is missing or out of range, and for
    the `seconds` to wait."""
    problems = []

    def number(name: str, low: int, high: int, default: str | None = None) -> int:
        text = os.environ.get(name, default)
        if text and text.isdecimal() and len(text) < 10 and low <= int(text) <= high:
            return int(text)
        actual = "is not set" if text is None else f"is {text[:60]!r}"
        problems.append(f"{name} {actual}: expected a whole number from {low} to {high}")
        return high

    world_size = number("WORLD_SIZE", 1, MAX_PROCESSES, None if "RANK" in os.environ else "1")
    machines = rank = local_rank = 0
    if world_size > 1 and not problems:
        rank = number("RANK", 0, world_size - 1)
        local_size = number("LOCAL_WORLD_SIZE", 1, world_size, str(world_size))
        local_rank = number("LOCAL_RANK", 0, local_size - 1)
        machines = number("GROUP_WORLD_SIZE", 1, world_size, "1")
        number("MASTER_PORT", 1, 65535)
        if not os.environ.get("MASTER_ADDR"):
            problems.append("MASTER_ADDR is not set: expected the first process's address")
    if problems:
        problems.append("start several processes by torchrun, which sets these, or one without any")
    if not 1 <= seconds <= MAX_TIMEOUT_SECONDS:  # nan too
        limits = f"from 1 to {MAX_TIMEOUT_SECONDS}"
        problems.append(f"--process-timeout {seconds:g}: expected seconds {limits}")
    if problems:
        raise UserError("\n  ".join(problems))
    return world_size, machines, rank, local_rank


def join(seconds: float) -> Processes:
    """This process among those that torchrun started; `ALONE` without torchrun. One waits for the
    others so many `seconds`. UserError as `read_environment`, or if this machine has GPUs, and
    fewer than processes."""
    world_size, machines, rank, local_rank = read_environment(seconds)
    if world_size == 1:
        return ALONE
    device = torch.device("cpu")
    if torch.cuda.is_available():
        if local_rank >= torch.cuda.device_count():
            raise UserError(
                f"process {rank}: number {local_rank} on this machine, which has "
                f"{torch.cuda.device_count()} GPUs; give torchrun --nproc-per-node "
                f"{torch.cuda.device_count()}"
            )
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = shared_store(rank, world_size, seconds)
    limit = timedelta(seconds=seconds)
    dist.init_process_group(backend, None, limit, world_size, rank, store)
    return Processes(rank, world_size, device, ReductionClock(device), local_rank, machines)


def leave_at_exit() -> None:
    """This process ends now. First a thread of torch's may run: it gives back the tensors of the
    last exchange, and where the interpreter ends before it could, the process is aborted."""
    if dist.is_initialized():
        atexit.register(time.sleep, SECONDS_TO_LEAVE)
