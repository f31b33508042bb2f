"""Check a corpus in the LJSpeech-1.1 layout, split it, and write the filelists for training.

    python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --download
    python scripts/prepare_ljspeech.py CORPUS --out filelists/mine --cache-mels mels/mine

    CORPUS/metadata.csv     id|text|normalised text (UTF-8, no quoting; the last field is used)
    CORPUS/wavs/ID.wav      or ID.flac: mono, at the sampling rate of the settings

    OUT/train.txt, val.txt          path|text|seconds, a clip a line
    OUT/train_mel.txt, val_mel.txt  the same of cached log-mels, for load_mel_from_disk=True
    OUT/settings.txt                for training: train.py --hparams @OUT/settings.txt
    OUT/lengths.png                 histogram of the clips' lengths
    OUT/corpus.png                  what keeps the alignment from forming: clips that are warned of
    OUT/train.txt.clips and so on   the clips of each list as a table, for training to start with

Every clip is read from end to end. If any is bad, all bad ones are listed and nothing is written,
unless --skip-bad leaves them out. Of clips that training can read, but that make the alignment of
text and speech harder to learn, warnings name the worst: long silence at the ends, symbols a
second unlike the rest, clipping, symbols that the cleaners drop, and the same sound again.
--trim-silence DIR writes copies without the silence, for the lists and mels; CORPUS stays as it is.
"""

import project_root

import os
import re
import shlex
import signal
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from analysis.arguments import make_parser
from analysis.tables import text_table
from audio import frame_count
from clip_table import Clip, ClipTable, table_path
from corpus.download import download_corpus
from corpus.faults import Fault, find_faults
from corpus.mel_cache import cache_mels, refuse_other_mels
from corpus.metadata import SEED, VAL_FRACTION, choose_split, read_metadata
from corpus.pictures import draw_faults, draw_lengths
from corpus.recordings import Recording, check_recordings
from corpus.trimming import refuse_other_sounds, trim_clips
from data_utils import keep_table, warn_of_long_clips
from errors import UserError
from files import refuse_no_folder, write_atomically
from hparams import HParams, create_hparams, override_lines
from text import text_to_sequence


def table(sets: dict[str, list[Recording]], hparams: HParams) -> str:
    """What each set holds, a column a set: clips, hours, and lengths in three units."""
    columns = [describe_clips(clips, hparams) for clips in sets.values()]
    rows = [[name, *(column[name] for column in columns)] for name in columns[0]]
    return text_table(["", *sets], rows)


def describe_clips(clips: list[Recording], hparams: HParams) -> dict[str, str]:
    """The column of `table` for one set."""
    samples = np.array([clip.num_samples for clip in clips])
    seconds = samples / hparams.sampling_rate
    symbols = np.array([clip.num_symbols for clip in clips])
    column = {"clips": f"{len(clips):,}", "hours": f"{seconds.sum() / 3600:,.2f}"}
    statistics = (np.min, "shortest"), (np.mean, "mean"), (np.median, "median"), (np.max, "longest")
    for unit, lengths, decimals in (
        ("seconds", seconds, 2),
        ("frames", frame_count(samples, hparams), 0),
        ("symbols", symbols, 0),
    ):
        for statistic, name in statistics:
            column[f"{unit:8} {name}"] = f"{statistic(lengths):,.{decimals}f}"
        column[f"{unit:8} total"] = f"{lengths.sum():,.0f}"
    return column


def notice_of_unnamed(sounds: list[str]) -> None:
    """Say which sound files no line of metadata.csv names."""
    if sounds:
        some = ", ".join(sounds[:5]) + (", ..." if len(sounds) > 5 else "")
        print(f"Notice: no line of metadata.csv names {len(sounds):,} files in wavs: {some}")


def warn_of_faults(clips: list[Recording], corpus: Path, hparams: HParams) -> list[Fault]:
    """Print a warning for each kind of fault that some clip has; returns all kinds."""
    faults = find_faults(clips, hparams.sampling_rate, corpus / "metadata.csv")
    for fault in faults:
        if fault.warning:
            print(fault.warning)
    return faults


