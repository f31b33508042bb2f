"""Check a corpus in the LJSpeech-1.1 layout, split it, and write the filelists for training.

    python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --download
    python scripts/prepare_ljspeech.py CORPUS --out filelists/mine --cache-mels mels/mine

    CORPUS/metadata.csv     id|text|normalised text (UTF-8, no quoting; the last field is used)
    CORPUS/wavs/ID.wav      or ID.flac: mono, at the sampling rate of the settings

    OUT/train.txt, val.txt          path|text|seconds, a clip a line
    OUT/train_mel.txt, val_mel.txt  the same for cached log-mels, for load_mel_from_disk=True
    OUT/settings.txt                for training: train.py --hparams @OUT/settings.txt
    OUT/lengths.png                 histogram of the clips' lengths
    OUT/corpus.png                  figures of what the warnings are about
    OUT/*.txt.clips                 the clips of each list as a table, for training to start with

Every clip is read from end to end. If any is bad, all bad ones are listed and nothing is written,
unless --skip-bad leaves them out. Warnings name the worst of the clips that can be trained on, but
make the alignment of text and speech harder to learn: long silence at the ends, an unusual number
of symbols per second, clipping, symbols that the cleaners drop, and duplicate sounds.
--trim-silence DIR writes copies without the silence, for the lists and mels; CORPUS stays as it is.
"""

import project_root

import os
import re
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.arguments import make_parser
from analysis.tables import text_table
from clip_table import Clip, ClipTable, table_path
from corpus.download import download_corpus
from corpus.faults import find_faults
from corpus.made_files import Folder, cache_mels, mel_folder, trim_clips, trim_folder
from corpus.metadata import SEED, VAL_FRACTION, choose_split, read_metadata
from corpus.pictures import draw_faults, draw_lengths
from corpus.recordings import check_recordings
from data_utils import keep_table, warn_of_long_clips
from errors import UserError
from files import refuse_no_folder, write_atomically
from hparams import HParams, create_hparams, override_lines
from text import text_to_sequence


def describe_clips(clips: list[Clip], hparams: HParams) -> dict[str, str]:
    """A column of the table of sets: clips, hours, and lengths in three units."""
    seconds = np.array([clip.sound.num_samples for clip in clips]) / hparams.sampling_rate
    column = {"clips": f"{len(clips):,}", "hours": f"{seconds.sum() / 3600:,.2f}"}
    statistics = (np.min, "shortest"), (np.mean, "mean"), (np.median, "median"), (np.max, "longest")
    for unit, lengths, decimals in (
        ("seconds", seconds, 2),
        ("frames", np.array([clip.num_frames for clip in clips]), 0),
        ("symbols", np.array([len(clip.symbols) for clip in clips]), 0),
    ):
        for statistic, name in statistics:
            column[f"{unit:8} {name}"] = f"{statistic(lengths):,.{decimals}f}"
        column[f"{unit:8} total"] = f"{lengths.sum():,.0f}"
    return column


def refuse_or_skip(problems: Sequence[str], total: int, skip_bad: bool) -> None:
    """List every problem; UserError unless the bad clips are to be left out."""
    if not problems:
        return
    listed = "\n".join(f"  {problem}" for problem in problems)
    if not skip_bad:
        raise UserError(
            f"{len(problems):,} of {total:,} clips are bad:\n{listed}\n"
            f"{len(problems):,} bad clips; no filelist was written. Fix them, or leave them out "
            "with --skip-bad"
        )
    print(f"--skip-bad leaves out {len(problems):,} of {total:,} clips:\n{listed}")


def leave_out_long(clips: list[Clip], max_seconds: float | None, hparams: HParams) -> list[Clip]:
    """The clips of at most `max_seconds`; says how many are longer, and warns of long ones left."""

    def seconds(clip: Clip) -> float:
        return clip.sound.num_samples / hparams.sampling_rate

    kept = [clip for clip in clips if max_seconds is None or seconds(clip) <= max_seconds]
    if len(kept) < len(clips):
        longest = max(clips, key=seconds)
        print(
            f"--max-seconds {max_seconds:g} leaves out {len(clips) - len(kept):,} of "
            f"{len(clips):,} clips; the longest is {longest.path} ({seconds(longest):.1f} s)"
        )
    warning = warn_of_long_clips([seconds(clip) for clip in kept], lambda i: kept[i].path)
    if warning:
        print(warning)
    return kept


