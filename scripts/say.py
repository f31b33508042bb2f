"""Let the demo's model say a number, in digits or in words.

    make say TEXT="4,072"
    python scripts/say.py "four thousand seventy two" [--checkpoint C] [-o demo/said]

Writes the sound and a picture of the alignment. The model knows no words but those of numbers.
"""

import project_root

import sys
from pathlib import Path

from analysis.arguments import make_parser
from corpus.spoken_numbers import sentence_of
from errors import UserError
from files import refuse_no_folder
from speaking import load_speaker, sequence_to_speak, speak_text, write_speech

CHECKPOINT = Path("demo", "run", "best.pt")
MOST_STEPS = 150  # of 4 frames, so 7 s; the longest number takes 3.8 s


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("text", help="a number from 1 to 999,999, in digits or in words")
    add("--checkpoint", type=Path, default=CHECKPOINT, help="default: %(default)s")
    add("-o", "--out", type=Path, default=Path("demo", "said"), help="default: %(default)s")
    add("--hparams", default="", help="for example max_decoder_steps=300")
    args = parser.parse_args(arguments)
    try:
        sentence = sentence_of(args.text)
        refuse_no_folder(args.out, "-o")
        speaker = load_speaker(args.checkpoint, f"max_decoder_steps={MOST_STEPS},{args.hparams}")
        speech = speak_text(speaker, sequence_to_speak(sentence, speaker.hparams))
        args.out.mkdir(parents=True, exist_ok=True)
        base = args.out / sentence.lower().rstrip(".").replace(" ", "-")
        seconds = write_speech(base, speech, speaker.hparams)
    except (UserError, OSError) as error:
        sys.exit(f"say.py: {error}")
    for warning in speech.warnings:
        print(f"warning: {warning}")
    print(f"{sentence}  {seconds:.2f} s\nsound      {base}.wav\nalignment  {base}.png")


if __name__ == "__main__":
    main()
