"""Synthesize texts of many clients with a few threads.

    workers = Workers(Limits(workers=2), metrics)
    with workers.place():                     # raises Busy if too many texts wait
        async for piece in workers.pieces(voice.stream(text)):
            ...

A thread computes one piece at a time, and the clients take turns. The next piece is computed when
the client has received the piece before, so a client that reads slowly or hangs up uses no thread.
"""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from tacotron2_voice.server.limits import Limits
from tacotron2_voice.server.metrics import Metrics

Piece = TypeVar("Piece")
RETRY_SECONDS = 5  # clients that were rejected should wait for this time


class Busy(Exception):
    """Report that too many texts are waiting."""


class Workers:
    """Limit the number of texts, and compute their pieces in threads.

    Attributes:
        num_texts: number of texts that are synthesized or wait.
    """

    def __init__(self, limits: Limits, metrics: Metrics):
        self.limits = limits
        self.metrics = metrics
        self.num_texts = 0
        self.threads = ThreadPoolExecutor(limits.workers, thread_name_prefix="speak")

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Count a text as long as the block runs.

        Raises:
            Busy: if the queue is full.
        """
        if self.num_texts >= self.limits.workers + self.limits.queue:
            raise Busy
        self.num_texts += 1
        self.metrics.texts.set(self.num_texts)
        try:
            yield
        finally:
            self.num_texts -= 1
            self.metrics.texts.set(self.num_texts)

    async def pieces(self, iterator: Iterator[Piece]) -> AsyncGenerator[Piece, None]:
        """Yield the pieces of an iterator, which are computed in the threads.

        If the task is cancelled, a piece that waits for a thread is dropped. A piece that is being
        computed is finished, and no further piece is computed.
        """
        loop = asyncio.get_running_loop()
        ended = object()
        endless = itertools.chain(iterator, itertools.repeat(ended))
        while True:
            piece = await loop.run_in_executor(self.threads, next, endless)
            if piece is ended:
                return
            yield piece  # type: ignore[misc]

    def close(self) -> None:
        """Drop the waiting pieces. Pieces that are being computed are finished."""
        self.threads.shutdown(wait=False, cancel_futures=True)
