"""Are the kernels right on this GPU? Looked at once, before the first step of training.

Outputs and gradients of the training decoder on two small batches, with the run's sizes and in its
precision, are held against plain operations. They must be as near to the exact ones, made in
float64, as the tests ask. If they are not, with early launches and without, training goes on in
plain operations, with a warning that says what to report.

The kernels run in a process of their own. One that hangs is stopped, and an address outside the
GPU's memory, after which nothing on the GPU works in a process any more, ends that process alone.
It takes the time to import torch and to compile the kernels, and then some two seconds. So each
answer is kept in the user's cache folder, for the same GPU, driver, versions, sizes and precision.
"""

import ctypes
import functools
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import fast_decoder
from fast_decoder import graphs
from fast_decoder.parity import Problem, relative_errors
from files import write_json
from hparams import HParams
from model import Decoder

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "fast_decoder.self_check")
SECONDS = 180  # that one process may take; compiling the kernels is most of them
# Symbols of each clip. The second batch has the programs of large batches and of long texts.
BATCHES = ((40, 23, 5), (100, *range(1, 33)))
STEPS_AFTER_A_CHUNK = 3  # of both batches: the second chunk is not a whole one
# The largest error that is right, of each tensor's largest value: one of float32, or so many times
# that of plain operations in the same precision.
LEAST_BOUND, TIMES_PLAIN = 1e-5, 2.5
# What Decoder reads of the hyper-parameters.
SIZES = (
    "n_mel_channels",
    "n_frames_per_step",
    "prenet_dim",
    "encoder_embedding_dim",
    "attention_rnn_dim",
    "decoder_rnn_dim",
    "attention_dim",
    "attention_location_n_filters",
    "attention_location_kernel_size",
    "attention_location_gradient",
    "p_prenet_dropout",
    "p_attention_dropout",
    "p_decoder_dropout",
)
DRIVER_FILE = Path("/proc/driver/nvidia/version")
MOST_KEPT = 100  # answers
NO_PROCESS = "no process could be started"
# And what CUDA says of a GPU that is full, or that only one process may use.
NOT_TAKEN = (NO_PROCESS, "out of memory", "busy or unavailable")


class Trial(NamedTuple):
    """What came of the kernels with early or with late launches."""

    early: bool
    right: bool
    text: str  # the tensor nearest to its bound or farthest beyond, or what broke


class Answer(NamedTuple):
    """What is known of the kernels on a GPU."""

    facts: dict  # what it holds for: GPU, versions, sizes, precision
    trials: list[Trial]  # late launches are tried where early ones are not right

    @property
    def right(self) -> bool:
        return self.trials[-1].right

    @property
    def late(self) -> bool:
        """Whether early launches are not right, and late ones are tried for that reason."""
        return len(self.trials) > 1

    @property
    def open(self) -> bool:
        """Whether this says nothing of the kernels, for no other process could use the GPU."""
        return not self.right and any(text in self.trials[-1].text for text in NOT_TAKEN)


def is_needed(device: torch.device) -> bool:
    """Whether there are kernels that could run here."""
    return graphs.problem(device, torch.float32) is None


