"""Make a corpus of synthesized speech in the LJSpeech-1.1 layout: spoken numbers, for demos.

    python scripts/make_demo_corpus.py demo/corpus
    python scripts/make_demo_corpus.py demo/corpus --clips 2000 --seed 1
    python scripts/make_demo_corpus.py demo/unseen --clips 50 --skip 1000  # others than the first

eSpeak NG (the PyPI package espeakng-loader) speaks different numbers of up to six digits: 29 words,
so that a small model learns to speak in minutes and a recognizer can transcribe what it says of
others. Clips of 0.3 to 4 s, most of them long: random batches of 16 pad 31 %, as LJSpeech's do.

    OUT/metadata.csv      id|number|its words     (UTF-8, no header; the words are spoken)
    OUT/wavs/ID.wav       22,050 Hz, mono, 16 bit
    OUT/demo_corpus.json  what the corpus was made from

The corpus depends only on --clips, --skip, --seed and --language (others than English need
requirements/phones.txt) and appears whole or not at all. --skip N leaves out the first N numbers of
the seed, which are those of its corpus of N clips.
"""

import project_root

import signal
import sys

from corpus.demo_corpus import make_corpus, stop_requested
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.arguments import at_least_one, make_parser, whole_number
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add, number = parser.add_argument, whole_number(0)
    add("out", metavar="OUT", help="folder to make; its parents are made too")
    add("--clips", type=at_least_one, default=1000, help="numbers (1000: 40 minutes)")
    add("--skip", type=number, default=0, help="skip this many numbers first (0)")
    add("--seed", type=number, default=0, help="another seed, another corpus (0)")
    add("--language", default=ENGLISH, help="eSpeak's name of it (%(default)s)")
    try:
        make_corpus(**vars(parser.parse_args(arguments)))
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was written")


if __name__ == "__main__":
    # A handler that raises would mostly do so inside eSpeak's callback, where it would be lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_requested.set())
    run_program(main)
