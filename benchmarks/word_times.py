"""Compare the times of words in `--timings` with the times that pocketsphinx finds in the audio.

    python -m benchmarks.word_times --voice voices/english --speaker linda

A text is skipped if pocketsphinx cannot align it, for example because a word is missing from
pocketsphinx's dictionary. If a difference is positive, the time from `--timings` is later than the
time from pocketsphinx. pocketsphinx rounds times to 0.01 s.
"""

if not __package__:
    raise SystemExit("error: run this program as a module: python -m benchmarks.word_times")


from pathlib import Path

import numpy as np
import soxr
import torch

from benchmarks.timing import publish
from tacotron2_voice.timings import Timing, symbol_times, word_times
from tacotron2_voice.utils.arguments import make_parser, output_file
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.files import numbered_lines
from tacotron2_voice.utils.program import run_program
from tacotron2_voice.voice import Voice

TEXTS = Path("tests/data/unseen_transcripts.txt")
RATE = 16_000  # sampling rate of pocketsphinx's model, in Hz


class ForcedAligner:
    """Find the times of known words in audio with pocketsphinx."""

    def __init__(self) -> None:
        import pocketsphinx

        self.decoder = pocketsphinx.Decoder(
            samprate=RATE, lm=None, loglevel="FATAL", remove_noise=False
        )

    def align(self, words: list[str], audio: np.ndarray, rate: int) -> list[Timing]:
        """Return the times of the words in audio [N], or an empty list if the words cannot be
        aligned."""
        if any(self.decoder.lookup_word(word) is None for word in words):
            return []
        samples = np.rint(30_000 * soxr.resample(audio, rate, RATE)).astype("<i2")
        self.decoder.set_align_text(" ".join(words))
        self.decoder.start_utt()
        self.decoder.process_raw(samples.tobytes(), full_utt=True)
        self.decoder.end_utt()
        found = []
        for segment in self.decoder.seg() or ():
            if not segment.word.startswith(("<", "[", "(")):  # skip segments of silence and noise
                end = segment.end_frame + 1
                found.append(Timing(segment.word, segment.start_frame / 100, end / 100))
        return found if len(found) == len(words) else []


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--voice", type=Path, required=True, metavar="FOLDER", help="folder of an exported voice")
    speaker_help = "name of the speaker; required if the voice has several speakers"
    add("--speaker", metavar="NAME", help=speaker_help)
    add(
        "--texts",
        type=Path,
        default=TEXTS,
        metavar="FILE",
        help="file with one text per line (default: %(default)s)",
    )
    add("--json", type=output_file, metavar="FILE.json", help="also write the results to this file")
    parser.set_defaults(device=torch.device("cpu"))
    args = parser.parse_args(arguments)
    voice = Voice(args.voice)
    aligner = ForcedAligner()
    differences: dict[str, list[float]] = {"start": [], "end": []}
    num_texts = 0
    lines = numbered_lines(args.texts, "no such text file")
    for _, text in lines:
        speech = voice.synthesize(text, speaker=args.speaker)
        words = []
        for chunk in speech.chunks:
            symbols = symbol_times(chunk, voice.settings.table)
            words += word_times(chunk, symbols, voice.settings.table)
        expected = aligner.align([word.text for word in words], speech.audio, speech.sampling_rate)
        num_texts += bool(expected)
        for ours, theirs in zip(words, expected, strict=False):
            differences["start"].append(ours.start - theirs.start)
            differences["end"].append(ours.end - theirs.end)
    results = {}
    for name, values in differences.items():
        sizes = np.abs(values)
        results[name] = {
            "words": len(values),
            "median difference (s)": round(float(np.median(values)), 3),
            "median size (s)": round(float(np.median(sizes)), 3),
            "95% of sizes below (s)": round(float(np.percentile(sizes, 95)), 3),
        }
    rows = [[name, *result.values()] for name, result in results.items()]
    titles = ["time", "words", "median difference (s)", "median absolute difference (s)"]
    table = markdown_table([*titles, "95th percentile of the absolute difference (s)"], rows)
    text = f"compared {num_texts} of {len(lines)} texts (the others could not be aligned)\n{table}"
    publish(args, {"texts": num_texts, "results": results}, text)


if __name__ == "__main__":
    run_program(main)
