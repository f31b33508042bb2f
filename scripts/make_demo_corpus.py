"""Make a corpus of synthetic speech in LJSpeech's layout, for demos: spoken numbers.

    python scripts/make_demo_corpus.py demo/corpus
    python scripts/make_demo_corpus.py demo/corpus --clips 2000 --seed 1
    python scripts/make_demo_corpus.py demo/unseen --clips 50 --skip 1000  # unseen in training

eSpeak NG (the package espeakng-loader) speaks different numbers of up to six digits. They have only
29 words, so that a small model learns to speak within minutes and a recognizer can transcribe it.
The clips last 0.3 to 4 s, and most are long: random batches of 16 pad 31 %, as LJSpeech's do.

    OUT/metadata.csv      id|number|its words     (UTF-8, no header; the words are spoken)
    OUT/wavs/ID.wav       22,050 Hz, mono, 16 bit
    OUT/demo_corpus.json  what the corpus was made from

The corpus depends only on the options, and appears whole or not at all. Languages other than English
need requirements/phones.txt.
"""

import project_root

import signal

from corpus.demo_corpus import make_corpus, stop_requested
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.arguments import at_least_one, make_parser, whole_number
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add, number = parser.add_argument, whole_number(0)
    add("out", metavar="OUT", help="folder to make")
    add(
        "--clips",
        type=at_least_one,
        default=1000,
        help="number of clips; 1000 last 40 minutes (default: %(default)s)",
    )
    add(
        "--skip",
        type=number,
        default=0,
        help="leave out the first N numbers of the seed (default: %(default)s)",
        metavar="N",
    )
    add(
        "--seed",
        type=number,
        default=0,
        help="another seed gives other numbers (default: %(default)s)",
    )
    add("--language", default=ENGLISH, help="eSpeak's code of the language (default: %(default)s)")
    try:
        make_corpus(**vars(parser.parse_args(arguments)))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; nothing was written") from None


if __name__ == "__main__":
    # An exception of a handler would mostly be raised, and lost, inside eSpeak's callback.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_requested.set())
    run_program(main)
