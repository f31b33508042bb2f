"""The options that benchmarks share: device, precision, settings, counts."""

import argparse
import importlib.util
from dataclasses import replace

import torch

from hparams import HParams, create_hparams
from tacotron2_voice.utils.arguments import at_least_one, checked, list_of, make_parser, output_file
from tacotron2_voice.utils.errors import UserError
from training.precision import PRECISIONS


def measuring_parser(description: str | None, **counts: int) -> argparse.ArgumentParser:
    """Return a parser with --device, --json, --hparams and an option for each of `counts`.

    The values of `counts` are the options' defaults, whole numbers from 1.
    """
    parser = make_parser(description)
    default = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument(
        "--device",
        type=available_device,
        default=default,
        help="compute on cpu, cuda or cuda:1 (default: the GPU if there is one)",
    )
    parser.add_argument(
        "--json", type=output_file, metavar="FILE.json", help="write the results to this file too"
    )
    parser.add_argument(
        "--hparams", default="", metavar="name=value,...", help="override settings of hparams.py"
    )
    for name, count in counts.items():
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            type=at_least_one,
            default=count,
            help="(default: %(default)s)",
        )
    return parser


def hparams_of_noise(overrides: str, base: HParams | None = None) -> HParams:
    """Return settings for a model that is fed with noise.

    With `speaker_embedding_dim` the model has two speakers.

    Raises:
        UserError: for `speaker_balance`, because noise has no speakers to draw.
    """
    hparams = create_hparams(overrides, base)
    if hparams.speaker_balance:
        raise UserError(
            f"speaker_balance={hparams.speaker_balance}: these clips have no speakers to draw; "
            "leave it out. train.py prints what its epochs cost"
        )
    return replace(hparams, speakers=("a", "b") if hparams.speaker_embedding_dim else ())


def check_fast_decoder() -> None:
    """Check that the fast decoder's folder is there. Training works without it.

    Raises:
        UserError: if it is missing.
    """
    spec = importlib.util.find_spec("fast_decoder")
    # A folder with compiled files only is an empty package without an origin.
    if spec is None or spec.origin is None:
        raise UserError("the folder fast_decoder/ is missing, which this benchmark measures")


def available_device(text: str) -> torch.device:
    """Return a torch.device of this machine."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    devices = ["cpu", "cuda", *gpus] if gpus else ["cpu"]
    return torch.device(checked(str, f"one of {', '.join(devices)}", devices.__contains__)(text))


# Types of options: the name of a precision, such as bf16, and a list of names.
precision = checked(str, f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__)
precision_list = list_of(precision)
