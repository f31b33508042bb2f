"""Check a corpus, split it, and write the filelists for training.

    python scripts/prepare.py data/LJSpeech-1.1 --download
    python scripts/prepare.py CORPUS --out filelists/mine --cache-mels mels/mine
    python scripts/prepare.py CORPUS --out filelists/mine --convert data/mine

CORPUS is a folder in one of these layouts:

    metadata.csv and audio files    lines of id|text or id|text|normalized text, as in LJSpeech; or
                                    any CSV, TSV or JSON Lines file, with or without a header
    a text file per audio file      a.wav and a.txt, in any subfolder; if the text files are in a
                                    different folder, add --text-folder DIR
    long recordings with segments   a.mp3 and a.srt, a.vtt, a.TextGrid, a.tsv from Whisper, or a.txt
                                    with Audacity labels; or a Kaldi data directory; needs --convert DIR
    a table with another name       add --csv FILE; the table may be in any folder
    one folder per speaker          add --speaker-folders; each folder has one of these layouts

Training needs mono WAV or FLAC files with the same sampling rate. If your recordings are in other
formats, add --convert DIR to write converted copies to DIR. The program does not change CORPUS.

The program writes these files to the folder OUT (default: filelists/ljspeech):

    train.txt, val.txt              one line of path|text|seconds per clip; path|text|seconds|speaker
                                    for several speakers
    train_mel.txt, val_mel.txt      the same lines with the paths of cached log-mels (--cache-mels)
    *.txt.clips                     a cache of each filelist, so that training starts faster
    lexicon.txt                     the pronunciations (--lexicon)
    symbols.json                    the symbols of the texts (--hparams symbols=corpus)
    settings.txt                    settings for train.py --hparams @OUT/settings.txt
    report.html                     a summary, the plots, and the clips with problems
    lengths.png, corpus.png,        plots of lengths, symbols per second, silence, levels and noise
    audio.png

The program reads and checks every clip completely. If any clip is bad, the program lists all bad
clips and writes no filelist. With --skip-bad, the program writes filelists without the bad clips.
Warnings list clips that make training harder (docs/guides/own-data.md). For several speakers, see
docs/guides/speakers.md.
"""

import project_root

import argparse
import math
import shlex
import signal
import sys
from dataclasses import fields
from pathlib import Path

import torch

from corpus.convert import SEGMENT_PADDING
from corpus.download import download_corpus
from corpus.filelist import split_filelist_line
from corpus.layouts import default_table
from corpus.prepare import Preparation, prepare
from corpus.speaker_names import SpeakerSource
from corpus.split import SEED, VAL_FRACTION
from corpus.tables import METADATA, Table
from corpus.text_files import check_encoding
from corpus.text_search import TextSource
from hparams import create_hparams
from tacotron2_voice.utils.arguments import checked, make_parser, positive, share
from tacotron2_voice.utils.files import numbered_lines
from tacotron2_voice.utils.program import is_stage, run_program

SMALL_MODEL = "scripts/sentences_model.txt"  # settings for training on a CPU
STOPPED = "stopped; no filelist was written"
# With less speech, training from scratch rarely forms an alignment.
LITTLE_SECONDS = 3600


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("corpus", metavar="CORPUS", type=Path, help="folder of the recordings")
    out = Path("filelists/ljspeech")
    add(
        "--out",
        type=Path,
        default=out,
        help="write the filelists to this folder (default: %(default)s)",
    )
    add("--download", action="store_true", help="download LJSpeech-1.1 (2.7 GB) into CORPUS first")
    add(
        "--skip-bad",
        action="store_true",
        help="leave bad clips out of the filelists (default: list them and stop)",
    )
    add(
        "--max-seconds",
        metavar="S",
        type=positive,
        default=math.inf,
        help="leave clips that are longer than S seconds out of the filelists (default: keep all)",
    )
    add(
        "--cache-mels",
        metavar="DIR",
        dest="mels",
        type=Path,
        help="compute log-mels and cache them in DIR",
    )
    trim_help = "write copies to DIR without silence at the ends, and use the copies"
    add("--trim-silence", metavar="DIR", dest="trim", type=Path, help=trim_help)
    convert_help = "write copies to DIR in a format that training can read, and use the copies"
    add("--convert", metavar="DIR", type=Path, help=convert_help)
    add(
        "--hparams",
        metavar="NAME=VALUE,...",
        dest="overrides",
        default="",
        help="override audio and text settings: name=value,..., as with train.py --hparams",
    )
    add(
        "--repeated-words",
        action="store_true",
        help="accept texts that all begin or end with the same word (default: report an error)",
    )
    lexicon_help = (
        "read pronunciations from this file; each line contains a word and its respelling"
    )
    add("--lexicon", metavar="FILE", type=Path, help=lexicon_help)

    table = parser.add_argument_group("the table of the recordings").add_argument
    table(
        "--csv",
        metavar="FILE",
        type=Path,
        help=f"read the table from this file (default: CORPUS/{METADATA} or metadata.jsonl)",
    )
    column_help = "title or number (from 1) of the column that contains the {} (default: detected)"
    table("--path-column", metavar="COLUMN", default="", help=column_help.format("paths or ids"))
    table("--text-column", metavar="COLUMN", default="", help=column_help.format("texts"))
    delimiter = checked(str, "one character", lambda value: len(value) == 1)
    delimiter_help = "character that separates the columns (default: detected)"
    table("--delimiter", metavar="C", type=delimiter, help=delimiter_help)
    encoding = checked(check_encoding, "an encoding such as cp1252", bool)
    encoding_help = (
        "encoding of the table or of the text files (default: UTF-8, or detected if they are not "
        "UTF-8)"
    )
    table("--encoding", metavar="NAME", type=encoding, help=encoding_help)

    texts = parser.add_argument_group("corpora without a table").add_argument
    folder_help = "search this folder and its subfolders for the texts (default: next to the audio)"
    texts("--text-folder", metavar="DIR", type=Path, help=folder_help)
    tier_help = "read this tier from TextGrids that have several tiers"
    texts(
        "--transcripts",
        metavar="EXTENSION",
        default="",
        help="read only transcripts with this extension, such as srt (default: all)",
    )
    texts("--tier", metavar="NAME", default="", help=tier_help)
    padding_seconds = checked(float, "a number from 0 to 0.5", lambda value: 0 <= value <= 0.5)
    padding_help = (
        "number of seconds to add at each end of the segments of long recordings, at most 0.5 "
        "(default: %(default)s)"
    )
    texts(
        "--segment-padding",
        metavar="S",
        dest="padding",
        type=padding_seconds,
        default=SEGMENT_PADDING,
        help=padding_help,
    )

    group = parser.add_argument_group("speakers (default: one speaker without a name)")
    one_of = group.add_mutually_exclusive_group().add_argument
    not_empty = checked(str.strip, "a name or a number", bool)
    speaker_help = "title or number (from 1) of the column that contains the speaker names"
    one_of("--speaker-column", metavar="COLUMN", type=not_empty, help=speaker_help)
    folders_help = "use the names of the folders in CORPUS as speaker names; one folder per speaker"
    one_of("--speaker-folders", action="store_true", help=folders_help)
    name_help = "name of the speaker, if all recordings have the same speaker"
    one_of("--speaker", metavar="NAME", type=not_empty, help=name_help)

    split = parser.add_argument_group("the split into training and validation").add_argument
    split(
        "--val-fraction",
        metavar="X",
        type=share,
        default=VAL_FRACTION,
        help="fraction of the clips to hold out for validation; 0: no validation "
        "(default: %(default)s)",
    )
    seed_help = "seed of the split (default: %(default)s)"
    split("--seed", type=int, default=SEED, help=seed_help)
    split(
        "--split-by-text",
        action="store_true",
        help="put all clips with the same text into the same set (training or validation)",
    )