def filelist(clips: list[Clip], hparams: HParams) -> bytes:
    """Lines of path|text|seconds."""
    lines = [
        f"{clip.path}|{clip.text}|{clip.sound.num_samples / hparams.sampling_rate:.6f}\n"
        for clip in clips
    ]
    return "".join(lines).encode()


def of_mels(clips: list[Clip], mels: Path) -> list[Clip]:
    return [replace(clip, path=str(mels / f"{clip.id}.npy")) for clip in clips]


def write_together(contents: dict[Path, bytes]) -> None:
    """Write all files, each atomically; none takes its place before all of them are written."""
    if not contents:
        return
    (path, content), *others = contents.items()

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)
        write_together(dict(others))

    write_atomically(path, write)


def settings(overrides: str, out: Path, mels: Path | None) -> bytes:
    """The settings file for train.py: `overrides`, and the filelists in `out`, a line each."""
    suffix = "_mel" if mels else ""
    ours = {
        "load_mel_from_disk": bool(mels),
        "training_files": out / f"train{suffix}.txt",
        "validation_files": out / f"val{suffix}.txt",
    }
    lines = ["# By scripts/prepare_ljspeech.py, for: train.py --hparams @this_file,name=value,..."]
    lines += [s for s in override_lines(overrides) if s.partition("=")[0].strip() not in ours]
    lines += [f"{name}={value}" for name, value in ours.items()]
    return ("\n".join(lines) + "\n").encode()


def good_clips(
    corpus: Path,
    mels: Folder | None,
    trim: Folder | None,
    skip_bad: bool,
    max_seconds: float | None,
    hparams: HParams,
) -> tuple[list[Clip], list[Clip]]:
    """The clips to list, checked, trimmed and with their mels cached; and those of all lines."""
    entries, problems = read_metadata(corpus)
    clips, bad, unnamed = check_recordings(corpus, entries, hparams)
    total = len(entries) + len(problems)
    if unnamed:
        some = ", ".join(unnamed[:5]) + (", ..." if len(unnamed) > 5 else "")
        print(f"Notice: no line of metadata.csv names {len(unnamed):,} files in wavs: {some}")
    refuse_or_skip(problems + bad, total, skip_bad)
    if trim and clips:
        clips, faulty = trim_clips(clips, trim, hparams)
        refuse_or_skip(list(faulty.values()), total, skip_bad)
    clips = leave_out_long(clips, max_seconds, hparams)
    if mels and clips:
        faulty = cache_mels(clips, mels, hparams)
        refuse_or_skip(list(faulty.values()), total, skip_bad)
        clips = [clip for clip in clips if clip.where not in faulty]
    return clips, entries


