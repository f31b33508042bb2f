"""`prepare` turns a corpus in LJSpeech's layout into filelists, after checking every clip."""

import json
import math
import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from audio import unusual_frames
from corpus import conversion
from corpus.clip_table import Clip, ClipTable, table_path
from corpus.derived_files import Folder, cache_mels, mel_folder, trim_clips, trim_folder
from corpus.faults import fault_warnings, other_language, texts_of_other_clips
from corpus.filelist import CHANGED_IN_CHECK, cache_table, table_key, warn_of_long_clips
from corpus.layouts import Table
from corpus.metadata import SEED, VAL_FRACTION, choose_split, read_metadata, texts_in_both
from corpus.missing_sounds import notice_of_unnamed
from corpus.plots import draw_faults, draw_lengths
from corpus.recordings import check_recordings, seconds_of
from corpus.speaker_names import NO_SPEAKERS, SpeakerSource, checked_name
from corpus.speaker_report import (
    facts_of,
    held_out_notice,
    speaker_table,
    speaker_warnings,
)
from corpus.symbols_used import drop_unused_symbols, rare_symbols, with_symbols_of
from hparams import HParams, check_text_settings, create_hparams, override_lines, read_symbols
from tacotron2_voice.speech_statistics import SpeechStatistics, last_symbol, measure
from tacotron2_voice.text.symbol_files import SYMBOLS_FILE
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.errors import UserError, grouped
from tacotron2_voice.utils.files import Identity, folder_locked, naming, refuse_no_folder

SPEAKER_EMBEDDING_DIM = 64  # that settings.txt recommends for several speakers
LISTS = ("train.txt", "val.txt", "train_mel.txt", "val_mel.txt")
EARLIER = ".earlier"  # added to the names of lists that are no longer those of settings.txt
MAX_FOLDERS_UP = 2  # from filelists/NAME to the project's folder, where data/ and mels/ lie


def summary(sets: dict[str, list[Clip]], hparams: HParams) -> str:
    """Markdown table of the sets' clips and their lengths in three units."""
    rows = []
    for name, clips in sets.items():
        units = {
            "seconds": seconds_of(clips, hparams),
            "frames": np.array([clip.num_frames for clip in clips]),
            "symbols": np.array([len(clip.symbols) for clip in clips]),
        }
        for unit, lengths in units.items():
            numbers = (f(lengths) for f in (np.min, np.mean, np.median, np.max, np.sum))
            rows.append([name, f"{len(clips):,}", unit, *(f"{number:,.2f}" for number in numbers)])
    titles = ["set", "clips", "unit", "shortest", "mean", "median", "longest", "total"]
    return markdown_table(titles, rows)


def statistics_of(clips: Sequence[Clip], hparams: HParams) -> SpeechStatistics:
    """The statistics that training stores in checkpoints, here of all clips."""
    symbols = hparams.table.symbols
    last = (last_symbol(symbols[i] for i in clip.symbols) for clip in clips)
    frames, lengths = zip(*((clip.num_frames, len(clip.symbols)) for clip in clips), strict=True)
    return measure(np.array(frames), np.array(lengths), last, hparams)


def refuse_or_skip(problems: Sequence[str], total: int, skip_bad: bool) -> None:
    """Report the bad clips: UserError, or a notice with `skip_bad` where others are left."""
    count = f"{len(problems):,} of {total:,} clips"
    listed = "\n".join(f"  {line}" for line in grouped(problems))
    some_are_good = len(problems) < total
    advice = "no filelist was written. Fix them"
    if some_are_good:
        advice += ", or leave them out with --skip-bad"
    if conversion.ADVISED in listed:
        advice += "; --convert NEW_FOLDER writes copies that are as training wants them"
    if problems and not (skip_bad and some_are_good):
        raise UserError(f"{count} are bad:\n{listed}\n{count} are bad; {advice}")
    if problems:
        print(f"--skip-bad leaves out {count}:\n{listed}")