def check(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> Answer:
    """What is kept of this GPU, or found now and kept.

    Args:
        autocast: the precision of autocast, None without. TF32 is as torch's switch stands.
    """
    facts = facts_of(hparams, device, autocast)
    for kept in read_answers():
        if kept.facts == facts:
            return kept
    print(
        "checking the decoder's kernels, once for each GPU, driver and version: up to a minute",
        file=sys.stderr,
        flush=True,
    )
    began, found = time.monotonic(), Answer(facts, [])
    for early in (True, False) if facts["early launches"] else (False,):
        found.trials.append(in_a_process(facts, str(device), early))
        if found.right or found.open:
            break
    print(f"checked in {time.monotonic() - began:.1f} s", file=sys.stderr, flush=True)
    if not found.open:
        keep(found)
    return found


def settle(found: Answer, warn: bool) -> tuple[Callable, str]:
    """The training decoder after this answer, and how it runs, in a phrase.

    Args:
        warn: whether this process says what is wrong, if anything is.
    """
    if warn and not (found.right and not found.late):
        warnings.warn(warning(found), stacklevel=2)
    if not found.right:
        plain = functools.partial(fast_decoder.teacher_forced, loops_for=fast_decoder.plain_loops)
        return plain, "plain operations, several times slower than its kernels: see the warning"
    launched = "one after another, " if found.late else ""
    if found.late:
        graphs.EARLY_LAUNCHES = False
    return fast_decoder.teacher_forced, (
        f"Triton kernels in CUDA graphs, {launched}checked against plain operations: "
        f"{found.trials[-1].text}"
    )


def warning(found: Answer) -> str:
    """What happened, what happens now, and what to report."""
    now = "in plain operations, with the same results, but several times slower"
    if found.open:
        return (
            f"the decoder's kernels could not be checked on this GPU. Training goes on {now}. "
            "End what else uses the GPU, or let several processes use it (nvidia-smi "
            f"--compute-mode=DEFAULT), and start again.\n    {found.trials[-1].text}"
        )
    if found.right:
        now = "with each launch after the end of the one before it, somewhat slower"
    lines = [f"    {name}: {value}" for name, value in found.facts.items()]
    for early, right, text in found.trials:
        name = "early launches" if early else "late launches"
        lines.append(f"    {name}: {'right' if right else 'WRONG'}: {text}")
    if found in read_answers():
        lines.append(f"They are kept in {answers_file()}; delete that file to check again.")
    return "\n".join(
        [
            f"the decoder's kernels failed their check on this GPU. Training goes on {now}.",
            "Please report these lines to the recipe's maintainers:",
            *lines,
        ]
    )


# ---------------------------------------------------------------------------- what was found


def facts_of(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> dict:
    """What an answer holds for; JSON."""
    return {
        **machine(device),
        "torch": torch.__version__,
        "triton": graphs._kernels().triton.__version__,
        "fast_decoder": fingerprint(),
        "autocast": None if autocast is None else str(autocast).removeprefix("torch."),
        "TF32": torch.backends.cuda.matmul.allow_tf32,
        "early launches": graphs.launches_early(device),
        "sizes": {name: getattr(hparams, name) for name in SIZES},
    }


def machine(device: torch.device) -> dict:
    """The GPU and its driver."""
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "GPU": torch.cuda.get_device_name(device),
        "compute capability": f"{major}.{minor}",
        "driver": driver_version(),
    }


def driver_version() -> str:
    """Such as 550.54.15; where the system does not say, the newest CUDA that the driver knows."""
    try:
        found = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", DRIVER_FILE.read_text(encoding="utf-8"))
    except OSError:
        found = None
    if found:
        return found[0]
    number = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except OSError:
        return "unknown"
    return f"for CUDA {number.value // 1000}.{number.value % 1000 // 10}"


@functools.cache
def fingerprint() -> str:
    """Of the code that runs the kernels."""
    found = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), ROOT / "cuda_capture.py"):
        found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def answers_file() -> Path:
    """Where answers are kept, whether or not there is such a file."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder) / "tacotron2-wasting-nothing" / "kernel_checks.json"


def read_answers() -> list[Answer]:
    """What is kept; nothing where the file is missing or damaged."""
    try:
        kept = json.loads(answers_file().read_text(encoding="utf-8"))
        return [
            Answer(dict(answer["facts"]), [Trial(*trial) for trial in answer["trials"]])
            for answer in kept
            if answer["trials"]
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def keep(found: Answer) -> None:
    """Add it to those that are kept; where that cannot be done, one line says so."""
    path = answers_file()
    try:
        if not path.is_absolute():  # the user has no home folder, say
            raise OSError(f"{path} is no absolute path")
        path.parent.mkdir(parents=True, exist_ok=True)
        answers = [*read_answers(), found][-MOST_KEPT:]
        write_json(path, [answer._asdict() for answer in answers])
    except OSError as error:
        print(
            f"the kernels are checked at every start, for the answer cannot be kept: {error}; "
            "name a folder to write to in XDG_CACHE_HOME",
            file=sys.stderr,
        )


# ---------------------------------------------------------------------------- looking


def in_a_process(facts: dict, device: str, early: bool) -> Trial:
    """`look` in a fresh process, however it ends."""
    given = json.dumps({"facts": facts, "device": device, "early": early})
    try:
        ended = subprocess.run(
            COMMAND,
            cwd=ROOT,
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=SECONDS,
        )
    except OSError as error:
        return Trial(early, False, f"{NO_PROCESS}: {error}")
    except subprocess.TimeoutExpired:
        return Trial(early, False, f"no end within {SECONDS} s")
    try:
        right, text = json.loads(ended.stdout.strip().splitlines()[-1])
    except (ValueError, TypeError, IndexError):  # it ended before it could answer
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return Trial(early, False, f"ended with code {ended.returncode}: {last}")
    return Trial(early, right, text)


def main() -> None:
    """Look at the kernels as standard input says; the last line of output is [right, text]."""
    given = json.load(sys.stdin)
    device = torch.device(given["device"])
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    facts = given["facts"]
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = facts["TF32"]
    graphs.EARLY_LAUNCHES = given["early"]
    print(json.dumps(look(facts, device)), flush=True)


def look(facts: dict, device: torch.device) -> tuple[bool, str]:
    """Whether the kernels are right, and the tensor nearest to its bound or what broke."""
    autocast = facts["autocast"] and getattr(torch, facts["autocast"])
    try:
        errors = [
            found
            for symbols in BATCHES
            for found in compare(make_problem(facts["sizes"], symbols), device, autocast)
        ]
    except Exception as error:  # whatever Triton, the driver or the GPU cannot do
        return False, traceback.format_exception_only(error)[0].strip().splitlines()[0]
    # Where plain operations leave float16's range, there is nothing to compare with.
    errors = [found for found in errors if math.isfinite(found[2])]
    name, error, bound = max(errors, key=lambda found: found[1] / found[2])
    return error <= bound, f"{name} has error {error:.1e} of {bound:.1e} allowed"


def make_problem(sizes: dict, symbols: tuple[int, ...]) -> Problem:
    """Clips of so many symbols for a decoder of such sizes, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = Decoder(HParams(**sizes)).train()
        steps, longest = graphs.CHUNK + STEPS_AFTER_A_CHUNK, max(symbols)
        frames = steps * decoder.n_frames_per_step
        return Problem(
            decoder,
            torch.randn(len(symbols), longest, sizes["encoder_embedding_dim"]),
            torch.arange(longest) >= torch.tensor(symbols)[:, None],
            torch.randn(len(symbols), sizes["n_mel_channels"], frames),
            decoder.draw_masks(steps, len(symbols)),
            seed=0,
        )


def compare(
    problem: Problem, device: torch.device, autocast: torch.dtype | None
) -> list[tuple[str, float, float]]:
    """(tensor, error of the kernels, bound) of all outputs and gradients."""
    plain, kernels = (
        functools.partial(fast_decoder.teacher_forced, loops_for=loops)
        for loops in (fast_decoder.plain_loops, kernel_loops)
    )
    exact = problem.to(torch.float64, device).run(plain)
    problem = problem.to(torch.float32, device)
    errors = relative_errors(problem.run(kernels, precision=autocast), exact)
    allowed = relative_errors(problem.run(plain, precision=autocast), exact)
    return [
        (name, error, max(LEAST_BOUND, TIMES_PLAIN * allowed[name]))
        for name, error in errors.items()
    ]


def kernel_loops(*batch) -> graphs.Graphs:
    """The kernels' graphs for a batch (`graphs.graphs_for`).

    Raises:
        RuntimeError: where training would use plain operations.
    """
    found = graphs.graphs_for(*batch)
    if isinstance(found, str):
        raise RuntimeError(f"no graphs could be made: {found}")
    return found


if __name__ == "__main__":
    main()
