"""Measure the real-time factor of synthesis: seconds of computing time per second of speech.

    python -m benchmarks.speaking                                  # 1 text, then a batch of 16
    python -m benchmarks.speaking --texts 1,64 --steps 300 --json synthesis.json
    python -m benchmarks.speaking --device cpu --voices --threads 2,1   # also with ONNX Runtime

The benchmark uses a full-size model with random weights in float32. Every text has --symbols
symbols and takes --steps decoder steps, because the stop-token predictor is off. The benchmark
times everything from symbol ids to the mel in CPU memory. If librosa is installed, the benchmark
also times Griffin-Lim on the CPU, for one text.

On a CPU, the decoder steps run one by one. On a GPU, the benchmark compares single decoder steps
with CUDA graphs of decoder steps (fast_decoder/captured_steps.py), and checks that the mels are
equal. The time for CUDA graphs includes the time for capturing the graphs. With --voices, the
benchmark also times the same model as an exported voice, which synthesizes one text after another.
The compared methods run interleaved, so that changes in the speed of the machine affect all methods
equally.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.speaking")


import argparse
import contextlib
import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import model
from audio import mel_filters
from benchmarks import options
from benchmarks.timing import median_and_range, publish, time_interleaved
from fast_decoder import captured_steps
from hparams import create_hparams
from model import Tacotron2
from tacotron2_voice.griffin_lim import GriffinLim
from tacotron2_voice.utils.arguments import whole_numbers
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.voice import Voice

WAYS = {"one by one": model.free_running, "graphs": captured_steps.free_running}


def speak(
    args: argparse.Namespace, speaker: Tacotron2, count: int, way: str, threads: int
) -> torch.Tensor:
    """Synthesize `count` random texts, which are the same in each call. Return the mels of these
    texts [count, n_mels, frames]."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    shape = (count, args.symbols)
    texts = torch.randint(1, args.hparams.n_symbols, shape, generator=generator).to(args.device)
    masks = speaker.decoder.draw_masks(speaker.max_decoder_steps, count, generator)
    speaker.speaking_decoder = WAYS[way]
    return speaker.infer(texts, torch.full((count,), args.symbols), masks).mel_postnet.cpu()


def export(args: argparse.Namespace, speaker: Tacotron2, folder: Path) -> dict[str, Path]:
    """Export the model as a float32 voice and as an int8 voice. Return {title of the voice in the
    table: folder of the voice}."""
    # The export module is imported here because GPU machines may lack onnx.
    from export.checkpoint_synthesizer import CheckpointSynthesizer
    from export.voice_export import ComparedText, export_voice

    settings = replace(args.hparams, gate_threshold=0.5)
    synthesizer = CheckpointSynthesizer(speaker.cpu(), settings)
    texts = [ComparedText(list(range(1, 21)))]
    export_voice(synthesizer, folder / "fp32", None)
    export_voice(synthesizer, folder / "int8", texts)
    return {f"ONNX {kind}": folder / kind for kind in ("fp32", "int8")}


def speak_voice(args: argparse.Namespace, voice: Voice, count: int) -> np.ndarray:
    """Synthesize `count` random texts one after another. The texts are the same in each call.
    Return the mels of these texts [count, n_mels, frames]."""
    shape = (count, args.symbols)
    texts = np.random.default_rng(0).integers(1, args.hparams.n_symbols, shape).tolist()
    mels = []
    for text in texts:
        stream = voice.stream_mels(text, max_symbols=args.symbols, retries=0)
        mels.append(np.concatenate([*stream], axis=1))
    return np.stack(mels)


