"""Let the demo's model say a number, in digits or in words.

    make say TEXT="4,072"
    python scripts/say.py "four thousand seventy two" [--checkpoint C] [-o demo/said]

Writes the sound and a picture of the alignment, named by the words of the number. The model is
that of `make demo`, which knows the words of numbers and no others.
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
MOST_LETTERS = 80  # the longest number of six digits has 63


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("text", help="a number from 1 to 999,999, in digits or in words")
    add("--checkpoint", type=Path, default=CHECKPOINT, help="default: %(default)s")
    add("-o", "--out", type=Path, default=Path("demo", "said"), help="default: %(default)s")
    add("--hparams", default="", help="for example max_decoder_steps=300")
    args = parser.parse_args(arguments)
    try:
        if not args.text.strip():
            raise UserError('nothing to say; name a number, as in make say TEXT="4,072"')
        sentence = sentence_of(args.text)
        if len(sentence) > MOST_LETTERS:
            raise UserError(f"{len(sentence)} letters: too long, expected at most {MOST_LETTERS}")
        refuse_no_folder(args.out, "-o")
        if args.checkpoint == CHECKPOINT and not CHECKPOINT.exists():
            raise UserError(f"{CHECKPOINT}: no such checkpoint; run make demo first")
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