def settings(
    overrides: str, suffix: str, *, has_validation: bool, several_speakers: bool = False
) -> str:
    """Content of the settings file for train.py: `overrides`, and the filelists beside it."""
    ours = {
        "load_mel_from_disk": bool(suffix),
        "training_files": f"train{suffix}.txt",
        "validation_files": f"val{suffix}.txt" if has_validation else "none",
    }
    lines = ["# By scripts/prepare.py, for: train.py --hparams @this_file,name=value,..."]
    lines += [s for s in override_lines(overrides) if s.partition("=")[0].strip() not in ours]
    names = {line.partition("=")[0].strip() for line in lines}
    if several_speakers and "speaker_embedding_dim" not in names:
        lines.append(f"speaker_embedding_dim={SPEAKER_EMBEDDING_DIM}")
    lines += [f"{name}={value}" for name, value in ours.items()]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Preparation:
    """Arguments of `prepare`; scripts/prepare.py has an option for each."""

    corpus: Path  # absolute, as are the three other folders below
    out: Path  # for the filelists
    overrides: str = ""  # of settings
    val_fraction: float = VAL_FRACTION  # of the clips, never trained on
    seed: int = SEED  # of the split
    mels: Path | None = None  # folder for log-mels
    skip_bad: bool = False  # leave bad clips out
    max_seconds: float = math.inf  # leave longer clips out
    trim: Path | None = None  # folder for copies without the silence at the ends
    drop_unknown: bool = False  # leave out what has no symbol
    split_by_text: bool = False  # takes of one text stay in one set
    convert: Path | None = None  # folder for copies as training wants them
    table: Table | None = None  # of the recordings, with `convert`
    speakers: SpeakerSource = NO_SPEAKERS  # where the corpus names them

    def __post_init__(self) -> None:
        for name in ("corpus", "mels", "trim", "convert"):
            folder = getattr(self, name)
            object.__setattr__(self, name, folder and Path(os.path.abspath(folder)))
        if re.search(r"[,\n\r]|\s#", str(self.out)) or str(self.out) != str(self.out).strip():
            raise UserError(
                f"--out {str(self.out)!r}: its settings.txt could not name it; rename it"
            )
        refuse_no_folder(self.out, "--out")
        if self.corpus in (self.mels, self.trim, self.convert):
            raise UserError(f"{self.corpus}: the corpus itself; name a new folder for what is made")
        if re.search("[|\n\r\ud800-\udfff]", f"{self.folder}{self.mels}{self.trim}"):
            raise UserError(
                f"{self.folder}, {self.mels}, {self.trim}: paths in a filelist hold no '|' or line "
                "break, and are UTF-8; rename it"
            )
        if name := self.speakers.name:
            name = checked_name(name, "--speaker")
            object.__setattr__(self, "speakers", SpeakerSource(name=name))
        if self.drop_unknown:
            object.__setattr__(self, "overrides", f"{self.overrides},drop_unknown=True")

    @property
    def folder(self) -> Path:
        """In LJSpeech's layout."""
        return self.convert or self.corpus


def prepare(asked: Preparation) -> list[Path]:
    """Check a corpus and write its filelists (and mels). Returns the files written in `out`.

    UserError lists every bad clip (unless `skip_bad`) or says what else is wrong; no filelist is
    written then.
    """
    hparams = check_text_settings(create_hparams(asked.overrides))
    if hparams.symbols != "corpus":
        hparams = read_symbols(hparams)
    mel_files = copies = None
    if asked.mels:
        read_from = asked.trim or asked.folder
        mel_files = mel_folder(asked.mels, hparams, read_from, trimmed=asked.trim is not None)
    if asked.trim:
        copies = trim_folder(asked.trim, asked.folder)
    for folder in filter(None, (mel_files, copies)):
        refuse_no_folder(folder.path, folder.option)
        folder.refuse_others()
    column = asked.speakers.column
    if asked.convert:
        convert = conversion.convert
        bad, total = convert(asked.corpus, asked.convert, asked.table, hparams, asked.speakers)
        refuse_or_skip(bad, total, asked.skip_bad)
        column = conversion.SPEAKER_FIELD if asked.speakers.is_known else ""
    path = asked.folder / "metadata.csv"
    metadata = Clip(str(path), "", identity=Identity.of(path))  # as it is before it is read
    entries, problems = read_metadata(asked.folder, column)
    if asked.speakers.name:
        entries = [replace(entry, speaker=asked.speakers.name) for entry in entries]
    clips, sources, hparams = usable_clips(asked, mel_files, copies, entries, problems, hparams)
    sets, origin = split_clips(asked, entries, clips)
    describe(sets, clips, origin, asked, hparams)
    chart = draw_faults(clips, hparams)
    sources = [metadata, *sources]
    if changed := [clip.path for clip in sources if Identity.of(clip.path) != clip.identity]:
        others = f" and {len(changed) - 1:,} more" * (len(changed) > 1)
        raise UserError(f"{changed[0]}{others}: {CHANGED_IN_CHECK}. No filelist was written")
    return write_lists(sets, asked, hparams, chart)


