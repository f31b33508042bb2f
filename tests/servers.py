"""Run speech servers for tests."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import uvicorn

from tacotron2_voice.server.app import Access, make_app
from tacotron2_voice.server.connections import Connection
from tacotron2_voice.server.limits import Limits
from tacotron2_voice.server.metrics import Metrics
from tacotron2_voice.server.speakers import Voices
from tacotron2_voice.server.workers import Workers
from tacotron2_voice.voice import Voice

SENTENCES = "A dog came. It sat down, and it ate. Nobody knew where it was. "


class PausedVoice(Voice):
    """A voice that waits for the semaphore `allowed` before each chunk."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.allowed = threading.Semaphore(0)
        self.num_chunks = 0

    def decode(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        self.allowed.acquire(timeout=60)
        self.num_chunks += 1
        return super().decode(*arguments, **options)


@dataclass
class Running:
    """A server that is running in a thread."""

    address: str
    workers: Workers
    voice: Voice

    @property
    def place(self) -> tuple[str, int]:
        host, _, port = self.address.removeprefix("http://").partition(":")
        return host, int(port)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.place, timeout=20)

    def post(self, **fields: object) -> socket.socket:
        """Send a speech request, and return the connection."""
        inputs = {"model": "small", "voice": "default", "response_format": "pcm"} | fields
        body = json.dumps(inputs)
        client = self.connect()
        client.sendall(request("POST /v1/audio/speech", body).encode())
        return client


def request(line: str, body: str, *headers: str) -> str:
    lines = [
        f"{line} HTTP/1.1",
        "host: localhost",
        "connection: close",
        f"content-length: {len(body.encode())}",
        *headers,
        "",
        body,
    ]
    return "\r\n".join(lines)


@contextlib.contextmanager
def running(
    voice: Voice, access: Access | None = None, background: Any = None, **limits: Any
) -> Iterator[Running]:
    """Serve one voice with the name "small" on a free port."""
    workers = Workers(replace(Limits(workers=1), **limits), Metrics())
    voices = Voices({"small": voice})
    app = make_app(voices, workers, access or Access(), background and background(voices, workers))
    with socket.create_server(("127.0.0.1", 0)) as opened:
        server = uvicorn.Server(uvicorn.Config(app, http=Connection, log_level="critical"))
        thread = threading.Thread(target=server.run, args=([opened],))
        thread.start()
        wait_until(lambda: server.started)
        port = opened.getsockname()[1]
        try:
            yield Running(f"http://127.0.0.1:{port}", workers, voice)
        finally:
            if isinstance(voice, PausedVoice):
                voice.allowed.release(10_000)
            server.force_exit = True
            server.should_exit = True
            thread.join(30)


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(0.01)


def everything(client: socket.socket) -> bytes:
    """Return all bytes that arrive before the server closes the connection."""
    content = b""
    with client, contextlib.suppress(ConnectionError):
        while piece := client.recv(2**16):
            content += piece
    return content


def status_of(response: bytes) -> int:
    return int(response.split()[1])
