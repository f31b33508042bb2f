"""Train a small model on spoken numbers and test it. The demo takes 4 to 16 minutes on two CPU
cores.

    python scripts/demo.py [--out demo]
    python scripts/demo.py --language de [--phones]  # writes demo-de or demo-de-phones
    python scripts/demo.py --full                    # full-size model: 16 minutes on two fast cores

The demo makes a corpus of spoken numbers and trains a model. The first epochs use random batches
(RAND); the other epochs use the paper's best batching strategy (SSB-DBS-BR). Then the model speaks
numbers that are not in the training set, and a recognizer transcribes the speech. For languages
without a recognizer, the demo instead finds the recording that is most similar to each synthesized
number. If you stop the demo, run the same command again to continue.
"""

from project_root import ROOT

import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from evaluation.figures import draw_progress, write_figure
from evaluation.results import INTELLIGIBILITY_FILE, Intelligibility, read_result
from hparams import HParams
from scripts.commands import is_outdated, run_stage
from scripts.table2.runs import MEASURES, read_progress
from tacotron2_voice.text.spoken_numbers import ENGLISH, is_english, sentence_of
from tacotron2_voice.utils.arguments import make_parser
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import METRICS_FILE, check_is_folder, json_lines, write_bytes
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.voice import DESCRIPTION_FILE
from training.checkpoint import BEST

SETTINGS = (
    "batching_strategy=semi_sorted,dynamic_batch_size=True,batch_randomization=True,"
    "epochs_per_validation=1,log_interval=5,keep_checkpoints=1,learning_rate_schedule=exponential"
)


class Demo(NamedTuple):
    """The settings of a demo. The learning rate is constant for the first three quarters of the
    optimizer steps, and then decreases."""

    model: str  # file with the settings of the model
    epochs: int
    random_epochs: int  # number of epochs with random batches at the start
    decay_start: int  # the learning rate decays after this number of optimizer steps
    half_life: int  # number of optimizer steps over which the learning rate halves


SMALL = Demo("speaking_model.txt", 14, 2, decay_start=970, half_life=80)
FULL_SIZE = Demo("full_size_model.txt", 10, 2, decay_start=345, half_life=29)
PLOT_FILE = "learning.svg"
UNSEEN = 50  # the trained model speaks this many texts that are not in the training set
VALIDATION = 0.05  # fraction of the clips to hold out for validation


def text_settings(language: str, *, phones: bool) -> str:
    """Return the settings of text processing for a language.

    Raises:
        UserError: if num2words or eSpeak does not support the language. For example, Japanese is
            not supported, because eSpeak pronounces all Japanese number words in the same way.
    """
    if language == ENGLISH and not phones:
        return ""
    from tacotron2_voice.text.phones import to_phones

    sentences = [sentence_of(str(number), language) for number in range(1, 10)]
    if len(set(to_phones(sentences, language))) < len(sentences):
        raise UserError(
            f"--language {language}: eSpeak NG cannot pronounce the number words of num2words"
        )
    if phones:
        return f"text_cleaners=[phones],language={language}"
    return "symbols=corpus,text_cleaners=[basic_cleaners]"


def train(out: Path, demo: Demo, clips: int, seed: int, language: str, settings: str) -> Path:
    """Make the corpus, the recordings of unseen numbers and the filelists, and train the model.

    Existing files are kept.

    Returns:
        The folder of the run.
    """
    corpus = out / "corpus"
    lists = out / "filelists"
    folder = out / "run"
    model = os.path.relpath(ROOT / "scripts" / demo.model)
    spoken = ("--language", language) if language != ENGLISH else ()
    run_stage("scripts/make_demo_corpus.py", corpus, "--clips", clips, *spoken, threads="1")
    run_stage(
        "scripts/make_demo_corpus.py",
        out / "unseen",
        *("--clips", UNSEEN, "--skip", clips, *spoken),
        threads="1",
    )
    kept = ("--out", lists, "--cache-mels", out / "mels", "--val-fraction", VALIDATION)
    chosen = ("--hparams", settings) if settings else ()
    run_stage("scripts/prepare.py", corpus, *kept, *chosen, threads="1")
    hparams = f"@{lists / 'settings.txt'},@{model},{SETTINGS},epochs={demo.epochs},seed={seed}"
    hparams += f",random_epochs={demo.random_epochs},learning_rate_decay_start={demo.decay_start}"
    hparams += f",learning_rate_half_life={demo.half_life}"
    threads = os.environ.get("OMP_NUM_THREADS", "2")
    run_stage("train.py", "-o", folder, "--resume", "--hparams", hparams, threads=threads)
    return folder


def speak(out: Path, checkpoint: Path, language: str = ENGLISH) -> Intelligibility:
    """Return the intelligibility of the model's speech for unseen numbers. If the checkpoint is
    newer than the stored result, measure the intelligibility again."""
    result = out / INTELLIGIBILITY_FILE
    if is_outdated(result, checkpoint):
        given: tuple[object, ...] = ("--checkpoint", checkpoint, "--recordings", out / "unseen")
        given += ("--language", language) if language != ENGLISH else ()
        run_stage(
            "scripts/evaluate.py", *given, "--output", out / "speech", "-o", result, threads="1"
        )
    return read_result(result, Intelligibility)


