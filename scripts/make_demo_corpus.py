"""Make a demo corpus of spoken numbers with synthetic speech, in LJSpeech's layout.

    python scripts/make_demo_corpus.py demo/corpus
    python scripts/make_demo_corpus.py demo/corpus --clips 2000 --seed 1
    python scripts/make_demo_corpus.py demo/unseen --clips 50 --skip 1000  # not in demo/corpus

The program synthesizes random numbers of up to six digits with eSpeak NG, from the package
espeakng-loader. The numbers consist of only 29 different words, so a small model learns to speak
within minutes, and a recognizer can transcribe the speech. The clips are 0.3 to 4 s long, and 2.4 s
on average. Random batches of 16 clips contain 31% padding, which is similar to LJSpeech.

    OUT/metadata.csv      id|number|words of the number (UTF-8, no header)
    OUT/wavs/ID.wav       22,050 Hz, mono, 16 bit
    OUT/demo_corpus.json  the options and the program version that made the corpus

The same options always produce the same corpus. If you stop the program before it ends, no files
are written. Languages other than English need requirements/phones.txt.
"""

import project_root

import signal

from corpus.demo_corpus import make_corpus, stop_requested
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.arguments import at_least_one, make_parser, whole_number
from tacotron2_voice.utils.program import run_program


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    number = whole_number(0)
    add("out", metavar="OUT", help="write the corpus to this folder")
    add(
        "--clips",
        type=at_least_one,
        default=1000,
        help="number of clips; 1000 clips last 40 minutes (default: %(default)s)",
    )
    add(
        "--skip",
        type=number,
        default=0,
        help="skip the first N random numbers, which another corpus may contain (default: %(default)s)",
        metavar="N",
    )
    add("--seed", type=number, default=0, help="seed of the random numbers (default: %(default)s)")
    add(
        "--language",
        default=ENGLISH,
        help="language of the speech, as an eSpeak code (default: %(default)s)",
    )
    try:
        make_corpus(**vars(parser.parse_args(arguments)))
    except KeyboardInterrupt:
        raise KeyboardInterrupt("stopped; nothing was written") from None


if __name__ == "__main__":
    # The signal handlers only set a flag, because exceptions inside eSpeak's callback would be
    # lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_requested.set())
    run_program(main)
