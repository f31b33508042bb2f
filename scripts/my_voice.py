"""Make a voice from recordings of one person by fine-tuning an exported voice or a checkpoint.

    python scripts/my_voice.py RECORDINGS --name anna
    python scripts/my_voice.py RECORDINGS --name anna --language nl --out voices-nl
    python scripts/my_voice.py RECORDINGS --name anna --prepare "--csv RECORDINGS/table.csv"

The program converts and checks the recordings, fine-tunes the model in --start on the recordings,
evaluates the speech for held-out texts, and exports the fine-tuned model. Every stage is a separate
command. The program prints these commands, so that you can also run them yourself. If you stop the
program, run the same command again to continue.

Ask the person in the recordings for permission. Tell listeners that the speech is synthetic.
"""

from project_root import ROOT

import argparse
import html
import importlib
import os
import shlex
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

import numpy as np
import torch

from batch import synthetic_batch
from corpus.filelist import split_filelist_line
from corpus.speaker_names import checked_name
from evaluation.recognizers import (
    NAMES,
    NO_RECOGNIZER,
    WHISPER,
    add_whisper_model_option,
    default_whisper_model,
    make_recognizer,
)
from evaluation.results import Intelligibility, read_result
from export.checkpoint_paths import list_others
from hparams import HParams, batching_options, create_hparams, read_symbols
from length_batching import plan_epoch
from scripts.commands import is_outdated, run_stage
from tacotron2_voice.text.phones import check_language, espeak_code
from tacotron2_voice.text.spoken_numbers import ENGLISH, is_english
from tacotron2_voice.utils.arguments import at_least_one, checked, make_parser
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    check_is_folder,
    numbered_lines,
    read_json,
    write_bytes,
    write_json,
)
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.voice import DESCRIPTION_FILE
from training.checkpoint import BEST, list_checkpoints
from training.precision import describe_precision
from training.start import read_weights
from training.trainer import Trainer

START = ROOT / "voices" / "english"
SETTINGS = ROOT / "scripts" / "fine_tuning.txt"
# Default number of optimizer steps. Other languages need more steps than English, because the
# included voice was trained without their sounds and phones (research/ten-minutes.md).
STEPS, STEPS_FOR_OTHER_LANGUAGES = 1000, 3000
DECAY_START = 0.3  # the learning rate decays after this fraction of the optimizer steps
HALVINGS = 4.6  # the learning rate halves this many times while it decreases from 5e-4 to 2e-5
VALIDATION = 0.05  # fraction of the clips to hold out for validation
TIMED_STEPS = 2  # number of optimizer steps for measuring the time per optimizer step
# Options of scripts/prepare.py that this program sets itself. Users cannot pass these options with
# --prepare.
OWN_OPTIONS = ("--convert", "--cache-mels", "--out", "--speaker", "--val-fraction")
# The program trains the voice of one person.
SPEAKER_OPTIONS = ("--speaker-column", "--speaker-folders")
LETTERS, PHONES = "letters", "phones"
OPTIONS_FILE = "my_voice.json"
EVALUATION_FILE = "evaluation.json"
SPEECH = "speech"  # folder that contains the speech for the held-out texts
# Names of the candidates for the exported voice, which are also the names of their evaluation
# folders.
NEWEST, LOWEST_LOSS = "newest", "lowest-loss"
PAGE_FILE = "index.html"


def text_settings(language: str, symbols: str) -> str:
    """Return the settings that convert texts in a language to letters or phones."""
    if symbols == PHONES:
        rules = "english_cleaners_corrected," if is_english(language) else ""
        return f"text_cleaners=[{rules}phones],language={language}"
    if is_english(language):
        return ""
    return f"symbols=corpus,text_cleaners=basic_cleaners,language={language}"


def prepare(out: Path, args: argparse.Namespace) -> HParams:
    """Convert and check the recordings, and return the settings for training."""
    settings = text_settings(args.language, args.symbols)
    chosen = ("--hparams", settings) if settings else ()
    run_stage(
        "scripts/prepare.py",
        args.recordings,
        *("--convert", out / "recordings", "--cache-mels", out / "mels", "--out", out / "lists"),
        *("--speaker", args.name, "--val-fraction", args.val_fraction),
        *shlex.split(args.prepare),
        *chosen,
        advice=". To pass options to scripts/prepare.py, use --prepare, such as --prepare=--skip-bad. "
        "To make a voice from different recordings, choose a different folder with --out",
    )
    hparams = create_hparams(f"@{out / 'lists' / 'settings.txt'},{settings_file()}")
    return replace(read_symbols(hparams), speakers=(args.name,))


