"""How long a model takes to speak: seconds of computing for a second of sound, up to the mel.

    python benchmarks/synthesis.py                                  # 1 text, then 16 in one batch
    python benchmarks/synthesis.py --texts 1,64 --steps 300 --json synthesis.json

The full-size model with random weights, in float32, which synthesize.py speaks in too. All texts
have as many symbols, and speak for as many steps as --steps says: the gate cannot stop them. Timed
is all from symbol ids to the mel in the machine's memory: prenet masks, encoder, decoder, postnet.
Griffin-Lim is timed apart, on the CPU, for one text's mel; where librosa is missing it is not.

On a GPU the loop that launches each step's operators one by one and the CUDA graphs that replay
them (captured_steps.py) run in turns, the capture included each time, and their mels are compared.
The ratio is that of medians. A CPU has the first of them only.
"""

import project_root

import argparse
import statistics
import sys

import torch

import captured_steps
import model
from analysis.arguments import (
    add_device_option,
    add_json_option,
    at_least_one,
    make_parser,
    whole_numbers,
)
from analysis.tables import markdown_table
from audio import griffin_lim
from errors import UserError
from files import write_json
from hparams import create_hparams
from model import Tacotron2
from training.machine import measured_on, seconds_of

WAYS = {"one by one": model.free_running, "graphs": captured_steps.free_running}


def make_texts(args: argparse.Namespace, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Symbol ids [count, symbols] and their lengths [count], of `--symbols`."""
    generator = torch.Generator().manual_seed(0)
    shape = (count, args.symbols)
    text = torch.randint(1, args.hparams.n_symbols, shape, generator=generator)
    return text.to(args.device), torch.full((count,), args.symbols)


def speak(speaker: Tacotron2, text: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The mel [B, n_mels, frames], as speaking.py makes it of one text."""
    generator = torch.Generator().manual_seed(0)
    masks = speaker.decoder.draw_masks(speaker.max_decoder_steps, len(text), generator)
    return speaker.infer(text, lengths, masks).mel_postnet.cpu()


def time_batch(args: argparse.Namespace, speaker: Tacotron2, count: int) -> list[dict]:
    """A row for each way to speak so many texts at once."""
    texts, times, mels = make_texts(args, count), {way: [] for way in args.ways}, {}

    def run(way: str) -> None:
        mels[way] = speak(speaker, *texts)

    for repeat in range(args.repeats + 1):
        kind = f"repeat {repeat}" if repeat else "warm-up"
        for way in args.ways:
            speaker.speaking_decoder = WAYS[way]
            seconds = seconds_of(args.device, run, way)
            print(f"{kind}: {count} at once, {way}, {seconds:.3f} s", file=sys.stderr, flush=True)
            if repeat:
                times[way].append(seconds)
    hparams, first = args.hparams, args.ways[0]
    frames = count * args.steps * hparams.n_frames_per_step
    sound = frames * hparams.hop_length / hparams.sampling_rate
    return [
        {
            "texts": count,
            "way": way,
            "seconds": statistics.median(times[way]),
            "seconds_of_sound": sound,
            "real_time_factor": statistics.median(times[way]) / sound,
            "real_time_factor_range": [min(times[way]) / sound, max(times[way]) / sound],
            "over_one_by_one": statistics.median(times[first]) / statistics.median(times[way]),
            "bitwise_the_same": torch.equal(mels[way], mels[first]),
            "all_seconds": times[way],
        }
        for way in args.ways
    ]


def time_griffin_lim(args: argparse.Namespace, speaker: Tacotron2) -> float | None:
    """Median seconds of computing for a second of sound; None without librosa."""
    mel = speak(speaker, *make_texts(args, 1))[0]
    sound = mel.shape[1] * args.hparams.hop_length / args.hparams.sampling_rate
    times = []
    try:
        for _ in range(args.repeats + 1):
            times.append(seconds_of(mel.device, griffin_lim, mel, args.hparams))
    except ImportError:
        return None
    return statistics.median(times[1:]) / sound  # the first imports librosa


def report(result: dict) -> str:
    """Markdown."""
    rows = [
        [
            row["texts"],
            row["way"],
            f"{row['seconds']:.3f}",
            f"{row['real_time_factor']:.4f}",
            "{:.4f} to {:.4f}".format(*row["real_time_factor_range"]),
            f"{row['over_one_by_one']:.2f} x",
            "yes" if row["bitwise_the_same"] else "NO",
        ]
        for row in result["rows"]
    ]
    titles = ["texts", "steps", "seconds", "real-time factor", "its range", "as fast", "same mel"]
    factor = result["griffin_lim_real_time_factor"]
    sound = "not measured" if factor is None else f"{factor:.4f}"
    return (
        f"{result['device']}, torch {result['versions']['torch']}: texts of {result['symbols']} "
        f"symbols, {result['steps']} steps each; medians of {result['repeats']}\n\n"
        f"{markdown_table(titles, rows, labels=2)}\n\n"
        f"Griffin-Lim of one text on the CPU, its real-time factor: {sound}"
    )


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_device_option(parser)
    add_json_option(parser)
    shown = "default: %(default)s"
    add("--texts", type=whole_numbers(1), default="1,16", help=f"at once; {shown}")
    add("--symbols", type=at_least_one, default=120, help=f"of a text; {shown}")
    add("--steps", type=at_least_one, default=600, help=f"of the decoder; {shown}")
    add("--repeats", type=at_least_one, help="after one warm-up; default: 3, on a GPU 10")
    add("--hparams", default="", metavar="name=value,...", help="change the full-size model")
    args = parser.parse_args(arguments)
    if not args.texts:
        parser.error("--texts: expected numbers from 1, as in 1,16")
    try:
        args.hparams = create_hparams(
            f"{args.hparams},max_decoder_steps={args.steps},gate_threshold=1".removeprefix(",")
        )
    except UserError as error:
        parser.error(str(error))
    on_gpu = args.device.type == "cuda"
    args.ways = list(WAYS) if on_gpu else ["one by one"]
    args.repeats = (10 if on_gpu else 3) if args.repeats is None else args.repeats
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    torch.manual_seed(0)
    speaker = Tacotron2(args.hparams).eval().to(args.device)
    result = {
        "rows": [],
        "griffin_lim_real_time_factor": None,
        "symbols": args.symbols,
        "steps": args.steps,
        "repeats": args.repeats,
        **measured_on(args.device),
    }

    def save() -> None:
        """Anew after every part, so that a kill leaves what is done."""
        if args.json:
            write_json(args.json, result)

    for count in args.texts:
        result["rows"] += time_batch(args, speaker, count)
        save()
    result["griffin_lim_real_time_factor"] = time_griffin_lim(args, speaker)
    save()
    print(report(result))
    if args.json:
        print(f"\nwrote {args.json}")


if __name__ == "__main__":
    main()