def export(out: Path, checkpoint: Path) -> Path:
    """Export a checkpoint as a voice, unless the exported voice exists and is newer than the
    checkpoint. Return the folder of the voice."""
    voice = out / "voice"
    if is_outdated(voice / DESCRIPTION_FILE, checkpoint):
        shutil.rmtree(voice, ignore_errors=True)
        run_stage("scripts/export_voice.py", "--checkpoint", checkpoint, "-o", voice, threads="1")
    return voice


def compare(epochs: list[dict[str, Any]], random_epochs: int) -> str:
    """Return a Markdown table with the padding, time and speed of each batching strategy.

    Args:
        epochs: the records of kind `epoch` in metrics.jsonl.
        random_epochs: number of epochs with random batches at the start.
    """
    names = ["RAND"] * random_epochs + ["SSB-DBS-BR"] * (len(epochs) - random_epochs)
    by_name = pd.DataFrame(epochs).groupby(names, sort=False)
    means = by_name[["zero_padding_rate", "average_batch_length", "num_batches"]].mean()
    medians = by_name[["minutes", "frames_per_second"]].median()
    rows = []
    for name, (padding, length, batches) in zip(means.index, means.to_numpy(), strict=True):
        minutes, speed = medians.loc[name]
        saving = "–" if name == "RAND" else f"{1 - minutes / medians.loc['RAND', 'minutes']:.1%}"
        cells = f"{100 * padding:.2f}", f"{length:.1f}", f"{batches:.1f}", f"{minutes:.3f}"
        rows.append([name, names.count(name), *cells, f"{speed:,.0f}", saving])
    titles = [
        "batching strategy",
        "epochs",
        "padding (%)",
        "mean length",
        "batches",
        "minutes",
        "frames/second",
        "time saved",
    ]
    return markdown_table(titles, rows) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--out", type=Path, help="write to this folder (default: demo, demo-full, demo-de, ...)"
    )
    language_help = "language, as a code that eSpeak and num2words support (default: %(default)s)"
    parser.add_argument("--language", default=ENGLISH, help=language_help)
    parser.add_argument("--phones", action="store_true", help="train on phones instead of letters")
    parser.add_argument(
        "--full",
        action="store_true",
        help="train the full-size model, which takes 16 minutes on two fast cores",
    )
    parser.add_argument(
        "--clips", type=int, default=1000, help="number of training clips (default: %(default)s)"
    )
    parser.add_argument(
        "--epochs",
        type=int,
        help=f"number of epochs (default: {SMALL.epochs}, or {FULL_SIZE.epochs} with --full)",
    )
    parser.add_argument(
        "--seed", type=int, default=HParams.seed, help="seed for training (default: %(default)s)"
    )
    args = parser.parse_args(arguments)
    demo = FULL_SIZE if args.full else SMALL
    demo = demo._replace(epochs=demo.epochs if args.epochs is None else args.epochs)
    if demo.epochs <= demo.random_epochs:
        parser.error(f"--epochs {demo.epochs}: expected at least {demo.random_epochs + 1}")
    language = args.language
    began = time.monotonic()
    settings = text_settings(language, phones=args.phones)
    parts = ["" if language == ENGLISH else language, "phones" * args.phones, "full" * args.full]
    out = args.out or Path("-".join(["demo", *filter(None, parts)]))
    check_is_folder(out, "--out")
    folder = train(out, demo, args.clips, args.seed, language, settings)
    speech = speak(out, folder / BEST, language)
    voice = export(out, folder / BEST)
    records = json_lines(folder / METRICS_FILE)
    epochs = [record for record in records if record["kind"] == "epoch"]
    table = compare(epochs, demo.random_epochs)
    write_bytes(out / "comparison.txt", table.encode())
    curve = draw_progress(read_progress(folder).assign(name=out.name), MEASURES)
    write_figure(curve, out / PLOT_FILE)
    chosen = f" LANGUAGE={language}" if language != ENGLISH else ""
    chosen += " PHONES=1" * args.phones + " FULL=1" * args.full
    print(f"""
{table}
The first epochs use random batches (RAND), and all later epochs use SSB-DBS-BR. The mean length is
the average batch length in frames. Batches and minutes are per epoch. The time saved is relative to RAND.
The saved time has a cost: with SSB-DBS-BR, the model learns less per epoch than with RAND. For the
measured losses, see docs/batching/choosing-a-strategy.md.

{speech.texts:<3} unseen numbers{"                  word error rate" if is_english(language) else ""}
{speech.summary()}

comparison     {out / "comparison.txt"}
curves         {out / PLOT_FILE}: validation loss, focus rate and gradient norm
speech         {out / "speech"}: audio and alignments; index.csv contains the texts
transcripts    {out / INTELLIGIBILITY_FILE}
TensorBoard    {shlex.quote(sys.executable)} -m tensorboard.main --logdir {shlex.quote(str(out))}
checkpoints    {folder / BEST}, and others in the same folder
voice          {voice}: exported, works without PyTorch
time           {(time.monotonic() - began) / 60:.1f} minutes

Next, listen to the model:
  make say-number TEXT="4,072"{chosen}
  make serve-numbers{chosen}
Or train on LJSpeech with a GPU:
  python scripts/prepare.py data/LJSpeech-1.1 --download --cache-mels data/mels
prepare.py prints the command for training.""")


if __name__ == "__main__":
    run_program(main)
