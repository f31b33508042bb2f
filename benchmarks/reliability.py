"""Measure how often a model speaks a text completely and without repeats, and stops at the end of
the text.

    python -m benchmarks.reliability demo/voice texts.txt
    python -m benchmarks.reliability demo/voice --numbers 1-10000 --json reliability.json
    python -m benchmarks.reliability demo/voice --numbers 1-10000 --transcribe
    python -m benchmarks.reliability best.pt texts.txt --transcribe --recognizer whisper --quality
    python -m benchmarks.reliability best.pt texts.txt --speaker anna

The benchmark synthesizes each text in three modes, with the same seed. In the mode "only the stop
token", only the stop-token predictor ends speech, and no end punctuation is added to the text, as
in versions before 0.4.0. In the mode "with end detection", speech also ends if attention stays at
the end of the text. The mode "with retries" adds retries to end detection. The table contains the
number of texts with each failure.

--audio sets how many randomly chosen texts are also converted to audio. The benchmark compares the
computing times of the three modes for the texts that are converted to audio. --transcribe adds the
word error rate of the audio, and --quality adds the mean DistillMOS score of the audio.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.reliability")


import argparse
import random
import time
from collections import Counter
from collections.abc import Iterable
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
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.vocoder import load_vocoder

WAYS = {  # maps the name of each synthesis mode to settings and a number of retries
    "gate alone": ("attention_rest_time=0", 0),
    "end found": ("", 0),
    "with retries": ("", RETRIES),
}
# Column titles for the synthesis modes in WAYS.
TITLES = ("only the stop token", "with end detection", "with retries")
LABELS = {
    "no stop": "reached the limit of decoder steps",
    "stuck": "attention stopped inside the text",
    "missing": "words missing at the end",
    "skipped": "words skipped",
    "repeated": "words repeated",
    "fast": "speech faster than in the corpus",
    "slow": "speech slower than in the corpus",
    "blurred": "alignment blurred",
}
HALF = 0.5  # `half_wrong` counts the texts in which more than this fraction of the words is wrong


@dataclass
class Counts:
    """Counts of failures and other results in one synthesis mode, summed over all texts."""

    # Number of texts with each kind of failure.
    failures: Counter[str] = field(default_factory=Counter)
    failed: int = 0  # number of texts with any failure
    stop_reasons: Counter[str] = field(default_factory=Counter)  # number of chunks per stop reason
    faded_out: int = 0  # number of chunks that were faded out because they were loud at the end
    chunks: int = 0
    retried: int = 0  # number of chunks that were synthesized more than once
    attempts: int = 0
    computing: float = 0.0  # computing time in seconds for the texts that --audio selects
    audio: float = 0.0  # duration of the speech for all texts, in seconds
    longest: float = 0.0  # duration of the longest speech for one text, in seconds
    half_wrong: int = 0  # number of texts with more than half of the words transcribed wrongly
    word_error_rate: float | None = None
    quality: float | None = None  # mean DistillMOS score from 1 to 5


def texts_of(args: argparse.Namespace) -> list[str]:
    if args.numbers:
        first, last = args.numbers
        return [sentence_of(str(n), args.language) for n in range(first, last + 1)]
    lines = numbered_lines(args.texts, "no such file (expected a file with one text per line)")
    return [line.strip() for _, line in lines]


def number_range(text: str) -> tuple[int, int]:
    """Convert the argument of --numbers to (first, last)."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and last.isdecimal() and 1 <= int(first) <= int(last) < 10**6):
        raise argparse.ArgumentTypeError(
            f"{text[:60]!r}: invalid range (expected FIRST-LAST, such as 1-10000)"
        )
    return int(first), int(last)


def speak(
    synthesizer: Synthesizer,
    text: str,
    options: dict[str, Any],
    counts: Counts,
    *,
    with_audio: bool,
) -> np.ndarray:
    """Synthesize a text in one synthesis mode, and add the results to `counts`. Return the audio
    [N], which is empty if `with_audio` is False.

    Args:
        options: keyword arguments for `Synthesizer.stream_mels`.
    """
    settings = synthesizer.settings
    began = time.perf_counter()
    stream = synthesizer.stream_mels(text, **options)
    mel = np.concatenate([*stream], axis=1)
    audio = synthesizer.audio_of(mel) if with_audio else np.empty(0)
    if with_audio:
        counts.computing += time.perf_counter() - began
    seconds = mel.shape[1] * settings.hop_length / settings.sampling_rate
    counts.audio += seconds
    counts.longest = max(counts.longest, seconds)
    kinds = {failure.kind for chunk in stream.chunks for failure in chunk.failures}
    counts.failures.update(kinds)
    counts.failed += bool(kinds)
    for chunk in stream.chunks:
        counts.chunks += 1
        counts.stop_reasons[chunk.stop_reason.name] += 1
        counts.faded_out += not chunk.died_away
        counts.retried += chunk.attempts > 1
        counts.attempts += chunk.attempts
    return audio


def load_ways(args: argparse.Namespace) -> dict[str, tuple[Synthesizer, int]]:
    """Return the synthesizer and the number of retries for each synthesis mode in WAYS."""
    ways = {}
    for name, (settings, retries) in WAYS.items():
        overrides = ",".join(filter(None, (args.hparams, settings)))
        synthesizer = load_synthesizer(args.voice, overrides)
        if args.vocoder:
            synthesizer.vocoder = load_vocoder(args.vocoder, synthesizer.settings)
        ways[name] = (synthesizer, retries)
    gate_alone = ways["gate alone"][0]
    statistics = gate_alone.training.statistics
    # In the mode "gate alone" (only the stop token), add no end punctuation, as in versions before
    # 0.4.0.
    if statistics is not None:
        without_mark = replace(statistics, final_mark="")
        gate_alone.training = replace(gate_alone.training, statistics=without_mark)
    return ways


