"""Measure how reliably a voice speaks: it should say all of a text once and then stop.

    python -m benchmarks.reliability demo/voice texts.txt
    python -m benchmarks.reliability demo/voice --numbers 1-10000 --json reliability.json
    python -m benchmarks.reliability demo/voice --numbers 1-10000 --no-mark --transcribe
    python -m benchmarks.reliability best.pt texts.txt --transcribe --recognizer whisper --quality
    python -m benchmarks.reliability best.pt texts.txt --speaker anna

Every text is spoken three times with the same seed, in turns: ended by the gate alone, without an
added full stop (as before 0.4.0); ended by the gate or by attention at rest; and with retries of
faulty parts. The table counts texts by their faults. For --sounds randomly chosen texts the sound
is made too, and the times are compared; --transcribe adds the word error rate, --quality the mean
score of DistillMOS.
"""

import argparse
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import publish
from evaluation.evaluate import Evaluators, word_error_rate
from evaluation.quality import DistillMos
from evaluation.recognizers import add_recognizer_options, make_recognizer
from export.loading import load_synthesizer
from tacotron2_voice.synthesizer import RETRIES, Synthesizer
from tacotron2_voice.text.spoken_numbers import ENGLISH, sentence_of
from tacotron2_voice.utils.arguments import make_parser, output_file, whole_number
from tacotron2_voice.utils.console import markdown_table, progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines
from tacotron2_voice.utterance import utterance_of
from tacotron2_voice.vocoder import load_vocoder

WAYS = {  # settings, and retries
    "gate alone": ("attention_rest_time=0", 0),
    "end found": ("", 0),
    "with retries": ("", RETRIES),
}
KINDS = "no stop,stuck,missing,skipped,repeated,fast,slow,blurred".split(",")
LABELS = {
    "no stop": "ran to the limit of steps",
    "stuck": "attention stopped inside",
    "missing": "words missing at the end",
    "skipped": "words left out",
    "repeated": "words repeated",
    "fast": "faster than the corpus",
    "slow": "slower than the corpus",
    "blurred": "alignment blurred",
}
HALF = 0.5  # of the words


@dataclass
class Counts:
    """Counts over the texts spoken in one way."""

    faults: Counter[str] = field(default_factory=Counter)  # texts with at least one of the kind
    faulty: int = 0  # texts with any
    ends: Counter[str] = field(default_factory=Counter)  # parts
    loud_ends: int = 0  # parts whose sound had not died away, and was faded out
    parts: int = 0
    spoken_again: int = 0  # parts
    tries: int = 0
    computing: float = 0.0  # seconds, of the texts whose sound was made
    sound: float = 0.0  # seconds
    longest: float = 0.0  # seconds of sound, of one text
    half_wrong: int = 0  # texts with more than half of their words wrong, of those transcribed
    word_error_rate: float | None = None
    quality: float | None = None  # DistillMOS, from 1 to 5


def texts_of(args: argparse.Namespace) -> list[str]:
    if args.numbers:
        first, last = args.numbers
        texts = [sentence_of(str(n), args.language) for n in range(first, last + 1)]
    else:
        lines = numbered_lines(args.texts, "no such file; name one with a text on each line")
        texts = [line.strip() for _, line in lines]
    return [text.rstrip(".") for text in texts] if args.no_mark else texts


def number_range(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) < 10**6):
        raise argparse.ArgumentTypeError(f"{text[:60]!r}: expected FIRST-LAST, such as 1-10000")
    return int(first), int(last)


def speak(
    speaker: Synthesizer, text: str, options: dict[str, Any], counts: Counts, *, with_sound: bool
) -> np.ndarray:
    """Speak a text, with options of `Synthesizer.mels`, and add its faults to `counts`. Returns the
    sound [N], empty if not wanted."""
    h, began = speaker.hparams, time.perf_counter()
    mel = np.concatenate([*speaker.mels(utterance_of(text, h), **options)], axis=1)
    samples = np.concatenate([*speaker.sound([mel])]) if with_sound else np.empty(0)
    counts.computing += (time.perf_counter() - began) * with_sound
    seconds = mel.shape[1] * h.hop_length / h.sampling_rate
    counts.sound, counts.longest = counts.sound + seconds, max(counts.longest, seconds)
    kinds = {fault.kind for attempt in speaker.attempts for fault in attempt.faults}
    counts.faults.update(kinds)
    counts.faulty += bool(kinds)
    for attempt in speaker.attempts:
        counts.parts += 1
        counts.ends[attempt.end.name] += 1
        counts.loud_ends += not attempt.died_away
        counts.spoken_again += attempt.tries > 1
        counts.tries += attempt.tries
    return samples


