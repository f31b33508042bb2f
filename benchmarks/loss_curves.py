"""Does the fast decoder train like the reference? Both curves, their difference, and what it means.

    python benchmarks/loss_curves.py
    python benchmarks/loss_curves.py --precision bf16 --picture curves.png --json curves.json

A small model is trained with either decoder, from the same weights, on the same batches, with the
same dropout. The corpus is made up and can be learnt: every symbol has a spectrum and a length of
its own. Two programs that round differently drift apart as they train, whatever they compute. So
three more runs, the yardsticks, train the reference decoder from weights that were rounded
otherwise, each moved by up to half a unit in the last place of the precision: a difference about as
large as theirs is float noise. Each decoder is trained a second time too, to see whether it repeats
itself bit for bit.

Most of the weights' early distance lies in biases that batch norm cancels: their gradients are
noise alone, which Adam turns into whole steps. The losses part later, by and by, or all at once
where one activation comes to lie on the other side of a ReLU's kink.
"""

import project_root

import argparse
import math
from dataclasses import asdict, replace

import torch
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import fast_path
from analysis.arguments import (
    add_measuring_options,
    add_picture_option,
    at_least_one,
    make_parser,
)
from analysis.clips import learnable_batches
from analysis.figures import write_picture
from errors import UserError
from files import write_json
from hparams import HParams, create_hparams
from progress import progress_bar
from training.machine import measured_on, synchronize
from training.trainer import AUTOCAST_DTYPES, MicroBatch, Trainer

SMALL = (
    "symbols_embedding_dim=64,encoder_embedding_dim=64,attention_rnn_dim=128,decoder_rnn_dim=128,"
    "prenet_dim=32,attention_dim=32,attention_location_n_filters=8,postnet_embedding_dim=64,"
    "batch_size=8"
)
REFERENCE, FAST = "reference", "fast"
YARDSTICKS = ("yardstick 1", "yardstick 2", "yardstick 3")


# ---------------------------------------------------------------------------- training


def last_place(precision: str) -> float:
    """A unit in the last place of 1."""
    tf32 = 2.0**-10  # it has no dtype of its own
    dtype = AUTOCAST_DTYPES[precision] or torch.float32
    return tf32 if precision == "tf32" else torch.finfo(dtype).eps


def round_otherwise(model: torch.nn.Module, epsilon: float, seed: int) -> None:
    """Move every weight by up to epsilon / 2 of itself."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            moves = torch.rand(parameter.shape, generator=generator) - 0.5
            parameter *= 1 + epsilon * moves.to(parameter.device)


def train_all(precision: str, device: torch.device, hparams: HParams, steps: int) -> dict:
    """All runs side by side, a step each in turn.

    Returns the losses of the runs that are drawn; of all but the reference the weights' distance
    from the reference's after each step, relative to their norm; and whether a second run of each
    decoder had the same losses and weights bit for bit.
    """
    decoders = {REFERENCE: "reference", FAST: "fast"} | dict.fromkeys(YARDSTICKS, "reference")
    decoders |= {f"{REFERENCE} again": "reference", f"{FAST} again": "fast"}
    runs = {
        name: Trainer(replace(hparams, decoder=decoder, precision=precision), device)
        for name, decoder in decoders.items()
    }
    for seed, name in enumerate(YARDSTICKS):
        round_otherwise(runs[name].model, last_place(precision), seed)
    batches = learnable_batches(6, hparams)
    losses: dict[str, list[float]] = {name: [] for name in runs}
    distances: dict[str, list[float]] = {name: [] for name in (FAST, *YARDSTICKS)}
    for step in progress_bar("training", steps, " steps", iterable=range(steps)):
        for name, trainer in runs.items():
            torch.manual_seed(step)  # the dropout of this step
            values = trainer.step([MicroBatch(batches[step % len(batches)])]).values
            synchronize(device)
            losses[name].append(float(values[0]))
        reference = weights(runs[REFERENCE])
        for name, run_distances in distances.items():
            distance = (weights(runs[name]) - reference).norm() / reference.norm()
            run_distances.append(float(distance))
    repeats = {
        name: losses[f"{name} again"] == losses[name]
        and torch.equal(weights(runs[f"{name} again"]), weights(runs[name]))
        for name in (REFERENCE, FAST)
    }
    drawn = {name: losses[name] for name in (REFERENCE, FAST, *YARDSTICKS)}
    return {"losses": drawn, "weight_distances": distances, "repeats_bitwise": repeats}


def weights(trainer: Trainer) -> torch.Tensor:
    """All of a model's parameters, one after another."""
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()).detach()


# ---------------------------------------------------------------------------- the report


def compare(args: argparse.Namespace, hparams: HParams) -> dict:
    trained = train_all(args.precision, args.device, hparams, args.steps)
    losses = trained["losses"]
    differences = {
        name: [abs(a - b) / abs(b) for a, b in zip(losses[name], losses[REFERENCE], strict=True)]
        for name in (FAST, *YARDSTICKS)
    }
    return {
        "largest_relative_difference": max(differences[FAST]),
        "largest_relative_difference_of_yardsticks": [max(differences[n]) for n in YARDSTICKS],
        **trained,
        "relative_differences": differences,
        "steps": args.steps,
        "precision": args.precision,
        "hparams": asdict(hparams),
        **measured_on(args.device),
    }


