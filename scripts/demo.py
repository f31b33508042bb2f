"""From nothing to a model that speaks, in about eight minutes on two CPU cores.

    python scripts/demo.py [--out demo]

Makes a corpus of spoken numbers and trains a small model on it: a few epochs with random batches
(RAND), the others under the paper's best batching (SSB-DBS-BR), with what an epoch of either
takes. Then the model speaks numbers that it has never seen, and a recogniser takes them down. Run
again, the demo goes on where it stopped; finished, it only shows what was found.
"""

from project_root import ROOT

import contextlib
import itertools
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

from analysis.arguments import make_parser
from analysis.metrics import EpochRecord, RunMetrics, read_metrics
from analysis.tables import text_table
from analysis.transcription import INTELLIGIBILITY_FILE, Intelligibility, read_intelligibility
from errors import UserError
from files import refuse_no_folder, write_atomically

COLOURS = {"RAND": "#D55E00", "SSB-DBS-BR": "#0072B2"}  # told apart by the colour-blind too
MODEL = ROOT / "scripts" / "speaking_model.txt"
BATCHING = "batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=True"
RANDOM_EPOCHS = 3
# The rate stays, then halves every 80 updates: in the end a small one settles what was learnt.
TRAINING = "epochs_per_validation=1,log_interval=5,keep_checkpoints=1"
TRAINING += ",learning_rate_schedule=exponential,learning_rate_decay_start=970"
TRAINING += ",learning_rate_half_life=80"
THREADS = "2"  # that train
UNSEEN = 50  # numbers spoken at the end
VALIDATION = 0.05  # of the clips


class Stopped(Exception):
    """A program of the demo did not end well. What is there is kept."""


