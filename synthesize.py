"""Speak texts with a trained checkpoint, this recipe's or NVIDIA's.

    python synthesize.py --checkpoint runs/ljspeech/best.pt --text "Printing, in the only sense."
    python synthesize.py --checkpoint runs/ljspeech/best.pt --text-file texts.txt -o out --save-mel

Writes a wav by Griffin-Lim and a picture of the alignment for each text; with --save-mel the
log-mel too, float32 [n_mels, frames] as HiFi-GAN and WaveGlow read it. A text sounds the same
whichever texts are spoken beside it.
"""

import environment

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from audio import griffin_lim, write_mel, write_wav
from errors import UserError
from files import write_atomically
from hparams import HParams, create_hparams, hparams_from_dict
from model import DropoutMasks, Tacotron2
from pictures import draw_alignment
from text import can_be_spoken, symbols, text_to_sequence
from training.checkpoint import load_checkpoint, load_weights

LEAST_SHARPNESS = 0.3  # a mean largest weight below this is a blurred alignment
LONGEST_JUMP_BACK = 4  # symbols; further back than this repeats words
TEXTS_AT_ONCE = 16


@dataclass(frozen=True)
class Speech:
    mel: torch.Tensor  # [n_mels, frames], float32 on the CPU
    alignment: np.ndarray  # [steps, symbols]
    warnings: list[str]  # what is wrong with it, empty if it looks well


def load_model(path: str | Path, overrides: str, device: torch.device) -> tuple[Tacotron2, HParams]:
    """The model of a checkpoint, ready to speak. The reference's hold no settings: defaults then.

    Raises:
        UserError: if it cannot be read or does not fit its settings, or on overrides that are
            refused.
    """
    saved = load_checkpoint(path)
    hparams = create_hparams(overrides, hparams_from_dict(saved.get("hparams", {})))
    model = Tacotron2(hparams)
    load_weights(model, saved, path)
    return model.to(device).eval(), hparams


def speak(model: Tacotron2, sequences: list[list[int]], seed: int) -> list[Speech]:
    """Speak symbol sequences together. Each has prenet dropout of its own from `seed`, so its
    result does not depend on the others."""
    device = model.embedding.weight.device
    lengths = torch.tensor([len(sequence) for sequence in sequences])
    text = torch.zeros(len(sequences), int(lengths.max()), dtype=torch.int64)
    for row, sequence in zip(text, sequences, strict=True):
        row[: len(sequence)] = torch.tensor(sequence)
    each = [
        model.decoder.draw_masks(
            model.max_decoder_steps, 1, torch.Generator().manual_seed(seed)
        ).prenet
        for _ in sequences
    ]
    prenet = tuple(
        None if layer[0] is None else torch.cat(layer, dim=1) for layer in zip(*each, strict=True)
    )
    outputs = model.infer(text.to(device), lengths, DropoutMasks(prenet, None, None))
    speeches = []
    for i, num_frames in enumerate(outputs.mel_lengths.tolist()):
        num_steps = num_frames // model.n_frames_per_step
        alignment = outputs.alignments[i, :num_steps, : lengths[i]].float().cpu().numpy()
        last_gate = torch.sigmoid(outputs.gate[i, num_steps - 1]).item()
        stopped = last_gate > model.gate_threshold
        warnings = alignment_warnings(alignment, sequences[i])
        if not stopped:
            warnings.append(
                f"no stop within {model.max_decoder_steps} steps, cut there: raise "
                "max_decoder_steps for a long text, or train on"
            )
        mel = outputs.mel_postnet[i, :, :num_frames].float().cpu()
        speeches.append(Speech(mel, alignment, warnings))
    return speeches


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
        try:
            content = args.text_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{args.text_file}: not readable as UTF-8 text ({error})") from None
        numbered = enumerate(content.splitlines(), 1)
        lines = [(f"{args.text_file}:{n}", line) for n, line in numbered if line.strip()]
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
    """The files of one text; returns its seconds of sound."""
    samples = griffin_lim(speech.mel, hparams)
    base = args.output_directory / name
    rate = hparams.sampling_rate
    write_atomically(base.with_suffix(".wav"), lambda file: write_wav(file, samples, rate))
    picture = draw_alignment(speech.alignment)
    write_atomically(base.with_suffix(".png"), lambda file: picture.savefig(file, format="png"))
    if args.save_mel:
        write_mel(base.with_suffix(".npy"), speech.mel.numpy())
    return len(samples) / rate


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
    parser.add_argument("--save-mel", action="store_true", help="write the log-mel as .npy too")
    parser.add_argument("--hparams", default="", help="for example max_decoder_steps=2000")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        model, hparams = load_model(args.checkpoint, args.hparams, device)
        texts = read_texts(args, hparams)
        args.output_directory.mkdir(parents=True, exist_ok=True)
        for first in range(0, len(texts), TEXTS_AT_ONCE):
            group = texts[first : first + TEXTS_AT_ONCE]
            speeches = speak(model, [sequence for _, sequence in group], args.seed)
            for number, (speech, (text, _)) in enumerate(
                zip(speeches, group, strict=True), first + 1
            ):
                name = f"{number:04d}"
                seconds = write_speech(name, speech, args, hparams)
                shown = text if len(text) <= 60 else text[:57] + "..."
                print(f"{name}.wav  {seconds:5.2f} s  {shown}", flush=True)
                for warning in speech.warnings:
                    print(f"  warning: {warning}", flush=True)
    except (UserError, OSError) as error:
        sys.exit(f"synthesize.py: {error}")
    kinds = "wav, alignment png" + (" and mel npy" if args.save_mel else "")
    print(f"wrote {kinds} of {len(texts)} texts to {args.output_directory}")


if __name__ == "__main__":
    main()
