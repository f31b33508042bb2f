"""Do tf32 and bf16 train like fp32? The losses of the same steps in each precision.

    python benchmarks/precisions.py --json precisions.json --picture precisions.svg
    python benchmarks/precisions.py --precisions bf16 --steps 1000 --hparams batch_size=32

A model is trained with the fast decoder in fp32 and in each precision: from the same weights, on
the same batches, with the same dropout. The corpus is made up and can be learnt: every symbol has a
spectrum and a length of its own. Runs drift apart as they train, whatever rounds them. So three
more runs, the yardsticks, are trained in fp32 with other dropout. What counts is the mean loss of
the last tenth of the steps: how far a precision's is from that of fp32, over how far the furthest
yardstick's is. Full-size model, unless --hparams changes it.
"""

import project_root

import argparse
import sys
from dataclasses import asdict, replace

import numpy as np
import torch
from matplotlib.figure import Figure

from analysis.arguments import (
    add_device_option,
    add_json_option,
    add_picture_option,
    make_parser,
    precision_list,
    whole_number,
)
from analysis.clips import learnable_batches
from analysis.figures import write_picture
from analysis.tables import markdown_table
from data_utils import Batch
from errors import UserError
from files import write_json
from hparams import HParams, create_hparams
from progress import progress_bar
from training.machine import measured_on, synchronize
from training.trainer import MicroBatch, Trainer

BASE = "batch_size=16,decoder=fast"
YARDSTICKS = 3
SMOOTHED = 10  # steps, in the picture
COLOURS = {"fp32": "#000000", "tf32": "#0072B2", "bf16": "#D55E00", "fp16": "#009E73"}


def train(
    hparams: HParams, device: torch.device, batches: list[Batch], steps: int, dropout: int
) -> list[float]:
    """The loss of every step; `dropout` seeds the dropout of all of them."""
    trainer, pending = Trainer(hparams, device), []
    title = f"{hparams.precision}, dropout {dropout}"
    for step in progress_bar(title, steps, " steps", iterable=range(steps)):
        torch.manual_seed(dropout * steps + step)
        pending.append(trainer.step([MicroBatch(batches[step % len(batches)])]).values)
    synchronize(device)
    return [float(values[0]) for values in pending]


def end_of(losses: list[float]) -> float:
    """The mean of the last tenth."""
    return float(np.mean(losses[-max(1, len(losses) // 10) :]))


def compare(
    hparams: HParams, device: torch.device, precisions: list[str], steps: int
) -> tuple[dict, dict]:
    """Losses of every run; and of each precision, "<precision>_over_yardsticks"."""
    batches = learnable_batches(6, hparams)

    def run(precision: str, dropout: int = 0) -> list[float]:
        return train(replace(hparams, precision=precision), device, batches, steps, dropout)

    losses = {"fp32": run("fp32")}
    losses |= {precision: run(precision) for precision in precisions}
    losses |= {f"yardstick {n}": run("fp32", n) for n in range(1, YARDSTICKS + 1)}
    apart = {name: abs(end_of(values) - end_of(losses["fp32"])) for name, values in losses.items()}
    furthest = max(apart[f"yardstick {n}"] for n in range(1, YARDSTICKS + 1))
    return losses, {f"{name}_over_yardsticks": apart[name] / furthest for name in precisions}


def summary(result: dict) -> str:
    """Markdown."""
    fp32 = end_of(result["losses"]["fp32"])
    rows = []
    for name, losses in result["losses"].items():
        ratio = result.get(f"{name}_over_yardsticks")
        rows.append(
            [
                name,
                f"{losses[0]:.4f}",
                f"{end_of(losses):.4f}",
                f"{end_of(losses) / fp32 - 1:+.2%}",
                "" if ratio is None else f"{ratio:.2f} x",
            ]
        )
    titles = ["run", "first loss", "last tenth", "from fp32", "of the furthest yardstick"]
    return (
        f"{result['device']}, torch {result['versions']['torch']}: {result['steps']} steps; "
        f"decoder: {result['fast_decoder']}\n\n"
    ) + markdown_table(titles, rows)


def draw(result: dict) -> Figure:
    """The losses, each the mean of SMOOTHED steps."""
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    for name, losses in result["losses"].items():
        width = min(SMOOTHED, len(losses))
        smooth = np.convolve(losses, np.full(width, 1 / width), mode="valid")
        colour = COLOURS.get(name, "#bbbbbb")
        label = name if name in COLOURS else "fp32 with other dropout" if "1" in name else None
        look = {"color": colour, "linewidth": 1.4, "label": label}
        axes.plot(np.arange(width, len(losses) + 1), smooth, zorder=1 + (name in COLOURS), **look)
    axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel(f"loss, mean of {SMOOTHED} steps")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add_device_option(parser)
    shown = "beside fp32; default: tf32,bf16, on a CPU bf16"
    add("--precisions", type=precision_list, metavar="tf32,bf16", help=shown)
    add("--steps", type=whole_number(1), default=300, help="default %(default)s")
    add("--hparams", default="", metavar="name=value,...", help="as train.py takes them")
    add_json_option(parser)
    add_picture_option(parser)
    args = parser.parse_args(arguments)
    if args.precisions is None:
        args.precisions = ["tf32", "bf16"] if args.device.type == "cuda" else ["bf16"]
    if "fp32" in args.precisions:
        parser.error("--precisions: fp32 is trained in any case; leave it out")
    try:
        args.hparams = create_hparams(args.hparams, create_hparams(BASE))
    except UserError as error:
        parser.error(str(error))
    return args


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    losses, ratios = compare(args.hparams, args.device, args.precisions, args.steps)
    if not np.isfinite(list(losses.values())).all():
        sys.exit("precisions.py: a loss is not finite; lower learning_rate")
    result = ratios | {
        "losses": losses,
        "steps": args.steps,
        "fast_decoder": Trainer(args.hparams, args.device).decoder_description,
        **measured_on(args.device),
        "hparams": asdict(args.hparams),
    }
    print(summary(result))
    if args.json:
        write_json(args.json, result)
        print(f"\nwrote {args.json}")
    if args.picture:
        write_picture(draw(result), args.picture)
        print(f"wrote {args.picture}")


if __name__ == "__main__":
    main()
