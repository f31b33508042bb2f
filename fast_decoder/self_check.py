"""Are the kernels right on this GPU? Checked once, before the first training step.

Outputs and gradients of the training decoder on two small batches, with the run's sizes and
precision, are compared with plain operations. They must be as close to the exact ones, computed in
float64, as the tests require. If they are not, with early launches or without, training uses plain
operations, with a warning that says what to report.

The kernels run in a separate process. One that hangs is stopped, and an illegal memory access,
after which a process can no longer use the GPU, ends that process alone. It takes the time to
import torch and compile the kernels, plus some two seconds. So each answer is cached for the same
GPU, driver, versions, sizes and precision.
"""

import functools
import hashlib
import json
import math
import os
import subprocess
import sys
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
SECONDS = 180  # the limit of one process, which mostly compiles the kernels
# Symbols of each clip. The second batch has the programs of large batches and of long texts.
BATCHES = ((40, 23, 5), (100, *range(1, 33)))
STEPS_AFTER_A_CHUNK = 3  # of both batches: the second chunk is not a whole one
# Errors are relative to each tensor's largest value: at most the first, which is float32's, or so
# many times that of plain operations in the same precision.
LEAST_BOUND, TIMES_PLAIN = 1e-5, 2.5
SIZES = (  # what Decoder reads of the hyper-parameters
    *("n_mel_channels", "n_frames_per_step", "prenet_dim", "encoder_embedding_dim"),
    *("attention_rnn_dim", "decoder_rnn_dim", "attention_dim", "attention_location_n_filters"),
    *("attention_location_kernel_size", "attention_location_gradient"),
    *("p_prenet_dropout", "p_attention_dropout", "p_decoder_dropout"),
)
DRIVER_FILE = Path("/proc/driver/nvidia/version")
MAX_CACHED = 100  # answers
NO_PROCESS = "no process could be started"
# And what CUDA says of a GPU that is full, or that only one process may use.
NOT_CHECKED = (NO_PROCESS, "out of memory", "busy or unavailable")


class Trial(NamedTuple):
    """The outcome of the kernels with early or with late launches."""

    early: bool
    right: bool
    text: str  # the tensor with the largest error relative to its bound, or what failed


class Answer(NamedTuple):
    """What is known of the kernels on a GPU."""

    facts: dict  # what it holds for: GPU, versions, sizes, precision
    trials: list[Trial]  # late launches are tried where early ones are not right

    @property
    def right(self) -> bool:
        return self.trials[-1].right

    @property
    def late(self) -> bool:
        """Whether early launches are not right, so that late ones were tried."""
        return len(self.trials) > 1

    @property
    def unknown(self) -> bool:
        """Whether this says nothing of the kernels: no other process could use the GPU."""
        return not self.right and any(text in self.trials[-1].text for text in NOT_CHECKED)


def is_needed(device: torch.device) -> bool:
    """Whether there are kernels that could run here."""
    return graphs.problem(device, torch.float32) is None


def check(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> Answer:
    """The cached answer for this GPU, else a new one, which is cached.

    Args:
        autocast: the precision of autocast, None without. TF32 is as torch's switch stands.
    """
    facts = facts_of(hparams, device, autocast)
    for cached in read_answers():
        if cached.facts == facts:
            return cached
    say("checking the decoder's kernels, once for each GPU, driver and version: up to a minute")
    answer = Answer(facts, [])
    for early in (True, False) if facts["early launches"] else (False,):
        answer.trials.append(check_in_process(facts, str(device), early))
        if answer.right or answer.unknown:
            break
    if not answer.unknown:
        cache(answer)
    return answer


def settle(answer: Answer, warn: bool) -> tuple[Callable, str]:
    """The training decoder to use after this answer, and how it runs, in a phrase.

    Args:
        warn: whether this process says what is wrong, if anything is.
    """
    if warn and (answer.late or not answer.right):
        warnings.warn(warning(answer), stacklevel=2)
    if not answer.right:
        plain = functools.partial(fast_decoder.teacher_forced, loops_for=fast_decoder.plain_loops)
        return plain, "plain operations, several times slower than its kernels: see the warning"
    if answer.late:
        graphs.EARLY_LAUNCHES = False
    launched = "one after another, " if answer.late else ""
    return fast_decoder.teacher_forced, (
        f"Triton kernels in CUDA graphs, {launched}checked against plain operations: "
        f"{answer.trials[-1].text}"
    )


def warning(answer: Answer) -> str:
    """What happened, what happens now, and what to report."""
    happened, now = "failed their check", "uses plain operations, several times slower"
    if answer.right:
        now = "launches each kernel after the one before has ended, somewhat slower"
    todo = [
        "Please report these lines to the recipe's maintainers:",
        *(f"    {name}: {value}" for name, value in answer.facts.items()),
    ]
    if answer.unknown:
        happened, todo = (
            "could not be checked",
            [
                "End what else uses the GPU, or let several processes use it (nvidia-smi "
                "--compute-mode=DEFAULT), and start again."
            ],
        )
    trials = [
        f"    {'early' if early else 'late'} launches: {'right' if right else 'WRONG'}: {text}"
        for early, right, text in answer.trials
    ]
    first = f"the decoder's kernels {happened} on this GPU, so training {now}."
    return "\n".join([first, *todo, *trials, f"To check again, delete {cache_file()}."])


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---------------------------------------------------------------------------- the cache


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
    """The GPU and its driver, of which some systems give only the newest CUDA that it supports."""
    try:
        driver = DRIVER_FILE.read_text(encoding="utf-8").splitlines()[0]
    except (OSError, IndexError):
        driver = f"CUDA {torch._C._cuda_getDriverVersion()}"  # type: ignore[attr-defined]
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    return {"GPU": name, "compute capability": f"{major}.{minor}", "driver": driver}


@functools.cache
def fingerprint() -> str:
    """Of the code that runs the kernels."""
    found = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), ROOT / "cuda_capture.py"):
        found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()[:16]