def usable_clips(
    asked: Preparation,
    mel_files: Folder | None,
    copies: Folder | None,
    entries: list[Clip],
    problems: list[str],
    hparams: HParams,
) -> tuple[list[Clip], list[Clip], HParams]:
    """Return the clips to train on, trimmed and with cached mels if asked for; the recordings they
    were read from; and the settings, with the corpus's own table of symbols if asked for."""
    makes_table = hparams.symbols == "corpus"
    hparams = with_symbols_of(entries, hparams) if makes_table else hparams
    clips, bad, unnamed = check_recordings(asked.folder, entries, hparams)
    recordings, total = clips, len(entries) + len(problems)
    if unnamed:
        print(notice_of_unnamed(unnamed, "no line of metadata.csv", "wavs"))
    refuse_or_skip(problems + bad, total, asked.skip_bad)
    if copies and clips:
        clips, faulty = trim_clips(clips, copies, hparams)
        refuse_or_skip(list(faulty.values()), total, asked.skip_bad)
    max_samples = asked.max_seconds * hparams.sampling_rate
    if long := {clip.where for clip in clips if clip.sound.num_samples > max_samples}:
        print(
            f"--max-seconds {asked.max_seconds:g} leaves out {len(long):,} of {len(clips):,} clips"
        )
        clips = [clip for clip in clips if clip.where not in long]
    if mel_files and clips:
        faulty = cache_mels(clips, mel_files, hparams)
        refuse_or_skip(list(faulty.values()), total, asked.skip_bad)
        clips = [clip for clip in clips if clip.where not in faulty]
    if makes_table and clips:
        clips, hparams = drop_unused_symbols(clips, hparams)
    return clips, recordings, hparams


def split_clips(
    asked: Preparation, entries: list[Clip], clips: list[Clip]
) -> tuple[dict[str, list[Clip]], str]:
    """Split into "train" and, unless none is wanted, "val"; also returns the split's origin.
    UserError for an empty set."""
    # By all lines, those of bad clips too: leaving one out must not move others between the sets.
    validation, origin = choose_split(
        entries, asked.val_fraction, asked.seed, by_text=asked.split_by_text
    )
    held_out = {entry.where for entry in entries if entry.id in validation}
    sets = {
        "train": [clip for clip in clips if clip.where not in held_out],
        "val": [clip for clip in clips if clip.where in held_out],
    }
    if asked.val_fraction == 0:
        del sets["val"]  # training goes without
        origin = "no clip is held out for validation, as --val-fraction 0 says"
    if not all(sets.values()):
        counts = ", ".join(f"{name}: {len(members)} clips" for name, members in sets.items())
        raise UserError(
            f"{counts} ({origin}): each set needs at least one; add clips, or change "
            "--val-fraction (0: no validation) or --max-seconds. No filelist was written"
        )
    untrained = {x.speaker for x in sets.get("val", ())} - {x.speaker for x in sets["train"]}
    if untrained:
        raise UserError(
            f"{len(untrained):,} speakers, such as {min(untrained)!r}, have clips for validation "
            "alone: add clips of other texts, or leave these speakers out. No filelist was written"
        )
    return sets, origin


def describe(
    sets: dict[str, list[Clip]],
    clips: list[Clip],
    origin: str,
    asked: Preparation,
    hparams: HParams,
) -> None:
    """Print the symbols, lengths, split and speakers, and warn of what hurts the alignment."""
    if hparams.symbols == "corpus":
        table = "".join(hparams.symbol_table)
        print(f"{len(hparams.symbol_table):,} symbols, the padding first: {table:.1000}")
    print(f"\n{summary(sets | {'all': clips}, hparams)}\n\nSplit: {origin}")
    print(statistics_of(clips, hparams).describe())
    warnings = [warn_of_long_clips(seconds_of(clips, hparams), lambda i: clips[i].path)]
    warnings += [unusual_frames(hparams), other_language(clips, hparams)]
    warnings.append(texts_of_other_clips(clips))
    warnings += [*fault_warnings(clips, hparams), rare_symbols(clips, hparams)]
    warnings.append(texts_in_both(sets))
    facts = facts_of(sets, hparams)
    if len(facts) > 1:
        print(f"\n{speaker_table(facts)}\n")
        warnings.append(held_out_notice(facts, asked.val_fraction))
        warnings += speaker_warnings(facts, is_converted=asked.convert is not None)
    for warning in filter(None, warnings):
        print(warning)


