"""What the training decoder's kernels take of an H200, read from their machine code: needs no GPU.

    python benchmarks/machine_code.py
    python benchmarks/machine_code.py --variants --json kernels.json    # and with each variant

The kernels are compiled for the full-size model on compute capability 9.0 and disassembled. Printed
are, for each launch of a decoder step and the two of 32 steps:

- programs, threads, registers a thread, bytes spilled, shared memory a program;
- instructions a thread, loops unrolled, and how many of them come before the program waits for the
  launch before it: those run while that launch still works;
- the longest chain of tensor-core products of which each waits for the one before. In a loop no
  product waits for the next round, but the round's barrier does, so the rounds' chains add up;
- the microseconds that follow from this, modelled and not measured: see `modelled_us`;
- whether the next launch's programs, made early, crowd onto some of the processors because they
  find no room beside this launch's.
"""

import project_root

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch

from analysis import fast_path
from analysis.arguments import add_json_option, make_parser
from analysis.decoder_kernels import LOOPS, VARIANTS, changed
from analysis.tables import markdown_table
from files import write_json
from training.machine import versions

if not fast_path.IS_HERE:
    sys.exit(f"machine_code.py: {fast_path.MISSING}")
from fast_decoder import graphs

FULL = {  # of graphs.Setting
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
    "stream": 0,
}
CASES = [  # clips, symbols, precision
    (16, 120, "bf16"),
    (64, 32, "bf16"),
    (16, 120, "tf32"),
    (16, 120, "fp32"),
    (16, 190, "bf16"),
    (64, 32, "fp32"),
    (32, 120, "fp32"),
]
CHOICES = ("num_warps", "num_stages", "launch_pdl", "maxnreg")  # of the compiler
# An H200. Clock and rates are its maker's; latencies are assumed: they are not measured here.
GIGAHERTZ = 1.755
L2_BYTES = 64  # a cycle and processor
REGISTERS, SHARED_BYTES, THREADS = 65536, 227 * 1024, 2048  # of a processor
PRODUCT_CYCLES = {"16816": 33, "1688": 25}  # from a tensor-core product to one that waits for it
START_US, END_US = 0.6, 0.7  # from the wait to the first product, and from the last to the end
TABLE_US = 0.4  # to read the table and what it points to: before the wait where loads are early


class Launch(NamedTuple):
    loop: str
    name: str
    programs: int
    options: dict


# ---------------------------------------------------------------------------- what is launched


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

    def __getitem__(self, grid: tuple) -> Callable:
        return lambda *_, **options: self.launches.append((self.name, math.prod(grid), options))


def launches_of(clips: int, symbols: int, precision: str) -> list[Launch]:
    """The launches of one step of each loop, those of a chunk after them."""
    kernels, loop_class = graphs._kernels, graphs._Loop
    recorder, found, loops = Recorder(kernels()), [], iter(LOOPS)

    class OneStep:
        """Stands for a `_Loop`."""

        def __init__(self, setting, *launches, before=None, after=None, backwards=False):
            for launch in launches:
                launch(None, 0)
            for launch in (before, after, graphs._next_chunk(setting, backwards)):
                if launch is not None:
                    launch(None)
            loop = next(loops)
            found.extend(Launch(loop, *launch) for launch in recorder.launches)
            recorder.launches.clear()

    half = torch.bfloat16 if precision == "bf16" else torch.float32
    setting = graphs.Setting(
        torch.device("cuda"),
        torch.float32,
        half,
        precision == "tf32",
        *graphs.bucket(clips, symbols),
        **FULL,
    )
    try:
        graphs._kernels, graphs._Loop = (lambda: recorder), OneStep
        graphs.Graphs(setting)
    finally:
        graphs._kernels, graphs._Loop = kernels, loop_class
    return found


