"""Make a corpus of synthetic English speech in LJSpeech's layout.

    pip install hibari-tts==0.2.1
    python examples/synthetic_corpus.py data/LJSpeech-1.1/metadata.csv data/synthetic --clips 4000

The first stage of training for voices/english used such a corpus
(docs/background/included-voice.md). hibari-tts is a small neural synthesizer with an Apache-2.0
license. This program synthesizes the text in the last column of each line of TABLE (id|text), and
writes these files:

    OUT/metadata.csv    id|text
    OUT/wavs/ID.wav     24,000 Hz, mono, 16 bit

scripts/prepare.py --convert converts the files to the sampling rate of the model. If you stop the
program, run the same command again. Finished files are kept.
"""

import argparse
import sys
from functools import partial
from pathlib import Path

import numpy as np

# Make the project's packages importable if this program runs in a different folder.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tacotron2_voice.utils.arguments import at_least_one, make_parser, whole_number
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines, write_atomically, write_bytes
from tacotron2_voice.utils.program import run_program


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("table", type=Path, metavar="TABLE", help="file with lines of the form id|text")
    add("out", type=Path, metavar="OUT", help="write the corpus to this folder")
    add(
        "--clips",
        type=at_least_one,
        default=4000,
        help="number of clips, about 4 s each (default: %(default)s)",
    )
    add(
        "--skip",
        type=whole_number(0),
        default=0,
        help="skip this many lines at the beginning (default: %(default)s)",
    )
    add("--voice", default="heart", help="voice of hibari-tts (default: %(default)s)")
    return parser.parse_args(arguments)


def read_texts(table: Path, skip: int, count: int) -> list[tuple[str, str]]:
    """Return a list of (id, text) for up to `count` lines of the table, after the first `skip`
    lines.

    Raises:
        UserError: if a line has no text, or if the table has no lines after the first `skip` lines.
    """
    texts = []
    for number, line in numbered_lines(table, "no such file; expected lines of id|text"):
        clip_id, *columns = line.split("|")
        if not columns or not columns[-1].strip():
            raise UserError(f"{table}:{number}: {line[:60]!r}: expected id|text")
        texts.append((clip_id.strip(), columns[-1].strip()))
    chosen = texts[skip : skip + count]
    if not chosen:
        raise UserError(f"{table}: {len(texts)} lines, expected more than --skip {skip}")
    return chosen


def main(arguments: list[str] | None = None) -> None:
    args = parse_arguments(arguments)
    texts = read_texts(args.table, args.skip, args.clips)
    try:
        from hibari import Hibari, write_wav  # type: ignore[import-not-found]
    except ImportError:
        raise UserError("this program needs a synthesizer: pip install hibari-tts==0.2.1") from None

    def write_audio(file: Path, audio: np.ndarray) -> None:
        write_wav(str(file), audio)

    synthesizer = Hibari(voice=args.voice)
    wavs = args.out / "wavs"
    wavs.mkdir(parents=True, exist_ok=True)
    with progress_bar("synthesizing", len(texts), " clips") as bar:
        for clip_id, text in texts:
            path = wavs / f"{clip_id}.wav"
            if not path.exists():
                audio = synthesizer(text, seed=0)
                write_atomically(path, partial(write_audio, audio=audio))
            bar.update()
    lines = "".join(f"{clip_id}|{text}\n" for clip_id, text in texts)
    write_bytes(args.out / "metadata.csv", lines.encode())
    print(f"Wrote {args.out}: {len(texts):,} clips")


if __name__ == "__main__":
    run_program(main)
