"""Check the kernels on this GPU, once, before the first training step (`check`).

Outputs and gradients of the training decoder and of the encoder's LSTM on two small batches, with
the run's sizes and precision, must be as close to the exact ones, computed in float64, as the tests
require. If the decoder's are not, with early launches or without, training uses plain operations;
if only the encoder's are not, torch's LSTM. A warning says what to report.

The kernels run in a separate process, because they may hang or end it by an illegal memory access.
Each answer is cached for the same GPU, driver, versions, sizes and precision.
"""

import ctypes
import functools
import hashlib
import json
import math
import os
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch

import fast_decoder
from fast_decoder import graphs
from fast_decoder.encoder import bidirectional_lstm, plain_lstm_loops
from fast_decoder.parity import EncoderProblem, Problem, relative_errors
from hparams import HParams
from machine import fingerprint_of_code
from model import Decoder
from tacotron2_voice.utils.files import read_json, write_json

ROOT = Path(__file__).resolve().parents[1]
COMMAND = (sys.executable, "-m", "fast_decoder.self_check")
SECONDS = 180  # the limit of one process, which mostly compiles the kernels
# Symbols of each clip. The second batch runs the programs of large batches and long texts.
BATCHES = ((40, 23, 5), (100, *range(1, 33)))
STEPS_AFTER_A_CHUNK = 3  # of both batches: the second chunk is not a whole one
# Bounds of errors relative to each tensor's largest value: the larger of `min_bound` and
# TIMES_PLAIN times the error of plain operations in the same precision. In float32, right kernels
# have up to 1.6e-5 (SSE), a tanh that is too small by 1e-4 has 2e-3. On an H200, right ones have
# 6e-4 in TF32, 5e-4 in float16 and 1e-2 in bfloat16, at most 3.4 times what plain operations have.
MIN_BOUND, TIMES_PLAIN = 4e-5, 5
ROUNDOFF = {"TF32": 2**-11, "float16": 2**-11, "bfloat16": 2**-9}  # half of a last place
SIZES = (  # what Decoder reads of the hyper-parameters
    *("n_mel_channels", "n_frames_per_step", "prenet_dim", "encoder_embedding_dim"),
    "speaker_embedding_dim",
    *("attention_rnn_dim", "decoder_rnn_dim", "attention_dim", "attention_location_n_filters"),
    *("attention_location_kernel_size", "attention_location_gradient"),
    *("p_prenet_dropout", "p_attention_dropout", "p_decoder_dropout"),
)
DRIVER_FILE = Path("/proc/driver/nvidia/version")
MODES = ("early", "late", "plain")  # how the decoder can run, best first
NO_PROCESS = "no process could be started"
# Errors that say nothing about the kernels: the GPU is full, or only one process may use it.
BUSY = (NO_PROCESS, "out of memory", "busy or unavailable")


class Answer(NamedTuple):
    """The result of a check of the kernels on a GPU."""

    mode: str  # of MODES
    results: list[str]  # of each mode tried: the largest error, or the failure
    facts: dict  # the conditions: GPU, versions, sizes, precision
    encoder: str = ""  # the failure of the encoder's kernels, if the decoder's are right


def check(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> Answer:
    """Return the cached answer for this GPU, or run the check and cache its answer. TF32 is read
    from torch's switch; `autocast` is None if it is off."""
    facts = facts_of(hparams, device, autocast)
    file = cache_file(facts)
    try:
        cached = Answer(**read_json(file))
        texts = cached.results
        is_whole = isinstance(texts, list) and texts and isinstance(cached.encoder, str)
        is_whole = is_whole and all(isinstance(x, str) for x in texts)
        if cached.facts == facts and cached.mode in MODES and is_whole:
            return cached
    except (ValueError, TypeError):
        pass  # missing or damaged
    say("checking the decoder's kernels, once for each GPU, driver and version: up to a minute")
    results, right, busy = [], False, False
    for mode in ("early", "late") if graphs.launches_early(device) else ("late",):
        right, text = check_in_process(facts, str(device), mode, "decoder")
        results.append(f"{mode} launches: {'right' if right else 'WRONG'}: {text}")
        busy = not right and any(reason in text for reason in BUSY)
        if right or busy:
            break
    answer = Answer(mode if right else "plain", results, facts)
    if right:
        right, text = check_in_process(facts, str(device), mode, "encoder")
        answer = answer._replace(encoder="" if right else text)
        busy = not right and any(reason in text for reason in BUSY)
    if busy:
        return answer  # it says nothing about the kernels
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, answer._asdict())
    except OSError as error:
        say(f"the kernels' check cannot be cached ({error}): set XDG_CACHE_HOME to a folder for it")
    return answer