def refuse_or_skip(problems: list[str], total: int, skip_bad: bool) -> None:
    """List every problem; raise UserError unless the bad clips are to be left out."""
    if not problems:
        return
    listed = "\n".join(f"  {problem}" for problem in problems)
    if not skip_bad:
        raise UserError(
            f"{len(problems):,} of {total:,} clips are bad:\n{listed}\n"
            f"{len(problems):,} bad clips; no filelist was written. Mend them, or leave them out "
            "with --skip-bad"
        )
    print(f"--skip-bad leaves out {len(problems):,} of {total:,} clips:\n{listed}")


def leave_out_long(
    clips: list[Recording], max_seconds: float | None, hparams: HParams
) -> list[Recording]:
    """The clips of at most `max_seconds`; says how many are longer, and warns of long ones left."""
    seconds = {clip.id: clip.num_samples / hparams.sampling_rate for clip in clips}
    kept = [clip for clip in clips if max_seconds is None or seconds[clip.id] <= max_seconds]
    if len(kept) < len(clips):
        longest = max(clips, key=lambda clip: clip.num_samples)
        print(
            f"--max-seconds {max_seconds:g} leaves out {len(clips) - len(kept):,} of "
            f"{len(clips):,} clips; the longest is {longest.path} ({seconds[longest.id]:.1f} s)"
        )
    warning = warn_of_long_clips([seconds[clip.id] for clip in kept], lambda i: str(kept[i].path))
    if warning:
        print(warning)
    return kept


def filelist(clips: list[Recording], hparams: HParams, mels: Path | None = None) -> bytes:
    """Lines of path|text|seconds, of the sound files or of the mels in the folder `mels`."""
    lines = [
        f"{sound_or_mel(clip, mels)}|{clip.text}|{clip.num_samples / hparams.sampling_rate:.6f}\n"
        for clip in clips
    ]
    return "".join(lines).encode()


def sound_or_mel(clip: Recording, mels: Path | None) -> Path:
    return mels / f"{clip.id}.npy" if mels else clip.path


