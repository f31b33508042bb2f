"""Check the kernels once on this GPU, before the first optimizer step (`check`).

    answer = check(hparams, device, torch.bfloat16)
    decoder, description = resolve(answer, warn=True)

If the kernels fail the check, training uses plain operations and prints a warning with details for
a bug report.

The kernels run in a separate process (compare_kernels.py), because they may hang or crash the
process with an illegal memory access. The result is cached for later runs with the same GPU,
driver, versions, sizes and precision.
"""

import functools
import hashlib
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

import fast_decoder
from fast_decoder import graphs
from hparams import HParams
from machine import fingerprint_of_code
from tacotron2_voice.utils.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "fast_decoder.compare_kernels")
SECONDS = 300  # time limit of the check in seconds; compiling the kernels takes most of the time
# Settings that `Decoder` reads.
SIZES = (
    "n_mel_channels",
    "n_frames_per_step",
    "prenet_dim",
    "encoder_embedding_dim",
    "speaker_embedding_dim",
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
NO_PROCESS = "cannot start a process"
# An error message with one of these parts does not indicate wrong kernels. The message means that
# the GPU has no free memory, or that the GPU allows only one process.
BUSY = (NO_PROCESS, "out of memory", "busy or unavailable")


class Answer(NamedTuple):
    """The result of the kernel check."""

    is_right: bool
    text: str  # largest error, or a description of the problem
    facts: dict  # conditions of the check: GPU, versions, sizes and precision


def check(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> Answer:
    """Return the cached result of the check for this GPU, or run the check and cache the result.

    The check uses TF32 if PyTorch's global setting allows TF32.

    Args:
        autocast: dtype of autocast; None: no autocast.
    """
    facts = facts_of(hparams, device, autocast)
    file = cache_file(facts)
    cached = read_cache(file, facts)
    if cached is not None:
        return cached
    say("checking the decoder kernels (takes up to a minute, once per GPU, driver and version)")
    is_right, text = check_in_process(facts, str(device))
    answer = Answer(is_right, text, facts)
    if not is_right and any(reason in text for reason in BUSY):
        return answer
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, answer._asdict())
    except OSError as error:
        say(
            f"warning: cannot cache the result of the kernel check ({error}). Set XDG_CACHE_HOME "
            "to a writable folder"
        )
    return answer


def read_cache(file: Path, facts: dict) -> Answer | None:
    """Return the cached result of a check, or None if the file is missing, damaged or from a check
    under different conditions."""
    try:
        cached = Answer(**read_json(file))
    except (ValueError, TypeError):
        return None
    return cached if cached.facts == facts else None


def resolve(answer: Answer, warn: bool) -> tuple[Callable, str]:
    """Return a tuple of a training decoder and a phrase that describes this decoder.

    The decoder uses the kernels only if the check succeeded.

    Args:
        warn: whether to print a warning if the check failed.
    """
    if answer.is_right:
        return fast_decoder.teacher_forced, f"Triton kernels in CUDA graphs, {answer.text}"
    if warn:
        lines = [answer.text, *(f"{name}: {value}" for name, value in answer.facts.items())]
        report = "\n    ".join(lines)
        warnings.warn(
            "the kernels of the fast decoder failed their check on this GPU, so training uses "
            "plain operations, which are several times slower. If no other program uses the GPU "
            "(see nvidia-smi), please report these lines to the maintainers of this project:\n"
            f"    {report}\n"
            f"To check again, delete {cache_file(answer.facts)}",
            stacklevel=2,
        )
    plain = functools.partial(fast_decoder.teacher_forced, loops_for=fast_decoder.plain_loops)
    return plain, "plain operations, several times slower than the kernels"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def facts_of(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> dict:
    """Return the conditions under which the kernels are checked, as a dictionary of JSON values."""
    return {
        **machine(device),
        "torch": torch.__version__,
        "triton": graphs._kernels().triton.__version__,
        "fast_decoder": fingerprint_of_code("fast_decoder/*.py"),
        "autocast": None if autocast is None else str(autocast).removeprefix("torch."),
        "TF32": torch.backends.cuda.matmul.allow_tf32,
        "sizes": {name: getattr(hparams, name) for name in SIZES},
    }


def machine(device: torch.device) -> dict:
    """Return the GPU, its compute capability and the version of its driver."""
    driver = "unknown"
    if DRIVER_FILE.is_file():
        driver = DRIVER_FILE.read_text(encoding="utf-8").partition("\n")[0]
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    return {"GPU": name, "compute capability": f"{major}.{minor}", "driver": driver}


def cache_file(facts: dict) -> Path:
    """Return the path of the file that caches the result of the check for the given `facts`. The
    file may not exist yet."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return Path(folder).absolute() / "tacotron2-length-batching" / f"kernel_check_{name}.json"


def check_in_process(facts: dict, device: str) -> tuple[bool, str]:
    """Run compare_kernels.py in a new process, and return (is_right, text) even if this process
    fails."""
    request = json.dumps({"facts": facts, "device": device})
    try:
        ended = subprocess.run(
            COMMAND, cwd=ROOT, input=request, timeout=SECONDS, capture_output=True, errors="replace"
        )
    except OSError as error:
        return False, f"{NO_PROCESS}: {error}"
    except subprocess.TimeoutExpired:
        return False, f"not finished within {SECONDS} s"
    try:
        is_right, text = json.loads(ended.stdout.strip().splitlines()[-1])
    except (ValueError, TypeError, IndexError):  # the process exited before it printed an answer
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return False, f"the process exited with code {ended.returncode}: {last}"
    return is_right, text
