"""Compare the kernels with exact results on this GPU. self_check.py runs this program.

    python -m fast_decoder.compare_kernels < request.json    # prints [is_right, text]

The program computes outputs and gradients of the training decoder and the encoder LSTM on two small
batches, with the sizes and the precision of the run. The program compares these tensors with exact
float64 results. The check fails if the error of any tensor is larger than its tolerance.
"""

import functools
import json
import math
import sys
import traceback
from collections.abc import Callable, Iterator

import torch

import fast_decoder
from fast_decoder import graphs
from fast_decoder.encoder import bidirectional_lstm, plain_lstm_loops
from fast_decoder.parity import EncoderProblem, Problem, relative_errors
from hparams import HParams
from model import Decoder

# Number of symbols of each clip in two batches. The first batch has 20 clips, a common number with
# dynamic batch sizes. The second batch runs the kernels for large batches and long texts.
BATCHES = ((40, 23, *range(1, 19)), (100, *range(1, 33)))
# Number of decoder steps in the second chunk. The second chunk is incomplete, because the kernels
# must also be correct for incomplete chunks.
STEPS_AFTER_A_CHUNK = 3
# Errors and tolerances are relative to the largest value of a tensor. The tolerance is TIMES_PLAIN
# times the error of plain operations in the same precision, but at least `min_bound`. This
# tolerance separates correct kernels from bugs. In float32 on a CPU, the errors of correct kernels
# are at most 1.6e-5. A bug that makes tanh too small by 1e-4 causes an error of 2e-3. On an H200,
# the errors of correct kernels are at most 3.4 times the errors of plain operations.
MIN_BOUND = 4e-5
TIMES_PLAIN = 5
# Maximum relative rounding error of each dtype.
ROUNDOFF = {"TF32": 2**-11, "float16": 2**-11, "bfloat16": 2**-9}


def main() -> None:
    """Read the conditions of the check from standard input, check the kernels, and print [is_right,
    text]."""
    request = json.load(sys.stdin)
    device = torch.device(request["device"])
    facts = request["facts"]
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
    torch.backends.cuda.matmul.allow_tf32 = facts["TF32"]
    torch.backends.cudnn.allow_tf32 = facts["TF32"]
    try:
        excess, text = max(
            comparison
            for symbols in BATCHES
            for compare_part in (compare_decoder, compare_encoder)
            for comparison in compare_part(symbols, facts, device)
        )
    except Exception as error:  # Triton, the driver and the GPU raise many types of exceptions
        excess = math.inf
        text = traceback.format_exception_only(error)[0].strip().splitlines()[0]
    print(json.dumps([excess <= 1, text]), flush=True)


def compare_decoder(symbols: tuple[int, ...], facts: dict, device: torch.device) -> Iterator:
    """Yield (kernel error / maximum error, description) for each output and gradient of a batch."""
    torch.manual_seed(0)
    decoder = Decoder(HParams(**facts["sizes"])).train()
    problem = Problem.random(decoder, symbols, graphs.CHUNK + STEPS_AFTER_A_CHUNK, seed=0)
    kernel_loops = functools.partial(kernels_for, graphs.graphs_for)
    plain = functools.partial(fast_decoder.teacher_forced, loops_for=fast_decoder.plain_loops)
    kernels = functools.partial(fast_decoder.teacher_forced, loops_for=kernel_loops)
    yield from compare(problem, plain, kernels, facts, device)


def compare_encoder(symbols: tuple[int, ...], facts: dict, device: torch.device) -> Iterator:
    """Yield (kernel error / maximum error, description) for the encoder LSTM."""
    torch.manual_seed(0)
    dim = facts["sizes"]["encoder_embedding_dim"]
    lstm = torch.nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
    problem = EncoderProblem.random(lstm, symbols, seed=0)
    kernel_loops = functools.partial(kernels_for, graphs.lstm_graphs_for)
    plain = functools.partial(bidirectional_lstm, loops_for=plain_lstm_loops)
    kernels = functools.partial(bidirectional_lstm, loops_for=kernel_loops)
    yield from compare(problem, plain, kernels, facts, device)


def compare(
    problem: Problem | EncoderProblem,
    plain: Callable,
    kernels: Callable,
    facts: dict,
    device: torch.device,
) -> Iterator:
    """Yield (kernel error / maximum error, description) for each output and gradient of a
    `Problem`."""
    autocast = facts["autocast"] and getattr(torch, facts["autocast"])
    exact = problem.to(torch.float64, device).run(plain)
    problem = problem.to(torch.float32, device)
    errors = relative_errors(problem.run(kernels, precision=autocast), exact)
    plain_errors = relative_errors(problem.run(plain, precision=autocast), exact)
    for name, plain_error in plain_errors.items():
        bound = max(min_bound(facts), TIMES_PLAIN * plain_error)
        # Skip a tensor if plain operations exceed the range of float16.
        if math.isfinite(bound):
            yield (
                errors[name] / bound,
                f"{name} has relative error {errors[name]:.1e} (expected at most {bound:.1e})",
            )


def min_bound(facts: dict) -> float:
    """Return 4 times the largest rounding error of an operand, or MIN_BOUND if operands are not
    rounded."""
    rounded = facts["autocast"] or ("TF32" if facts["TF32"] else None)
    return 4 * ROUNDOFF[rounded] if rounded else MIN_BOUND


def kernels_for(graphs_for: Callable, *batch) -> graphs.Graphs:
    """Return the graphs that `graphs_for` creates for a batch, or raise RuntimeError."""
    loops = graphs_for(*batch)
    if isinstance(loops, str):
        raise RuntimeError(f"cannot create CUDA graphs: {loops}")
    return loops


if __name__ == "__main__":
    main()