def keep_clips(
    path: Path, clips: list[Recording], hparams: HParams, mels: Path | None = None
) -> None:
    """Write what training would find when it reads the filelist at `path`, a clip a line."""
    hparams = replace(hparams, load_mel_from_disk=mels is not None)
    numbered = (
        (
            line,
            Clip(
                str(sound_or_mel(clip, mels)),
                clip.text,
                clip.symbols,
                frame_count(clip.num_samples, hparams),
                f"{path}:{line}",
            ),
        )
        for line, clip in enumerate(clips, 1)
    )
    keep_table(ClipTable.of(path, numbered, [mels] if mels else [], complete=True), hparams)


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
    for line in override_lines(overrides):
        if line.partition("=")[0].strip() not in ours:
            lines.append(line)
    lines += [f"{name}={value}" for name, value in ours.items()]
    return ("\n".join(lines) + "\n").encode()


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

    Clips longer than `max_seconds` are left out. The filelists name copies in the folder `trim`,
    where it is given, of the clips without the silence at their ends.

    Raises:
        UserError: listing every bad clip (unless `skip_bad`), or saying what else is wrong.
            No filelist was written then.
    """
    hparams = create_hparams(overrides)
    text_to_sequence("", hparams.text_cleaners)  # an unknown cleaner is refused here
    corpus = Path(os.path.abspath(corpus))
    mels = Path(os.path.abspath(mels)) if mels else None
    trim = Path(os.path.abspath(trim)) if trim else None
    for folder in (corpus, mels, trim):
        if folder and any(character in str(folder) for character in "|\n\r"):
            raise UserError(f"{str(folder)!r}: a path in a filelist cannot hold '|'; rename it")
    for option, folder in (("--out", out), ("--cache-mels", mels), ("--trim-silence", trim)):
        if folder:
            refuse_no_folder(folder, option)
    if mels:
        refuse_other_mels(mels, hparams, trimmed=trim is not None)
    if trim:
        refuse_other_sounds(trim, corpus)

    entries, problems = read_metadata(corpus)
    clips, bad, unnamed = check_recordings(corpus, entries, hparams)
    problems += bad
    total = len(clips) + len(problems)
    notice_of_unnamed(unnamed)
    refuse_or_skip(problems, total, skip_bad)
    if trim and clips:
        clips, bad = trim_clips(clips, corpus, trim, hparams)
        refuse_or_skip(list(bad.values()), total, skip_bad)
    clips = leave_out_long(clips, max_seconds, hparams)

    # All ids, bad clips too: leaving one out must not move others between the sets.
    validation, origin = choose_split([entry.id for entry in entries], val_fraction, seed)
    if mels and clips:
        bad = cache_mels(clips, mels, hparams, trimmed=trim is not None)
        refuse_or_skip(list(bad.values()), total, skip_bad)
        clips = [clip for clip in clips if clip.id not in bad]
    train = [clip for clip in clips if clip.id not in validation]
    val = [clip for clip in clips if clip.id in validation]
    if not train or not val:
        raise UserError(
            f"{len(train)} clips for training and {len(val)} for validation ({origin}): each set "
            "needs one at least; add clips, or change --val-fraction or --max-seconds. No filelist "
            "was written"
        )
    print(f"\n{table({'train': train, 'val': val, 'all': clips}, hparams)}\n\nSplit: {origin}")
    faults = warn_of_faults(clips, corpus, hparams)

    lists = {"train.txt": filelist(train, hparams), "val.txt": filelist(val, hparams)}
    if mels:
        lists["train_mel.txt"] = filelist(train, hparams, mels)
        lists["val_mel.txt"] = filelist(val, hparams, mels)
    elif (out / "train_mel.txt").exists():
        print(f"Notice: {out}/*_mel.txt are of an earlier run; --cache-mels would renew them")
    contents = lists | {
        "settings.txt": settings(overrides, out, mels),
        "lengths.png": draw_lengths({"train": train, "val": val}, hparams),
        "corpus.png": draw_faults(clips, faults, hparams),
    }
    out.mkdir(parents=True, exist_ok=True)
    write_together({out / name: content for name, content in contents.items()})
    for suffix, folder in (("", None), *([("_mel", mels)] if mels else [])):
        for name, part in (("train", train), ("val", val)):
            keep_clips(out / f"{name}{suffix}.txt", part, hparams, folder)
    tables = [table_path(out / name) for name in lists]
    return [out / name for name in contents] + [path for path in tables if path.exists()]


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add = parser.add_argument
    add("corpus", metavar="CORPUS", type=Path, help="folder in LJSpeech's layout")
    add("--out", type=Path, default=Path("filelists/ljspeech"), help="(%(default)s)")
    add("--val-fraction", type=float, default=VAL_FRACTION, help="clips never trained on (0.2)")
    add("--seed", type=int, default=SEED, help="another seed, another split (0)")
    add("--cache-mels", metavar="DIR", type=Path, help="store log-mels there")
    add("--skip-bad", action="store_true", help="leave bad clips out")
    add("--max-seconds", metavar="S", type=float, help="leave longer clips out")
    add("--trim-silence", metavar="DIR", type=Path, help="write clips without it there, use them")
    add("--download", action="store_true", help="fetch LJSpeech-1.1 into CORPUS")
    add("--hparams", metavar="NAME=VALUE,...", default="", help="audio settings, text_cleaners")
    args = parser.parse_args(arguments)
    if not 0 < args.val_fraction < 1:
        parser.error(f"--val-fraction {args.val_fraction}: expected a number between 0 and 1")
    if args.max_seconds is not None and not args.max_seconds > 0:
        parser.error(f"--max-seconds {args.max_seconds}: expected a number above 0")
    if re.search(r",|\s#", str(args.out)):
        parser.error(f"--out {args.out}: train.py's --hparams cannot name a path with ',' or ' #'")
    try:
        create_hparams(args.hparams)  # refused before a download of hours
        if args.download:
            download_corpus(args.corpus)
        written = prepare(
            args.corpus,
            args.out,
            args.hparams,
            args.val_fraction,
            args.seed,
            args.cache_mels,
            args.skip_bad,
            args.max_seconds,
            args.trim_silence,
        )
    except KeyboardInterrupt:
        sys.exit("stopped; no filelist was written. The same command goes on from here")
    except (UserError, OSError) as error:
        sys.exit(f"prepare_ljspeech: {error}")
    print("Wrote " + ", ".join(str(path) for path in written))
    run, settings_file = shlex.quote(f"runs/{args.out.name}"), args.out / "settings.txt"
    print(f"Next: python train.py -o {run} --hparams {shlex.quote(f'@{settings_file}')}")


if __name__ == "__main__":
    # A terminated run finishes the file it is writing and takes temporary ones away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; no filelist was written"))
    main()