def measure(args: argparse.Namespace, texts: list[str]) -> dict[str, Counts]:
    ways = {
        name: (
            load_synthesizer(args.voice, ",".join(filter(None, (args.hparams, settings)))),
            retries,
        )
        for name, (settings, retries) in WAYS.items()
    }
    gate_alone = ways["gate alone"][0]
    if gate_alone.statistics is not None:  # no mark was added either
        gate_alone.statistics = replace(gate_alone.statistics, final_mark="")
    for speaker, _ in ways.values() if args.vocoder else ():
        speaker.vocoder = load_vocoder(args.vocoder, speaker.hparams)
    counts_of = {name: Counts() for name in ways}
    recognizer = None
    if args.transcribe:
        recognizer = make_recognizer(args.recognizer, args.whisper_model, args.language, texts)
        if recognizer is None:
            fix = "add --recognizer whisper, or leave out --transcribe"
            raise UserError(f"--language {args.language}: {args.recognizer} knows English; {fix}")
    judge = DistillMos() if args.quality else None
    evaluators = {name: Evaluators(recognizer, judge, args.language) for name in ways}
    chosen = set(random.Random(0).sample(range(len(texts)), min(args.sounds, len(texts))))
    for number, text in enumerate(progress_bar("Speaking", len(texts), " texts", iterable=texts)):
        is_chosen = number in chosen
        for name, (speaker, retries) in ways.items():
            speaker.shows_progress = False
            options = {"retries": retries, "speaker": args.speaker}
            samples = speak(speaker, text, options, counts_of[name], with_sound=is_chosen)
            if is_chosen:
                evaluators[name].add(text, samples, speaker.hparams.sampling_rate)
    for name, counts in counts_of.items():
        measures = evaluators[name].measures()
        counts.word_error_rate, counts.quality = measures.word_error_rate, measures.quality
        if args.transcribe:
            rates = [word_error_rate([one]) for one in evaluators[name].transcripts]
            counts.half_wrong = sum(rate > HALF for rate in rates)
    return counts_of


def table(counts_of: dict[str, Counts], texts: int, sounds: int) -> str:
    rows: list[list[str]] = [
        [LABELS[kind], *(f"{counts.faults[kind]:,}" for counts in counts_of.values())]
        for kind in KINDS
    ]
    rows.append(["**any of these**", *(f"{counts.faulty:,}" for counts in counts_of.values())])
    rows.append(["parts ended by the gate", *(f"{c.ends['GATE']:,}" for c in counts_of.values())])
    rows.append(["parts ended by attention", *(f"{c.ends['REST']:,}" for c in counts_of.values())])
    rows.append(["ends faded out", *(f"{c.loud_ends:,}" for c in counts_of.values())])
    rows.append(["parts spoken again", *(f"{c.spoken_again:,}" for c in counts_of.values())])
    rows.append(["longest, seconds", *(f"{c.longest:.2f}" for c in counts_of.values())])
    rows.append(["minutes of sound", *(f"{c.sound / 60:.1f}" for c in counts_of.values())])
    title = f"seconds of computing, {sounds:,} texts"
    rows.append([title, *(f"{c.computing:.1f}" for c in counts_of.values())])
    rates = [c.word_error_rate for c in counts_of.values()]
    if None not in rates:
        title = f"more than half of the words wrong, of {sounds:,}"
        rows.append([title, *(f"{c.half_wrong:,}" for c in counts_of.values())])
        rows.append([f"word error rate, {sounds:,} texts", *(f"{rate:.3f}" for rate in rates)])
    scores = [c.quality for c in counts_of.values()]
    if None not in scores:
        rows.append([f"DistillMOS, {sounds:,} texts", *(f"{score:.2f}" for score in scores)])
    return markdown_table([f"of {texts:,} texts", *counts_of], rows)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("voice", type=Path, help="a voice's folder, or a checkpoint")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("texts", type=Path, nargs="?", help="a file with a text on each line")
    help_text = "these numbers, for the demo's voice"
    source.add_argument("--numbers", type=number_range, metavar="FIRST-LAST", help=help_text)
    add("--language", default=ENGLISH, help="of the texts (%(default)s)")
    add("--speaker", metavar="NAME", help="who speaks, where the model has several speakers")
    add("--no-mark", action="store_true", help="leave out the full stop at a text's end")
    help_text = "texts whose sound is made (%(default)s)"
    add("--vocoder", metavar="FILE", help="an ONNX file in place of Griffin-Lim (docs/voices.md)")
    add("--sounds", type=whole_number(1), default=500, metavar="N", help=help_text)
    add("--transcribe", action="store_true", help="their word error rate")
    add_recognizer_options(parser)
    add("--quality", action="store_true", help="rate them (requirements/distillmos.txt)")
    add("--hparams", default="", metavar="name=value,...", help="such as attention_window=6")
    add("--json", type=output_file, metavar="FILE.json", help="write the results to this file too")
    args = parser.parse_args(arguments)
    args.device = torch.device("cpu")
    texts = texts_of(args)
    if not texts:
        raise UserError(f"{args.texts}: no text in it; write one per line")
    counts_of = measure(args, texts)
    before, after = counts_of["end found"].computing, counts_of["with retries"].computing
    title = " ".join(filter(None, (str(args.voice), args.speaker, args.hparams, args.vocoder)))
    sounds = min(args.sounds, len(texts))
    markdown = table(counts_of, len(texts), sounds)
    ratio = f"retries take {after / before:.3f} times the time"
    result = {name: vars(counts) for name, counts in counts_of.items()}  # asdict breaks Counters
    publish(args, {"voice": title, "ways": result}, f"{title}\n\n{markdown}\n\n{ratio}")


if __name__ == "__main__":
    main()
