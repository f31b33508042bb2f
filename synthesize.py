"""Speak texts with a trained checkpoint, this recipe's or NVIDIA's.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel

Writes a wav by Griffin-Lim and a picture of the alignment for each text; with --save-mel the
log-mel too, float32 [n_mels, frames] as HiFi-GAN and WaveGlow read it. Texts are spoken one after
another: each has bitwise the sound that it has alone, on the same machine with as many threads.

A text longer than the longest that the model was trained on is spoken in parts, which end after
sentences where they can, and joined with pauses. --max-symbols sets another limit, and is needed
for checkpoints that do not say how long that text was: NVIDIA's, and our first release's.
"""

import environment

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from audio import SILENCE, griffin_lim, write_mel, write_wav
from errors import UserError
from files import numbered_lines, refuse_no_folder, write_atomically
from hparams import HParams, check_symbols, create_hparams, hparams_from_dict
from model import Tacotron2
from pictures import draw_alignment
from text import can_be_spoken, sequence_to_text, symbols, text_to_sequence
from text.splitting import Ending, Part, split_sequence
from training.checkpoint import load_checkpoint, load_weights
from training.printing import print_without_failing

LEAST_SHARPNESS = 0.3  # a mean largest weight below this is a blurred alignment
LONGEST_JUMP_BACK = 4  # symbols; further back than this repeats words
# Pauses after the parts of a text, as shares of the pause after a sentence.
PAUSES = {Ending.SENTENCE: 1.0, Ending.CLAUSE: 0.4, Ending.WORD: 0.0, Ending.INSIDE: 0.0}
LONGEST_PAUSE = 60  # seconds


@dataclass(frozen=True)
class Speech:
    mel: torch.Tensor  # [n_mels, frames], float32 on the CPU
    alignments: list[np.ndarray]  # [steps, symbols] of each part
    warnings: list[str]  # what is wrong with it, empty if it looks well


def load_model(
    path: str | Path, overrides: str, device: torch.device
) -> tuple[Tacotron2, HParams, int | None]:
    """The model of a checkpoint, ready to speak, its settings, and its longest training text.

    The reference's checkpoints hold no settings: defaults then. The longest text is in symbols,
    None where the checkpoint does not say.

    Raises:
        UserError: if it cannot be read or does not fit its settings, or on overrides that are
            refused.
    """
    saved = load_checkpoint(path)
    hparams = create_hparams(overrides, hparams_from_dict(saved.get("hparams", {})))
    check_symbols(hparams)
    model = Tacotron2(hparams)
    load_weights(model, saved, path)
    return model.to(device).eval(), hparams, saved.get("longest_text")


def speak(model: Tacotron2, sequence: list[int], seed: int) -> Speech:
    """Speak a sequence of symbol ids, with prenet dropout from `seed`.

    One text at a time: in a batch, matrix products have other shapes and round otherwise, so a
    text's mel would depend in its last bits (some 1e-6) on the texts beside it, and Griffin-Lim may
    make much of that. The price is speed: 16 texts of 400 frames, with sound and pictures, take a
    full-size model 79 s of one CPU core in place of 41 s in one batch, a small model 33 s for 28 s.
    """
    masks = model.decoder.draw_masks(
        model.max_decoder_steps, 1, torch.Generator().manual_seed(seed)
    )
    text = torch.tensor([sequence], device=model.embedding.weight.device)
    outputs = model.infer(text, torch.tensor([len(sequence)]), masks)
    alignment = outputs.alignments[0].float().cpu().numpy()
    warnings = alignment_warnings(alignment, sequence)
    if not torch.sigmoid(outputs.gate[0, -1]).item() > model.gate_threshold:
        warnings.append(
            f"no stop within {model.max_decoder_steps} steps, cut there: raise "
            "max_decoder_steps for a long text, split it with a lower --max-symbols, or train on"
        )
    return Speech(outputs.mel_postnet[0].float().cpu(), [alignment], warnings)


