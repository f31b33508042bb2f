"""The whole recipe in a few minutes on a CPU: two batching strategies side by side.

    python scripts/demo.py [--out demo]

Makes a corpus of synthesised speech, prepares filelists, trains a small model under random
batches (RAND) and under the paper's best batching (SSB-DBS-BR), and compares them. Run again, it
goes on where it stopped; finished, it only shows the comparison.
"""

from project_root import ROOT

import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

from analysis.arguments import make_parser
from analysis.metrics import RunMetrics, read_metrics
from analysis.tables import text_table
from errors import UserError
from files import write_atomically

RUNS = {
    "RAND": "batching_strategy=random,dynamic_batch_size=False,batch_randomization=False",
    "SSB-DBS-BR": "batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=True",
}
COLOURS = {"RAND": "#D55E00", "SSB-DBS-BR": "#0072B2"}  # told apart by the colour-blind too
MODEL = ROOT / "scripts" / "small_model.txt"
TRAINING = "epochs_per_validation=1,log_interval=2,batch_size=16"
SENTENCE = "The old clock on the tower stopped at nine, and nobody in the town heard it."


def run(*command: str | Path) -> None:
    """Run a program of the recipe, showing the command as a user would type it."""
    program, *arguments = map(str, command)
    print("\n$ python", program, shlex.join(arguments), flush=True)
    # A model this small is faster on one thread: its matrices are not worth sharing out.
    process = subprocess.Popen(
        [sys.executable, ROOT / program, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the program too, which saves
            process.wait()
    if process.returncode != 0:
        sys.exit(
            f"the demo stopped at {program}; run it again to go on, or delete the output folder "
            "to start anew"
        )


def make_runs(out: Path, clips: int, epochs: int) -> dict[str, Path]:
    """Corpus, filelists and the folder of each run by its name; what is there already is kept."""
    run("scripts/make_demo_corpus.py", out / "corpus", "--clips", str(clips))
    run("scripts/prepare_ljspeech.py", out / "corpus", "--out", out / "filelists")
    shared = f"@{out / 'filelists' / 'settings.txt'},@{os.path.relpath(MODEL)},{TRAINING}"
    folders = {name: out / name.lower() for name in RUNS}
    for name, batching in RUNS.items():
        hparams = f"{shared},epochs={epochs},{batching}"
        run("train.py", "-o", folders[name], "--resume", "--hparams", hparams)
    return folders


def summarise(metrics: RunMetrics) -> dict[str, float]:
    """Means over the epochs, the median of times and rates, the last validation."""
    epochs, last = metrics.epochs, metrics.validations[-1]
    return {
        "ZPR": statistics.mean(epoch.zero_padding_rate for epoch in epochs),
        "ABL": statistics.mean(epoch.average_batch_length for epoch in epochs),
        "batches": statistics.mean(epoch.num_batches for epoch in epochs),
        "minutes": statistics.median(epoch.minutes for epoch in epochs),
        "frames_per_second": statistics.median(epoch.frames_per_second for epoch in epochs),
        "loss": last.validation_loss,
        "loss_unpadded": last.validation_loss_unpadded,
    }


def table(summaries: dict[str, dict[str, float]]) -> str:
    """A row a run; the saving is of the minutes of an epoch, against RAND."""
    titles = ["batching", "ZPR %", "ABL", "batches", "min/epoch", "frames/s", "val. loss"]
    rows = []
    for name, s in summaries.items():
        saving = 1 - s["minutes"] / summaries["RAND"]["minutes"]
        rows.append(
            [
                name,
                f"{100 * s['ZPR']:.2f}",
                f"{s['ABL']:.1f}",
                f"{s['batches']:.1f}",
                f"{s['minutes']:.3f}",
                f"{s['frames_per_second']:,.0f}",
                f"{s['loss']:.4f}",
                f"{s['loss_unpadded']:.4f}",
                "–" if name == "RAND" else f"{saving:.1%}",
            ]
        )
    return text_table([*titles, "unpadded", "saving"], rows)


def draw(path: Path, runs: dict[str, RunMetrics]) -> None:
    """The comparison as a picture: time, padding and learning of both runs."""
    figure = Figure(figsize=(11, 3.6), dpi=120, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name, metrics in runs.items():
        s, colour = summarise(metrics), COLOURS[name]
        bars = left.bar(name, s["minutes"], color=colour, width=0.6)
        left.bar_label(bars, fmt="%.3f")
        padded = s["ABL"] * statistics.mean(epoch.padded_fraction for epoch in metrics.epochs)
        middle.bar(name, s["ABL"] - padded, color=colour, width=0.6)
        hatched = {"color": "white", "edgecolor": colour, "hatch": "///"}
        bars = middle.bar(name, padded, bottom=s["ABL"] - padded, width=0.6, **hatched)
        middle.bar_label(bars, labels=[f"ZPR {s['ZPR']:.1%}"], label_type="edge", padding=2)
        minutes = [
            sum(epoch.minutes for epoch in metrics.epochs[: validation.epoch])
            for validation in metrics.validations
        ]
        losses = [validation.validation_loss_unpadded for validation in metrics.validations]
        right.plot(minutes, losses, "o-" if name == "RAND" else "s--", color=colour, label=name)
    left.set(title="time", ylabel="minutes per epoch (median)")
    middle.set(title="what a clip costs: real frames, padding (hatched)", ylabel="frames per clip")
    middle.title.set_fontsize(10)
    for axes in (left, middle):
        axes.margins(y=0.15)
    right.set(title="learning", xlabel="minutes of training", ylim=0)
    right.set(ylabel="validation loss, unpadded")
    right.legend()
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="default: demo")
    parser.add_argument("--clips", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=4, help="of each run")
    args = parser.parse_args(arguments)
    out, began = args.out, time.monotonic()
    try:
        folders = make_runs(out, args.clips, args.epochs)
        best, speech = folders["SSB-DBS-BR"] / "best.pt", out / "speech"
        short = "max_decoder_steps=500"
        run(
            "synthesize.py",
            *("--checkpoint", best, "--text", SENTENCE, "-o", speech, "--hparams", short),
        )
        runs = {name: read_metrics(folder) for name, folder in folders.items()}
        comparison = table({name: summarise(metrics) for name, metrics in runs.items()})
        write_atomically(
            out / "comparison.txt", lambda path: path.write_text(f"{comparison}\n", "utf-8")
        )
        draw(out / "comparison.png", runs)
    except KeyboardInterrupt:
        sys.exit("the demo was stopped; run it again to go on")
    except (UserError, OSError) as error:
        sys.exit(f"demo: {error}")
    print(f"""
{comparison}

ZPR zero-padding rate, ABL average batch length in frames; saving: minutes per epoch against RAND.
The paper reports a saving of 41 % for SSB-DBS-BR on the full LJSpeech.
{args.epochs} epochs of {args.clips} clips teach a model to hum, not to speak:
the losses show that both learn, not which is better.

this table     {out / "comparison.txt"}
picture        {out / "comparison.png"}
TensorBoard    {shlex.quote(sys.executable)} -m tensorboard.main --logdir {shlex.quote(str(out))}
checkpoints    {best} and beside it
synthesised    {speech / "0001.wav"}
took           {(time.monotonic() - began) / 60:.1f} minutes

Next, LJSpeech on a GPU:
  python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --download --cache-mels data/mels
It ends by naming the command that trains.""")


if __name__ == "__main__":
    main()