def prepare(
    corpus: Path,
    out: Path,
    overrides: str = "",
    val_fraction: float = VAL_FRACTION,
    seed: int = SEED,
    mels: Path | None = None,
    skip_bad: bool = False,
    max_seconds: float | None = None,
    trim: Path | None = None,
) -> list[Path]:
    """Check `corpus` and write its filelists (and mels); returns the files in `out` it wrote.

    Raises:
        UserError: listing every bad clip (unless `skip_bad`), or saying what else is wrong.
            No filelist was written then.
    """
    hparams = create_hparams(overrides)
    text_to_sequence("", hparams.text_cleaners)  # an unknown cleaner is refused here
    corpus = Path(os.path.abspath(corpus))
    mels, trim = (folder and Path(os.path.abspath(folder)) for folder in (mels, trim))
    refuse_no_folder(out, "--out")
    for_mels = mel_folder(mels, hparams, trimmed=trim is not None) if mels else None
    for_copies = trim_folder(trim, corpus) if trim else None
    for folder in (for_mels, for_copies):
        if folder:
            refuse_no_folder(folder.path, folder.option)
            folder.refuse_others()
    if any(character in f"{corpus}{mels}{trim}" for character in "|\n\r"):
        raise UserError(
            f"{corpus}, {mels}, {trim}: a path in a filelist cannot hold '|'; rename it"
        )
    clips, entries = good_clips(corpus, for_mels, for_copies, skip_bad, max_seconds, hparams)

    # By all lines, those of bad clips too: leaving one out must not move others between the sets.
    validation, origin = choose_split([entry.id for entry in entries], val_fraction, seed)
    held_out = {entry.where for entry in entries if entry.id in validation}
    train = [clip for clip in clips if clip.where not in held_out]
    val = [clip for clip in clips if clip.where in held_out]
    if not train or not val:
        raise UserError(
            f"{len(train)} clips for training and {len(val)} for validation ({origin}): each set "
            "needs at least one; add clips, or change --val-fraction or --max-seconds. No filelist "
            "was written"
        )
    sets = {"train": train, "val": val, "all": clips}
    columns = [describe_clips(part, hparams) for part in sets.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    print(f"\n{text_table(['', *sets], rows)}\n\nSplit: {origin}")
    faults = find_faults(clips, hparams)
    for fault in faults:
        if fault.notes:
            print(fault.warning(len(clips)))

    lists = {"train.txt": train, "val.txt": val}
    if mels:
        lists |= {"train_mel.txt": of_mels(train, mels), "val_mel.txt": of_mels(val, mels)}
    elif (out / "train_mel.txt").exists():
        print(f"Notice: {out}/*_mel.txt are of an earlier run; --cache-mels would update them")
    contents = {name: filelist(listed, hparams) for name, listed in lists.items()} | {
        "settings.txt": settings(overrides, out, mels),
        "lengths.png": draw_lengths({"train": train, "val": val}, hparams),
        "corpus.png": draw_faults(clips, faults, hparams),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_together({out / name: content for name, content in contents.items()})
    for name, listed in lists.items():
        table = ClipTable.of(out / name, enumerate(listed, 1), complete=True)
        keep_table(table, replace(hparams, load_mel_from_disk=name.endswith("_mel.txt")))
    tables = [table_path(out / name) for name in lists]
    return [out / name for name in contents] + [path for path in tables if path.exists()]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("corpus", metavar="CORPUS", type=Path, help="folder in LJSpeech's layout")
    add("--out", type=Path, default=Path("filelists/ljspeech"), help="(%(default)s)")
    add("--val-fraction", type=float, default=VAL_FRACTION, help="clips never trained on (0.2)")
    add("--seed", type=int, default=SEED, help="another seed, another split (0)")
    add("--cache-mels", metavar="DIR", dest="mels", type=Path, help="store log-mels there")
    add("--skip-bad", action="store_true", help="leave bad clips out")
    add("--max-seconds", metavar="S", type=float, help="leave longer clips out")
    add(
        "--trim-silence", metavar="DIR", dest="trim", type=Path, help="write clips without it there"
    )
    add("--download", action="store_true", help="fetch LJSpeech-1.1 into CORPUS")
    add("--hparams", metavar="NAME=VALUE,...", dest="overrides", default="", help="audio, cleaners")
    args = parser.parse_args(arguments)
    if not 0 < args.val_fraction < 1:
        parser.error(f"--val-fraction {args.val_fraction}: expected a number between 0 and 1")
    if args.max_seconds is not None and not args.max_seconds > 0:
        parser.error(f"--max-seconds {args.max_seconds}: expected a number above 0")
    if re.search(r",|\s#", str(args.out)):
        parser.error(f"--out {args.out}: train.py's --hparams cannot name a path with ',' or ' #'")
    try:
        create_hparams(args.overrides)  # refused before a download of hours
        if args.download:
            download_corpus(args.corpus)
        del args.download
        written = prepare(**vars(args))
    except KeyboardInterrupt:
        sys.exit("stopped; no filelist was written. Run the same command to resume")
    except (UserError, OSError) as error:
        sys.exit(f"prepare_ljspeech: {error}")
    print("Wrote " + ", ".join(str(path) for path in written))
    run, settings_file = shlex.quote(f"runs/{args.out.name}"), args.out / "settings.txt"
    print(f"Next: python train.py -o {run} --hparams {shlex.quote(f'@{settings_file}')}")


if __name__ == "__main__":
    # A terminated run finishes the file it is writing and removes temporary ones.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; no filelist was written"))
    main()