def check_options(out: Path, args: argparse.Namespace) -> None:
    """Store the options in a new folder, or compare them with the stored options in an existing
    folder.

    Raises:
        UserError: if the folder was made with a different --name, --language, --symbols, --start or
            --steps, or if the model in --start or the recognizer cannot be loaded.
    """
    if not args.start.exists():
        raise UserError(
            f"--start {args.start}: no such checkpoint or voice folder{list_others(args.start)}"
        )
    read_weights(args.start)
    if args.symbols == PHONES:
        try:
            args.language = check_language(args.language)
        except UserError as error:
            raise UserError(f"{error}. To train on letters, add --symbols {LETTERS}") from None
    choose_recognizer(args)
    # Report a missing package before training instead of after it.
    for module in ("evaluation.evaluate", "export.voice_export"):
        importlib.import_module(module)
    path = out / OPTIONS_FILE
    options = {
        "name": args.name,
        "language": args.language,
        "symbols": args.symbols,
        "start": str(args.start),
        "steps": args.steps,
    }
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_json(path, options)
        return
    before = read_json(path)
    # Earlier versions stored the language as it was typed.
    before["language"] = espeak_code(before["language"])
    for name, value in options.items():
        # Earlier versions did not store the number of optimizer steps.
        if before.get(name, value) != value:
            more = ""
            if name == "steps" and (checkpoint := newest_checkpoint(out / "run")):
                more = f". To train the finished model further, also add --start {checkpoint}"
            raise UserError(
                f"{out}: was made with --{name} {before.get(name)}, but this command has "
                f"--{name} {value}. Pass the same option, or choose another folder with --out{more}"
            )


def choose_recognizer(args: argparse.Namespace) -> None:
    """Check that the speech recognizer can be loaded.

    If the user chose no recognizer and Whisper cannot be loaded, set args.recognizer to "none".
    """
    is_default = not args.recognizer and not args.whisper_model
    args.recognizer = args.recognizer or WHISPER
    args.whisper_model = args.whisper_model or default_whisper_model(args.language)
    try:
        recognizer = make_recognizer(args.recognizer, args.whisper_model, args.language, texts=())
    except UserError as error:
        if not is_default:
            raise
        print(
            f"note: {error}. The program continues without a speech recognizer, and compares the "
            "speech with the recordings instead of counting wrong words"
        )
        args.recognizer = NO_RECOGNIZER
        return
    if recognizer is None and args.recognizer != NO_RECOGNIZER:
        raise UserError(
            f"--language {args.language}: --recognizer {args.recognizer} supports only English, so "
            f"use --recognizer {WHISPER}"
        )


def settings_file() -> str:
    """Return the overrides for fine-tuning, including bf16 if this machine supports bf16."""
    has_gpu = torch.cuda.is_available()
    problem = describe_precision("bf16", torch.cuda.get_device_capability() if has_gpu else None)
    return f"@{os.path.relpath(SETTINGS)},precision={'fp32' if problem else 'bf16'}"


def newest_checkpoint(folder: Path) -> Path | None:
    checkpoints = list_checkpoints(folder)
    return checkpoints[-1][1] if checkpoints else None


