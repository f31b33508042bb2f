"""How long a model takes to speak: seconds of computing for a second of speech, up to the mel.

    python benchmarks/synthesis.py                                  # 1 text, then 16 in one batch
    python benchmarks/synthesis.py --texts 1,64 --steps 300 --json synthesis.json

The full-size model with random weights, in float32 as synthesize.py. Every text has --symbols
symbols and takes --steps decoder steps: the gate cannot stop it. Timed is all from symbol ids to
the mel in the machine's memory. Griffin-Lim is timed separately, on the CPU, for one text's mel,
where librosa is installed.

On a GPU the steps one by one and in CUDA graphs (captured_steps.py) run in turns, the capture
included each time, and their mels are compared. On a CPU they run one by one only.
"""

import project_root

import argparse
import contextlib
import functools
from dataclasses import replace
from typing import Any

import torch

import captured_steps
import model
from analysis import arguments as options
from analysis.timing import median_and_range, publish, time_in_turns
from audio import griffin_lim
from hparams import create_hparams
from model import Tacotron2
from tables import markdown_table

WAYS = {"one by one": model.free_running, "graphs": captured_steps.free_running}


def speak(args: argparse.Namespace, speaker: Tacotron2, count: int, way: str) -> torch.Tensor:
    """The mel [count, n_mels, frames] of random texts, the same each time."""
    generator, shape = torch.Generator().manual_seed(0), (count, args.symbols)
    texts = torch.randint(1, args.hparams.n_symbols, shape, generator=generator).to(args.device)
    masks = speaker.decoder.draw_masks(speaker.max_decoder_steps, count, generator)
    speaker.speaking_decoder = WAYS[way]
    return speaker.infer(texts, torch.full((count,), args.symbols), masks).mel_postnet.cpu()


def measure(args: argparse.Namespace, speaker: Tacotron2) -> list[dict[str, Any]]:
    """A row for each number of texts and each way to speak them; Griffin-Lim's at the end."""
    ways = list(WAYS) if args.device.type == "cuda" else list(WAYS)[:1]
    second = args.hparams.sampling_rate / args.hparams.hop_length  # in frames
    rows = []
    for count in args.texts:
        tasks = {way: functools.partial(speak, args, speaker, count, way) for way in ways}
        mels = [task() for task in tasks.values()]
        seconds = time_in_turns(tasks, args.repeats, args.device, title=f"{count} at once")
        for way, mel in zip(ways, mels, strict=True):
            row = {"texts": count, "way": way, "bitwise_the_same": torch.equal(mel, mels[0])}
            factors = (seconds[way] * second / (count * mel.shape[2])).tolist()
            rows.append(row | {"real_time_factors": factors})
    mel = speak(args, speaker, 1, ways[0])[0]
    factors = None
    with contextlib.suppress(ImportError):  # no librosa
        task = functools.partial(griffin_lim, mel, args.hparams)
        [times] = time_in_turns({"Griffin-Lim": task}, args.repeats, mel.device).values()
        factors = (times * second / mel.shape[1]).tolist()
    row = {"texts": 1, "way": "Griffin-Lim", "bitwise_the_same": None, "real_time_factors": factors}
    return [*rows, row]


def main(arguments: list[str] | None = None) -> None:
    parser = options.measuring_parser(__doc__, symbols=120, steps=600, repeats=5)
    shown = "at once (%(default)s)"
    parser.add_argument("--texts", type=options.whole_numbers, default="1,16", help=shown)
    args = parser.parse_args(arguments)
    hparams = create_hparams(args.hparams)
    args.hparams = replace(hparams, max_decoder_steps=args.steps, gate_threshold=1.0)
    torch.manual_seed(0)
    rows = measure(args, Tacotron2(args.hparams).eval().to(args.device))
    result = {name: getattr(args, name) for name in ("symbols", "steps", "repeats")}
    cells = []
    for row in rows:
        factors, same = row["real_time_factors"], row["bitwise_the_same"]
        shown = median_and_range(factors, 4) if factors else "not measured"
        cells.append([row["texts"], row["way"], shown, {True: "yes", False: "NO"}.get(same, "")])
    table = markdown_table(["texts", "steps", "real-time factor", "same mel"], cells, 2)
    text = f"{args.steps} steps each; medians and ranges of {args.repeats}\n\n{table}"
    publish(args, result | {"rows": rows}, text)


if __name__ == "__main__":
    main()
