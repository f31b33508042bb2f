"""Serve the Wyoming protocol, which Home Assistant uses for speech.

    async with listen(open_socket("127.0.0.1", 10200), voices, workers)():
        ...

A client can send a whole text (`synthesize`), or a text in pieces while it is being written
(`synthesize-start`, `synthesize-chunk`, `synthesize-stop`). If the text arrives in pieces, the
server speaks each sentence as soon as the sentence is complete. The server offers every speaker as a
separate voice, because the menus of Home Assistant list voices, but not speakers.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from sentence_stream import SentenceBoundaryDetector
from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.error import Error
from wyoming.event import Event, async_read_event
from wyoming.info import Attribution, Describe, Info, TtsProgram, TtsVoice
from wyoming.ping import Ping, Pong
from wyoming.server import AsyncEventHandler
from wyoming.tts import (
    Synthesize,
    SynthesizeChunk,
    SynthesizeStart,
    SynthesizeStop,
    SynthesizeStopped,
    SynthesizeVoice,
)

from tacotron2_voice.outputs import silence, to_int16
from tacotron2_voice.server.speakers import Voices
from tacotron2_voice.server.workers import Busy, Workers
from tacotron2_voice.synthesizer import PAUSE
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import NothingToSpeak
from tacotron2_voice.version import __version__

Background = Callable[[], AbstractAsyncContextManager[None]]
MAX_EVENT_BYTES = 2**18
MAX_CONNECTIONS = 100
POLL_SECONDS = 0.1  # seconds between checks of whether a client is still connected
IDLE_SECONDS = 600.0  # time limit in seconds for the next event from a client


def listen(opened: socket.socket, voices: Voices, workers: Workers) -> Background:
    """Return a function that creates an async context manager. The Wyoming server runs while this
    context is active.

    Args:
        opened: a listening socket. The socket is closed when the context ends.
    """

    @asynccontextmanager
    async def running() -> AsyncIterator[None]:
        connections = set[asyncio.Task[None]]()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            connections.add(task)
            task.add_done_callback(connections.discard)
            if len(connections) > MAX_CONNECTIONS:
                writer.close()
                return
            await Handler(reader, writer, voices, workers).run()

        server = await asyncio.start_server(connected, sock=opened, limit=MAX_EVENT_BYTES)
        try:
            yield
        finally:
            server.close()
            for connection in list(connections):
                connection.cancel()

    return running


def described(voices: Voices) -> Info:
    shared: dict[str, Any] = {
        "attribution": Attribution("Tacotron 2 with length batching", ""),
        "installed": True,
        "version": __version__,
    }
    found = []
    for voice in voices.described():
        language = voices.synthesizers[voice["model"]].settings.language or "en"
        description = f"{voice['name']} ({voice['model']})"
        found.append(TtsVoice(voice["id"], description=description, languages=[language], **shared))
    program = TtsProgram(
        "tacotron2-voice",
        description="Tacotron 2",
        voices=found,
        supports_synthesize_streaming=True,
        **shared,
    )
    return Info(tts=[program])


class LimitedReader:
    """Read from a stream, and reject events that are too long.

    By default, the wyoming package reads events of any length into memory.
    """

    def __init__(self, reader: asyncio.StreamReader):
        self.reader = reader

    async def readline(self) -> bytes:
        return await self.reader.readline()

    async def readexactly(self, count: int) -> bytes:
        if type(count) is not int or not 0 <= count <= MAX_EVENT_BYTES:
            raise ValueError("the event is too long")
        return await self.reader.readexactly(count)


class Handler(AsyncEventHandler):
    """Answer the events from one client, one after another."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        voices: Voices,
        workers: Workers,
    ):
        super().__init__(reader, writer)
        self.limited_reader: Any = LimitedReader(reader)
        self.voices = voices
        self.workers = workers
        # The sentence detector is None before synthesize-start and after synthesize-stop.
        self.sentences: SentenceBoundaryDetector | None = None
        self.voice: SynthesizeVoice | None = None
        self.num_characters = 0
        # Sampling rate of the current text. None: no audio of this text has been sent yet.
        self.rate: int | None = None

    async def run(self) -> None:
        """Answer events until the client disconnects or violates the protocol."""
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS):
                    event = await async_read_event(self.limited_reader)
                if event is None or not await self.handle_event(event):
                    break
        except (AttributeError, EOFError, KeyError, OSError, RecursionError, TypeError):
            pass  # an incomplete or invalid event, or a closed or idle connection
        finally:
            self.writer.close()

    async def write_event(self, event: Event) -> None:
        async with asyncio.timeout(self.workers.limits.send_seconds):
            await super().write_event(event)

    async def handle_event(self, event: Event) -> bool:
        if Describe.is_type(event.type):
            await self.write_event(described(self.voices).event())
        elif Ping.is_type(event.type):
            await self.write_event(Pong(text=Ping.from_event(event).text).event())
        elif SynthesizeStart.is_type(event.type):
            self.voice = SynthesizeStart.from_event(event).voice
            self.sentences = SentenceBoundaryDetector()
            self.num_characters = 0
        elif SynthesizeChunk.is_type(event.type) and self.sentences is not None:
            text = SynthesizeChunk.from_event(event).text
            self.num_characters += len(text)
            if self.num_characters > self.workers.limits.characters:
                await self._fail("bad-request", "the text is too long")
                return False
            for sentence in self.sentences.add_chunk(text):
                await self._speak(sentence)
        elif SynthesizeStop.is_type(event.type) and self.sentences is not None:
            await self._speak(self.sentences.finish())
            self.sentences = None
            await self._end_audio()
            await self.write_event(SynthesizeStopped().event())
        elif Synthesize.is_type(event.type) and self.sentences is None:
            # Clients that send a text in pieces also send the whole text, for servers that do not
            # support pieces. This server ignores the whole text after it has received the pieces.
            whole = Synthesize.from_event(event)
            self.voice = whole.voice
            await self._speak(whole.text)
            await self._end_audio()
        return True

    async def _fail(self, code: str, message: str) -> None:
        self.workers.metrics.requests.labels("wyoming", code).inc()
        await self.write_event(Error(text=message, code=code).event())

    async def _speak(self, text: str) -> None:
        """Send the audio of a text or of one sentence."""
        if not text.strip():
            return
        began = time.perf_counter()
        name = ""
        if self.voice is not None:
            name = self.voice.speaker or self.voice.name or ""
        try:
            with self.workers.place():
                await self._while_connected(self._send_audio(text, name, began))
        except NothingToSpeak:
            return
        except UserError as error:
            await self._fail("bad-request", str(error))
        except Busy:
            await self._fail("busy", "too many texts are waiting. Try again later.")

    async def _while_connected(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`. If the client disconnects, cancel `work`, so that the text leaves the queue.

        Raises:
            ConnectionResetError: if the client disconnects.
        """
        task = asyncio.create_task(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=POLL_SECONDS)
                reader = self.limited_reader.reader
                is_gone = reader.at_eof() or reader.exception() is not None
                if is_gone and not task.done():
                    raise ConnectionResetError
            await task
        finally:
            task.cancel()

    async def _send_audio(self, text: str, name: str, began: float) -> None:
        model = self.voices.model_of(name)
        synthesizer, speaker = self.voices.find(model, name)
        limits = self.workers.limits
        utterance = await asyncio.to_thread(self.voices.prepare, synthesizer, text, limits)
        rate = synthesizer.settings.sampling_rate
        stream = synthesizer.stream(utterance, speaker=speaker)
        is_first = True
        metrics = self.workers.metrics
        async with contextlib.aclosing(self.workers.pieces(stream)) as pieces:
            async for samples in pieces:
                if is_first:
                    metrics.first_audio.observe(time.perf_counter() - began)
                metrics.audio_seconds.inc(len(samples) / rate)
                # `rate` is not None if audio of an earlier sentence was sent.
                if is_first and self.rate is not None:
                    await self._write_audio(silence(PAUSE, rate), rate)
                is_first = False
                await self._write_audio(to_int16(samples), rate)
        metrics.requests.labels("wyoming", "complete").inc()

    async def _write_audio(self, content: bytes, rate: int) -> None:
        if self.rate is None:
            self.rate = rate
            await self.write_event(AudioStart(rate=rate, width=2, channels=1).event())
        await self.write_event(AudioChunk(rate=rate, width=2, channels=1, audio=content).event())

    async def _end_audio(self) -> None:
        """Send the event that ends the audio of a text, even if the text contains no words."""
        if self.rate is None:
            first = next(iter(self.voices.synthesizers.values()))
            await self._write_audio(b"", first.settings.sampling_rate)
        await self.write_event(AudioStop().event())
        self.rate = None
