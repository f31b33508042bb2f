"""One way to time things: in turns, so that a machine that slows down slows all of them alike."""

import argparse
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from machine import measured_on, seconds_of
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.files import write_json


def time_in_turns(
    tasks: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    *,
    warm_up: int = 1,
    title: str = "timing",
) -> dict[str, np.ndarray]:
    """Seconds [rounds] of every task, the device's work included.

    Each round runs every task once, in an order of its own.

    Args:
        warm_up: untimed runs of each task before the first round.
    """
    rng = np.random.default_rng(0)
    names, seconds = list(tasks), {name: np.empty(rounds) for name in tasks}
    for name in names * warm_up:
        tasks[name]()
    with progress_bar(title, rounds * len(names), " runs") as bar:
        for number in range(rounds):
            for name in rng.permutation(names).tolist():
                seconds[name][number] = seconds_of(device, tasks[name])
                bar.update()
    return seconds


def publish(args: argparse.Namespace, result: dict, text: str) -> None:
    """Print `text` after the name of the machine, and write `result` with it to --json."""
    measured = measured_on(args.device)
    print(f"{measured['device']}, torch {measured['versions']['torch']}: {text}")
    if args.json:
        write_json(args.json, result | measured)


def median_and_range(seconds: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """For a table: the median, and the lowest and the highest value in brackets."""
    values = np.median(seconds), min(seconds), max(seconds)
    median, low, high = (f"{value:,.{digits}f}" for value in values)
    return f"{median} ({low} to {high})"