def speak_parts(
    model: Tacotron2, sequence: list[int], parts: list[Part], seed: int, pause_frames: int
) -> Speech:
    """Speak the parts of a text, each as if it were alone, and join their mels by silence.

    `pause_frames` frames of it follow a sentence, and the share that PAUSES names another ending.
    The mels are joined, not the sounds: a vocoder then makes the same pauses, and Griffin-Lim's
    windows reach across the joins, where parts that end in a loud sound would else meet in a jump.
    """
    mels, alignments, warnings = [], [], []
    for number, part in enumerate(parts, 1):
        words = sequence[part.start : part.end]
        speech = speak(model, words, seed)
        mels.append(speech.mel)
        alignments += speech.alignments
        shown = shortened(sequence_to_text(words), 30)
        where = f"part {number} of {len(parts)} ({shown!r}): " if len(parts) > 1 else ""
        warnings += [where + warning for warning in speech.warnings]
        if number < len(parts):
            frames = round(pause_frames * PAUSES[part.ending])
            mels.append(speech.mel.new_full((len(speech.mel), frames), SILENCE))
    return Speech(torch.cat(mels, dim=1), alignments, warnings)


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else text[: length - 3] + "..."


def sharpness(alignment: np.ndarray) -> float:
    """Mean over the steps of the largest weight: 1 is a clear focus, 1 / symbols none at all."""
    return float(alignment.max(axis=1).mean())


def alignment_warnings(alignment: np.ndarray, sequence: list[int]) -> list[str]:
    """What is broken in attention weights [steps, symbols]: words blurred, left out or repeated.

    `sequence` holds the ids of the symbols. Attention often passes over the silent letters at the
    end of a word, and the punctuation after it; words are missing if it never gets so far as the
    middle of the last word.
    """
    warnings = []
    if sharpness(alignment) < LEAST_SHARPNESS:
        warnings.append(
            f"alignment is blurred: sharpness {sharpness(alignment):.2f} is below "
            f"{LEAST_SHARPNESS}; the model has not learnt to read yet, train on"
        )
    focus = alignment.argmax(axis=1)  # the symbol attended most, at each step
    words = word_spans(sequence)
    reached = [start for start, end in words if focus.max() >= (start + end - 1) // 2]
    if len(reached) < len(words):
        warnings.append(
            f"words are missing at the end: attention got to word {len(reached)} of {len(words)} "
            f"(symbol {focus.max() + 1} of {alignment.shape[1]})"
        )
    jumps = focus[:-1] - focus[1:]
    if len(jumps) and jumps.max() > LONGEST_JUMP_BACK:
        warnings.append(
            f"attention jumps back {jumps.max()} symbols at step {jumps.argmax() + 1}: "
            "words may be repeated"
        )
    return warnings


def word_spans(sequence: list[int]) -> list[tuple[int, int]]:
    """(first, last + 1) of every word: a run of letters, apostrophes and phones with a letter or
    a phone in it."""
    spans, start = [], None
    for i, symbol in enumerate([*(symbols[number] for number in sequence), " "]):
        spoken = symbol[0] == "@" or symbol.isalpha()  # a phone of the ARPAbet, or a letter
        if spoken and start is None:
            start = i
        elif not spoken and symbol != "'" and start is not None:
            spans.append((start, i))
            start = None
    return spans


def read_texts(args: argparse.Namespace, hparams: HParams) -> list[tuple[str, list[int]]]:
    """(text, symbols) of each text; UserError lists those that leave nothing to speak."""
    if args.text is not None:
        lines = [("--text", args.text.replace("\n", " "))]
    else:
        numbered = numbered_lines(args.text_file, "no such file; check its path")
        lines = [(f"{args.text_file}:{number}", line) for number, line in numbered]
        if not lines:
            raise UserError(f"{args.text_file}: no text in it; write one a line")
    texts, problems = [], []
    for where, text in lines:
        sequence = text_to_sequence(text, hparams.text_cleaners)
        if not can_be_spoken(sequence):
            problems.append(f"{where}: {text!r} leaves nothing to speak after cleaning")
        texts.append((text.strip(), sequence))
    if problems:
        raise UserError("\n".join(problems))
    return texts


def write_speech(name: str, speech: Speech, args: argparse.Namespace, hparams: HParams) -> float:
    """The files of one text; returns its seconds of sound. UserError if the disk refuses one."""
    samples = griffin_lim(speech.mel, hparams)
    picture = draw_alignment(*speech.alignments)
    base = args.output_directory / name
    rate = hparams.sampling_rate
    try:
        write_atomically(base.with_suffix(".wav"), lambda file: write_wav(file, samples, rate))
        write_atomically(base.with_suffix(".png"), lambda file: picture.savefig(file, format="png"))
        if args.save_mel:
            write_mel(base.with_suffix(".npy"), speech.mel.numpy())
    except OSError as error:
        raise UserError(
            f"the files {base}.* could not be written ({error}): make room, or choose another "
            "folder with -o; every file that is there is whole"
        ) from None
    return len(samples) / rate


def describe_parts(parts: list[Part], args: argparse.Namespace, longest_text: int | None) -> str:
    lengths = [part.end - part.start for part in parts]
    given = args.max_symbols is not None
    limit = f"--max-symbols {args.max_symbols}" if given else f"longest in training: {longest_text}"
    return f"in {len(parts)} parts of {min(lengths)} to {max(lengths)} symbols ({limit})"


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--checkpoint", type=Path, required=True)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", help="one text")
    source.add_argument("--text-file", type=Path, help="a text a line, UTF-8")
    parser.add_argument("-o", "--output_directory", type=Path, default=Path("out"))
    parser.add_argument("--seed", type=int, default=0, help="of the prenet's dropout")
    parser.add_argument(
        "--max-symbols",
        type=int,
        metavar="N",
        help="speak longer texts in parts; default: the longest training text",
    )
    parser.add_argument(
        "--pause",
        type=float,
        default=0.3,
        metavar="SECONDS",
        help="after a part that ends a sentence, %(default)s by default; after a clause "
        f"{PAUSES[Ending.CLAUSE]:g} of it, between words none",
    )
    parser.add_argument("--save-mel", action="store_true", help="write the log-mel as .npy too")
    parser.add_argument("--hparams", default="", help="for example max_decoder_steps=2000")
    args = parser.parse_args(arguments)
    if args.max_symbols is not None and args.max_symbols < 1:
        parser.error(f"--max-symbols {args.max_symbols}: expected a whole number from 1")
    if not 0 <= args.pause <= LONGEST_PAUSE:  # nan too
        parser.error(f"--pause {args.pause:g}: expected seconds from 0 to {LONGEST_PAUSE}")
    return args


