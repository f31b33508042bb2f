"""How well a checkpoint or a voice is understood.

    python scripts/make_demo_corpus.py unseen --clips 100 --skip 1000
    python scripts/evaluate.py --checkpoint demo/best.pt --recordings unseen -o intelligibility.json

It synthesizes the texts of the recordings, which it must not have been trained on, and a recognizer
transcribes them. The file holds the word error rate, the reference rates of the recordings and of
the recordings after mel and vocoder, the transcripts, and the identification rate: for how many
texts the nearest recording, by dynamic time warping of mel-cepstra, is that of the same text.
--quality adds DistillMOS's scores of all three.

A model of several speakers says each text with the voice of the speaker whom a list names, or
whom the field --speaker-column of a folder's metadata.csv names, and the file has the rates of each
too. --right-speaker adds how often the speech is nearest to the recordings of the right speaker.
Where the recordings have no names, --speaker says who speaks.
"""

import project_root

from dataclasses import asdict
from pathlib import Path

from evaluation.recognizers import add_recognizer_options
from evaluation.word_error_rate import Hearing, evaluate
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.arguments import make_parser, output_file
from tacotron2_voice.utils.files import write_json
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True)
    recordings_help = "a folder with metadata.csv and wavs/, or a filelist"
    parser.add_argument(
        "--recordings", type=Path, required=True, metavar="PATH", help=recordings_help
    )
    parser.add_argument("-o", "--out", type=output_file, required=True, metavar="FILE.json")
    speaker_help = "who of the model's speakers speaks, where the recordings have no names"
    parser.add_argument("--speaker", metavar="NAME", help=speaker_help)
    column_help = "the field of the folder's metadata.csv that names speakers: number or title"
    parser.add_argument("--speaker-column", metavar="COLUMN", default="", help=column_help)
    parser.add_argument("--speech", type=Path, metavar="FOLDER", help="keep the sounds there")
    language_help = "eSpeak's name of it (%(default)s)"
    parser.add_argument("--language", default=ENGLISH, help=language_help)
    words_help = "no identification rate, which takes most of the time"
    parser.add_argument("--words-only", action="store_true", help=words_help)
    add_recognizer_options(parser)
    vocoder_help = "an ONNX file in place of Griffin-Lim (docs/voices.md)"
    parser.add_argument("--vocoder", type=Path, metavar="FILE", help=vocoder_help)
    quality_help = "DistillMOS's scores too (requirements/distillmos.txt)"
    parser.add_argument("--quality", action="store_true", help=quality_help)
    right_help = "how often it is the right person's voice (requirements/resemblyzer.txt)"
    parser.add_argument("--right-speaker", action="store_true", help=right_help)
    args = parser.parse_args(arguments)
    hearing = Hearing(
        args.language,
        args.recognizer,
        args.whisper_model,
        words_only=args.words_only,
        quality=args.quality,
        right_speaker=args.right_speaker,
    )
    measured = evaluate(
        args.checkpoint,
        args.recordings,
        hearing,
        speaker_column=args.speaker_column,
        voice_of=args.speaker,
        vocoder=args.vocoder,
        speech=args.speech,
    )
    write_json(args.out, asdict(measured))
    rates = "" if measured.word_error_rate is None else "word error rates of "
    print(f"{rates}{measured.texts} texts\n{measured.summary()}\nwrote {args.out}")


if __name__ == "__main__":
    run_program(main)
