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


def sentence_to_say(text: str) -> str:
    """The sentence for the model; UserError if the text is empty, too long, or no number."""
    if not text.strip():
        raise UserError('nothing to say; name a number, as in make say TEXT="4,072"')
    sentence = sentence_of(text)
    if len(sentence) > MOST_LETTERS:
        raise UserError(f"{len(sentence)} letters: too long, expected at most {MOST_LETTERS}")
    return sentence


def file_name(sentence: str) -> str:
    """The words of a sentence, joined: "Four thousand." -> "four-thousand"."""
    return "-".join(sentence.lower().rstrip(".").split())


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("text", help="a number from 1 to 999,999, in digits or in words")
    parser.add_argument(
        "--checkpoint", type=Path, default=CHECKPOINT, help=f"default: {CHECKPOINT}"
    )
    parser.add_argument("-o", "--out", type=Path, default=Path("demo", "said"))
    parser.add_argument("--hparams", default="", help="for example max_decoder_steps=300")
    args = parser.parse_args(arguments)
    try:
        sentence = sentence_to_say(args.text)
        refuse_no_folder(args.out, "-o")
        if args.checkpoint == CHECKPOINT and not CHECKPOINT.exists():
            raise UserError(
                f"{CHECKPOINT}: no such checkpoint; run make demo first, which trains it"
            )
        speaker = load_speaker(args.checkpoint, f"max_decoder_steps={MOST_STEPS},{args.hparams}")
        speech = speak_text(speaker, sequence_to_speak(sentence, speaker.hparams))
        args.out.mkdir(parents=True, exist_ok=True)
        base = args.out / file_name(sentence)
        seconds = write_speech(base, speech, speaker.hparams)
    except (UserError, OSError) as error:
        sys.exit(f"say.py: {error}")
    for warning in speech.warnings:
        print(f"warning: {warning}")
    print(f"{sentence}  {seconds:.2f} s")
    print(f"sound      {base}.wav\nalignment  {base}.png")


if __name__ == "__main__":
    main()
