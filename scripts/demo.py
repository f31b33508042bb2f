"""The whole recipe in a few minutes on a CPU: two batching strategies side by side.

    python scripts/demo.py [--out demo]

Makes a corpus of synthesised speech, prepares filelists, trains a small model under random
batches (RAND) and under the paper's best batching (SSB-DBS-BR), and compares them. Run again, it
goes on where it stopped; finished, it only shows the comparison.
"""

from project_root import ROOT

import argparse
import contextlib
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

from matplotlib.figure import Figure

from files import write_atomically

SMALL_MODEL = (
    "symbols_embedding_dim=128,encoder_embedding_dim=128,attention_rnn_dim=128,"
    "decoder_rnn_dim=128,prenet_dim=64,attention_dim=64,attention_location_n_filters=16,"
    "postnet_embedding_dim=128"
)
RUNS = {
    "RAND": "batching_strategy=random,dynamic_batch_size=False,batch_randomization=False",
    "SSB-DBS-BR": "batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=True",
}
COLOURS = {"RAND": "#D55E00", "SSB-DBS-BR": "#0072B2"}  # told apart by the colour-blind too
SENTENCE = "The old clock on the tower stopped at nine, and nobody in the town heard it."


def run(*command: str | Path) -> None:
    """Run a script of the recipe, showing the command as a user would type it."""
    script, *arguments = map(str, command)
    print("\n$ python", script, shlex.join(arguments), flush=True)
    # A model this small is faster on one thread: its matrices are not worth sharing out.
    process = subprocess.Popen(
        [sys.executable, ROOT / script, *arguments], env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    while process.returncode is None:
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C reaches the script too, which saves
            process.wait()
    if process.returncode != 0:
        sys.exit(
            f"the demo stopped at {script}; run it again to go on, or delete the output folder "
            "to start anew"
        )


def folder(out: Path, name: str) -> Path:
    return out / name.lower()


def read_run(directory: Path) -> tuple[list[dict], list[dict]]:
    """The `epoch` and the `validation` lines of a run."""
    text = (directory / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    return tuple([line for line in lines if line["kind"] == k] for k in ("epoch", "validation"))


def summarise(epochs: list[dict], validations: list[dict]) -> dict[str, float]:
    """Means over the epochs, the median of times and rates, the last validation."""
    return {
        "ZPR": statistics.mean(e["zero_padding_rate"] for e in epochs),
        "ABL": statistics.mean(e["average_batch_length"] for e in epochs),
        "batches": statistics.mean(e["num_batches"] for e in epochs),
        "minutes": statistics.median(e["minutes"] for e in epochs),
        "frames_per_second": statistics.median(e["frames_per_second"] for e in epochs),
        "loss": validations[-1]["validation_loss"],
        "loss_unpadded": validations[-1]["validation_loss_unpadded"],
    }


def table(summaries: dict[str, dict[str, float]]) -> str:
    rows = [
        f"{'batching':<11} {'ZPR %':>6} {'ABL':>6} {'batches':>8} {'min/epoch':>10} "
        f"{'frames/s':>9} {'val. loss':>10} {'unpadded':>9} {'saving':>8}"
    ]
    for name, s in summaries.items():
        saving = 1 - s["minutes"] / summaries["RAND"]["minutes"]
        rows.append(
            f"{name:<11} {100 * s['ZPR']:6.2f} {s['ABL']:6.1f} {s['batches']:8.1f} "
            f"{s['minutes']:10.3f} {s['frames_per_second']:9,.0f} {s['loss']:10.4f} "
            f"{s['loss_unpadded']:9.4f} " + (f"{saving:8.1%}" if name != "RAND" else f"{'–':>8}")
        )
    return "\n".join(rows)


def draw(out: Path, runs: dict[str, tuple[list[dict], list[dict]]]) -> Path:
    """The comparison as a picture: time, padding and learning of both runs."""
    figure = Figure(figsize=(11, 3.6), dpi=120, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    for name, (epochs, validations) in runs.items():
        s, colour = summarise(epochs, validations), COLOURS[name]
        bars = left.bar(name, s["minutes"], color=colour, width=0.6)
        left.bar_label(bars, fmt="%.3f")
        real = (1 - statistics.mean(e["padded_fraction"] for e in epochs)) * s["ABL"]
        middle.bar(name, real, color=colour, width=0.6)
        bars = middle.bar(
            name,
            s["ABL"] - real,
            bottom=real,
            color="white",
            edgecolor=colour,
            hatch="///",
            width=0.6,
        )
        middle.bar_label(bars, labels=[f"ZPR {s['ZPR']:.1%}"], label_type="edge", padding=2)
        hours = [sum(e["minutes"] for e in epochs[: v["epoch"]]) for v in validations]
        losses = [v["validation_loss_unpadded"] for v in validations]
        right.plot(hours, losses, "o-" if name == "RAND" else "s--", color=colour, label=name)
    left.set(title="time", ylabel="minutes per epoch (median)")
    middle.set(title="what a clip costs: real frames, padding (hatched)", ylabel="frames per clip")
    middle.title.set_fontsize(10)
    for axes in (left, middle):
        axes.margins(y=0.15)
    right.set(
        title="learning", xlabel="minutes of training", ylabel="validation loss, unpadded", ylim=0
    )
    right.legend()
    path = out / "comparison.png"
    write_atomically(path, lambda file: figure.savefig(file, format="png"))
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="default: demo")
    parser.add_argument("--clips", type=int, default=240)
    parser.add_argument("--epochs", type=int, default=4, help="of each run")
    args = parser.parse_args(arguments)
    out = args.out
    began = time.monotonic()
    corpus, lists = out / "corpus", out / "filelists"
    run("scripts/make_demo_corpus.py", corpus, "--clips", str(args.clips))
    run("scripts/prepare_ljspeech.py", corpus, "--out", lists)
    for name, batching in RUNS.items():
        files = f"training_files={lists / 'train.txt'},validation_files={lists / 'val.txt'}"
        run(
            "train.py",
            "-o",
            folder(out, name),
            "--resume",
            "--hparams",
            f"{files},epochs={args.epochs},epochs_per_validation=1,log_interval=2,batch_size=16,{SMALL_MODEL},{batching}",
        )
    best = folder(out, "SSB-DBS-BR") / "best.pt"
    run(
        "synthesize.py",
        "--checkpoint",
        best,
        "--text",
        SENTENCE,
        "-o",
        out / "speech",
        "--hparams",
        "max_decoder_steps=500",
    )
    runs = {name: read_run(folder(out, name)) for name in RUNS}
    comparison = table({name: summarise(*lines) for name, lines in runs.items()})
    write_atomically(
        out / "comparison.txt", lambda file: file.write_text(comparison + "\n", encoding="utf-8")
    )
    picture = draw(out, runs)
    print(f"""
{comparison}

ZPR zero-padding rate, ABL average batch length in frames; saving: minutes per epoch against RAND.
The paper reports a saving of 41 % for SSB-DBS-BR on the full LJSpeech.
{args.epochs} epochs of {args.clips} clips teach a model to hum, not to speak:
the losses show that both learn, not which is better.

this table     {out / "comparison.txt"}
picture        {picture}
TensorBoard    {shlex.quote(sys.executable)} -m tensorboard.main --logdir {shlex.quote(str(out))}
checkpoints    {best} and beside it
synthesised    {out / "speech" / "0001.wav"}
took           {(time.monotonic() - began) / 60:.1f} minutes

Next, LJSpeech on a GPU:
  python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --download --cache-mels data/mels
It ends by naming the command that trains.""")


if __name__ == "__main__":
    main()