def training_settings(steps: int, batches_per_epoch: int) -> str:
    """Return the settings that depend on the number of optimizer steps and on the number of batches
    per epoch."""
    epochs = -(-steps // batches_per_epoch)
    decay_start = round(DECAY_START * steps)
    half_life = max(1, round((steps - decay_start) / HALVINGS))
    every = max(1, epochs // 10)
    return (
        f"epochs={epochs},epochs_per_validation={every},"
        f"learning_rate_decay_start={decay_start},learning_rate_half_life={half_life}"
    )


def seconds_per_step(hparams: HParams, clips: int, frames: int, symbols: int) -> float:
    """Measure how many seconds an optimizer step takes on this machine with a synthetic batch."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(hparams, device)
    batch = synthetic_batch([frames] * clips, [symbols] * clips, hparams).to(device)
    trainer.compute_gradients(batch)  # the first pass also allocates memory, so it is not timed
    began = time.monotonic()
    for _ in range(TIMED_STEPS):
        trainer.compute_gradients(batch)
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.monotonic() - began) / TIMED_STEPS


def train(out: Path, start: Path, settings: str) -> Path:
    """Train a model, or resume a stopped run. Return the newest checkpoint."""
    folder = out / "run"
    hparams = f"@{out / 'lists' / 'settings.txt'},{settings_file()},{settings}"
    if newest_checkpoint(folder) is None:
        run_stage("train.py", "-o", folder, "-c", start, "--warm_start", "--hparams", hparams)
    else:
        # The recordings may have been fixed or extended since the last run.
        run_stage("train.py", "-o", folder, "--resume", "--new-clips")
    checkpoint = newest_checkpoint(folder)
    if checkpoint is None:
        raise UserError(f"{folder}: training wrote no checkpoint")
    return checkpoint


class Candidate(NamedTuple):
    """A checkpoint that may be exported, and its evaluation."""

    checkpoint: Path
    folder: Path  # folder of the checkpoint's evaluation
    result: Intelligibility

    @property
    def error_rate(self) -> float:
        """The word error rate or, without a speech recognizer, 1 - the identification rate."""
        if self.result.word_error_rate is not None:
            return self.result.word_error_rate
        return 1 - (self.result.identification_rate or 0.0)

    @property
    def description(self) -> str:
        if self.result.word_error_rate is not None:
            return f"word error rate {self.error_rate:.3f}"
        return f"identification rate {1 - self.error_rate:.3f}"


def choose_checkpoint(out: Path, newest: Path, args: argparse.Namespace) -> Candidate:
    """Return the candidate whose free-running speech has the lowest word error rate or, without a
    speech recognizer, the highest identification rate.

    The candidates are the newest checkpoint, which has the lowest learning rate, and the checkpoint
    with the lowest validation loss. The checkpoint with the lower validation loss does not always
    make fewer word errors (research/which-checkpoint.md).
    """
    checkpoints = {NEWEST: newest}
    if (best := out / "run" / BEST).exists():
        checkpoints[LOWEST_LOSS] = best
    candidates = [
        Candidate(path, out / name, evaluate(out / name, path, out / "lists" / "val.txt", args))
        for name, path in checkpoints.items()
    ]
    for candidate in candidates:
        print(f"{candidate.checkpoint}: {candidate.description}")
    # If both checkpoints have the same error rate, min returns the newest checkpoint.
    return min(candidates, key=lambda x: x.error_rate)


def evaluate(
    folder: Path, checkpoint: Path, recordings: Path, args: argparse.Namespace
) -> Intelligibility:
    """Synthesize and transcribe the held-out texts, unless `folder` contains the result. Return the
    result."""
    result = folder / EVALUATION_FILE
    has_recognizer = args.recognizer != NO_RECOGNIZER
    # Evaluate again if only one of the two evaluations used a speech recognizer, because the rates of
    # the two checkpoints must be comparable.
    if (
        is_outdated(result, checkpoint)
        or (read_result(result, Intelligibility).word_error_rate is not None) != has_recognizer
    ):
        folder.mkdir(exist_ok=True)
        run_stage(
            "scripts/evaluate.py",
            *("--checkpoint", checkpoint, "--recordings", recordings),
            *("--output", folder / SPEECH, "-o", result, "--language", args.language),
            *("--recognizer", args.recognizer, "--whisper-model", args.whisper_model),
            *(["--words-only"] if has_recognizer else []),
        )
    return read_result(result, Intelligibility)


def export(out: Path, checkpoint: Path) -> Path:
    """Export a checkpoint as a voice, unless the exported voice exists and is newer than the
    checkpoint. Return the folder of the voice."""
    voice = out / "voice"
    description = voice / DESCRIPTION_FILE
    is_same = description.exists() and read_json(description)["checkpoint"] == checkpoint.name
    if not is_same or is_outdated(description, checkpoint):
        shutil.rmtree(voice, ignore_errors=True)
        run_stage("scripts/export_voice.py", "--checkpoint", checkpoint, "-o", voice, "--packed")
    return voice


def write_page(out: Path, speech_folder: Path, name: str, summary: str) -> Path:
    """Write an HTML page with the recording and the synthetic speech for each held-out text. Return
    the path of this HTML page."""
    rows = []
    audio = sorted(speech_folder.glob("*.wav"))
    lists = out / "lists"
    lines = [split_filelist_line(x) for _, x in numbered_lines(out / "lists" / "val.txt", "")]
    for line, speech in zip(lines, audio, strict=False):
        recording = os.path.relpath(os.path.join(lists, line.path), out)
        cells = "".join(
            f'<td><audio controls preload="none" src="{quote(path)}"></audio></td>'
            for path in (recording, os.path.relpath(speech, out))
        )
        rows.append(f"<tr><td>{html.escape(line.text)}</td>{cells}</tr>")
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(name)}</title>'
        f"<h1>{html.escape(name)}</h1><pre>{html.escape(summary)}</pre>"
        "<p>The model was not trained on these texts. The speech is synthetic.</p>"
        f"<table><tr><th>text</th><th>recording</th><th>speech</th></tr>{''.join(rows)}</table>\n"
    )
    path = out / PAGE_FILE
    write_bytes(path, page.encode())
    return path


def are_options(text: str) -> bool:
    """Return whether the program can pass this text to scripts/prepare.py. The text must contain no
    unclosed quotation mark, and no option from OWN_OPTIONS or SPEAKER_OPTIONS."""
    try:
        names = {word.partition("=")[0] for word in shlex.split(text)}
    except ValueError:
        return False
    return names.isdisjoint(OWN_OPTIONS + SPEAKER_OPTIONS)


def joined(arguments: list[str]) -> list[str]:
    """Join the option `--prepare` and its value to a single argument, such as
    `--prepare=--skip-bad`, because argparse does not accept values that begin with a hyphen."""
    result = list[str]()
    for argument in arguments:
        if result and result[-1] == "--prepare":
            result[-1] += f"={argument}"
        else:
            result.append(argument)
    return result


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("recordings", metavar="RECORDINGS", type=Path, help="folder of the recordings")
    add(
        "--name",
        type=checked(str, "a name", lambda name: bool(name.strip())),
        required=True,
        help="name of the person",
    )
    add("--out", type=Path, help="write to this folder (default: my-voice-NAME)")
    add(
        "--start",
        type=Path,
        default=START,
        help="start from this voice or checkpoint (default: voices/english)",
    )
    add(
        "--language",
        type=checked(str, "an eSpeak code, such as de", bool),
        default=ENGLISH,
        help="language of the recordings, as an eSpeak code (default: %(default)s)",
    )
    add(
        "--symbols",
        choices=(LETTERS, PHONES),
        help="convert texts to these symbols (default: letters for English, phones for other "
        "languages)",
    )
    add(
        "--prepare",
        type=checked(
            str,
            f"options other than {', '.join(OWN_OPTIONS + SPEAKER_OPTIONS)}, with a closing mark for "
            "each quotation mark; all recordings must be of one person",
            are_options,
        ),
        default="",
        metavar="OPTIONS",
        help="pass these options to scripts/prepare.py",
    )
    add(
        "--steps",
        type=at_least_one,
        help=f"number of optimizer steps (default: {STEPS} for English, {STEPS_FOR_OTHER_LANGUAGES} "
        "for other languages)",
    )
    add(
        "--val-fraction",
        type=checked(float, "a number above 0 and below 1", lambda value: 0 < value < 1),
        default=VALIDATION,
        help="fraction of the clips to hold out for validation (default: %(default)s)",
    )
    add(
        "--recognizer",
        choices=(*NAMES, NO_RECOGNIZER),
        help="transcribe the speech with this recognizer (default: whisper, or none if Whisper "
        "cannot be loaded)",
    )
    add_whisper_model_option(parser)
    args = parser.parse_args(joined(sys.argv[1:] if arguments is None else arguments))
    args.language = espeak_code(args.language)
    args.symbols = args.symbols or (LETTERS if is_english(args.language) else PHONES)
    args.steps = args.steps or (STEPS if is_english(args.language) else STEPS_FOR_OTHER_LANGUAGES)
    args.name = checked_name(args.name, "--name")
    out = args.out or Path(f"my-voice-{args.name}")
    if args.out is None and len(out.parts) > 1:
        raise UserError(f"--name {args.name}: not a name of a folder; add --out FOLDER")
    check_is_folder(out, "--out")
    if not args.recordings.is_dir():
        found = "not a folder" if args.recordings.exists() else "no such folder"
        raise UserError(f"{args.recordings}: {found} (expected the folder of the recordings)")
    check_options(out, args)
    began = time.monotonic()
    hparams = prepare(out, args)
    lines = [split_filelist_line(x) for _, x in numbered_lines(out / "lists" / "train.txt", "")]
    seconds = np.array([line.seconds or 0.0 for line in lines])
    frames = np.ceil(seconds * hparams.sampling_rate / hparams.hop_length)
    batches = len(plan_epoch(frames, epoch=hparams.random_epochs, **batching_options(hparams)))
    symbols = round(sum(len(line.text) for line in lines) / len(lines))
    step = seconds_per_step(hparams, round(len(lines) / batches), round(frames.mean()), symbols)
    print(f"\n{len(lines):,} clips with {seconds.sum() / 60:.1f} minutes of speech")
    finished = [number for number, _ in list_checkpoints(out / "run")][-1:]
    remaining = max(0, args.steps - sum(finished))
    print(
        f"{remaining:,} of {args.steps:,} optimizer steps remain. They take about "
        f"{remaining * step / 60:.0f} minutes on this machine if no other programs run"
    )
    settings = training_settings(args.steps, batches)
    checkpoint = train(out, args.start, settings)
    chosen = choose_checkpoint(out, checkpoint, args)
    voice = export(out, chosen.checkpoint)
    summary = chosen.result.summary()
    page = write_page(out, chosen.folder / SPEECH, args.name, summary)
    print(f"""
{summary}

listen         {page}
speech         {chosen.folder / SPEECH}
voice          {voice}: works without PyTorch
checkpoint     {chosen.checkpoint}
recordings     {out / "lists" / "report.html"}: problems found in the recordings
time           {(time.monotonic() - began) / 60:.0f} minutes

To synthesize speech, run:
  python synthesize.py --voice {shlex.quote(str(voice))} --text "Good morning." -o morning.wav""")


if __name__ == "__main__":
    run_program(main)