def listed_path(path: str, out: Path) -> str:
    """How a list in `out` names a clip: from the list's own folder, so that both may be moved
    together, if they share a folder at most MAX_FOLDERS_UP above it; else by the absolute path."""
    relative = os.path.relpath(path, os.path.realpath(out))  # ".." leads out of the real folder
    folders_up = Path(relative).parts.count("..")
    meets_at_root = folders_up == len(Path(os.path.realpath(out)).parts) - 1
    if (
        folders_up > MAX_FOLDERS_UP
        or (folders_up and meets_at_root)
        or relative != relative.strip()
    ):
        return path
    return relative


def list_line(path: str, clip: Clip, seconds: float) -> str:
    speaker = f"|{clip.speaker}" if clip.speaker else ""
    return f"{path}|{clip.text}|{seconds:.6f}{speaker}\n"


def write_lists(
    sets: dict[str, list[Clip]], asked: Preparation, hparams: HParams, chart: bytes
) -> list[Path]:
    """Write all files to `out`, in the place of an earlier call's. Returns them."""
    out, mels = asked.out, asked.mels
    contents = {"lengths.png": draw_lengths(sets, hparams), "corpus.png": chart}
    contents["settings.txt"] = settings(
        asked.overrides,
        "_mel" if mels else "",
        has_validation="val" in sets,
        several_speakers=len({clip.speaker for clip in sets["train"]}) > 1,
    ).encode()
    if hparams.symbols == "corpus":
        table = json.dumps(hparams.symbol_table, ensure_ascii=False, indent=0)
        contents[SYMBOLS_FILE] = f"{table}\n".encode()
    lists = {f"{name}.txt": clips for name, clips in sets.items()}
    if mels:
        for name, clips in sets.items():
            files = (str(mels / f"{clip.id}.npy") for clip in clips)
            lists[f"{name}_mel.txt"] = [
                replace(clip, path=path, identity=Identity.of(path))
                for clip, path in zip(clips, files, strict=True)
            ]
    for name, clips in lists.items():
        paths = [listed_path(clip.path, out) for clip in clips]
        columns = zip(paths, clips, seconds_of(clips, hparams), strict=True)
        lines = [list_line(path, clip, length) for path, clip, length in columns]
        contents[name] = "".join(lines).encode()
        lists[name] = [
            clip
            if os.path.isabs(path)
            else replace(clip, path=os.path.join(out, path), is_relative=True)
            for path, clip in zip(paths, clips, strict=True)
        ]
    out.mkdir(parents=True, exist_ok=True)
    # settings.txt last, when all that it names is there.
    contents["settings.txt"] = contents.pop("settings.txt")
    busy = "another process is preparing in it; wait, or choose another --out"
    with folder_locked(out, busy):
        put_into(out, contents)
        set_aside_earlier_lists(out, {*contents}, hparams)
        for name, clips in lists.items():
            settings_of_list = replace(hparams, load_mel_from_disk=name.endswith("_mel.txt"))
            key = table_key(contents[name], settings_of_list)
            cache_table(ClipTable.of(out / name, enumerate(clips, 1), True, key), settings_of_list)
    written = [path for name in contents for path in (out / name, table_path(out / name))]
    return sorted(path for path in written if path.exists())


def put_into(out: Path, contents: dict[str, bytes]) -> None:
    """Write files to a folder; none is moved into place before all are written."""
    with naming(out), tempfile.TemporaryDirectory(prefix=".prepare-", dir=out) as written:
        for name, content in contents.items():
            Path(written, name).write_bytes(content)
        for name in contents:
            os.replace(Path(written, name), out / name)


def set_aside_earlier_lists(out: Path, written: set[str], hparams: HParams) -> None:
    """Rename an earlier call's lists, which divide the clips otherwise, and its symbols, and remove
    the lists' tables. Called when settings.txt, which may have named them, is the new one."""
    kept = {os.path.realpath(out / name) for name in written} | {os.path.realpath(hparams.symbols)}
    all_lists = [out / name for name in (*LISTS, SYMBOLS_FILE)]
    if old := [x for x in all_lists if x.is_file() and os.path.realpath(x) not in kept]:
        for path in old:
            os.replace(path, f"{path}{EARLIER}")
            table_path(path).unlink(missing_ok=True)
        print(f"renamed to NAME{EARLIER}, as of an earlier call: {', '.join(map(str, old))}")