def run(*command: str | Path, threads: str = "1") -> None:
    """Run a program of the recipe, showing the command as a user would type it.

    Raises:
        Stopped: if it fails or is stopped.
    """
    program, *arguments = map(str, command)
    print("\n$ python", program, shlex.join(arguments), flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": threads}
    # The model's products are so small that a thread which sleeps at once wakes too late.
    environment.setdefault("GOMP_SPINCOUNT", "100000")
    process = subprocess.Popen([sys.executable, ROOT / program, *arguments], env=environment)
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the program too, which saves
            process.wait()
    if process.returncode != 0:
        raise Stopped(f"the demo stopped at {program}")


def train(out: Path, clips: int, epochs: int) -> Path:
    """Make corpus, filelists and recordings of the unseen numbers, and train.

    Returns:
        The run's folder. What is there already is kept.
    """
    corpus, lists, folder = out / "corpus", out / "filelists", out / "run"
    run("scripts/make_demo_corpus.py", corpus, "--clips", clips)
    run("scripts/make_demo_corpus.py", out / "unseen", "--clips", UNSEEN, "--skip", clips)
    run(
        "scripts/prepare_ljspeech.py",
        *(corpus, "--out", lists, "--cache-mels", out / "mels", "--val-fraction", VALIDATION),
    )
    hparams = f"@{lists / 'settings.txt'},@{os.path.relpath(MODEL)},{TRAINING},epochs={epochs}"
    hparams += f",random_epochs={RANDOM_EPOCHS},{BATCHING}"
    run("train.py", "-o", folder, "--resume", "--hparams", hparams, threads=THREADS)
    return folder


def speak(out: Path, checkpoint: Path) -> Intelligibility:
    """What was heard of the unseen numbers; the model speaks them anew if it learnt since."""
    found = out / INTELLIGIBILITY_FILE
    if not found.exists() or found.stat().st_mtime < checkpoint.stat().st_mtime:
        run(
            "scripts/listen.py",
            *("--checkpoint", checkpoint, "--recordings", out / "unseen"),
            *("--speech", out / "speech", "-o", found),
        )
    return read_intelligibility(found)


def epochs_by_batching(metrics: RunMetrics) -> dict[str, list[EpochRecord]]:
    """The epochs of random batches at the start, and those after them."""
    first, rest = metrics.epochs[:RANDOM_EPOCHS], metrics.epochs[RANDOM_EPOCHS:]
    return {"RAND": first, "SSB-DBS-BR": rest}


def summarise(epochs: list[EpochRecord]) -> dict[str, float]:
    """Means over the epochs, the median of times and rates."""
    return {
        "epochs": len(epochs),
        "ZPR": statistics.mean(epoch.zero_padding_rate for epoch in epochs),
        "ABL": statistics.mean(epoch.average_batch_length for epoch in epochs),
        "padded": statistics.mean(epoch.padded_fraction for epoch in epochs),
        "batches": statistics.mean(epoch.num_batches for epoch in epochs),
        "minutes": statistics.median(epoch.minutes for epoch in epochs),
        "frames_per_second": statistics.median(epoch.frames_per_second for epoch in epochs),
    }


def table(summaries: dict[str, dict[str, float]]) -> str:
    """A row a batching; the saving is of the minutes of an epoch, against RAND."""
    titles = ["batching", "epochs", "ZPR %", "ABL", "batches", "min/epoch", "frames/s", "saving"]
    rows = []
    for name, s in summaries.items():
        saving = 1 - s["minutes"] / summaries["RAND"]["minutes"]
        rows.append(
            [
                name,
                f"{s['epochs']}",
                f"{100 * s['ZPR']:.2f}",
                f"{s['ABL']:.1f}",
                f"{s['batches']:.1f}",
                f"{s['minutes']:.3f}",
                f"{s['frames_per_second']:,.0f}",
                "–" if name == "RAND" else f"{saving:.1%}",
            ]
        )
    return text_table(titles, rows)


def rates(heard: Intelligibility) -> str:
    """The word error rates side by side."""
    return text_table(
        [f"{heard.texts} unseen numbers", "word error rate"],
        [
            ["the recordings", f"{heard.recordings:.3f}"],
            ["after mel and Griffin-Lim", f"{heard.recordings_after_griffin_lim:.3f}"],
            ["the model", f"{heard.word_error_rate:.3f}"],
        ],
    )


def draw(path: Path, metrics: RunMetrics) -> None:
    """Time and padding under both batchings, learning, and how the alignment forms."""
    figure = Figure(figsize=(13, 3.4), dpi=120, layout="constrained")
    time_axes, padding_axes, loss_axes, alignment_axes = figure.subplots(1, 4)
    for name, epochs in epochs_by_batching(metrics).items():
        s, colour = summarise(epochs), COLOURS[name]
        bars = time_axes.bar(name, s["minutes"], color=colour, width=0.6)
        time_axes.bar_label(bars, fmt="%.3f")
        padded = s["ABL"] * s["padded"]
        padding_axes.bar(name, s["ABL"] - padded, color=colour, width=0.6)
        hatched = {"color": "white", "edgecolor": colour, "hatch": "///"}
        bars = padding_axes.bar(name, padded, bottom=s["ABL"] - padded, width=0.6, **hatched)
        padding_axes.bar_label(bars, labels=[f"ZPR {s['ZPR']:.1%}"], label_type="edge", padding=2)
    ends = list(itertools.accumulate(epoch.minutes for epoch in metrics.epochs))
    minutes = [ends[validation.epoch - 1] for validation in metrics.validations]
    colours = [
        COLOURS["RAND" if validation.epoch <= RANDOM_EPOCHS else "SSB-DBS-BR"]
        for validation in metrics.validations
    ]
    for axes, values in (
        (loss_axes, [v.validation_loss_unpadded for v in metrics.validations]),
        (alignment_axes, [v.alignment_sharpness for v in metrics.validations]),
    ):
        axes.plot(minutes, values, color="0.7", zorder=1)
        axes.scatter(minutes, values, color=colours, zorder=2)
        axes.set(xlabel="minutes of training", xlim=(0, None))
    time_axes.set(title="time", ylabel="minutes per epoch (median)")
    padding_axes.set(title="padding (hatched)", ylabel="frames per clip")
    for axes in (time_axes, padding_axes):
        axes.margins(y=0.15)
    loss_axes.set(title="learning", ylabel="validation loss, unpadded", ylim=(0, None))
    alignment_axes.set(title="alignment", ylabel="sharpness (1: certain)", ylim=(0, 1))
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="default: demo")
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=14, help=f"more than {RANDOM_EPOCHS}")
    args = parser.parse_args(arguments)
    if args.epochs <= RANDOM_EPOCHS:
        parser.error(f"--epochs {args.epochs}: expected more than {RANDOM_EPOCHS}")
    out, began = args.out, time.monotonic()
    again = "run it again to go on, or delete the output folder to start anew"
    try:
        refuse_no_folder(out, "--out")
        folder = train(out, args.clips, args.epochs)
        best = folder / "best.pt"
        heard, metrics = speak(out, best), read_metrics(folder)
        batchings = epochs_by_batching(metrics)
        comparison = table({name: summarise(epochs) for name, epochs in batchings.items()})
        write_atomically(
            out / "comparison.txt", lambda path: path.write_text(f"{comparison}\n", "utf-8")
        )
        draw(out / "comparison.png", metrics)
    except Stopped as stopped:
        sys.exit(f"{stopped}; {again}")
    except KeyboardInterrupt:
        sys.exit(f"the demo was stopped; {again}")
    except (UserError, OSError) as error:
        sys.exit(f"demo: {error}")
    print(f"""
{comparison}

ZPR zero-padding rate, ABL average batch length in frames; saving: minutes per epoch against RAND.
The run begins with random batches, and goes on under SSB-DBS-BR (docs/training.md).

{rates(heard)}

this table     {out / "comparison.txt"}
picture        {out / "comparison.png"}
it speaks      {out / "speech"}: sounds and alignments; index.csv says of what
heard          {out / INTELLIGIBILITY_FILE}
TensorBoard    {shlex.quote(sys.executable)} -m tensorboard.main --logdir {shlex.quote(str(out))}
checkpoints    {best} and beside it
took           {(time.monotonic() - began) / 60:.1f} minutes

Next, let it speak:
  make say TEXT="4,072"
  make page
or LJSpeech on a GPU:
  python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --download --cache-mels data/mels
It ends by naming the command that trains.""")


if __name__ == "__main__":
    main()
