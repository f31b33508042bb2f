"""Implement the OpenAI speech API.

    POST /v1/audio/speech      {"model": "english", "voice": "linda", "input": "Good morning."}
    GET  /v1/models
    GET  /v1/audio/voices

This server adds the fields `seed`, `pause`, `retries` and `include` to the OpenAI API. Errors have
the same form as in the OpenAI API: {"error": {"message", "type", "param", "code"}}.
"""

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from tacotron2_voice.server.encoding import FORMATS, Encoder
from tacotron2_voice.server.speakers import UnknownModel, UnknownVoice, Voices
from tacotron2_voice.server.workers import RETRY_SECONDS, Busy, Workers
from tacotron2_voice.synthesizer import PAUSE, RETRIES, Synthesizer
from tacotron2_voice.timings import timings_of
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utterance import Utterance

SPEEDS = (0.25, 4.0)  # lowest and highest speed in OpenAI's API


class VoiceId(BaseModel):
    id: str


class SpeechRequest(BaseModel):
    """The body of POST /v1/audio/speech. Unknown fields, such as `instructions`, are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    model: str
    input: str
    voice: str | VoiceId
    response_format: Literal["mp3", "opus", "flac", "wav", "pcm"] = "mp3"
    speed: Annotated[float, Field(ge=SPEEDS[0], le=SPEEDS[1])] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    seed: Annotated[int, Field(ge=0, lt=2**64)] = 0
    pause: Annotated[float, Field(ge=0, le=10)] = PAUSE
    retries: Annotated[int, Field(ge=0, le=10)] = RETRIES
    # data to include in the last server-sent event
    include: Annotated[list[Literal["timings", "alignment", "mel"]], Field(max_length=3)] = []


def problem(
    status: int, message: str, param: str | None = None, code: str | None = None
) -> JSONResponse:
    """Return an error response in the form of the OpenAI API."""
    is_busy = status == 429
    kind = "rate_limit_error" if is_busy else "invalid_request_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    headers = {"retry-after": str(RETRY_SECONDS)} if is_busy else {}
    return JSONResponse({"error": error}, status, headers)


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Return the body of a request.

    Raises:
        HTTPException: with status 413 if the body is longer than `max_bytes`.
    """
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > max_bytes:
            raise HTTPException(
                413, f"the request body is too long (expected at most {max_bytes:,} bytes)"
            )
    return bytes(content)


class Speaking:
    """Synthesize the text of a request, and provide its audio and the data for the last event."""

    def __init__(
        self,
        synthesizer: Synthesizer,
        request: SpeechRequest,
        utterance: Utterance,
        speaker: str | None,
    ):
        """Start a stream for the text of `request`. `utterance` is the prepared form of this text.

        Raises:
            UserError: if an option is out of range.
        """
        self.synthesizer = synthesizer
        self.request = request
        self.text = utterance.text
        self.num_samples = 0
        self.mels: list[np.ndarray] = []
        self.stream = synthesizer.stream_mels(
            utterance,
            speaker=speaker,
            seed=request.seed,
            speed=request.speed,
            pause=request.pause,
            retries=request.retries,
            speeds=SPEEDS,
        )

    @property
    def seconds(self) -> float:
        """Return the length of the audio that has been synthesized so far."""
        return self.num_samples / self.synthesizer.settings.sampling_rate

    def encoded(self) -> Iterator[bytes]:
        """Yield the encoded audio file in pieces. A piece may be empty."""
        encoder = Encoder(self.request.response_format, self.synthesizer.settings.sampling_rate)
        for samples in self.synthesizer.audio_pieces(self._kept(self.stream)):
            self.num_samples += len(samples)
            yield encoder.add(samples)
        yield encoder.finish()

    def _kept(self, mels: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        for mel in mels:
            if "mel" in self.request.include:
                self.mels.append(mel)
            yield mel

    def facts(self) -> dict[str, Any]:
        """Return data about the speech. The last server-sent event contains this data."""
        chunks = self.stream.chunks
        num_symbols = sum(len(chunk.ids) for chunk in chunks)
        num_steps = sum(len(chunk.alignment) for chunk in chunks)
        facts: dict[str, Any] = {
            "type": "speech.audio.done",
            "usage": {
                "input_tokens": num_symbols,
                "output_tokens": num_steps,
                "total_tokens": num_symbols + num_steps,
            },
            "seconds": round(self.seconds, 3),
            "warnings": self.stream.warnings,
            "notes": self.stream.notes,
        }
        if "timings" in self.request.include:
            timings = timings_of(chunks, self.text, self.synthesizer.settings)
            facts["timings"] = timings.as_dict()
        if "alignment" in self.request.include:
            facts["alignment"] = [_as_image(chunk.alignment.T, 0, 1) for chunk in chunks]
        if "mel" in self.request.include:
            mel = np.concatenate(self.mels, axis=1)
            low, high = np.percentile(mel, [1, 99.9])
            facts["mel"] = _as_image(mel, low, max(high, low + 1))
        return facts


def _as_image(values: np.ndarray, low: float, high: float) -> dict[str, Any]:
    """Return a dict for JSON with the size and the values of a matrix. The values are scaled to
    the range from 0 to 255 and encoded in base64."""
    scaled = 255 * np.clip((values - low) / (high - low), 0, 1)
    content = base64.b64encode(np.rint(scaled).astype(np.uint8).tobytes()).decode()
    rows, columns = values.shape
    return {"rows": rows, "columns": columns, "values": content}


def event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data)}\n\n".encode()