def summary(result: dict) -> str:
    reference, fast = (result["losses"][name] for name in (REFERENCE, FAST))
    distances = result["weight_distances"]
    repeats = [
        f"{decoder}: a second run was {'the same bit for bit' if same else 'NOT the same'}"
        for decoder, same in result["repeats_bitwise"].items()
    ]
    return "\n".join(
        [
            f"{result['device']}, torch {result['versions']['torch']}, {result['precision']}: "
            f"{result['steps']} steps of a small model",
            f"loss {reference[0]:.4f} in the first step; in the last {reference[-1]:.4f} with the "
            f"reference decoder, {fast[-1]:.4f} with the fast one",
            "fast from reference: the loss of a step differs by at most "
            f"{result['largest_relative_difference']:.1e} of itself, the weights after the last "
            f"step by {distances[FAST][-1]:.1e}",
            "the reference from itself, its first weights rounded otherwise in three ways: "
            f"{spread(result['largest_relative_difference_of_yardsticks'])} and "
            f"{spread([distances[name][-1] for name in YARDSTICKS])}",
            *repeats,
        ]
    )


def spread(values: list[float]) -> str:
    return f"{min(values):.1e} to {max(values):.1e}"


def draw(result: dict) -> Figure:
    """Both curves over one another, and below how far losses and weights are apart."""
    steps = range(1, result["steps"] + 1)
    blue, red, grey = "#0072B2", "#D55E00", "#808080"  # Okabe and Ito's, with a grey
    figure = Figure(figsize=(8, 8), dpi=100, layout="constrained")
    curves, loss, weight = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2.2, 2.2))
    broad = {"color": blue, "linewidth": 6, "alpha": 0.35, "solid_capstyle": "round"}
    dashed = {"color": red, "linewidth": 1.6, "linestyle": (0, (4, 2))}
    dotted = {"color": grey, "linewidth": 1.4, "linestyle": (0, (1, 1.2))}
    squares = {"marker": "s", "markersize": 6.5, "markerfacecolor": "none"}
    dots = {"marker": "o", "markersize": 4}
    curves.plot(steps, result["losses"][REFERENCE], label="reference decoder", **broad)
    curves.plot(steps, result["losses"][FAST], label="fast decoder", **dashed)
    for name in (*YARDSTICKS, FAST):
        line, marker = (dashed, dots) if name == FAST else (dotted, squares)
        differences, distances = result["relative_differences"][name], result["weight_distances"]
        loss.plot(steps, differences, **line | marker | {"linestyle": "none"})
        weight.plot(steps, distances[name], **line)
    curves.set(ylabel="training loss", ylim=(0, None), xlim=(0, result["steps"] + 1))
    # Equal losses are at 0; under half the last place no two float32 numbers differ.
    loss.set_yscale("symlog", linthresh=2.0**-24)
    largest = max(max(values) for values in result["relative_differences"].values())
    top = math.ceil(math.log10(max(largest, 1e-7)) + 0.01)
    loss.set_yticks([0, *(10.0**power for power in range(-7, top + 1))])
    loss.set(ylabel="loss: relative difference", ylim=(-1.5e-8, 10.0**top))
    smallest = min(min(result["weight_distances"][name]) for name in (FAST, *YARDSTICKS))
    farthest = max(max(result["weight_distances"][name]) for name in (FAST, *YARDSTICKS))
    powers = math.floor(math.log10(max(smallest, 1e-12))), math.ceil(math.log10(farthest + 1e-11))
    weight.set(yscale="log", ylim=tuple(10.0**power for power in powers))
    weight.set(ylabel="weights: relative distance", xlabel="training step")
    curves.set_title(
        f"The same training with either decoder: a small model, {result['precision']}, "
        f"{result['device'].split(',')[0]}",
        loc="left",
        fontsize=11,
    )
    for axes in (curves, loss, weight):
        axes.grid(True, which="major", color="#e3e3e3", linewidth=0.8)
        axes.minorticks_off()
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    curves.legend(frameon=False, loc="upper right")
    handles = [Line2D([], [], **dashed | dots), Line2D([], [], **dotted | squares)]
    labels = [
        "fast decoder from reference decoder",
        "reference decoder from itself, its first weights rounded otherwise (three times)",
    ]
    figure.legend(handles, labels, loc="outside lower left", frameon=False)
    return figure


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--steps", type=at_least_one, default=50)
    add_measuring_options(parser)
    add_picture_option(parser)
    add("--hparams", default="", metavar="name=value,...", help="change the small model")
    args = parser.parse_args(arguments)
    if not fast_path.IS_HERE:
        parser.error(fast_path.MISSING)
    try:
        hparams = create_hparams(args.hparams, create_hparams(SMALL))
    except UserError as error:
        parser.error(str(error))
    result = compare(args, hparams)
    print(summary(result))
    if args.picture:
        write_picture(draw(result), args.picture)
        print(f"wrote {args.picture}")
    if args.json:
        write_json(args.json, result)
        print(f"wrote {args.json}")


if __name__ == "__main__":
    main()
