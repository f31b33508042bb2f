"""Open sockets, close idle connections, and shorten log messages about connections.

with open_socket("127.0.0.1", 8000) as opened:
    uvicorn.Server(uvicorn.Config(app, http=Connection)).run([opened])
"""

import asyncio
import errno
import logging
import socket
import sys

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from tacotron2_voice.utils.errors import UserError

HEADER_SECONDS = 10.0  # time limit for receiving the headers of a request


class Connection(H11Protocol):
    """Close the connection if the client does not send a complete request header in time.

    By default, uvicorn waits forever for an incomplete request.
    """

    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._start_timer()
        super().on_response_complete()

    def _start_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.loop.call_later(HEADER_SECONDS, self._close_if_waiting)

    def _close_if_waiting(self) -> None:
        """Close the connection, unless a response is in progress."""
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def open_socket(host: str, port: int, option: str = "--port") -> socket.socket:
    """Return a listening socket.

    Args:
        option: the command-line option for the port, for the error message.

    Raises:
        UserError: if the address does not belong to this machine, or if the port is in use.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        expected = f"a free port; {option} 0 chooses a free port"
        if error.errno != errno.EADDRINUSE:
            expected = "an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all addresses"
        raise UserError(f"--host {host} {option} {port}: {reason} (expected {expected})") from None


def is_local(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")


def in_address(host: str) -> str:
    """Format a host for a URL. IPv6 addresses are written in brackets."""
    return f"[{host}]" if ":" in host else host


def raise_file_limit() -> None:
    """Raise the limit on open files to the maximum that the system allows."""
    try:
        import resource
    except ImportError:  # Windows has no limit on open files
        return
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))


class Shorten(logging.Filter):
    """Shorten or drop log messages about errors that are not bugs.

    Such messages occur if a client sends an invalid request, if too many connections are open, or
    if Ctrl-C cancels requests.
    """

    last = 0.0  # time of the last error about too many connections

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, asyncio.CancelledError):  # Ctrl-C canceled this request
            return False
        if "graceful shutdown exceeded" in str(record.msg):  # uvicorn's message about Ctrl-C
            print("note: unfinished replies were canceled", file=sys.stderr)
            return False
        if isinstance(error, h11.ProtocolError):
            record.msg = f"warning: a client sent an invalid request: {error}"
            record.exc_info = None
        # If the process has no free file descriptors, accept() fails repeatedly.
        if isinstance(error, OSError):
            record.msg = (
                f"warning: new connections must wait until other connections close: {error}"
            )
            record.exc_info = None
            is_new = record.created > self.last + 10
            self.last = record.created
            return is_new
        return True
