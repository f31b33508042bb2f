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


def speak(args: argparse.Namespace, speaker: Tacotron2, count: int, way: str) -> torch.Tensor:
    """The mel [count, n_mels, frames] of random texts, the same each time."""
    generator, shape = torch.Generator().manual_seed(0), (count, args.symbols)
    texts = torch.randint(1, args.hparams.n_symbols, shape, generator=generator).to(args.device)
    masks = speaker.decoder.draw_masks(speaker.max_decoder_steps, count, generator)
    speaker.speaking_decoder = WAYS[way]
    return speaker.infer(texts, torch.full((count,), args.symbols), masks).mel_postnet.cpu()


def time_batch(args: argparse.Namespace, speaker: Tacotron2, count: int) -> list[dict]:
    """A row for each way to speak so many texts at once."""
    mels = {}

    def task(way: str) -> None:
        mels[way] = speak(args, speaker, count, way)

    tasks = {way: lambda way=way: task(way) for way in args.ways}
    seconds = time_in_turns(tasks, args.repeats, args.device, title=f"{count} at once")
    frames = count * args.steps * args.hparams.n_frames_per_step
    speech = frames * args.hparams.hop_length / args.hparams.sampling_rate
    return [
        {
            "texts": count,
            "way": way,
            "seconds_of_speech": speech,
            "real_time_factor": float(np.median(seconds[way])) / speech,
            "bitwise_the_same": torch.equal(mels[way], mels[args.ways[0]]),
            "all_seconds": seconds[way].tolist(),
        }
        for way in args.ways
    ]


def time_griffin_lim(args: argparse.Namespace, speaker: Tacotron2) -> float | None:
    """Real-time factor; None without librosa."""
    mel = speak(args, speaker, 1, args.ways[0])[0]
    tasks = {"Griffin-Lim": lambda: griffin_lim(mel, args.hparams)}
    try:
        [seconds] = time_in_turns(tasks, args.repeats, mel.device).values()
    except ImportError:
        return None
    speech = mel.shape[1] * args.hparams.hop_length / args.hparams.sampling_rate
    return float(np.median(seconds)) / speech


def report(result: dict) -> str:
    """Markdown."""
    rows = []
    for row in result["rows"]:
        factors = np.array(row["all_seconds"]) / row["seconds_of_speech"]
        same = "yes" if row["bitwise_the_same"] else "NO"
        rows.append([row["texts"], row["way"], median_and_range(factors, 4), same])
    factor = result["griffin_lim_real_time_factor"]
    return (
        f"{result['device']}, torch {result['versions']['torch']}: texts of {result['symbols']} "
        f"symbols, {result['steps']} steps each; medians and ranges of {result['repeats']}\n\n"
        f"{markdown_table(['texts', 'steps', 'real-time factor', 'same mel'], rows, 2)}\n\n"
        "Griffin-Lim of one text on the CPU, its real-time factor: "
        + ("not measured" if factor is None else f"{factor:.4f}")
    )


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
    args.ways = list(WAYS) if args.device.type == "cuda" else ["one by one"]
    torch.manual_seed(0)
    speaker = Tacotron2(args.hparams).eval().to(args.device)
    sizes = {name: getattr(args, name) for name in ("symbols", "steps", "repeats")}
    result: dict[str, Any] = sizes | measured_on(args.device)
    result["rows"] = [row for count in args.texts for row in time_batch(args, speaker, count)]
    result["griffin_lim_real_time_factor"] = time_griffin_lim(args, speaker)
    print(report(result))
    if args.json:
        write_json(args.json, result)


if __name__ == "__main__":
    main()
