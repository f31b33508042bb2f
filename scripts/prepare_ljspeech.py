"""Check a corpus in the LJSpeech-1.1 layout, split it, and write the filelists for training.

    python scripts/prepare_ljspeech.py data/LJSpeech-1.1 --download
    python scripts/prepare_ljspeech.py CORPUS --out filelists/mine --cache-mels mels/mine

    CORPUS/metadata.csv     id|text|normalised text (UTF-8, no quoting; the last field is used)
    CORPUS/wavs/ID.wav      or ID.flac: mono, at the sampling rate of the settings

    OUT/train.txt, val.txt          path|text|seconds, a clip a line
    OUT/train_mel.txt, val_mel.txt  the same of cached log-mels, for load_mel_from_disk=True
    OUT/lengths.png                 histogram of the clips' lengths

Every clip is checked. If any is bad, all bad ones are listed and nothing is written, unless
--skip-bad leaves them out.
"""

from project_root import ROOT

import argparse
import csv
import hashlib
import io
import json
import multiprocessing
import os
import shlex
import signal
import sys
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import soundfile
import torch
from matplotlib.figure import Figure

from audio import frame_count, log_mel_spectrogram, mel_fingerprint, read_audio, read_header
from data_utils import MEL_SETTINGS_FILE, end_with_parent, mel_settings_problem
from files import remove_leftovers, write_atomically
from hparams import HParams, create_hparams
from progress import progress_bar
from scripts.download import download_corpus
from text import sequence_to_text, text_to_sequence

SPLIT_FILE = ROOT / "filelists" / "ljspeech_split.csv"
VAL_FRACTION, SEED = 0.2, 0  # of the pinned split
READING_THREADS = 8  # headers wait for the disk, not for the processor


@dataclass(frozen=True)
class Recording:
    """A clip that passed every check."""

    id: str
    path: Path
    text: str
    num_samples: int
    num_symbols: int


# ---------------------------------------------------------------------------- checks


