"""Bounds the memory and the time of a library that runs a file from elsewhere.

    bounds = Bounds("vocoder.onnx", threads)
    result = bounds.call(library.run, seconds_of_sound, stop)  # UserError if it takes longer

A call may take the computing of `TIMES_REAL_TIME` times its sound, and `BASE_SECONDS` more where
the calls before it have left them. All calls together may take `bounds.max_memory` bytes; what is
above that, the library is refused. When the time is up, and after Ctrl-C, `stop` is called, which
asks the library to end: Python's own handler of Ctrl-C would wait for it. If it does not end within
`GRACE_SECONDS`, the process does.
"""

import os
import resource
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tacotron2_voice.utils.arguments import processors
from tacotron2_voice.utils.errors import UserError

Result = TypeVar("Result")

MAX_MEMORY_BYTES = 2**32
SHARE_OF_MEMORY = 1 / 8  # of the machine's, where that is less
BASE_SECONDS = 60.0
TIMES_REAL_TIME = 20.0  # the full-size model takes 0.05 to 0.5 times (docs/voices.md)
GRACE_SECONDS = 0.6
TICK_SECONDS = 0.1  # between two looks at the time
TOO_LONG = f"takes over {BASE_SECONDS:.0f} s, and {TIMES_REAL_TIME:.0f} times as long as its sound"


class Call:
    """A call that is running."""

    def __init__(self, name: str | Path, deadline: float, stop: Callable[[], object] | None):
        """`deadline`: by the process's time of computing, so that a busy or stopped machine does
        not count."""
        self.name, self.deadline, self.stop = name, deadline, stop
        self.is_interrupted = self.is_too_long = False
        self.stopped_at: float | None = None
        self.is_main = False  # whether Ctrl-C is told to `Watch` meanwhile

    def look(self, *, is_interrupted: bool) -> bool:
        """Stop it if it must end. Returns whether it was stopped some time ago, and still runs."""
        if self.stopped_at is None:
            self.is_interrupted = is_interrupted
            self.is_too_long = time.process_time() > self.deadline
            if self.is_interrupted or self.is_too_long:
                self.stopped_at = time.monotonic()
                if self.stop is not None:
                    self.stop()
        return self.stopped_at is not None and time.monotonic() > self.stopped_at + GRACE_SECONDS


class Watch:
    """The thread that looks at the calls of this process while there are any, and the limit of the
    process's memory meanwhile."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.lock = threading.Lock()
        self.is_idle = False
        self.thread: threading.Thread | None = None
        self.statm: int | None = None
        os.register_at_fork(after_in_child=self._restart)

    def _restart(self) -> None:
        """In a fork, which has no thread, and calls of the parent only."""
        if self.calls:
            resource.setrlimit(resource.RLIMIT_AS, self.limits)
        self.calls, self.lock, self.thread = [], threading.Lock(), None

    def begin(self, call: Call, memory: int) -> int:
        """`memory`: bytes that may be added to what the process has, which is returned."""
        with self.lock:
            if self.thread is None:
                self.reading, self.writing = os.pipe()
                os.set_blocking(self.writing, False)
                self.statm = _open_statm()
                self.thread = threading.Thread(target=self._run, daemon=True)
                self.thread.start()
            in_use = self.memory()
            if not self.calls:
                self.limits = resource.getrlimit(resource.RLIMIT_AS)
                self._limit(in_use + memory)
            self.calls.append(call)
            # Python's handlers run in the main thread; an event loop there has its own descriptor.
            if threading.current_thread() is threading.main_thread():
                others = signal.set_wakeup_fd(self.writing, warn_on_full_buffer=False)
                call.is_main = others == -1
                if not call.is_main:
                    signal.set_wakeup_fd(others)
            if self.is_idle:
                os.write(self.writing, b"\0")
                self.is_idle = False
        return in_use

    def end(self, call: Call) -> int:
        """Returns the bytes that the process has."""
        with self.lock:
            if call.is_main:
                signal.set_wakeup_fd(-1)
            if call in self.calls:  # or Ctrl-C came before
                self.calls.remove(call)
                if not self.calls:
                    resource.setrlimit(resource.RLIMIT_AS, self.limits)
            return self.memory()

    def memory(self) -> int:
        """Bytes of this process's address space; 0 where the system does not say."""
        if self.statm is None:
            return 0
        return int(os.pread(self.statm, 32, 0).split()[0]) * resource.getpagesize()

    def _limit(self, memory: int) -> None:
        if self.statm is not None:
            soft, hard = self.limits
            bounds = [x for x in (soft, hard, memory) if x != resource.RLIM_INFINITY]
            resource.setrlimit(resource.RLIMIT_AS, (min(bounds), hard))

    def _run(self) -> None:
        while True:
            with self.lock:
                self.is_idle = not self.calls
            ready, _, _ = select.select(
                [self.reading], [], [], None if self.is_idle else TICK_SECONDS
            )
            is_interrupted = bool(ready) and signal.SIGINT in os.read(self.reading, 64)
            with self.lock:
                late = [x for x in self.calls if x.look(is_interrupted=is_interrupted)]
                if late:
                    _end_process(late[0])


def _open_statm() -> int | None:
    try:
        return os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


def _end_process(call: Call) -> None:

    print("interrupted" if call.is_interrupted else f"{call.name}: {TOO_LONG}; take another")
    if signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:  # a program that cleans up
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(3)
    os._exit(128 + signal.SIGINT if call.is_interrupted else 1)


_watch = Watch()


def refuse_threads(threads: int) -> None:
    """UserError for more threads than there are processors: they would wait for each other, and
    thousands hang."""
    if not 1 <= threads <= (most := processors()):
        raise UserError(f"threads={threads}: expected 1 to {most}, the processors that there are")


class Bounds:
    """What the calls of one object of a library may still take."""

    def __init__(self, name: str | Path, threads: int):
        """`name`: of the file. Errors as `refuse_threads`."""
        refuse_threads(threads)
        machine = os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()
        self.max_memory = self.memory = min(MAX_MEMORY_BYTES, int(SHARE_OF_MEMORY * machine))
        self.name, self.threads, self.seconds = name, threads, BASE_SECONDS

    def call(
        self, run: Callable[[], Result], seconds_of_sound: float, stop: Callable[[], object] | None
    ) -> Result:
        """What `run` returns; without `stop` it cannot be asked to end.

        Raises:
            UserError: if it took too much time.
            KeyboardInterrupt: after Ctrl-C.
        """
        seconds = self.seconds + TIMES_REAL_TIME * seconds_of_sound
        began = time.process_time()
        call = Call(self.name, began + seconds * self.threads, stop)
        try:
            before = _watch.begin(call, self.memory)
            result = run()
        except Exception:  # of many kinds
            if call.stopped_at is None:
                raise
        finally:
            try:
                _let_ctrl_c_in()
            finally:
                after = _watch.end(call)
        self.memory = min(self.max_memory, self.memory - (after - before))
        used = (time.process_time() - began) / self.threads
        self.seconds = min(BASE_SECONDS, seconds - used)
        if call.is_interrupted:
            raise KeyboardInterrupt
        if call.is_too_long:
            raise UserError(f"{TOO_LONG}; take another")
        return result


def _let_ctrl_c_in() -> None:
    """Python raises KeyboardInterrupt here at the latest, where it keeps no limit from being
    restored."""