def settle(answer: Answer, warn: bool) -> tuple[Callable, str]:
    """Return the training decoder to use after this answer, and a phrase on how it runs. With
    `warn`, a warning says what is wrong and what to report."""
    uses = f"Triton kernels in CUDA graphs, {answer.results[-1]}"
    decoder: Callable = fast_decoder.teacher_forced
    if answer.mode == "plain":
        decoder = functools.partial(decoder, loops_for=fast_decoder.plain_loops)
        uses = "plain operations, several times slower than its kernels"
    if answer.mode == "late":
        graphs.EARLY_LAUNCHES = False
    whose, results = "decoder's", [*answer.results]
    if answer.encoder:
        whose, uses = "encoder's", f"{uses}; torch's LSTM in the encoder"
        results.append(f"encoder: WRONG: {answer.encoder}")
    if warn and (answer.mode == "plain" or len(results) > 1):
        lines = (*results, *(f"{name}: {value}" for name, value in answer.facts.items()))
        report = "\n    ".join(lines)
        warnings.warn(
            f"the {whose} kernels failed their check on this GPU, so training uses {uses}.\n"
            "Unless something else fills the GPU or has it alone (nvidia-smi says so), please "
            f"report these lines to the recipe's maintainers:\n    {report}\n"
            f"To check again, delete {cache_file(answer.facts)}.",
            stacklevel=2,
        )
    return decoder, uses


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def facts_of(hparams: HParams, device: torch.device, autocast: torch.dtype | None) -> dict:
    """The conditions of an answer, as JSON values."""
    return {
        **machine(device),
        "torch": torch.__version__,
        "triton": graphs._kernels().triton.__version__,
        "fast_decoder": fingerprint_of_code("fast_decoder/*.py"),
        "autocast": None if autocast is None else str(autocast).removeprefix("torch."),
        "TF32": torch.backends.cuda.matmul.allow_tf32,
        "early launches": graphs.launches_early(device),
        "sizes": {name: getattr(hparams, name) for name in SIZES},
    }


def machine(device: torch.device) -> dict:
    """The GPU and its driver; some systems only report the newest CUDA that it supports."""
    if DRIVER_FILE.is_file():
        driver = DRIVER_FILE.read_text(encoding="utf-8").partition("\n")[0]
    else:
        version = ctypes.c_int()
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
        driver = f"CUDA {version.value}"
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    return {"GPU": name, "compute capability": f"{major}.{minor}", "driver": driver}


def cache_file(facts: dict) -> Path:
    """The path at which the answer for these facts is cached; the file may be missing."""
    folder = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    name = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]
    return Path(folder).absolute() / "tacotron2-wasting-nothing" / f"kernel_check_{name}.json"


# ---------------------------------------------------------------------------- the check itself


def check_in_process(facts: dict, device: str, mode: str, part: str) -> tuple[bool, str]:
    """Run `main` in a fresh process, for one of COMPARISONS. Returns (right, text), however the
    process ends."""
    request = json.dumps({"facts": facts, "device": device, "mode": mode, "part": part})
    try:
        ended = subprocess.run(
            COMMAND, cwd=ROOT, input=request, timeout=SECONDS, capture_output=True, errors="replace"
        )
    except OSError as error:
        return False, f"{NO_PROCESS}: {error}"
    except subprocess.TimeoutExpired:
        return False, f"no end within {SECONDS} s"
    try:
        right, text = json.loads(ended.stdout.strip().splitlines()[-1])
    except (ValueError, TypeError, IndexError):  # it ended before it could answer
        last = (ended.stderr.strip().splitlines() or [""])[-1]
        return False, f"ended with code {ended.returncode}: {last}"
    return right, text


