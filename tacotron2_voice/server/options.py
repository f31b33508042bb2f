"""Define the options of the programs that serve voices.

This module does not import the server packages, so `--help` works without these packages.
"""

import argparse
import os

from tacotron2_voice.server.limits import Limits
from tacotron2_voice.texts import add_model_options
from tacotron2_voice.utils.arguments import at_least_one, checked, whole_number

KEY_VARIABLE = "TACOTRON2_VOICE_API_KEY"


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `server.command.serve`, except the paths of the models."""
    add = parser.add_argument
    host = checked(str, "a host name or address", lambda name: name and name.encode("idna"))
    port = whole_number(0, 65_535)
    add(
        "--host", type=host, default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    add(
        "--port",
        type=port,
        default=8000,
        help="port to listen on; 0: any free port (default: %(default)s)",
    )
    add(
        "--allow-host",
        type=host,
        nargs="+",
        default=[],
        metavar="NAME",
        help="accept URLs with these host names; *: all host names (default: only local names)",
    )
    add(
        "--cors",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="let scripts on these websites, such as https://example.org, use the API",
    )
    add(
        "--api-key",
        default=os.environ.get(KEY_VARIABLE, ""),
        metavar="KEY",
        help="key that clients must send (default: value of the environment variable "
        f"{KEY_VARIABLE})",
    )
    add(
        "--workers",
        type=at_least_one,
        default=Limits.workers,
        metavar="N",
        help="number of texts to synthesize at the same time (default: number of CPU cores)",
    )
    add(
        "--queue",
        type=whole_number(0),
        default=Limits.queue,
        metavar="N",
        help="maximum number of waiting texts; the server rejects further texts "
        "(default: %(default)s)",
    )
    add(
        "--max-characters",
        type=at_least_one,
        default=Limits.characters,
        metavar="N",
        help="maximum number of characters per text (default: %(default)s)",
    )
    add(
        "--speaker",
        default="",
        metavar="NAME",
        help="default speaker (default: the first speaker of the voice)",
    )
    add(
        "--wyoming",
        type=port,
        nargs="?",
        const=10200,
        metavar="PORT",
        help="also serve the Wyoming protocol, for Home Assistant, on this port "
        "(default port: 10200)",
    )
    add_model_options(parser)
