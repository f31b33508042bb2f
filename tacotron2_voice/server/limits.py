"""Define the limits of a server."""

from dataclasses import dataclass

from tacotron2_voice.utils.arguments import processors


@dataclass(frozen=True)
class Limits:
    """The limits of a server. A value that equals its limit is allowed."""

    workers: int = processors()  # number of synthesis threads
    queue: int = 64  # maximum number of waiting texts, in addition to one text per worker
    characters: int = 5000  # maximum number of characters per text, before cleaning
    pause_seconds: float = 60.0  # maximum total seconds of the pause tags in a text
    body_bytes: int = 2**18  # maximum number of bytes in a request body
    body_seconds: float = 10.0  # time limit in seconds for receiving a request body
    send_seconds: float = 60.0  # time limit in seconds for sending one piece of a response
