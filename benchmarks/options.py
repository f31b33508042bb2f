"""The options that several benchmarks share: device, precision, hyper-parameters, counts."""

import project_root

import argparse
from dataclasses import replace

import torch

from hparams import HParams, create_hparams
from tacotron2_voice.utils.arguments import at_least_one, checked, list_of, make_parser, output_file
from tacotron2_voice.utils.errors import UserError
from training.trainer import PRECISIONS


def measuring_parser(description: str | None, **counts: int) -> argparse.ArgumentParser:
    """With --device, a torch.device; --json, a file to write or None; --hparams; and for each of
    `counts` a whole number from 1, with its default."""
    parser = make_parser(description)
    add, default = parser.add_argument, "cuda" if torch.cuda.is_available() else "cpu"
    device_help = "cpu, cuda or cuda:1; default: the GPU if there is one"
    add("--device", type=available_device, default=default, help=device_help)
    add("--json", type=output_file, metavar="FILE.json", help="write the results to this file too")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    for name, count in counts.items():
        option = f"--{name.replace('_', '-')}"
        add(option, type=at_least_one, default=count, help="default: %(default)s")
    return parser


def hparams_of_noise(overrides: str, base: HParams | None = None) -> HParams:
    """`create_hparams` for models that are fed with noise: with `speaker_embedding_dim` it is that
    of two speakers. UserError for `speaker_balance`, as lengths alone have no speakers to draw."""
    hparams = create_hparams(overrides, base)
    if hparams.speaker_balance:
        raise UserError(
            f"speaker_balance={hparams.speaker_balance}: these clips have no speakers to draw; "
            "leave it out. train.py prints what its epochs cost"
        )
    return replace(hparams, speakers=("a", "b") if hparams.speaker_embedding_dim else ())


def available_device(text: str) -> torch.device:
    """A torch.device of this machine."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    devices = ["cpu", "cuda", *gpus] if gpus else ["cpu"]
    return torch.device(checked(str, f"one of {', '.join(devices)}", devices.__contains__)(text))


# The name of a precision, such as bf16.
precision = checked(str, f"one of {', '.join(PRECISIONS)}", PRECISIONS.__contains__)
precision_list = list_of(precision)
