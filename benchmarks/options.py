"""Define the command-line options that several benchmarks have in common, such as --device."""

import argparse
import importlib.util

import torch

from tacotron2_voice.utils.arguments import at_least_one, checked, make_parser, output_file
from tacotron2_voice.utils.errors import UserError
from training.precision import PRECISIONS


def measuring_parser(description: str | None, **counts: tuple[int, str]) -> argparse.ArgumentParser:
    """Return an argument parser with --device, --json, --hparams and an option for each entry of
    `counts`.

        # Add --symbols with the default 120.
        parser = measuring_parser(__doc__, symbols=(120, "number of symbols per text"))

    Args:
        counts: {name of an option: (default value, help without the default)}. These options
            accept whole numbers of at least 1.
    """
    parser = make_parser(description)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device",
        type=available_device,
        default=default,
        help="device to compute on: cpu, cuda or cuda:1 (default: cuda if available, otherwise cpu)",
    )
    parser.add_argument(
        "--json",
        type=output_file,
        metavar="FILE.json",
        help="also write the results to this JSON file",
    )
    parser.add_argument(
        "--hparams",
        default="",
        metavar="name=value,...",
        help="override settings (hparams.py lists them)",
    )
    for name, (count, meaning) in counts.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=at_least_one,
            default=count,
            help=f"{meaning} (default: %(default)s)",
        )
    return parser


def check_fast_decoder() -> None:
    """Check that the folder fast_decoder/ exists. The benchmarks need the folder fast_decoder/,
    although training works without this folder.

    Raises:
        UserError: if the folder is missing.
    """
    spec = importlib.util.find_spec("fast_decoder")
    # If fast_decoder/ contains only leftovers, such as __pycache__, the specification that Python
    # finds has no origin.
    if spec is None or spec.origin is None:
        raise UserError("fast_decoder/: no such folder, but this benchmark needs the fast decoder")


def available_device(text: str) -> torch.device:
    """Convert a name to a device. Raise an error if this machine has no such device."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    devices = ["cpu", "cuda", *gpus] if gpus else ["cpu"]
    return torch.device(checked(str, f"one of {', '.join(devices)}", devices.__contains__)(text))


# Argument type for the name of a precision, such as bf16.
precision = checked(str, f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__)
