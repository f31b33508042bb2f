"""Measure how intelligible and natural a model's speech is.

    python scripts/make_demo_corpus.py unseen --clips 100 --skip 1000
    python scripts/evaluate.py --checkpoint demo/best.pt --recordings unseen -o intelligibility.json

The program synthesizes the texts of recordings that are not in the training set, and transcribes
the speech with a recognizer. The JSON file contains

- the word error rates of the model, of the recordings, and of the recordings after mel and vocoder,
- the transcripts,
- the identification rate: the fraction of texts whose nearest recording has the same text.

A model with several speakers uses the speaker of each recording: the fourth field of a filelist, or
the field --speaker-column of a folder's metadata.csv. The file then has the rates of each speaker.
"""

import project_root

from dataclasses import asdict
from pathlib import Path

from evaluation.evaluate import EvaluationOptions, evaluate
from evaluation.recognizers import add_recognizer_options
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.arguments import make_parser, output_file
from tacotron2_voice.utils.files import write_json
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("--checkpoint", type=Path, required=True, help="checkpoint, or folder of an exported voice")
    add(
        "--recordings",
        type=Path,
        required=True,
        metavar="PATH",
        help="folder with metadata.csv and wavs/, or a filelist",
    )
    add("-o", "--out", type=output_file, required=True, metavar="FILE.json", help="file to write")
    add(
        "--speaker",
        metavar="NAME",
        help="speaker for all texts, if the recordings have no speakers",
    )
    add(
        "--speaker-column",
        metavar="COLUMN",
        default="",
        help="number or title of the field of metadata.csv that contains the speakers",
    )
    add("--output", type=Path, metavar="FOLDER", help="folder that keeps the audio (default: none)")
    add(
        "--language",
        default=ENGLISH,
        help="eSpeak's code for the language of the texts (default: %(default)s)",
    )
    add(
        "--words-only",
        action="store_true",
        help="skip the identification rate, which takes most of the time",
    )
    add_recognizer_options(parser)
    add("--vocoder", type=Path, metavar="FILE", help="ONNX vocoder (default: Griffin-Lim)")
    add(
        "--quality",
        action="store_true",
        help="rate the audio with DistillMOS; needs requirements/distillmos.txt",
    )
    add(
        "--speaker-accuracy",
        action="store_true",
        help="measure how often the nearest speaker is the right one; needs "
        "requirements/resemblyzer.txt",
    )
    args = parser.parse_args(arguments)
    options = EvaluationOptions(
        args.language,
        args.recognizer,
        args.whisper_model,
        words_only=args.words_only,
        quality=args.quality,
        right_speaker=args.speaker_accuracy,
    )
    result = evaluate(
        args.checkpoint,
        args.recordings,
        options,
        speaker_column=args.speaker_column,
        speaker=args.speaker,
        vocoder=args.vocoder,
        output=args.output,
    )
    write_json(args.out, asdict(result))
    title = "" if result.word_error_rate is None else "word error rates of "
    print(f"{title}{result.texts} texts\n{result.summary()}\nwrote {args.out}")


if __name__ == "__main__":
    run_program(main)