def compiled(launch: Launch):
    """The kernel, as a launch would compile it."""
    from triton import compile as compile_for
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, options = getattr(graphs._kernels(), launch.name), dict(launch.options)
    choices = {name: options.pop(name) for name in CHOICES if name in options}
    kinds = {"table": "*i64", "offset": "i32", "scale": "fp32"}
    signature = {name: kinds.get(name, "constexpr") for name in kernel.arg_names}
    constants = {(kernel.arg_names.index(name),): value for name, value in options.items()}
    source = ASTSource(kernel, signature, constants, {(0,): [["tt.divisibility", 16]]})
    return compile_for(source, target=GPUTarget("cuda", 90, 32), options=choices)


# ---------------------------------------------------------------------------- the machine code


def run_on(cubin: bytes, *command: str) -> str:
    """What one of Triton's own programs for machine code prints."""
    import triton

    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / command[0]
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        full = [program, *command[1:], file.name]
        return subprocess.run(full, capture_output=True, text=True, check=True).stdout


def parse(code: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Instructions without their predicates, and the loops: (first, last) of each."""
    instructions, labels = [], {}
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L\w+):", line):
            labels[label[1]] = len(instructions)
        elif found := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;", line):
            instructions.append(found[1])
    last = max(i for i, text in enumerate(instructions) if text.startswith("EXIT"))
    loops = []
    for i, text in enumerate(instructions[: last + 1]):
        target = re.search(r"BRA `\((\.L\w+)\)", text)
        if target and labels[target[1]] <= i:
            loops.append((labels[target[1]], i))
    return instructions[: last + 1], loops


def product_chain(instructions: list[str]) -> int:
    """Cycles of the longest chain of tensor-core products through registers.

    Products of 64 rows (HGMMA) are made by four warps together and wait in another way: left out.
    """
    ready: dict[int, int] = {}  # register: cycles of the chain that ends in it
    longest = 0
    for text in instructions:
        name, _, rest = text.partition(" ")
        target, *sources = rest.split(",")
        if not re.match(r" *R\d", target):
            continue  # it writes no register
        if name.startswith("HMMA"):
            firsts = [re.findall(r"\bR(\d+)", source) for source in sources]
            widths = 4, 2, 4  # registers of both factors and of the sum so far, which may be RZ
            used = [
                int(first[0]) + i
                for first, width in zip(firsts, widths, strict=False)
                for i in range(width if first else 0)
            ]
            cycles, written = PRODUCT_CYCLES[name.split(".")[1]], 4
        else:
            used = [] if name.startswith("LD") else re.findall(r"\bR(\d+)", " ".join(sources))
            wide = 4 if re.search(r"\.(128|4)\b", name) else 2 if ".64" in name else 1
            cycles, written = 0, wide
        cycles += max((ready.get(int(register), 0) for register in used), default=0)
        first = int(re.findall(r"R(\d+)", target)[0])
        ready |= dict.fromkeys(range(first, first + written), cycles)
        longest = max(longest, cycles)
    return longest


def rounds_of(launch: Launch) -> int:
    """How often the launch's loop runs, where the compiler has left one."""
    o = launch.options
    if launch.name == "lstm_step":
        return -(-o["INNER"] // o["BLOCK"])
    if launch.name == "gradient_product":
        return -(-o["SPLIT"] // o["BLOCK"])
    return graphs.CHUNK // graphs.GROUPS if launch.name == "attention_sums" else 1


def bytes_read(launch: Launch, symbols: int) -> int:
    """By a program, from the second-level cache, once it need not wait any more."""
    o = launch.options
    operand = 2 if str(o.get("OPERAND")) == "bf16" else 4
    late = not o.get("EARLY_LOADS")
    if launch.name == "lstm_step":
        return (4 * o["UNITS"] + o["ROWS"]) * o["INNER"] * operand
    if launch.name == "gradient_product":
        return o["COLUMNS"] * o["SPLIT"] * operand + o["ROWS"] * o["SPLIT"] * 4
    if launch.name == "attention_energies":
        keys = o["SYMBOLS_BLOCK"] * o["DIM"] + 2 * o["KERNEL"] * o["DIM"]
        windows = o["SYMBOLS_BLOCK"] + o["KERNEL"] - 1
        return 4 * (o["PARTS"] * o["DIM"] + 2 * windows + late * keys)
    if launch.name == "attention_context":
        return 4 * (symbols + late * symbols * o["COLUMNS"])
    if launch.name == "attention_gradient":
        context, block = o["WIDTH"] - o["SIZE"], o["SYMBOLS_BLOCK"]
        read = o["SPLITS"] * context + block * o["DIM"] + symbols
        return 4 * (read + late * (block + 2) * context)
    if launch.name == "cell_gradient":
        cells = o["ROWS"] * o["UNITS"]
        query = o["ROWS"] * o["QUERY"] * -(-symbols // o["SYMBOLS_A_PART"])
        early = 7 * cells + o["QUERY"] * o["UNITS"]
        return 4 * (o["SPLITS"] * cells + query + late * early)
    return 0


def modelled_us(found: dict) -> float:
    """Microseconds of a launch on an H200, as a model: nothing of it is measured.

    What comes before the wait costs nothing where loads are early. Then come a start; the bytes at
    the rate of one processor's reads from the second-level cache; the longer of the chain of
    products and the instructions, of which each of a processor's four schedulers issues one a
    cycle; and an end. Checked by hand against a line-by-line estimate of the kernels before this
    model: 4.8, 6.9 and 12.2 in the place of 4.4, 7.0 and 13.7 microseconds for the attention LSTM
    in bf16, tf32 and fp32.
    """
    turns = -(-found["programs"] // graphs.PROCESSORS)
    warps = turns * found["threads"] / 32
    issue = found["instructions"] - found["before_the_wait"]
    work = max(issue * max(warps / 4, 1), found["chain_cycles"] * turns)
    cycles = work + turns * found["bytes"] / L2_BYTES
    table = 0 if found["early_loads"] else TABLE_US
    return table + START_US + cycles / (1000 * GIGAHERTZ) + END_US


def measured(launch: Launch, clips: int, symbols: int, precision: str, disassemble: str) -> dict:
    """A row of the results."""
    kernel = compiled(launch)
    cubin, ptx = kernel.asm["cubin"], kernel.asm["ptx"]
    usage = run_on(cubin, "cuobjdump", "-res-usage")
    before, waits, _ = ptx.partition("griddepcontrol.wait")
    found = {
        "loop": launch.loop,
        "name": launch.name,
        "clips": clips,
        "symbols": symbols,
        "precision": precision,
        "programs": launch.programs,
        "threads": 32 * kernel.metadata.num_warps,
        "registers": int(re.search(r"REG:(\d+)", usage)[1]),
        "spilled_bytes": int(re.search(r"STACK:(\d+)", usage)[1]),
        "shared_bytes": kernel.metadata.shared,
        "products": len(re.findall(r"mma(?:_async)?\.sync", ptx)),
        # 16 bytes at a time, asynchronously
        "wide_copies": len(re.findall(r"cp\.async\.c[ga]\.[^;]*0x10", ptx)),
        "waits": bool(waits) and not re.search(r"\b(ret|exit);", before),
        "lets_next": "griddepcontrol.launch_dependents" in ptx,
        "early_loads": bool(launch.options.get("EARLY_LOADS")),
        "bytes": bytes_read(launch, symbols),
    }
    if disassemble in f"{launch.loop}: {launch.name}":
        found |= work_of(launch, run_on(cubin, "nvdisasm", "-c"))
        found["modelled_us"] = round(modelled_us(found), 2)
    return found


def work_of(launch: Launch, code: str) -> dict:
    """What a thread does, its loops unrolled."""
    instructions, loops = parse(code)
    unrolled, chain, rounds = instructions, product_chain(instructions), rounds_of(launch)
    for first, last in reversed(loops):
        body = instructions[first : last + 1]
        unrolled = unrolled[: last + 1] + body * (rounds - 1) + unrolled[last + 1 :]
        chain += (rounds - 1) * product_chain(body)
    waits = [i for i, text in enumerate(unrolled) if text.startswith("ACQBULK")]
    return {
        "instructions": len(unrolled),
        "before_the_wait": waits[0] if waits else 0,
        "chain_cycles": chain,
    }


# ---------------------------------------------------------------------------- early launches


def registers_of(found: dict) -> int:
    """Of a program: a warp gets them in multiples of eight a thread."""
    return -(-found["registers"] // 8) * 8 * found["threads"]


def crowds(first: dict, second: dict) -> bool:
    """Whether the second launch's programs, made while the first one's are still there, come to lie
    more to a processor than they would if all processors were free."""
    programs = -(-first["programs"] // graphs.PROCESSORS)  # of the first launch, where it is
    beside = min(
        (REGISTERS - programs * registers_of(first)) // registers_of(second),
        (SHARED_BYTES - programs * (first["shared_bytes"] + 1024))
        // (second["shared_bytes"] + 1024),
        (THREADS - programs * first["threads"]) // second["threads"],
    )
    alone = min(
        REGISTERS // registers_of(second),
        SHARED_BYTES // (second["shared_bytes"] + 1024),
        THREADS // second["threads"],
    )
    taken = min(first["programs"], graphs.PROCESSORS)
    fair = -(-second["programs"] // graphs.PROCESSORS)
    room = max(beside, 0) * taken >= second["programs"] or min(beside, fair) >= fair
    return (
        not room and min(alone, -(-second["programs"] // max(1, graphs.PROCESSORS - taken))) > fair
    )


def mark_crowds(rows: list[dict]) -> None:
    """`crowds` of each launch of a step: whether the one after it does."""
    for loop, names in LOOPS.items():
        steps = [row for row in rows if row["loop"] == loop and row["name"] in names]
        for first, second in zip(steps, steps[1:] + steps[:1], strict=True):
            first["next_crowds"] = first["lets_next"] and crowds(first, second)


# ---------------------------------------------------------------------------- the program


def table_of(rows: list[dict]) -> str:
    titles = ["launch", "programs x threads", "registers", "spilled", "shared", "next crowds"]
    more = {  # of the disassembly
        "instructions": "instructions",
        "before_the_wait": "before the wait",
        "chain_cycles": "chain of products, cycles",
        "modelled_us": "modelled us",
    }
    cells = [
        [
            f"{row['loop']}: {row['name']}",
            f"{row['programs']} x {row['threads']}",
            row["registers"],
            row["spilled_bytes"],
            f"{row['shared_bytes']:,}",
            {True: "yes", False: "no", None: ""}[row.get("next_crowds")],
            *(f"{row[name]:,}" if name in row else "" for name in more),
        ]
        for row in rows
    ]
    return markdown_table([*titles, *more.values()], cells)


def measure(variant: str, case: tuple, disassemble: str) -> list[dict]:
    with changed(graphs, VARIANTS[variant]):
        rows = [measured(launch, *case, disassemble) for launch in launches_of(*case)]
    mark_crowds(rows)
    return [{"variant": variant, **row} for row in rows]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--variants", action="store_true", help="all that benchmarks/kernels.py times")
    shown = "only these launches, the slowest part: a piece of a name in the table"
    add("--disassemble", default="", metavar="TEXT", help=shown)
    add_json_option(parser)
    args: argparse.Namespace = parser.parse_args(arguments)
    os.environ.pop("TRITON_INTERPRET", None)  # interpreted kernels have no machine code
    if isinstance(graphs._kernels(), str):
        parser.error(f"Triton compiles the kernels: {graphs._kernels()}")
    rows = []
    for variant in VARIANTS if args.variants else list(VARIANTS)[:1]:
        for case in CASES:
            rows += (found := measure(variant, case, args.disassemble))
            clips, symbols, precision = case
            print(f"## {variant}: {clips} clips, {symbols} symbols, {precision}\n")
            print(table_of(found))
            if not args.disassemble:
                step = sum(row["modelled_us"] for row in found if "next_crowds" in row)
                print(
                    f"\nA decoder step, modelled without what lies between launches: {step:.1f} us"
                )
            print(flush=True)
    if args.json:
        write_json(args.json, {"rows": rows, "versions": versions()})
        print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
