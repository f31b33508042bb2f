"""Compile the kernels of the full-size model for an H200 (sm_90), and print a JSON row per launch.

    python tests/compile_kernels.py

This script needs no GPU. Tests run this script in a separate process, because the test process
interprets kernels instead of compiling them. The decoder launches are printed before the encoder
launches.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fast_decoder import graphs, kernels

CASES = [  # for each case: number of clips, number of symbols, and precision
    (16, 120, "bf16"),
    (32, 120, "bf16"),
    (24, 190, "bf16"),
    (48, 64, "bf16"),
    (64, 32, "bf16"),
    (16, 190, "tf32"),
    (16, 120, "fp32"),
    (32, 120, "fp32"),
    (64, 32, "fp32"),
]
LSTMS = graphs.LSTM(1024, 1536, 128, 0.1), graphs.LSTM(1024, 1024, 0, 0.1)
# The arguments after the two LSTMs are the fields of graphs.Setting from `context_size` to `stream`.
FULL: tuple[Any, ...] = (*LSTMS, 512, 31, True, True, True, 0)
ENCODER = graphs.LSTM(0, 0, 0, 0.0), graphs.LSTM(256, 256, 0, 0.0), 0, 1, *FULL[-4:]


def launches_of(clips: int, symbols: int, precision: str) -> list[tuple[str, dict]]:
    """Return the kernel name and the options of every launch."""
    found = []

    class Recorder:
        """Stand in for a kernel, and record its launches without running them."""

        def __init__(self, name: str):
            self.name, self.arg_names = name, getattr(kernels, name).arg_names

        def __getitem__(self, grid: tuple) -> Callable:
            return lambda *_, **options: found.append((self.name, options))

    names = [name for name, value in vars(kernels).items() if hasattr(value, "arg_names")]
    stand_ins = {name: Recorder(name) for name in names if not name.startswith("_")}
    replaced = SimpleNamespace(**{**vars(kernels), **stand_ins})
    vars(graphs).update(_kernels=lambda: replaced)
    operands = torch.bfloat16 if precision == "bf16" else torch.float32
    types = torch.device("cpu"), torch.float32, operands, precision == "tf32"
    for rest in (FULL, ENCODER):
        made = graphs.Graphs(graphs.Setting(*types, *graphs.bucket(clips, symbols), *rest))
        for loop in vars(made).values():
            if isinstance(loop, graphs._Loop):
                loop._launch(1)
    return found


def compiled(name: str, options: dict):
    """Compile a kernel with the options of its launch."""
    kernel = getattr(kernels, name)
    options = dict(options)
    # Names of compiler options are lower-case; names of kernel constants are upper-case.
    choices = {key: options.pop(key) for key in list(options) if key.islower()}
    kinds = {"table": "*i64", "offset": "i32", "scale": "fp32"}
    signature = {argument: kinds.get(argument, "constexpr") for argument in kernel.arg_names}
    constants = {(kernel.arg_names.index(key),): value for key, value in options.items()}
    source = ASTSource(kernel, signature, constants, {(0,): [["tt.divisibility", 16]]})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=choices)


def measured(name: str, options: dict) -> dict:
    """Return the GPU resources that a launch uses, and properties of its compiled code."""
    kernel = compiled(name, options)
    ptx = kernel.asm["ptx"]
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage = subprocess.check_output([reader, "-res-usage", file.name], text=True)
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    return {
        "name": name,
        "threads": 32 * kernel.metadata.num_warps,
        "registers": int(re.findall(r"REG:(\d+)", usage)[0]),
        "spilled_bytes": int(re.findall(r"STACK:(\d+)", usage)[0]),
        "shared_bytes": kernel.metadata.shared,
        "products": len(re.findall(r"mma(?:_async)?\.sync", ptx)),
        # True if the inner dimension of the matrix product is divided into several blocks.
        "blocks": options.get("SPLIT", options.get("INNER", 0)) > options.get("BLOCK", 0),
        # Number of instructions that copy 16 bytes asynchronously.
        "wide_copies": len(re.findall(r"cp\.async\.c[ga]\.[^;]*0x10", ptx)),
        # For each matrix product: its inner dimension, and the number of consecutive values per
        # thread.
        "widths": [
            (int(inner), int(width))
            for inner, width in re.findall(
                r"tensor<(?:\d+x)*(\d+)x[a-z]+\d+, #ttg.dot_op<\{opIdx = 0[^>]*kWidth = (\d+)",
                kernel.asm["ttgir"],
            )
        ],
        "waits": bool(waits) and not re.search(r"\b(ret|exit);", before),
    }


def main() -> None:
    for case in CASES:
        for launch in launches_of(*case):
            print(json.dumps({"case": case} | measured(*launch)), flush=True)


if __name__ == "__main__":
    main()
