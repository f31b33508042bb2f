"""Check a corpus in the LJSpeech-1.1 layout, split it, and write the filelists for training.

    python scripts/prepare.py data/LJSpeech-1.1 --download
    python scripts/prepare.py CORPUS --out filelists/mine --cache-mels mels/mine

    CORPUS/metadata.csv     id|text|normalized text (UTF-8, no quoting; the last field is used)
    CORPUS/wavs/ID.wav      or ID.flac: mono, at the sampling rate of the settings

    OUT/train.txt, val.txt          path|text|seconds, a clip a line; train_mel.txt and val_mel.txt
                                    for cached log-mels
    OUT/*.txt.clips                 the clips of each list as a table, for training to start with
    OUT/symbols.json                with --hparams symbols=corpus: what the cleaned texts consist of
    OUT/settings.txt                for training: train.py --hparams @OUT/settings.txt
    OUT/lengths.png, corpus.png     lengths; symbols against seconds, and silence at the ends

Every clip is read from end to end. If any is bad, all bad ones are listed and nothing is written,
unless --skip-bad leaves them out. Warnings name the worst of the clips that can be trained on, but
make the alignment of text and speech harder to learn (docs/own-data.md). --trim-silence DIR writes
copies without the silence, for the lists and mels; CORPUS stays as it is.

Recordings as people have them are first copied, as training wants them, to a folder of that layout:

    python scripts/prepare.py CORPUS --convert data/mine --out filelists/mine
    python scripts/prepare.py CORPUS --convert data/mine --csv CORPUS/validated.tsv

CORPUS then has sounds at any depth, with any rate and number of channels, and a text beside each
(a.wav, a.txt), a metadata.csv, or a table anywhere, named by --csv.

Several speakers (docs/speakers.md) are known from a field of metadata.csv, a column of the table,
or folders of their names in CORPUS, each in one of these layouts:

    python scripts/prepare.py CORPUS --speaker-column 2
    python scripts/prepare.py CORPUS --speaker-folders --convert data/several

The lists then have a fourth field, the speaker's name.
"""

import project_root

import math
import re
import shlex
import signal
import sys
from pathlib import Path

from corpus.download import download_corpus
from corpus.layouts import Table
from corpus.metadata import SEED, VAL_FRACTION
from corpus.preparation import Preparation, prepare
from corpus.speaker_names import SpeakerSource
from hparams import create_hparams
from tacotron2_voice.utils.arguments import checked, make_parser, positive, share
from tacotron2_voice.utils.program import run_program

STOPPED = "stopped; no filelist was written. Run the same command to resume"


def delimiter(text: str) -> str:
    """The type of one character; a tab is written as \\t too."""
    text = {"\\t": "\t", "tab": "\t"}.get(text, text)
    return checked(str, "one character, or \\t", lambda value: len(value) == 1)(text)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("corpus", metavar="CORPUS", type=Path, help="folder in LJSpeech's layout")
    add("--out", type=Path, default=Path("filelists/ljspeech"), help="(%(default)s)")
    add(
        "--val-fraction",
        type=share,
        default=VAL_FRACTION,
        help="clips never trained on (0.2; 0: none)",
    )
    add("--seed", type=int, default=SEED, help="another seed, another split (0)")
    add("--cache-mels", metavar="DIR", dest="mels", type=Path, help="store log-mels there")
    add("--skip-bad", action="store_true", help="leave bad clips out")
    add("--max-seconds", metavar="S", type=positive, default=math.inf, help="skip longer clips")
    add("--trim-silence", metavar="DIR", dest="trim", type=Path, help="write trimmed clips there")
    add("--convert", metavar="DIR", type=Path, help="first copy the clips there, as training wants")
    add("--csv", metavar="FILE", type=Path, help="a table of the recordings, with --convert")
    column_help = "its column of the %s: a name in its header, or a number from 1 on"
    add("--path-column", metavar="COLUMN", default="", help=column_help % "paths")
    add("--text-column", metavar="COLUMN", default="", help=column_help % "texts")
    add("--delimiter", metavar="C", type=delimiter, help="between its columns")
    one_of = parser.add_mutually_exclusive_group().add_argument
    field_help = "the field of metadata.csv or column of --csv that names speakers: number or title"
    not_blank = checked(str.strip, "a name or a number", bool)
    one_of("--speaker-column", metavar="COLUMN", type=not_blank, help=field_help)
    one_of("--speaker-folders", action="store_true", help="CORPUS has a folder for each speaker")
    one_speaker_help = "name of the one speaker of all clips"
    one_of("--speaker", metavar="NAME", type=not_blank, help=one_speaker_help)
    add("--split-by-text", action="store_true", help="all takes of a text in one set")
    add("--download", action="store_true", help="fetch LJSpeech-1.1 into CORPUS")
    add("--drop-unknown", action="store_true", help="leave out what has no symbol, in training too")
    add(
        "--hparams",
        metavar="NAME=VALUE,...",
        dest="overrides",
        default="",
        help="settings of sound and text",
    )
    args = parser.parse_args(arguments)
    if args.csv and not args.convert:
        parser.error(f"--csv {args.csv}: needs --convert DIR, a new folder for the clips")
    if args.speaker_folders and not args.convert:
        parser.error("--speaker-folders: needs --convert DIR, a new folder for the clips of all")
    if not args.csv and (args.path_column or args.text_column or args.delimiter):
        parser.error("--path-column, --text-column, --delimiter: of a table; name it by --csv")
    if re.search(r",|\s#", str(args.out)):
        parser.error(f"--out {args.out}: train.py's --hparams cannot name a path with ',' or ' #'")
    try:
        create_hparams(args.overrides)  # refused before a download of hours
        if args.download:
            download_corpus(args.corpus)
        options = vars(args)
        columns = {name: options.pop(name) for name in ("path_column", "text_column", "delimiter")}
        table, _ = options.pop("csv"), options.pop("download")
        column, name = options.pop("speaker_column"), options.pop("speaker")
        speakers = SpeakerSource(column or "", options.pop("speaker_folders"), name or "")
        recordings = table and Table(table, **columns)
        written = prepare(Preparation(**options, table=recordings, speakers=speakers))
    except KeyboardInterrupt:
        sys.exit(STOPPED)
    print("Wrote " + ", ".join(map(str, written)))
    run, hparams = f"runs/{args.out.name}", f"@{args.out / 'settings.txt'}"
    print(f"Next: python train.py -o {shlex.quote(run)} --hparams {shlex.quote(hparams)}")


if __name__ == "__main__":
    # A terminated run finishes the file it is writing and removes temporary ones.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(STOPPED))
    run_program(main)