def main(arguments: list[str] | None = None) -> None:
    print_without_failing()  # what is asked for are the files: `| head` ends none of them
    args = parse_arguments(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        refuse_no_folder(args.output_directory, "-o")
        model, hparams, longest_text = load_model(args.checkpoint, args.hparams, device)
        limit = args.max_symbols or longest_text or math.inf
        pause_frames = round(args.pause * hparams.sampling_rate / hparams.hop_length)
        texts = read_texts(args, hparams)
        args.output_directory.mkdir(parents=True, exist_ok=True)
        for number, (text, sequence) in enumerate(texts, 1):
            name = f"{number:04d}"
            parts = split_sequence(sequence, limit)
            speech = speak_parts(model, sequence, parts, args.seed, pause_frames)
            seconds = write_speech(name, speech, args, hparams)
            print(f"{name}.wav  {seconds:5.2f} s  {shortened(text, 60)}", flush=True)
            if len(parts) > 1:
                print(f"  {describe_parts(parts, args, longest_text)}", flush=True)
            for warning in speech.warnings:
                print(f"  warning: {warning}", flush=True)
    except (UserError, OSError) as error:
        sys.exit(f"synthesize.py: {error}")
    kinds = "wav, alignment png" + (" and mel npy" if args.save_mel else "")
    print(f"wrote {kinds} of {len(texts)} texts to {args.output_directory}")


if __name__ == "__main__":
    main()