def measure(args: argparse.Namespace, texts: list[str]) -> dict[str, Counts]:
    """Synthesize all texts in every synthesis mode, and return {synthesis mode: counts}."""
    ways = load_ways(args)
    counts_of = {name: Counts() for name in ways}
    recognizer = None
    if args.transcribe:
        recognizer = make_recognizer(args.recognizer, args.whisper_model, args.language, texts)
        if recognizer is None:
            expected = f"{args.recognizer} only supports English. Use --recognizer whisper"
            raise UserError(f"--language {args.language}: {expected}")
    quality = DistillMos() if args.quality else None
    evaluators = {name: Evaluators(recognizer, quality, args.language) for name in ways}
    chosen = set(random.Random(0).sample(range(len(texts)), min(args.audio, len(texts))))
    for number, text in enumerate(progress_bar("Speaking", len(texts), " texts", iterable=texts)):
        is_chosen = number in chosen
        for name, (synthesizer, retries) in ways.items():
            options = {"retries": retries, "speaker": args.speaker}
            audio = speak(synthesizer, text, options, counts_of[name], with_audio=is_chosen)
            if is_chosen:
                evaluators[name].add(text, audio, synthesizer.settings.sampling_rate)
    for name, counts in counts_of.items():
        measures = evaluators[name].measures()
        counts.word_error_rate = measures.word_error_rate
        counts.quality = measures.quality
        if args.transcribe:
            rates = [word_error_rate([one]) for one in evaluators[name].transcripts]
            counts.half_wrong = sum(rate > HALF for rate in rates)
    return counts_of


def table(counts_of: dict[str, Counts], num_texts: int, num_audio: int) -> str:
    """Return a Markdown table with one column per synthesis mode."""
    all_counts = [*counts_of.values()]
    rows: list[list[str]] = []

    def add(title: str, cells: Iterable[str]) -> None:
        rows.append([title, *cells])

    for kind, label in LABELS.items():
        add(label, (f"{counts.failures[kind]:,}" for counts in all_counts))
    add("**any of these**", (f"{counts.failed:,}" for counts in all_counts))
    add("chunks ended by the stop token", (f"{c.stop_reasons['GATE']:,}" for c in all_counts))
    add("chunks ended by end detection", (f"{c.stop_reasons['REST']:,}" for c in all_counts))
    add("chunks faded out", (f"{counts.faded_out:,}" for counts in all_counts))
    add("chunks with retries", (f"{counts.retried:,}" for counts in all_counts))
    add("duration of the longest audio (s)", (f"{counts.longest:.2f}" for counts in all_counts))
    add(
        "total duration of the speech (minutes)",
        (f"{counts.audio / 60:.1f}" for counts in all_counts),
    )
    add(f"computing time for {num_audio:,} texts (s)", (f"{c.computing:.1f}" for c in all_counts))
    rates = [counts.word_error_rate for counts in all_counts]
    if None not in rates:
        title = f"texts with more than half of the words wrong, of {num_audio:,} texts"
        add(title, (f"{counts.half_wrong:,}" for counts in all_counts))
        add(f"word error rate, {num_audio:,} texts", (f"{rate:.3f}" for rate in rates))
    scores = [counts.quality for counts in all_counts]
    if None not in scores:
        add(f"DistillMOS, {num_audio:,} texts", (f"{score:.2f}" for score in scores))
    return markdown_table([f"measurement ({num_texts:,} texts)", *TITLES], rows)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("voice", type=Path, help="folder of an exported voice, or a checkpoint")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("texts", type=Path, nargs="?", help="file with one text per line")
    source.add_argument(
        "--numbers",
        type=number_range,
        metavar="FIRST-LAST",
        help="synthesize these numbers instead of the texts in a file; only for models from "
        "scripts/demo.py",
    )
    add("--language", default=ENGLISH, help="language of the texts (default: %(default)s)")
    add("--speaker", metavar="NAME", help="name of the speaker, if the model has several speakers")
    add("--vocoder", metavar="FILE", help="use this ONNX vocoder instead of Griffin-Lim")
    add(
        "--audio",
        type=whole_number(1),
        default=500,
        metavar="N",
        help="compute the audio of N randomly chosen texts (default: %(default)s)",
    )
    add(
        "--transcribe",
        action="store_true",
        help="transcribe the audio, and print the word error rate",
    )
    add_recognizer_options(parser)
    add(
        "--quality",
        action="store_true",
        help="rate the audio with DistillMOS (needs requirements/distillmos.txt)",
    )
    add("--hparams", default="", help="override settings, for example attention_window=6")
    add("--json", type=output_file, metavar="FILE", help="also write the results to this JSON file")
    args = parser.parse_args(arguments)
    args.device = torch.device("cpu")
    texts = texts_of(args)
    if not texts:
        raise UserError(f"{args.texts}: this file contains no text (expected one text per line)")
    counts_of = measure(args, texts)
    before = counts_of["end found"].computing
    after = counts_of["with retries"].computing
    title = " ".join(filter(None, (str(args.voice), args.speaker, args.hparams, args.vocoder)))
    markdown = table(counts_of, len(texts), min(args.audio, len(texts)))
    ratio = f"With retries, synthesis takes {after / before:.3f} times as long as without retries."
    # Convert the Counter to a dict, because dataclasses.asdict cannot copy a Counter.
    result = {name: vars(counts) for name, counts in counts_of.items()}
    publish(args, {"voice": title, "ways": result}, f"{title}\n\n{markdown}\n\n{ratio}")


if __name__ == "__main__":
    run_program(main)
