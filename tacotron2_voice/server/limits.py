"""Define the limits of a server."""

from dataclasses import dataclass

from tacotron2_voice.utils.arguments import processors


@dataclass(frozen=True)
class Limits:
    """The limits of a server."""

    workers: int = processors()  # threads that synthesize
    queue: int = 64  # texts that may wait in addition to one text per worker
    characters: int = 5000  # per text, before cleaning
    pause_seconds: float = 60.0  # total time of the pause tags in a text
    body_bytes: int = 2**18  # of a request
    body_seconds: float = 10.0  # time to receive a request
    send_seconds: float = 60.0  # time until a client accepts the next piece of a response