class OpenAIApi:
    """Handle the requests of the OpenAI speech API."""

    def __init__(self, voices: Voices, workers: Workers):
        self.voices = voices
        self.workers = workers
        self.metrics = workers.metrics
        self.started = int(time.time())

    async def models(self, request: Request) -> Response:
        shared = {"object": "model", "created": self.started, "owned_by": "tacotron2-voice"}
        data = [{"id": name} | shared for name in self.voices.synthesizers]
        return JSONResponse({"object": "list", "data": data})

    async def list_voices(self, request: Request) -> Response:
        return JSONResponse({"voices": self.voices.described()})

    async def speech(self, request: Request) -> Response:
        began = time.perf_counter()
        response = await self._speech(request, began)
        self.metrics.requests.labels("speech", str(response.status_code)).inc()
        return response

    async def _speech(self, request: Request, began: float) -> Response:
        limits = self.workers.limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                content = await read_body(request, limits.body_bytes)
            inputs = SpeechRequest.model_validate_json(content)
        except TimeoutError:
            return problem(408, f"the request body did not arrive within {limits.body_seconds:g} s")
        except ClientDisconnect:
            return Response(status_code=499)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            param = ".".join(str(x) for x in first["loc"]) or None
            return problem(400, f"{param or 'body'}: {first['msg']}", param)
        with contextlib.ExitStack() as stack:
            try:
                name = inputs.voice if isinstance(inputs.voice, str) else inputs.voice.id
                synthesizer, speaker = self.voices.find(inputs.model, name)
                stack.enter_context(self.workers.place())
                speaking = await asyncio.to_thread(self._prepare, synthesizer, speaker, inputs)
            except UnknownModel as error:
                return problem(404, str(error), "model", "model_not_found")
            except UnknownVoice as error:
                return problem(400, str(error), "voice")
            except UserError as error:
                return problem(400, str(error), "input")
            except Busy:
                message = f"too many texts are waiting. Try again in {RETRY_SECONDS} s."
                return problem(429, message, code="rate_limit_exceeded")
            return SpeechResponse(speaking, self.workers, began, stack.pop_all())

    def _prepare(
        self, synthesizer: Synthesizer, speaker: str | None, inputs: SpeechRequest
    ) -> Speaking:
        utterance = self.voices.prepare(synthesizer, inputs.input, self.workers.limits)
        return Speaking(synthesizer, inputs, utterance, speaker)


class SpeechResponse(StreamingResponse):
    """Send speech while it is being synthesized.

    Synthesis stops if the client disconnects or does not read the response.
    """

    def __init__(
        self, speaking: Speaking, workers: Workers, began: float, place: contextlib.ExitStack
    ):
        self.speaking = speaking
        self.workers = workers
        self.began = began
        self.place = place  # `place.close()` removes the text from the queue
        self.is_complete = False  # whether the whole audio was sent
        is_events = speaking.request.stream_format == "sse"
        media_type = FORMATS[speaking.request.response_format].media_type
        super().__init__(
            self._events() if is_events else self._audio(),
            media_type="text/event-stream" if is_events else media_type,
            headers={"cache-control": "no-store"},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self.workers.limits.send_seconds):
                await send(message)

        metrics = self.workers.metrics
        result = "interrupted"
        try:
            await super().__call__(scope, receive, send_in_time)
            result = "complete" if self.is_complete else "disconnected"
        except TimeoutError:
            result = "stalled"
        except UserError as error:  # end the response early, so that clients notice the failure
            print(f"error: {error}", flush=True)
            result = "failed"
        finally:
            self.place.close()
            metrics.requests.labels("audio", result).inc()
            metrics.audio_seconds.inc(self.speaking.seconds)

    async def _audio(self) -> AsyncIterator[bytes]:
        """Yield the non-empty pieces of the audio file."""
        is_first = True
        async for piece in self.workers.pieces(self.speaking.encoded()):
            if is_first and self.speaking.num_samples:
                self.workers.metrics.first_audio.observe(time.perf_counter() - self.began)
                is_first = False
            if piece:
                yield piece
        self.is_complete = True

    async def _events(self) -> AsyncIterator[bytes]:
        """Yield the audio as server-sent events, followed by an event with data about the
        speech."""
        try:
            async for piece in self._audio():
                audio = base64.b64encode(piece).decode()
                yield event({"type": "speech.audio.delta", "audio": audio})
        except UserError as error:
            message = {"message": str(error), "type": "server_error", "param": None, "code": None}
            yield event({"type": "error", "error": message})
            return
        yield event(await asyncio.to_thread(self.speaking.facts))