def measure(
    args: argparse.Namespace, speaker: Tacotron2, voices: dict[str, Path]
) -> list[dict[str, Any]]:
    """Return one table row for each combination of number of texts, number of threads and method.
    The last row of the table is for Griffin-Lim."""
    ways = list(WAYS) if args.device.type == "cuda" else list(WAYS)[:1]
    # Number of mel frames per second of audio.
    second = args.hparams.sampling_rate / args.hparams.hop_length
    rows = []
    endless = f"max_decoder_steps={args.steps},gate_threshold=1"
    for count in args.texts:
        tasks: dict[str, Callable[[], Any]] = {}
        for threads in args.threads:
            for way in ways:
                one = functools.partial(speak, args, speaker, count, way, threads)
                tasks[f"{way}/{threads}"] = one
            for way, path in voices.items():
                voice = Voice(path, endless, threads)
                tasks[f"{way}/{threads}"] = functools.partial(speak_voice, args, voice, count)
        mels = {name: task() for name, task in tasks.items()}
        seconds = time_interleaved(tasks, args.repeats, args.device, title=f"{count} at once")
        for name, mel in mels.items():
            way, _, threads = name.rpartition("/")
            same = torch.equal(mel, mels[f"{ways[0]}/{threads}"]) if way in WAYS else None
            factors = (seconds[name] * second / (count * mel.shape[2])).tolist()
            row = {"texts": count, "way": way, "threads": int(threads), "bitwise_the_same": same}
            rows.append(row | {"real_time_factors": factors})
    mel = speak(args, speaker, 1, ways[0], args.threads[0])[0]
    factors = None
    with contextlib.suppress(ImportError):  # Griffin-Lim is timed only if librosa is installed
        griffin_lim = GriffinLim(args.hparams, mel_filters(args.hparams).numpy())
        invert = functools.partial(griffin_lim.samples, mel.float().cpu().numpy())
        [times] = time_interleaved({"Griffin-Lim": invert}, args.repeats, mel.device).values()
        factors = (times * second / mel.shape[1]).tolist()
    row = {"texts": 1, "way": "Griffin-Lim", "threads": args.threads[0], "bitwise_the_same": None}
    return [*rows, row | {"real_time_factors": factors}]


def main(arguments: list[str] | None = None) -> None:
    parser = options.measuring_parser(
        __doc__,
        symbols=(120, "number of symbols per text"),
        steps=(600, "number of decoder steps per text"),
        repeats=(5, "number of times that each method synthesizes the texts"),
    )
    about = "numbers of texts per batch, separated by commas (default: %(default)s)"
    parser.add_argument("--texts", type=whole_numbers, default="1,16", help=about)
    about = "measure with these numbers of CPU threads, separated by commas (default: %(default)s)"
    threads = str(torch.get_num_threads())
    parser.add_argument("--threads", type=whole_numbers, default=threads, help=about)
    about = "also measure exported voices on a CPU (needs requirements/onnx.txt)"
    parser.add_argument("--voices", action="store_true", help=about)
    args = parser.parse_args(arguments)
    hparams = create_hparams(args.hparams)
    if hparams.speaker_embedding_dim:
        parser.error(
            "speaker_embedding_dim: expected 0, because this benchmark uses a single-speaker model"
        )
    args.hparams = replace(hparams, max_decoder_steps=args.steps, gate_threshold=1.0)
    torch.manual_seed(0)
    speaker = Tacotron2(args.hparams).eval().to(args.device)
    with tempfile.TemporaryDirectory() as folder:
        rows = measure(args, speaker, export(args, speaker, Path(folder)) if args.voices else {})
    result = {name: getattr(args, name) for name in ("symbols", "steps", "repeats")}
    cells = []
    for row in rows:
        factors, same = row["real_time_factors"], row["bitwise_the_same"]
        factor = median_and_range(factors, 4) if factors else "not measured"
        same_mel = {True: "yes", False: "NO"}.get(same, "")
        cells.append([row["texts"], row["way"], row["threads"], factor, same_mel])
    titles = ["texts", "method", "threads", "real-time factor, median (range)", "same mel"]
    table = markdown_table(titles, cells, 2)
    text = f"{args.steps} decoder steps per text, {args.repeats} repeats\n\n{table}"
    publish(args, result | {"rows": rows}, text)


if __name__ == "__main__":
    run_program(main)
