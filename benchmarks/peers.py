"""Time an optimizer step of other Tacotron 2 recipes and of this recipe on the same random batch.

    python -m benchmarks.peers --tacotron2 DIR --deep-learning-examples DIR --speechbrain DIR

DIR is a checkout of NVIDIA/tacotron2, NVIDIA/DeepLearningExamples or speechbrain/speechbrain. An
optimizer step consists of forward pass, loss, backward pass, gradient clipping and Adam. Each of
the other recipes uses its own model and its own loss, with autocast for bf16. The other recipes
import modules that an optimizer step does not need, such as audio libraries. The benchmark replaces
these modules with empty modules. The Tacotron 2 recipes run one after another, each in its own
process. The times of other recipes are medians of two optimizer steps after a warm-up. The times of
this recipe are medians of five blocks of ten optimizer steps. In a block, as in training, an
optimizer step is launched while the GPU still runs the previous optimizer step.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.peers")


import argparse
import json
import os
import re
import subprocess
import sys
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks import options
from machine import synchronize
from tacotron2_voice.utils.arguments import checked, make_parser, positive
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.files import write_json
from tacotron2_voice.utils.program import run_program

ROOT = Path(__file__).resolve().parents[1]
OURS = "this recipe"
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# Sizes of the model, which are the same in all recipes.
SIZES: dict[str, Any] = {
    "n_mel_channels": 80,
    "n_symbols": 148,
    "symbols_embedding_dim": 512,
    "encoder_kernel_size": 5,
    "encoder_n_convolutions": 3,
    "encoder_embedding_dim": 512,
    "n_frames_per_step": 1,
    "decoder_rnn_dim": 1024,
    "prenet_dim": 256,
    "max_decoder_steps": 1000,
    "gate_threshold": 0.5,
    "p_attention_dropout": 0.1,
    "p_decoder_dropout": 0.1,
    "attention_rnn_dim": 1024,
    "attention_dim": 128,
    "attention_location_n_filters": 32,
    "attention_location_kernel_size": 31,
    "postnet_embedding_dim": 512,
    "postnet_kernel_size": 5,
    "postnet_n_convolutions": 5,
}


class Shape(NamedTuple):
    """The size of a batch in which all clips have the same length."""

    clips: int
    frames: int
    symbols: int

    @classmethod
    def of(cls, text: str) -> "Shape":
        """Parse a batch size such as 16x774x120."""
        return cls(*map(int, text.split("x")))

    def __str__(self) -> str:
        return "x".join(map(str, self))


# ---------------------------------------------------------------------------- one process


def add_module(name: str, **content: Any) -> None:
    """Replace the Python module `name` with a module that contains only `content`."""
    module = types.ModuleType(name)
    vars(module).update(content)
    sys.modules[name] = module


def padding_mask(lengths: torch.Tensor, max_len: int | None = None) -> torch.Tensor:
    """Return a mask [clips, max_len] that is True at the first lengths[i] positions of each row i.

    This function replaces functions of the other recipes that fail on a CPU or with new versions of
    PyTorch.
    """
    positions = torch.arange(max_len or int(lengths.max()), device=lengths.device)
    return positions < lengths.unsqueeze(1)


def add_audio_modules(package: str = "") -> None:
    """Replace the audio modules of NVIDIA's recipes with empty modules.

    Args:
        package: name of the package that contains the modules, followed by a dot; "": no package.
    """
    add_module("librosa")
    add_module("librosa.filters", mel=None)
    add_module(f"{package}stft", STFT=object)
    functions = ("dynamic_range_compression", "dynamic_range_decompression")
    add_module(f"{package}audio_processing", **dict.fromkeys(functions))


def tacotron2(folder: Path) -> tuple[torch.nn.Module, Callable]:
    sys.path.insert(0, str(folder))
    add_audio_modules()
    import loss_function  # type: ignore[import-not-found]
    import utils  # type: ignore[import-not-found]

    import model as peer_model

    utils.get_mask_from_lengths = padding_mask
    peer_model.get_mask_from_lengths = padding_mask  # type: ignore[attr-defined]
    settings = types.SimpleNamespace(**SIZES, mask_padding=True, fp16_run=False)
    return peer_model.Tacotron2(settings), loss_function.Tacotron2Loss()  # type: ignore[arg-type]


def deep_learning_examples(folder: Path) -> tuple[torch.nn.Module, Callable]:
    sys.path.insert(0, str(folder / "PyTorch" / "SpeechSynthesis" / "Tacotron2"))
    add_audio_modules("tacotron2_common.")
    from tacotron2.loss_function import Tacotron2Loss  # type: ignore[import-not-found]
    from tacotron2.model import Tacotron2  # type: ignore[import-not-found]

    model = Tacotron2(**SIZES, mask_padding=False, decoder_no_early_stopping=False)
    return model, Tacotron2Loss()


def speechbrain(folder: Path) -> tuple[torch.nn.Module, Callable]:
    """Return the model of speechbrain, and the loss of speechbrain without the guided attention
    loss."""
    names = ("lobes", "lobes.models", "lobes.models.transformer", "nnet", "nnet.loss")
    for name in ("speechbrain", *(f"speechbrain.{name}" for name in names)):
        add_module(name)
    add_module(
        "speechbrain.lobes.models.transformer.Transformer", get_mask_from_lengths=padding_mask
    )
    add_module("speechbrain.nnet.loss.guidedattn_loss", GuidedAttentionLoss=object)
    sys.path.insert(0, str(folder / "speechbrain" / "lobes" / "models"))
    from Tacotron2 import Tacotron2  # type: ignore[import-not-found]

    squared = torch.nn.MSELoss()
    binary = torch.nn.BCEWithLogitsLoss()

    def loss(outputs: list, targets: tuple) -> torch.Tensor:
        mel, gate = targets
        of_mels = squared(outputs[0], mel) + squared(outputs[1], mel)
        return of_mels + binary(outputs[2].reshape(-1), gate.reshape(-1))

    return Tacotron2(**SIZES, mask_padding=True), loss


MODELS = {
    "tacotron2": tacotron2,
    "deep-learning-examples": deep_learning_examples,
    "speechbrain": speechbrain,
}


def step_of_peer(name: str, folder: Path, shape: Shape, precision: str) -> Callable[[], None]:
    """Return a function that runs an optimizer step of another recipe."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = precision != "fp32"
    torch.backends.cudnn.allow_tf32 = precision != "fp32"
    model, loss = MODELS[name](folder)
    model.to(DEVICE).train()
    text = torch.randint(1, SIZES["n_symbols"], (shape.clips, shape.symbols), device=DEVICE)
    text_lengths = torch.full((shape.clips,), shape.symbols, device=DEVICE)
    mel_lengths = torch.full((shape.clips,), shape.frames, device=DEVICE)
    mel = torch.randn(shape.clips, SIZES["n_mel_channels"], shape.frames, device=DEVICE) - 5
    gate = torch.zeros(shape.clips, shape.frames, device=DEVICE)
    gate[:, -1] = 1
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-6)

    def step() -> None:
        model.zero_grad()
        with torch.autocast(DEVICE.type, torch.bfloat16, enabled=precision == "bf16"):
            outputs = model((text, text_lengths, mel, shape.symbols, mel_lengths))
        outputs = [x.float() if torch.is_tensor(x) else x for x in outputs]
        loss(outputs, (mel, gate)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def our_step(shape: Shape, precision: str) -> Callable[[], object]:
    """Return a function that runs an optimizer step of this recipe."""
    # Import these modules here, because other recipes have modules with the same names.
    from batch import synthetic_batch
    from hparams import HParams
    from training.trainer import MicroBatch, Trainer

    hparams = HParams(precision=precision)  # type: ignore[arg-type]
    trainer = Trainer(hparams, DEVICE)
    batch = synthetic_batch([shape.frames] * shape.clips, [shape.symbols] * shape.clips, hparams)
    batch = batch.to(DEVICE)
    return lambda: trainer.step([MicroBatch(batch)])


def measure(name: str, folder: Path, shape: Shape, precision: str) -> dict[str, Any]:
    """Return the seconds per optimizer step and the peak memory of one recipe."""
    ours = name == OURS
    step = our_step(shape, precision) if ours else step_of_peer(name, folder, shape, precision)
    for _ in range(8 if ours else 1):
        step()
    synchronize(DEVICE)
    on_gpu = DEVICE.type == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    steps = 10 if ours else 1
    seconds = []
    for _ in range(5 if ours else 2):
        began = time.perf_counter()
        for _ in range(steps):
            step()
        synchronize(DEVICE)
        seconds.append((time.perf_counter() - began) / steps)
    return {
        "recipe": name,
        "precision": precision,
        "batch": str(shape),
        "seconds": seconds,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if on_gpu else None,
        "device": torch.cuda.get_device_name() if on_gpu else "CPU",
        "torch": torch.__version__,
    }


# ---------------------------------------------------------------------------- all processes


def measure_in_process(
    name: str, folder: Path, shape: Shape, precision: str, seconds: float
) -> dict[str, Any] | str:
    """Run `measure` in a new process. Return the result of `measure` or, if `measure` fails, the
    reason."""
    command = [sys.executable, "-m", "benchmarks.peers", "--measure", name, str(folder)]
    try:
        ended = subprocess.run(
            [*command, str(shape), precision],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "4"},
            capture_output=True,
            text=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return f"not finished within {seconds:.0f} s"
    if ended.returncode != 0:
        return (ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"])[-1]
    result: dict[str, Any] = json.loads(ended.stdout.strip().splitlines()[-1])
    return result


def table_of(results: list[dict[str, Any]]) -> str:
    """Return the results as a Markdown table, with the ratios to the time of this recipe."""
    ours = {
        (r["batch"], r["precision"]): float(np.median(r["seconds"]))
        for r in results
        if r["recipe"] == OURS
    }
    rows = []
    for r in results:
        median = float(np.median(r["seconds"]))
        frames = Shape.of(r["batch"]).clips * Shape.of(r["batch"]).frames
        own = ours.get((r["batch"], r["precision"]))
        memory = "not measured" if r["peak_gb"] is None else f"{r['peak_gb']:.1f} GB"
        ratio = f"{median / own:.1f}" if own else "not measured"
        rows.append(
            [
                r["batch"],
                r["precision"],
                r["recipe"],
                f"{1000 * median:,.1f} ms",
                f"{frames / median:,.0f}",
                memory,
                ratio,
            ]
        )
    titles = ["batch", "precision", "recipe", "time per step", "frames/s", "memory"]
    return markdown_table([*titles, "time relative to this recipe"], rows)


def shapes(text: str) -> list[Shape]:
    """Parse a list of shapes such as 16x774x120,64x203x32.

    Raises:
        ValueError: if a shape does not consist of three whole numbers that are separated by "x".
    """
    for shape in text.split(","):
        if not re.fullmatch(r"[1-9]\d*x[1-9]\d*x[1-9]\d*", shape):
            raise ValueError(shape)
    return [Shape.of(shape) for shape in text.split(",")]


def precisions(text: str) -> list[str]:
    """Parse a list of precisions such as bf16,fp32."""
    return [options.precision(name) for name in text.split(",")]


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    for peer in MODELS:
        add(
            f"--{peer}",
            dest=peer,
            type=Path,
            metavar="DIR",
            help=f"measure the checkout of {peer} in this folder (default: do not measure {peer})",
        )
    add(
        "--shapes",
        type=checked(shapes, "clips x frames x symbols, such as 16x774x120", bool),
        default="16x774x120,64x203x32",
        help="measure batches of these sizes, each as CLIPSxFRAMESxSYMBOLS (default: %(default)s)",
    )
    add(
        "--precisions",
        type=precisions,
        default="bf16",
        help="measure with these precisions, separated by commas (default: %(default)s)",
    )
    add(
        "--seconds",
        type=positive,
        default=90,
        help="time limit per recipe, in seconds (default: 90)",
    )
    add("--json", type=Path, metavar="FILE.json", help="also write the results to this file")
    # Internal option for the process that measures a single recipe.
    add("--measure", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args(arguments)
    args.folders = {peer: getattr(args, peer) for peer in MODELS if getattr(args, peer)}
    for peer, folder in args.folders.items():
        if not folder.is_dir():
            parser.error(f"--{peer} {folder}: no such folder, expected a checkout of {peer}")
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    if args.measure:
        name, folder, shape, precision = args.measure
        print(json.dumps(measure(name, Path(folder), Shape.of(shape), precision)))
        return
    folders = {OURS: ROOT, **{peer: folder.absolute() for peer, folder in args.folders.items()}}
    results = []
    for shape in args.shapes:
        for precision in args.precisions:
            for name, folder in folders.items():
                result = measure_in_process(name, folder, shape, precision, args.seconds)
                if isinstance(result, str):
                    print(f"{name}, {shape}, {precision}: failed: {result}", flush=True)
                    continue
                results.append(result)
                median = np.median(result["seconds"])
                print(f"{name}, {shape}, {precision}: {1000 * median:,.1f} ms", flush=True)
                if args.json:
                    write_json(args.json, results)
    print("\n" + table_of(results))


if __name__ == "__main__":
    run_program(main)