def table_of(args: argparse.Namespace) -> Table | None:
    """Return the table that the options describe, or None, so that `read_layout` looks for a table
    or for text files in CORPUS."""
    is_described = args.path_column or args.text_column or args.delimiter
    default = default_table(args.corpus)
    has_table = args.csv or default.exists()
    if not args.csv and not is_described and not (args.encoding and has_table):
        return None
    path = args.csv or default
    return Table(path, args.path_column, args.text_column, args.delimiter, args.encoding or "")


def next_command(out: Path, *, has_gpu: bool) -> str:
    """Return a message that contains the command for training on the filelists. Without a GPU, the
    command trains a small model."""
    run = shlex.quote(f"runs/{out.name}")
    hparams = shlex.quote(f"@{out / 'settings.txt'}")
    if has_gpu:
        return f"Next: python train.py -o {run} --hparams {hparams}"
    return (
        "note: no CUDA GPU was found. The next command trains a small model, which takes a few "
        "hours on a CPU (docs/guides/small-corpus.md)\n"
        f"Next: python train.py -o {run} --hparams {hparams},@{SMALL_MODEL}"
    )


def note_of_little_speech(out: Path) -> str | None:
    """Return a note if a filelist contains too little speech for training from scratch, otherwise
    None."""
    lines = [split_filelist_line(x) for _, x in numbered_lines(out / "train.txt", "")]
    seconds = sum(line.seconds or 0.0 for line in lines)
    if seconds >= LITTLE_SECONDS:
        return None
    start = "To start from the included voice instead, use scripts/my_voice.py (docs/guides/my-voice.md)"
    return (
        f"note: train.txt contains {seconds / 60:.1f} minutes of speech. The next command trains from "
        "scratch, which usually needs more than an hour"
        + (f". {start}" if len({line.speaker for line in lines}) == 1 else "")
    )


def stopped() -> str:
    return STOPPED if is_stage() else f"{STOPPED}. Run the same command to resume"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add_options(parser)
    args = parser.parse_args(arguments)
    try:
        create_hparams(args.overrides)  # check the settings before a download, which may take hours
        if args.download:
            download_corpus(args.corpus)
        named = {field.name for field in fields(Preparation)}
        options = {name: value for name, value in vars(args).items() if name in named}
        speakers = SpeakerSource(
            args.speaker_column or "", args.speaker_folders, args.speaker or ""
        )
        texts = TextSource(
            args.text_folder, args.transcripts, args.tier, args.encoding or "", args.repeated_words
        )
        asked = Preparation(**options, table=table_of(args), speakers=speakers, texts=texts)
        written = prepare(asked)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(stopped()) from None
    print(f"\nWrote to {args.out}: {', '.join(path.name for path in written)}")
    for option, folder in asked.new_folders.items():
        print(f"Wrote the files for {option} to {folder}")
    if not is_stage():
        if note := note_of_little_speech(args.out):
            print(note)
        print(next_command(args.out, has_gpu=torch.cuda.is_available()))


if __name__ == "__main__":
    # On SIGTERM, sys.exit lets the program finish the current file and remove temporary files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(stopped()))
    run_program(main)
