"""Build the web application: the OpenAI API, the web demo, /health and /metrics.

app = make_app(voices, workers, Access(hosts=["studio.lan"], api_key="secret"))
"""

import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from tacotron2_voice.server.openai_api import OpenAIApi, problem
from tacotron2_voice.server.speakers import Voices
from tacotron2_voice.server.workers import Workers

PAGE = Path(__file__).parent / "page.html"
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
PUBLIC_PATHS = ("/", "/health")  # paths that clients can request without an API key
# These headers prevent browsers from loading anything from other sites, and prevent other sites
# from embedding the demo.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'unsafe-inline'; "
    "style-src 'unsafe-inline'; connect-src 'self'; img-src data:; media-src blob:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@dataclass(frozen=True)
class Access:
    """Define which clients may use the server.

    Args:
        hosts: host names and addresses that clients may use in URLs. The server rejects all other
            host names, because an attacker's domain name could point to this machine. "*": allow
            all host names.
        origins: websites whose scripts may use the API, such as https://example.org.
        api_key: bearer token that clients must send in the Authorization header; "": no token is
            required.
    """

    hosts: list[str] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)
    api_key: str = ""


class AccessMiddleware:
    """Reject requests that have an unknown host, an unknown origin, or no valid API key."""

    def __init__(self, app: ASGIApp, access: Access):
        self.app = app
        self.access = access
        self.hosts = {host.lower() for host in (*LOCAL_HOSTS, *access.hosts)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            rejection = self._reject(Request(scope))
            if rejection is not None:
                await rejection(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _reject(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        if "*" not in self.hosts and host_name(host) not in self.hosts:
            message = f"host {host[:60]!r}: not a name of this server. Start it with --allow-host."
            return problem(400, message, code="unknown_host")
        origin = request.headers.get("origin")
        own = origin is not None and origin.partition("//")[2] == host
        if origin is not None and not own and origin not in self.access.origins:
            message = f"origin {origin[:60]!r}: not allowed. Start the server with --cors."
            return problem(403, message, code="unknown_origin")
        if self.access.api_key and request.url.path not in PUBLIC_PATHS:
            kind, _, key = request.headers.get("authorization", "").partition(" ")
            is_right = hmac.compare_digest(key.strip().encode(), self.access.api_key.encode())
            if kind.lower() != "bearer" or not is_right:
                return problem(401, "the API key is missing or wrong", code="invalid_api_key")
        return None


def host_name(host: str) -> str:
    """Return the host name from a Host header, without the port."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
    return f"[{name}]" if ":" in name else name


def make_app(
    voices: Voices,
    workers: Workers,
    access: Access,
    background: Callable[[], AbstractAsyncContextManager[None]] | None = None,
) -> Starlette:
    """Return the web application.

    Args:
        background: a function that returns an async context, such as the result of
            `wyoming_server.listen(...)`. The context is active while the application runs.
    """
    api = OpenAIApi(voices, workers)
    page = PAGE.read_text(encoding="utf-8")
    page = page.replace("{{key}}", "" if access.api_key else "hidden")

    async def show(request: Request) -> Response:
        return HTMLResponse(page, headers=HEADERS)

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok", "texts": workers.num_texts})

    async def metrics(request: Request) -> Response:
        return Response(workers.metrics.text(), media_type="text/plain; version=0.0.4")

    async def http_problem(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        response = problem(error.status_code, message)
        response.headers.update(error.headers or {})
        return response

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if background is None:
            yield
        else:
            async with background():
                yield
        workers.close()

    return Starlette(
        routes=[
            Route("/", show),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", api.models),
            Route("/v1/audio/voices", api.list_voices),
            Route("/v1/audio/speech", api.speech, methods=["POST"]),
        ],
        middleware=[
            Middleware(
                CORSMiddleware,
                allow_origins=access.origins,
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            ),
            Middleware(AccessMiddleware, access=access),
        ],
        exception_handlers={HTTPException: http_problem},
        lifespan=lifespan,
    )
