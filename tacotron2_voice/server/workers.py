"""Synthesize the texts of many clients with a few threads.

    workers = Workers(Limits(workers=2), metrics)
    with workers.place():                     # raises Busy if too many texts wait
        async for piece in workers.pieces(voice.stream(text)):
            ...

Each thread computes one piece of audio at a time, alternating between the waiting texts. The next
piece of a text is computed only after the client has received the previous piece. Therefore, clients
that read slowly or disconnect do not block a thread.
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
RETRY_SECONDS = 5  # seconds that a rejected client should wait before it tries again


class Busy(Exception):
    """Raised when too many texts are waiting."""


class Workers:
    """Limit the number of texts in progress, and synthesize the texts piece by piece in threads.

    Attributes:
        num_texts: number of texts that are waiting or being synthesized.
    """

    def __init__(self, limits: Limits, metrics: Metrics):
        self.limits = limits
        self.metrics = metrics
        self.num_texts = 0
        self.threads = ThreadPoolExecutor(limits.workers, thread_name_prefix="speak")

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """Reserve a place in the queue for a text until the `with` block ends.

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
        """Run an iterator in the worker threads, and yield the pieces that it computes.

        If the asyncio task is canceled while a piece waits for a thread, the piece is not computed.
        A thread that is already computing a piece finishes this piece, but computes no further
        piece of the text.
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
        """Cancel the computation of all pieces that wait for a thread. The threads finish the pieces
        that they are already computing."""
        self.threads.shutdown(wait=False, cancel_futures=True)