def cache_file() -> Path:
    """Where answers are cached, whether or not there is such a file."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(folder).absolute() / "tacotron2-wasting-nothing" / "kernel_checks.json"


def read_answers() -> list[Answer]:
    """What is cached; nothing where the file is missing or damaged."""
    try:
        cached = json.loads(cache_file().read_text(encoding="utf-8"))
        return [
            Answer(dict(answer["facts"]), [Trial(*trial) for trial in answer["trials"]])
            for answer in cached
            if answer["trials"]
        ]
    except (OSError, ValueError, TypeError, KeyError):
        return []


def cache(answer: Answer) -> None:
    """Add the answer to the file; where that fails, one line says so."""
    answers = [answer._asdict() for answer in (*read_answers(), answer)]
    try:
        cache_file().parent.mkdir(parents=True, exist_ok=True)
        write_json(cache_file(), answers[-MAX_CACHED:])
    except OSError as error:
        say(f"the kernels' check cannot be cached ({error}): set XDG_CACHE_HOME to a folder for it")


# ---------------------------------------------------------------------------- the check itself


def check_in_process(facts: dict, device: str, early: bool) -> Trial:
    """`compare_all` in a fresh process, however it ends."""
    given = json.dumps({"facts": facts, "device": device, "early": early})
    try:
        ended = subprocess.run(
            COMMAND, cwd=ROOT, input=given, timeout=SECONDS, capture_output=True, errors="replace"
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
    """Check the kernels as standard input says; the last line of output is [right, text]."""
    given = json.load(sys.stdin)
    device, facts = torch.device(given["device"]), given["facts"]
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = facts["TF32"]
    graphs.EARLY_LAUNCHES = given["early"]
    print(json.dumps(compare_all(facts, device)), flush=True)


def compare_all(facts: dict, device: torch.device) -> tuple[bool, str]:
    """Whether the kernels are right, and the tensor with the largest error or what failed."""
    autocast = facts["autocast"] and getattr(torch, facts["autocast"])
    try:
        problems = [make_problem(facts["sizes"], symbols) for symbols in BATCHES]
        errors = [found for problem in problems for found in compare(problem, device, autocast)]
    except Exception as error:  # whatever Triton, the driver or the GPU cannot do
        return False, traceback.format_exception_only(error)[0].strip().splitlines()[0]
    name, largest, bound = max(errors, key=lambda found: found[1] / found[2])
    return largest <= bound, f"{name} has error {largest:.1e} of {bound:.1e} allowed"


def make_problem(sizes: dict, symbols: tuple[int, ...]) -> Problem:
    """Clips of so many symbols for a decoder of such sizes, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        decoder = Decoder(HParams(**sizes)).train()
    return Problem.random(decoder, symbols, graphs.CHUNK + STEPS_AFTER_A_CHUNK, seed=0)


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
    bounds = {name: max(LEAST_BOUND, TIMES_PLAIN * error) for name, error in allowed.items()}
    # Where plain operations leave float16's range, there is nothing to compare with.
    return [(n, error, bounds[n]) for n, error in errors.items() if math.isfinite(bounds[n])]


def kernel_loops(*batch) -> graphs.Graphs:
    """The kernels' graphs for a batch; raises RuntimeError where there are none."""
    found = graphs.graphs_for(*batch)
    if isinstance(found, str):
        raise RuntimeError(f"no graphs could be made: {found}")
    return found


if __name__ == "__main__":
    main()
