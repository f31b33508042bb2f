"""Compiles the training decoder's kernels for an H200, without one; prints what each takes.

test_decoder_kernels.py runs it in a process of its own, where Triton does not interpret.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[1]))
from fast_decoder import graphs

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
CHOICES = ("num_warps", "num_stages", "launch_pdl")
FULL = {
    "attention_size": 1024,
    "context_size": 512,
    "decoder_size": 1024,
    "dim": 128,
    "kernel_size": 31,
    "p_attention_dropout": 0.1,
    "p_decoder_dropout": 0.1,
    "location_gradient": True,
    "differentiable": True,
    "early_launch": True,
}
CASES = [  # clips, symbols, operands, tf32
    (16, 120, torch.bfloat16, False),
    (64, 32, torch.bfloat16, False),
    (16, 120, torch.float32, True),
    (16, 120, torch.float32, False),
    (16, 190, torch.bfloat16, False),
    (64, 32, torch.float32, False),
]


def compiled(kernel, options: dict):
    """The kernel for these constants, as a launch would compile it."""
    options = dict(options)
    choices = {name: options.pop(name) for name in CHOICES if name in options}
    kinds = {"table": "*i64", "offset": "i32", "scale": "fp32"}
    signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in options.items()}
    source = ASTSource(kernel, signature, constants, {(0,): [["tt.divisibility", 16]]})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=choices)


def waiting(ptx: str) -> list[str]:
    """Loads that a program makes before it waits for the launch before it: of the table only."""
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    assert waits, "the kernel never waits"
    return re.findall(r"(?:ld\.global|cp\.async)[\w.:]*", before)


def measured(name: str, options: dict, clips: int) -> dict:
    kernel = compiled(getattr(graphs._kernels(), name), options)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(kernel.asm["cubin"])
        usage = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {
        "name": name,
        "clips": clips,
        "operands": str(options.get("OPERAND", "")),
        "precision": options.get("PRECISION", ""),
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "spilled_bytes": int(re.search(r"STACK:(\d+)", usage)[1]),
        "shared_bytes": kernel.metadata.shared,
        "tensor_core_instructions": len(re.findall(r"mma(?:_async)?\.sync", kernel.asm["ptx"])),
        "loads_before_waiting": waiting(kernel.asm["ptx"]),
        "wide_copies": len(re.findall(r"cp\.async\.c[ga]\.[^;]*0x10", kernel.asm["ptx"])),
    }


class Recorder:
    """Stands for the module `kernels`: launches are written down in the place of being made."""

    def __init__(self, kernels):
        self.kernels, self.launches = kernels, []

    def __getattr__(self, name: str):
        found = getattr(self.kernels, name)
        return RecordedKernel(name, self.launches) if hasattr(found, "arg_names") else found


class RecordedKernel:
    def __init__(self, name: str, launches: list):
        self.name, self.launches = name, launches

    def __getitem__(self, grid):
        return lambda *_, **options: self.launches.append((self.name, options))


class OneStep:
    """Stands for a `_Loop`."""

    def __init__(self, _, *launches, before=None, after=None):
        for launch in launches:
            launch(None, 0)
        for launch in (before, after):
            if launch is not None:
                launch(None)


def main() -> None:
    kernels = graphs._kernels()
    results = []
    for clips, symbols, operands, tf32 in CASES:
        setting = graphs.Setting(
            torch.device("cuda"),
            torch.float32,
            operands,
            tf32,
            *graphs.bucket(clips, symbols),
            stream=0,
            **FULL,
        )
        recorder = Recorder(kernels)
        graphs._kernels, graphs._Loop = (lambda r=recorder: r), OneStep
        graphs.Graphs(setting)
        graphs._kernels = lambda: kernels
        results += [measured(name, options, clips) for name, options in recorder.launches]
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
