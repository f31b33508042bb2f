"""Measure the intelligibility and the quality of a model's speech.

    python scripts/make_demo_corpus.py unseen --clips 100 --skip 1000
    python scripts/evaluate.py --checkpoint demo/run/best.pt --recordings unseen -o unseen.json

The program synthesizes the texts of recordings that are not in the training set, and transcribes
the speech with a recognizer. The program writes a JSON file that contains

- the word error rates of the synthesized speech, of the recordings, and of the recordings after
  conversion to mels and back to audio with the vocoder,
- the transcripts,
- the identification rate: the fraction of synthesized texts whose most similar recording has the
  same text.

A model with several speakers speaks each text with the speaker of the recording. The name of a
recording's speaker is in the fourth field of the filelist, or in the column of metadata.csv that
--speaker-column selects. If there are several speakers, the JSON file also contains the rates for
each speaker.
"""

import project_root

from dataclasses import asdict
from pathlib import Path

from evaluation.evaluate import EvaluationOptions, evaluate
from evaluation.recognizers import NO_RECOGNIZER, add_recognizer_options
from tacotron2_voice.text.phones import espeak_code
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.arguments import make_parser, output_file
from tacotron2_voice.utils.files import write_json
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        type=Path,
        required=True,
        help="evaluate this checkpoint, or the exported voice in this folder",
    )
    add(
        "--recordings",
        type=Path,
        required=True,
        metavar="PATH",
        help="use these recordings: a folder with metadata.csv and wavs/, or a filelist",
    )
    add(
        "-o",
        "--out",
        type=output_file,
        required=True,
        metavar="FILE.json",
        help="write the results to this file",
    )
    add(
        "--speaker",
        metavar="NAME",
        help="use this speaker for all texts, if the recordings have no speaker names",
    )
    add(
        "--speaker-column",
        metavar="COLUMN",
        default="",
        help="read the speakers from this column of metadata.csv (number or title)",
    )
    add(
        "--output",
        type=Path,
        metavar="FOLDER",
        help="keep the synthesized audio in this folder (default: do not keep it)",
    )
    add(
        "--language",
        default=ENGLISH,
        help="language of the texts, as an eSpeak code (default: %(default)s)",
    )
    add(
        "--words-only",
        action="store_true",
        help="do not compute the identification rate (this computation takes most of the time)",
    )
    add_recognizer_options(parser, NO_RECOGNIZER)
    add("--vocoder", type=Path, metavar="FILE", help="use this ONNX vocoder (default: Griffin-Lim)")
    add(
        "--quality",
        action="store_true",
        help="rate the audio with DistillMOS; needs requirements/distillmos.txt",
    )
    add(
        "--speaker-accuracy",
        action="store_true",
        help="measure how often the synthesized speech is more similar to the correct speaker than "
        "to any other speaker; needs requirements/resemblyzer.txt",
    )
    args = parser.parse_args(arguments)
    if args.recognizer == NO_RECOGNIZER and args.words_only:
        parser.error("--words-only needs a speech recognizer, not --recognizer none")
    options = EvaluationOptions(
        espeak_code(args.language),
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
