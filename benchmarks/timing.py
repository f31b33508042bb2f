"""Time several interleaved tasks, run programs with a time limit, and publish results.

Because the tasks are interleaved, a machine that becomes slower during a benchmark slows all tasks
equally.
"""

import argparse
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from machine import measured_on, seconds_of
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.files import write_json


def time_interleaved(
    tasks: Mapping[str, Callable[[], object]],
    rounds: int,
    device: torch.device,
    *,
    warm_up: int = 1,
    title: str = "timing",
) -> dict[str, np.ndarray]:
    """Return {name of the task: seconds [rounds]}. The measured seconds include the work on the
    device.

    Each round runs every task once, in random order.

    Args:
        warm_up: number of untimed runs of each task before the first round.
    """
    rng = np.random.default_rng(0)
    names = list(tasks)
    seconds = {name: np.empty(rounds) for name in tasks}
    for name in names * warm_up:
        tasks[name]()
    with progress_bar(title, rounds * len(names), " runs") as bar:
        for number in range(rounds):
            for name in rng.permutation(names).tolist():
                seconds[name][number] = seconds_of(device, tasks[name])
                bar.update()
    return seconds


def run_for(seconds: float, command: Sequence[str], output: Path, **options: Any) -> int | None:
    """Run a program, and return its exit code. If the program takes longer than `seconds`, stop it
    and return None.

    Args:
        output: file for the program's output.
        options: arguments of `subprocess.Popen`.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            **options,
        )
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            # Also kill child processes that may still be running, such as pytest-xdist workers.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def publish(args: argparse.Namespace, result: dict, text: str) -> None:
    """Print the machine and `text`. With --json, write the machine and `result` to a file."""
    measured = measured_on(args.device)
    print(f"{measured['device']}, torch {measured['versions']['torch']}: {text}")
    if args.json:
        write_json(args.json, result | measured)


def median_and_range(seconds: Sequence[float] | np.ndarray, digits: int = 3) -> str:
    """Format the median, the lowest and the highest value, for example as "1.20 (1.10 to 1.50)"."""
    median = f"{np.median(seconds):,.{digits}f}"
    low = f"{min(seconds):,.{digits}f}"
    high = f"{max(seconds):,.{digits}f}"
    return f"{median} ({low} to {high})"
