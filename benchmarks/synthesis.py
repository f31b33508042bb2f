"""How long a model takes to speak: seconds of computing for a second of speech, up to the mel.

    python benchmarks/synthesis.py                                  # 1 text, then 16 in one batch
    python benchmarks/synthesis.py --texts 1,64 --steps 300 --json synthesis.json

The full-size model with random weights, in float32 as synthesize.py. All texts have as many
symbols, and last for --steps decoder steps: the gate cannot stop them. Timed is all from symbol ids
to the mel in the machine's memory: prenet masks, encoder, decoder, postnet. Griffin-Lim is timed
separately, on the CPU, for one text's mel; where librosa is missing it is not.

On a GPU the loop that launches each step's operators one by one and the CUDA graphs that replay
them (captured_steps.py) run in turns, the capture included each time, and their mels are compared.
A CPU has the first of them only.
"""

import project_root

import argparse
import functools
from typing import Any

import numpy as np
import torch

import captured_steps
import model
from analysis import arguments as options
from analysis.tables import markdown_table
from analysis.timing import median_and_range, time_in_turns
from audio import griffin_lim
from errors import UserError
from files import write_json
from hparams import create_hparams
from machine import measured_on
from model import Tacotron2

WAYS = {"one by one": model.free_running, "graphs": captured_steps.free_running}
TITLES = ["texts", "steps", "real-time factor", "same mel"]


def speak(args: argparse.Namespace, speaker: Tacotron2, count: int, way: str) -> torch.Tensor:
    """The mel [count, n_mels, frames] of random texts, the same each time."""
    generator, shape = torch.Generator().manual_seed(0), (count, args.symbols)
    texts = torch.randint(1, args.hparams.n_symbols, shape, generator=generator).to(args.device)
    masks = speaker.decoder.draw_masks(speaker.max_decoder_steps, count, generator)
    speaker.speaking_decoder = WAYS[way]
    return speaker.infer(texts, torch.full((count,), args.symbols), masks).mel_postnet.cpu()


def measure(args: argparse.Namespace, speaker: Tacotron2) -> list[dict]:
    """A row for each number of texts and each way to speak them; Griffin-Lim's at the end."""
    ways = list(WAYS) if args.device.type == "cuda" else list(WAYS)[:1]
    second = args.hparams.sampling_rate / args.hparams.hop_length  # in frames
    rows = []
    for count in args.texts:
        tasks = {way: functools.partial(speak, args, speaker, count, way) for way in ways}
        mels = [task() for task in tasks.values()]
        seconds = time_in_turns(tasks, args.repeats, args.device, title=f"{count} at once")
        for way, mel in zip(ways, mels, strict=True):
            factors = seconds[way] * second / (count * mel.shape[2])
            rows.append({"texts": count, "way": way, "real_time_factors": factors.tolist()})
            rows[-1]["bitwise_the_same"] = torch.equal(mel, mels[0])
    mel = speak(args, speaker, 1, ways[0])[0]
    row: dict[str, Any] = {"texts": 1, "way": "Griffin-Lim", "real_time_factors": None}
    try:
        task = functools.partial(griffin_lim, mel, args.hparams)
        [times] = time_in_turns({"Griffin-Lim": task}, args.repeats, mel.device).values()
        row["real_time_factors"] = (times * second / mel.shape[1]).tolist()
    except ImportError:  # no librosa
        pass
    return [*rows, row | {"bitwise_the_same": None}]


def main(arguments: list[str] | None = None) -> None:
    parser = options.make_parser(__doc__)
    add = parser.add_argument
    options.add_device_option(parser)
    options.add_json_option(parser)
    shown = "default: %(default)s"
    add("--texts", type=options.whole_numbers(1), default="1,16", help=f"at once; {shown}")
    add("--symbols", type=options.at_least_one, default=120, help=f"of a text; {shown}")
    add("--steps", type=options.at_least_one, default=600, help=f"of the decoder; {shown}")
    add("--repeats", type=options.at_least_one, default=5, help=shown)
    add("--hparams", default="", metavar="name=value,...", help="change the full-size model")
    args = parser.parse_args(arguments)
    steps = f"max_decoder_steps={args.steps},gate_threshold=1"
    try:
        args.hparams = create_hparams(f"{args.hparams},{steps}".removeprefix(","))
    except UserError as error:
        parser.error(str(error))
    torch.manual_seed(0)
    rows = measure(args, Tacotron2(args.hparams).eval().to(args.device))
    result = {name: getattr(args, name) for name in ("symbols", "steps", "repeats")}
    result |= {"rows": rows} | measured_on(args.device)
    cells = []
    for row in rows:
        times, same = row["real_time_factors"], row["bitwise_the_same"]
        factor = median_and_range(np.array(times), 4) if times else "not measured"
        cells.append([row["texts"], row["way"], factor, {True: "yes", False: "NO"}.get(same, "")])
    print(
        f"{result['device']}, torch {result['versions']['torch']}: "
        f"{args.steps} steps each; medians and ranges of {args.repeats}\n\n"
        + markdown_table(TITLES, cells, 2)
    )
    if args.json:
        write_json(args.json, result)


if __name__ == "__main__":
    main()
