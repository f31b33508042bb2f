"""From nothing to a model that speaks, in about eight minutes on two CPU cores.

    python scripts/demo.py [--out demo]

Makes a corpus of spoken numbers and trains a small model on it under the paper's best batching,
SSB-DBS-BR, until it speaks. On the other core the same model is trained for a few epochs under
random batches (RAND), to compare what an epoch takes. Then the model speaks numbers that it has
never seen, and a recogniser takes them down. Run again, the demo goes on where it stopped;
finished, it only shows what was found.
"""

from project_root import ROOT

import contextlib
import os
import shlex
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

from matplotlib.figure import Figure

from analysis.arguments import make_parser
from analysis.listening import INTELLIGIBILITY_FILE, Intelligibility, read_intelligibility
from analysis.metrics import RunMetrics, read_metrics
from analysis.tables import text_table
from errors import UserError
from files import write_atomically

RUNS = {
    "RAND": "batching_strategy=random,dynamic_batch_size=False,batch_randomization=False",
    "SSB-DBS-BR": "batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=True",
}
COLOURS = {"RAND": "#D55E00", "SSB-DBS-BR": "#0072B2"}  # told apart by the colour-blind too
MODEL = ROOT / "scripts" / "speaking_model.txt"
TRAINING = "epochs_per_validation=1,log_interval=5,keep_checkpoints=1"
# The rate stays, then halves every 100 updates: in the end a small one settles what was learnt.
TRAINING += ",learning_rate_schedule=exponential,learning_rate_decay_start=850"
TRAINING += ",learning_rate_half_life=100"
# Epochs side by side. Those of RAND take longer, and the recordings are listened to after them.
COMPARED = {"RAND": 3, "SSB-DBS-BR": 5}
UNSEEN = 50  # numbers spoken at the end
VALIDATION = 0.05  # of the clips


class Stopped(Exception):
    """A program of the demo did not end well. What is there is kept."""


def shown(command: tuple[str | Path, ...]) -> str:
    return f"$ python {shlex.join(map(str, command))}"


def start(*command: str | Path, threads: int = 1, **options) -> subprocess.Popen:
    """Start a program of the recipe."""
    program, *arguments = map(str, command)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    if threads > 1:  # the model's products are small: a thread that sleeps at once wakes too late
        environment.setdefault("GOMP_SPINCOUNT", "100000")
    return subprocess.Popen(
        [sys.executable, ROOT / program, *arguments], env=environment, **options
    )


def finish(process: subprocess.Popen, *command: str | Path) -> None:
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the program too, which saves
            process.wait()
    if process.returncode != 0:
        raise Stopped(f"the demo stopped at {command[0]}")


def run(*command: str | Path, threads: int = 1) -> None:
    """Run a program, showing the command as a user would type it."""
    print(f"\n{shown(command)}", flush=True)
    finish(start(*command, threads=threads), *command)


class Beside(threading.Thread):
    """Programs that run one after the other beside the main one, and print into a file."""

    def __init__(self, log: Path, *commands: tuple[str | Path, ...]):
        super().__init__()
        self.log, self.commands = log, commands
        self.problem: Stopped | None = None
        self._stopping = False
        self._process: subprocess.Popen | None = None
        print(f"\nOn the other core meanwhile, into {log}:")
        for command in commands:
            print(shown(command), flush=True)
        self.start()

    def run(self) -> None:
        try:
            with open(self.log, "a", encoding="utf-8") as output:
                for command in self.commands:
                    if self._stopping:
                        return
                    streams = {"stdout": output, "stderr": subprocess.STDOUT}
                    self._process = start(*command, **streams)
                    finish(self._process, *command)
        except Stopped as stopped:
            self.problem = Stopped(f"{stopped}, see {self.log}")

    def stop(self) -> None:
        """Let the program that runs save and end, and begin no other."""
        self._stopping = True
        if self._process is not None:
            self._process.terminate()
        self.join()


def make_runs(out: Path, clips: int, epochs: int) -> dict[str, Path]:
    """Corpus, filelists, recordings of the unseen numbers, and the folder of each run by its name.

    What is there already is kept.

    Raises:
        Stopped: if a program fails or is stopped.
    """
    corpus, lists, unseen = out / "corpus", out / "filelists", out / "unseen"
    run("scripts/make_demo_corpus.py", corpus, "--clips", clips)
    run("scripts/make_demo_corpus.py", unseen, "--clips", UNSEEN, "--skip", clips)
    run(
        "scripts/prepare_ljspeech.py",
        *(corpus, "--out", lists, "--cache-mels", out / "mels", "--val-fraction", VALIDATION),
    )
    folders = {name: out / name.lower() for name in RUNS}
    settings = f"@{lists / 'settings.txt'}"

    def training(name: str, epochs: int) -> tuple[str | Path, ...]:
        hparams = f"{settings},@{os.path.relpath(MODEL)},{TRAINING},epochs={epochs},{RUNS[name]}"
        return ("train.py", "-o", folders[name], "--resume", "--hparams", hparams)

    # Each on a core of its own; then the one that learns to speak has both.
    side_by_side = {name: min(count, epochs) for name, count in COMPARED.items()}
    beside = Beside(
        out / "beside.log",
        training("RAND", side_by_side["RAND"]),
        ("scripts/listen.py", "--recordings", unseen, "--hparams", settings),
    )
    try:
        run(*training("SSB-DBS-BR", side_by_side["SSB-DBS-BR"]))
    except Stopped:
        beside.stop()
        raise
    beside.join()
    if beside.problem:
        raise beside.problem
    run(*training("SSB-DBS-BR", epochs), threads=2)
    return folders