def read_metadata(corpus: Path) -> tuple[list[tuple[int, str, str]], list[str]]:
    """(line number, id, normalised text) of each line of metadata.csv, and what is wrong with it.

    Lines with another number of fields and repeated ids are among the problems only.

    Raises:
        ValueError: where the folder or the file is missing or not UTF-8.
    """
    metadata = corpus / "metadata.csv"
    if not corpus.is_dir():
        raise ValueError(
            f"{corpus}: no such folder; add --download to fetch LJSpeech-1.1 (2.7 GB) into it"
        )
    try:
        lines = metadata.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise ValueError(
            f"{metadata}: no such file; name the folder that holds metadata.csv (lines of "
            "id|text|normalised text) and wavs/"
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{metadata}:{line}: not UTF-8 ({error.reason}); convert the file, for example: "
            "iconv -f latin1 -t utf-8 metadata.csv"
        ) from None
    entries, problems, first_line = [], [], {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 3:
            problems.append(
                f"{metadata}:{number}: {len(fields)} fields, expected id|text|normalised text: "
                f"{line[:60]!r}; mend the line"
            )
        elif fields[0] in first_line:
            problems.append(
                f"{metadata}:{number}: id {fields[0]!r} stands in line {first_line[fields[0]]} "
                "too; take one of them out, or give it an id and a wav of its own"
            )
        else:
            first_line[fields[0]] = number
            entries.append((number, fields[0], fields[2]))
    if not entries and not problems:
        raise ValueError(f"{metadata}: no clip in it; expected lines of id|text|normalised text")
    return entries, problems


def check_clips(
    corpus: Path, entries: list[tuple[int, str, str]], hparams: HParams
) -> tuple[list[Recording], list[str], list[str]]:
    """The good clips, what is wrong with the others, and sound files that no line names.

    Raises:
        ValueError: where the folder wavs is missing.
    """
    wavs, metadata = corpus / "wavs", corpus / "metadata.csv"
    if not wavs.is_dir():
        raise ValueError(f"{wavs}: no such folder; it should hold the clips that {metadata} names")
    sounds = {
        path.name: path
        for path in wavs.iterdir()
        if path.suffix in (".wav", ".flac") and not path.name.startswith(".")
    }

    def check(entry: tuple[int, str, str]) -> Recording | str:
        number, clip_id, text = entry
        path = sounds.get(f"{clip_id}.wav") or sounds.get(f"{clip_id}.flac")
        if path is None:
            return (
                f"{wavs / clip_id}.wav (or .flac): no such file; copy it there, or take line "
                f"{number} out of {metadata}"
            )
        sequence = text_to_sequence(text, hparams.text_cleaners)
        if not sequence_to_text(sequence).strip():
            return (
                f"{metadata}:{number}: the normalised text {text!r} of {clip_id} is empty after "
                "cleaning; write what is said"
            )
        try:
            num_samples = read_header(path, hparams)
        except ValueError as error:
            return f"{path}: {error}"
        if is_cut_off(path):
            return f"{path}: cut off, its header promises more; copy it again"
        return Recording(clip_id, path, text, num_samples, len(sequence))

    with (
        ThreadPoolExecutor(READING_THREADS) as threads,
        progress_bar("Checking", len(entries), " clips") as bar,
    ):
        results = []
        for result in threads.map(check, entries):
            results.append(result)
            bar.update()
    unnamed = set(sounds)
    for _, clip_id, _ in entries:
        wav, flac = f"{clip_id}.wav", f"{clip_id}.flac"
        unnamed.discard(wav if wav in sounds else flac)
    clips = [result for result in results if isinstance(result, Recording)]
    return clips, [result for result in results if isinstance(result, str)], sorted(unnamed)


def is_cut_off(path: Path) -> bool:
    """Whether the end of a WAV or FLAC file is missing, which its header alone does not tell."""
    with open(path, "rb") as file:
        kind, size = file.read(4), 8 + int.from_bytes(file.read(4), "little")
        length = file.seek(0, os.SEEK_END)
    if kind == b"RIFF":
        # Sizes from 2 GB up stand for "unknown" in a WAV written to a pipe; some programs leave
        # the last byte's padding out.
        return size < 0x7FFFF000 and length < size - 1
    try:
        with soundfile.SoundFile(str(path)) as sound:
            sound.seek(sound.frames - 1)
            return len(sound.read(1)) == 0
    except soundfile.SoundFileError:
        return True


def refuse_or_skip(problems: list[str], total: int, skip_bad: bool) -> None:
    """List every problem; raise ValueError unless the bad clips are to be left out."""
    if not problems:
        return
    listed = "\n".join(f"  {problem}" for problem in problems)
    if not skip_bad:
        raise ValueError(
            f"{len(problems):,} of {total:,} clips are bad:\n{listed}\n"
            f"{len(problems):,} bad clips; no filelist was written. Mend them, or leave them out "
            "with --skip-bad"
        )
    print(f"--skip-bad leaves out {len(problems):,} of {total:,} clips:\n{listed}")


# ---------------------------------------------------------------------------- split


def split_by_hash(ids: list[str], val_fraction: float, seed: int) -> set[str]:
    """The ids of the validation set: the first ones in the order of SHA-256("seed|id").

    Whatever the order of `ids`, and with hardly a change when some come or go. With a fraction of
    0.2 and seed 0 on LJSpeech-1.1 this is filelists/ljspeech_split.csv.
    """
    ranked = sorted(ids, key=lambda name: hashlib.sha256(f"{seed}|{name}".encode()).digest())
    return set(ranked[: round(len(ids) * val_fraction)])


def choose_split(ids: list[str], val_fraction: float, seed: int) -> tuple[set[str], str]:
    """The ids of the validation set and, in words, where they come from."""
    if (val_fraction, seed) == (VAL_FRACTION, SEED):
        with open(SPLIT_FILE, encoding="utf-8", newline="") as file:
            pinned = {row["id"]: row["set"] for row in csv.DictReader(file)}
        if pinned.keys() == set(ids):
            validation = {name for name, which in pinned.items() if which == "val"}
            return validation, f"the pinned split of LJSpeech-1.1, {SPLIT_FILE.name}"
    return (
        split_by_hash(ids, val_fraction, seed),
        f"{val_fraction:g} of the ids for validation, ordered by their hash with seed {seed}",
    )


# ---------------------------------------------------------------------------- cached mels


def refuse_other_mels(folder: Path, hparams: HParams) -> None:
    """Raise ValueError where `folder` holds mels of other, or unknown, audio settings."""
    settings_file = folder / MEL_SETTINGS_FILE
    if settings_file.exists() or any(folder.glob("*.npy")):
        problem = mel_settings_problem(folder, hparams)
        if problem:
            raise ValueError(
                f"--cache-mels {folder}: holds mels {problem}; name another folder, delete this "
                "one, or give those settings by --hparams"
            )


def cache_mels(clips: list[Recording], folder: Path, hparams: HParams) -> dict[str, str]:
    """Write `folder`/ID.npy, float32 [n_mel_channels, frames], of every clip that lacks it.

    All processors work, with one torch thread each, as in a data loader's worker, so that the
    mels are bitwise those that training would compute.

    Returns:
        What is wrong with the clips that gave no mel, by id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    settings = json.dumps(mel_fingerprint(hparams), indent=2) + "\n"
    write_atomically(folder / MEL_SETTINGS_FILE, lambda path: path.write_text(settings))
    todo = [clip for clip in clips if not is_cached(clip, folder, hparams)]
    if len(todo) < len(clips):
        print(f"{len(clips) - len(todo):,} of {len(clips):,} mels are in {folder} already.")
    if not todo:
        return {}
    problems = {}
    executor = ProcessPoolExecutor(
        max_workers=min(os.cpu_count() or 1, len(todo)),
        mp_context=multiprocessing.get_context("spawn"),  # forking a threaded process may hang
        initializer=start_worker,
    )
    try:
        # Workers inherit the disregard of Ctrl-C: it reaches the whole group, we answer it.
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            work = partial(cache_mel, folder=folder, hparams=hparams)
            results = executor.map(work, todo, chunksize=4)
        finally:
            signal.signal(signal.SIGINT, handler)
        with progress_bar("Caching mels", len(todo), " clips") as bar:
            for clip, problem in zip(todo, results, strict=True):
                bar.update()
                if problem:
                    problems[clip.id] = f"{clip.path}: {problem}"
    finally:
        executor.shutdown(cancel_futures=True)  # the mels begun are finished, no more
    return problems


def start_worker() -> None:
    """One torch thread; and a worker does not outlive a parent that was killed."""
    torch.set_num_threads(1)
    end_with_parent()


def is_cached(clip: Recording, folder: Path, hparams: HParams) -> bool:
    """Whether the mel is there, whole, and newer than the clip."""
    path = folder / f"{clip.id}.npy"
    try:
        mel = np.load(path, mmap_mode="r", allow_pickle=False)
        newer = path.stat().st_mtime_ns > clip.path.stat().st_mtime_ns
    except (OSError, ValueError, EOFError):
        return False
    shape = (hparams.n_mel_channels, frame_count(clip.num_samples, hparams))
    return newer and mel.shape == shape and mel.dtype == np.float32


def cache_mel(clip: Recording, folder: Path, hparams: HParams) -> str | None:
    """Compute and write one mel. Returns what is wrong with the clip, if anything."""
    try:
        samples = read_audio(clip.path, hparams)
        if len(samples) != clip.num_samples:
            return f"{len(samples)} samples, but {clip.num_samples} by its header; copy it again"
        mel = log_mel_spectrogram(samples, hparams).numpy()
    except ValueError as error:
        return str(error)

    def write(path: Path) -> None:
        with open(path, "wb") as file:  # given a path, numpy would add .npy to it
            np.save(file, mel)

    write_atomically(folder / f"{clip.id}.npy", write)
    return None


# ---------------------------------------------------------------------------- reports


def table(sets: dict[str, list[Recording]], hparams: HParams) -> str:
    """What each set holds, a column a set: clips, hours, and lengths in three units."""
    columns = []
    for clips in sets.values():
        samples = np.array([clip.num_samples for clip in clips])
        seconds = samples / hparams.sampling_rate
        column = [f"{len(clips):,}", f"{seconds.sum() / 3600:,.2f}"]
        for values, decimals in (
            (seconds, 2),
            (frame_count(samples, hparams), 0),
            (np.array([clip.num_symbols for clip in clips]), 0),
        ):
            column += [
                f"{value:,.{decimals}f}"
                for value in (values.min(), values.mean(), np.median(values), values.max())
            ]
            column.append(f"{values.sum():,.0f}")
        columns.append(column)
    statistics = ("shortest", "mean", "median", "longest", "total")
    names = ["clips", "hours"] + [
        f"{quantity:8} {statistic}"
        for quantity in ("seconds", "frames", "symbols")
        for statistic in statistics
    ]
    lines = [" " * 17 + "".join(f"{name:>13}" for name in sets)]
    for row in zip(names, *columns, strict=True):
        lines.append(f"{row[0]:17}" + "".join(f"{value:>13}" for value in row[1:]))
    return "\n".join(lines)


def draw_lengths(sets: dict[str, list[Recording]], hparams: HParams) -> bytes:
    """PNG: share of each set's clips by length, in seconds and frames."""
    seconds = {
        name: np.array([clip.num_samples for clip in clips]) / hparams.sampling_rate
        for name, clips in sets.items()
    }
    longest = max(values.max() for values in seconds.values())
    # Few bars where a set is small: its shape should show, not its single clips.
    most_bars = np.clip(2 * min(len(values) for values in seconds.values()) ** 0.5, 6, 30)
    widths = (0.1, 0.25, 0.5, 1, 2, 5, 10)
    width = next((w for w in widths if longest / w <= most_bars), longest / most_bars)
    edges = width * np.arange(int(longest / width) + 2)
    figure = Figure(figsize=(7, 4), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    # Told apart without colour: an area in light blue, a line in dark orange.
    styles = (
        {"fill": True, "facecolor": "#A6CBE5", "edgecolor": "#5B8DB0", "linewidth": 0.8},
        {"fill": False, "edgecolor": "#A33B00", "linewidth": 2},
    )
    for (name, values), style in zip(seconds.items(), styles, strict=True):
        counts, _ = np.histogram(values, edges)
        hours, mean = values.sum() / 3600, values.mean()
        label = f"{name}: {len(values):,} clips, {hours:.2f} h, mean {mean:.2f} s"
        axes.stairs(100 * counts / len(values), edges, label=label, **style)
    axes.set(
        xlabel="length of a clip (seconds)",
        ylabel=f"share of the set's clips (% per {width:g} s)",
        xlim=(0, 1.02 * edges[-1]),
    )
    axes.spines["right"].set_visible(False)
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
    frames_a_second = hparams.sampling_rate / hparams.hop_length
    upper = axes.secondary_xaxis(
        "top", functions=(lambda s: s * frames_a_second, lambda f: f / frames_a_second)
    )
    upper.set_xlabel(f"mel frames (one every {1000 / frames_a_second:.4g} ms)")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()


# ---------------------------------------------------------------------------- all of it


def filelist(clips: list[Recording], hparams: HParams, mels: Path | None = None) -> bytes:
    """Lines of path|text|seconds, of the sound files or of the mels in the folder `mels`."""
    lines = []
    for clip in clips:
        path = mels / f"{clip.id}.npy" if mels else clip.path
        lines.append(f"{path}|{clip.text}|{clip.num_samples / hparams.sampling_rate:.6f}\n")
    return "".join(lines).encode()


def write_together(contents: dict[Path, bytes]) -> None:
    """Write all files, each atomically; none takes its place before all of them are written."""
    if not contents:
        return
    (path, content), *others = contents.items()

    def write(temporary: Path) -> None:
        temporary.write_bytes(content)
        write_together(dict(others))

    write_atomically(path, write)


def prepare(
    corpus: Path,
    out: Path,
    hparams: HParams,
    val_fraction: float = VAL_FRACTION,
    seed: int = SEED,
    mels: Path | None = None,
    skip_bad: bool = False,
) -> list[Path]:
    """Check `corpus` and write its filelists (and mels); returns the files in `out` it wrote.

    Raises:
        ValueError: listing every bad clip (unless `skip_bad`), or saying what else is wrong.
            No filelist was written then.
    """
    corpus = Path(os.path.abspath(corpus))
    mels = Path(os.path.abspath(mels)) if mels else None
    text_to_sequence("", hparams.text_cleaners)  # an unknown cleaner is refused here
    for folder in (corpus, mels):
        if folder and any(character in str(folder) for character in "|\n\r"):
            raise ValueError(f"{str(folder)!r}: a path in a filelist cannot hold '|'; rename it")
    if mels:
        refuse_other_mels(mels, hparams)

    entries, problems = read_metadata(corpus)
    clips, bad, unnamed = check_clips(corpus, entries, hparams)
    problems += bad
    total = len(clips) + len(problems)
    if unnamed:
        some = ", ".join(unnamed[:5]) + (", ..." if len(unnamed) > 5 else "")
        print(f"Notice: no line of metadata.csv names {len(unnamed):,} files in wavs: {some}")
    refuse_or_skip(problems, total, skip_bad)

    # All ids, bad clips too: leaving one out must not move others between the sets.
    ids = [clip_id for _, clip_id, _ in entries]
    validation, origin = choose_split(ids, val_fraction, seed)
    if mels and clips:
        bad = cache_mels(clips, mels, hparams)
        refuse_or_skip(list(bad.values()), total, skip_bad)
        clips = [clip for clip in clips if clip.id not in bad]
    train = [clip for clip in clips if clip.id not in validation]
    val = [clip for clip in clips if clip.id in validation]
    if not train or not val:
        raise ValueError(
            f"{len(train)} clips for training and {len(val)} for validation ({origin}): each set "
            "needs one at least; add clips or change --val-fraction. No filelist was written"
        )
    print(f"\n{table({'train': train, 'val': val, 'all': clips}, hparams)}\n\nSplit: {origin}")

    contents = {
        out / "train.txt": filelist(train, hparams),
        out / "val.txt": filelist(val, hparams),
        out / "lengths.png": draw_lengths({"train": train, "val": val}, hparams),
    }
    if mels:
        contents[out / "train_mel.txt"] = filelist(train, hparams, mels)
        contents[out / "val_mel.txt"] = filelist(val, hparams, mels)
    elif (out / "train_mel.txt").exists():
        print(f"Notice: {out}/*_mel.txt are of an earlier run; --cache-mels would renew them")
    out.mkdir(parents=True, exist_ok=True)
    write_together(contents)
    return list(contents)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", metavar="CORPUS", type=Path, help="folder in LJSpeech's layout")
    parser.add_argument(
        "--out", type=Path, default=Path("filelists/ljspeech"), help="(%(default)s)"
    )
    parser.add_argument(
        "--val-fraction", type=float, default=VAL_FRACTION, help="clips never trained on (0.2)"
    )
    parser.add_argument("--seed", type=int, default=SEED, help="another seed, another split (0)")
    parser.add_argument("--cache-mels", metavar="DIR", type=Path, help="store log-mels there")
    parser.add_argument("--skip-bad", action="store_true", help="leave bad clips out")
    parser.add_argument("--download", action="store_true", help="fetch LJSpeech-1.1 into CORPUS")
    parser.add_argument("--hparams", metavar="NAME=VALUE,...", help="audio settings, text_cleaners")
    args = parser.parse_args(arguments)
    if not 0 < args.val_fraction < 1:
        parser.error(f"--val-fraction {args.val_fraction}: expected a number between 0 and 1")
    if "," in str(args.out):
        parser.error(f"--out {args.out}: train.py's --hparams cannot name a path with a comma")
    try:
        hparams = create_hparams(args.hparams)
        if args.download:
            download_corpus(args.corpus)
        written = prepare(
            args.corpus,
            args.out,
            hparams,
            args.val_fraction,
            args.seed,
            args.cache_mels,
            args.skip_bad,
        )
    except KeyboardInterrupt:
        sys.exit("stopped; no filelist was written. The same command goes on from here")
    except BrokenExecutor:
        sys.exit("prepare_ljspeech: a worker died, perhaps for lack of memory; run this again")
    except (ValueError, OSError) as error:
        sys.exit(f"prepare_ljspeech: {error}")

    print("Wrote " + ", ".join(str(path) for path in written))
    suffix = "_mel" if args.cache_mels else ""
    settings = [args.hparams] if args.hparams else []
    settings += ["load_mel_from_disk=True"] if args.cache_mels else []
    settings += [f"training_files={args.out}/train{suffix}.txt"]
    settings += [f"validation_files={args.out}/val{suffix}.txt"]
    name = shlex.quote(f"runs/{args.out.name}")
    print(f"Next: python train.py -o {name} --hparams {shlex.quote(','.join(settings))}")


if __name__ == "__main__":
    # A terminated run finishes the file it is writing and takes temporary ones away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped; no filelist was written"))
    main()