def main() -> None:
    """Check the kernels as standard input requests; the last line printed is [right, text]."""
    request = json.load(sys.stdin)
    device, facts = torch.device(request["device"]), request["facts"]
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = facts["TF32"]
    graphs.EARLY_LAUNCHES = request["mode"] == "early"
    try:
        excess, text = max(
            comparison
            for symbols in BATCHES
            for comparison in COMPARISONS[request["part"]](symbols, facts, device)
        )
    except Exception as error:  # whatever Triton, the driver or the GPU cannot do
        excess, text = math.inf, traceback.format_exception_only(error)[0].strip().splitlines()[0]
    print(json.dumps([excess <= 1, text]), flush=True)


def compare_decoder(symbols: tuple[int, ...], facts: dict, device: torch.device) -> Iterator:
    """Yield (error of the kernels / its bound, text) of every output and gradient of a batch."""
    torch.manual_seed(0)
    decoder = Decoder(HParams(**facts["sizes"])).train()
    problem = Problem.random(decoder, symbols, graphs.CHUNK + STEPS_AFTER_A_CHUNK, seed=0)
    plain, kernels = (
        functools.partial(fast_decoder.teacher_forced, loops_for=loops)
        for loops in (fast_decoder.plain_loops, kernel_loops)
    )
    yield from compare(problem, plain, kernels, facts, device)


def compare_encoder(symbols: tuple[int, ...], facts: dict, device: torch.device) -> Iterator:
    """The same, of the encoder's LSTM."""
    torch.manual_seed(0)
    dim = facts["sizes"]["encoder_embedding_dim"]
    lstm = torch.nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
    plain, kernels = (
        functools.partial(bidirectional_lstm, loops_for=loops)
        for loops in (plain_lstm_loops, kernel_lstm_loops)
    )
    yield from compare(EncoderProblem.random(lstm, symbols, seed=0), plain, kernels, facts, device)


COMPARISONS = {"decoder": compare_decoder, "encoder": compare_encoder}


def compare(
    problem: Problem | EncoderProblem,
    plain: Callable,
    kernels: Callable,
    facts: dict,
    device: torch.device,
) -> Iterator:
    """Compare two ways to compute a problem."""
    autocast = facts["autocast"] and getattr(torch, facts["autocast"])
    exact = problem.to(torch.float64, device).run(plain)
    problem = problem.to(torch.float32, device)
    errors = relative_errors(problem.run(kernels, precision=autocast), exact)
    for name, allowed in relative_errors(problem.run(plain, precision=autocast), exact).items():
        bound = max(min_bound(facts), TIMES_PLAIN * allowed)
        # If plain operations exceed float16's range, there is nothing to compare with.
        if math.isfinite(bound):
            text = f"{name} has error {errors[name]:.1e} of {bound:.1e} allowed"
            yield errors[name] / bound, text


def min_bound(facts: dict) -> float:
    """Four times the largest error of rounding an operand, if that is rounded below float32."""
    rounded = facts["autocast"] or ("TF32" if facts["TF32"] else None)
    return 4 * ROUNDOFF[rounded] if rounded else MIN_BOUND


def kernel_loops(*batch) -> graphs.Graphs:
    """The kernels' graphs for a batch of the decoder; RuntimeError if there are none."""
    return made(graphs.graphs_for(*batch))


def kernel_lstm_loops(*batch) -> graphs.Graphs:
    """Those of the encoder."""
    return made(graphs.lstm_graphs_for(*batch))


def made(loops: graphs.Graphs | str) -> graphs.Graphs:
    if isinstance(loops, str):
        raise RuntimeError(f"no graphs could be made: {loops}")
    return loops


if __name__ == "__main__":
    main()