def speak(out: Path, checkpoint: Path) -> Intelligibility:
    """What the recogniser heard of the unseen numbers, which the model speaks now."""
    found = out / INTELLIGIBILITY_FILE
    if not found.exists():
        run(
            "scripts/listen.py",
            *("--checkpoint", checkpoint, "--recordings", out / "unseen"),
            *("--speech", out / "speech", "-o", found),
        )
    return read_intelligibility(found)


def summarise(metrics: RunMetrics) -> dict[str, float]:
    """Means over the epochs side by side, the median of times and rates, the last validation."""
    epochs = metrics.epochs[: COMPARED["RAND"]]
    last = [v for v in metrics.validations if v.epoch <= len(epochs)][-1]
    return {
        "ZPR": statistics.mean(epoch.zero_padding_rate for epoch in epochs),
        "ABL": statistics.mean(epoch.average_batch_length for epoch in epochs),
        "padded": statistics.mean(epoch.padded_fraction for epoch in epochs),
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


def draw(path: Path, runs: dict[str, RunMetrics]) -> None:
    """Time and padding under both batchings, learning, and how the alignment forms."""
    figure = Figure(figsize=(13, 3.4), dpi=120, layout="constrained")
    time_axes, padding_axes, loss_axes, alignment_axes = figure.subplots(1, 4)
    for name, metrics in runs.items():
        s, colour = summarise(metrics), COLOURS[name]
        bars = time_axes.bar(name, s["minutes"], color=colour, width=0.6)
        time_axes.bar_label(bars, fmt="%.3f")
        padded = s["ABL"] * s["padded"]
        padding_axes.bar(name, s["ABL"] - padded, color=colour, width=0.6)
        hatched = {"color": "white", "edgecolor": colour, "hatch": "///"}
        bars = padding_axes.bar(name, padded, bottom=s["ABL"] - padded, width=0.6, **hatched)
        padding_axes.bar_label(bars, labels=[f"ZPR {s['ZPR']:.1%}"], label_type="edge", padding=2)
        minutes = [
            sum(epoch.minutes for epoch in metrics.epochs[: validation.epoch])
            for validation in metrics.validations
        ]
        style = {"color": colour, "label": name, "marker": "o" if name == "RAND" else "s"}
        losses = [validation.validation_loss_unpadded for validation in metrics.validations]
        loss_axes.plot(minutes, losses, **style)
        sharpness = [validation.alignment_sharpness for validation in metrics.validations]
        alignment_axes.plot(minutes, sharpness, **style)
    time_axes.set(title="time", ylabel="minutes per epoch (median)")
    padding_axes.set(title="a clip: real frames, padding (hatched)", ylabel="frames per clip")
    for axes in (time_axes, padding_axes):
        axes.margins(y=0.15)
    minutes_of_training = {"xlabel": "minutes of training", "xlim": (0, None)}
    loss_axes.set(title="learning", ylabel="validation loss, unpadded", **minutes_of_training)
    alignment_axes.set(title="alignment", ylabel="sharpness (1: certain)", **minutes_of_training)
    loss_axes.set_ylim(0)
    alignment_axes.set_ylim(0, 1)
    loss_axes.legend()
    write_atomically(path, lambda file: figure.savefig(file, format="png"))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="default: demo")
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=16, help="of the run that learns to speak")
    args = parser.parse_args(arguments)
    out, began = args.out, time.monotonic()
    again = "run it again to go on, or delete the output folder to start anew"
    try:
        folders = make_runs(out, args.clips, args.epochs)
        best = folders["SSB-DBS-BR"] / "best.pt"
        heard = speak(out, best)
        runs = {name: read_metrics(folder) for name, folder in folders.items()}
        comparison = table({name: summarise(metrics) for name, metrics in runs.items()})
        write_atomically(
            out / "comparison.txt", lambda path: path.write_text(f"{comparison}\n", "utf-8")
        )
        draw(out / "comparison.png", runs)
    except Stopped as stopped:
        sys.exit(f"{stopped}; {again}")
    except KeyboardInterrupt:
        sys.exit(f"the demo was stopped; {again}")
    except (UserError, OSError) as error:
        sys.exit(f"demo: {error}")
    print(f"""
{comparison}

ZPR zero-padding rate, ABL average batch length in frames; saving: minutes per epoch against RAND.
Both are of the first {COMPARED["RAND"]} epochs, side by side on a core each. They show the saving, and
not which batching learns better: for that see docs/paper.md.

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
