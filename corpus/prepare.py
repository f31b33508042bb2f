"""Check every clip of a corpus, and write the filelists of the corpus.

written = prepare(Preparation(Path("data/LJSpeech-1.1"), Path("filelists/ljspeech")))
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from audio import unusual_frames
from corpus.audio_search import note_of_unused_audio
from corpus.cache import ClipTable, cache_path
from corpus.checks import check_clips, check_ids, seconds_of
from corpus.clips import Clip
from corpus.convert import SEGMENT_PADDING, SPEAKER_COLUMN, check_is_outside, convert
from corpus.derived import DerivedFolder, cache_mels, mel_folder, trim_clips, trim_folder
from corpus.filelist import CHANGED_IN_CHECK, cache_table, table_key, warn_of_long_clips
from corpus.layouts import default_table, read_layout
from corpus.plots import draw_audio, draw_corpus, draw_lengths
from corpus.report import (
    by_speaker,
    facts_of,
    speaker_table,
    speaker_warnings,
    statistics_of,
    summary_of,
    table_of_lengths,
)
from corpus.report_page import report_page
from corpus.speaker_names import NO_SPEAKERS, SpeakerSource, checked_name
from corpus.split import SEED, VAL_FRACTION, choose_split, texts_in_both
from corpus.spoken_texts import check_repeated_words
from corpus.symbols import drop_unused_symbols, rare_symbols, with_symbols_of
from corpus.tables import METADATA, Table
from corpus.text_search import NEXT_TO_AUDIO, TextSource
from corpus.warnings import Finding, clip_findings, corpus_warnings
from hparams import HParams, create_hparams, override_lines, read_symbols
from tacotron2_voice.settings import check_text_settings
from tacotron2_voice.text.lexicon import with_lexicon
from tacotron2_voice.text.symbols import SYMBOLS_FILE
from tacotron2_voice.utils.errors import UserError, count_of, grouped
from tacotron2_voice.utils.files import (
    Identity,
    check_is_folder,
    folder_locked,
    make_folder,
    naming,
    read_bytes,
)

# Embedding width to write to settings.txt if the corpus has several speakers.
SPEAKER_EMBEDDING_DIM = 64
LISTS = ("train.txt", "val.txt", "train_mel.txt", "val_mel.txt")
FIRST_FILE = "lengths.png"  # `prepare` writes lengths.png first and settings.txt last
HEADER = "# Written by scripts/prepare.py for: train.py --hparams @this_file,name=value,..."
PLOTS = {
    "lengths.png": "Lengths of the clips",
    "corpus.png": "Symbols per second, and silence at the ends",
    "audio.png": "Levels and noise",
}
EARLIER = ".earlier"  # suffix of renamed filelists from an earlier `prepare` call
# Maximum number of ".." in a relative path in a filelist. Two are enough to lead from
# filelists/NAME to the project folder, which contains data/ and mels/.
MAX_FOLDERS_UP = 2
LEXICON_FILE = "lexicon.txt"  # file with pronunciations, in the same folder as the filelists


def check_or_skip(problems: Sequence[str], total: int, skip_bad: bool) -> None:
    """Raise UserError if any clip is bad.

    With `skip_bad`, raise UserError only if all clips are bad. If some clips are good, print a
    warning instead.
    """
    if not problems:
        return
    count = f"{len(problems):,} of {total:,} clips"
    listed = "\n".join(f"  {line}" for line in grouped(problems))
    some_are_good = len(problems) < total
    if skip_bad and some_are_good:
        print(f"warning: --skip-bad leaves {count} out of the filelists:\n{listed}")
        return
    advice = ", or leave them out with --skip-bad" if some_are_good else ""
    raise UserError(
        f"{count} are bad:\n{listed}\n{count} are bad. No filelist was written. Fix the clips{advice}"
    )


def settings(
    overrides: str,
    suffix: str,
    *,
    has_validation: bool,
    several_speakers: bool = False,
    has_lexicon: bool = False,
) -> str:
    """Return the content of settings.txt, which consists of `overrides` and the paths of the
    filelists."""
    ours = {
        "load_mel_from_disk": bool(suffix),
        "training_files": f"train{suffix}.txt",
        "validation_files": f"val{suffix}.txt" if has_validation else "none",
    }
    if has_lexicon:
        ours["lexicon"] = LEXICON_FILE
    lines = [HEADER]
    lines += [s for s in override_lines(overrides) if s.partition("=")[0].strip() not in ours]
    names = {line.partition("=")[0].strip() for line in lines}
    if several_speakers and "speaker_embedding_dim" not in names:
        lines.append(f"speaker_embedding_dim={SPEAKER_EMBEDDING_DIM}")
    lines += [f"{name}={value}" for name, value in ours.items()]
    return "\n".join(lines) + "\n"


@dataclass
class Preparation:
    """The arguments of `prepare`. scripts/prepare.py has an option for each argument."""

    # The paths `corpus`, `mels`, `trim` and `convert` are made absolute.
    corpus: Path  # folder of the recordings
    out: Path  # folder for the filelists
    overrides: str = ""  # changed settings, such as "name=value"
    # File with pronunciations. None: use the file in the settings.
    lexicon: Path | None = None
    val_fraction: float = VAL_FRACTION  # fraction of the clips to hold out for validation
    seed: int = SEED
    mels: Path | None = None  # folder for cached log-mels
    skip_bad: bool = False  # whether to leave bad clips out of the filelists
    # Maximum length in seconds; longer clips are left out of the filelists.
    max_seconds: float = math.inf
    trim: Path | None = None  # folder for copies with trimmed silence
    split_by_text: bool = False  # whether to put all clips with the same text into the same set
    convert: Path | None = None  # folder for copies in the format for training
    # Table that lists the recordings; None: metadata.csv, or the text files next to the audio
    # files.
    table: Table | None = None
    speakers: SpeakerSource = NO_SPEAKERS  # where the corpus stores speaker names
    texts: TextSource = NEXT_TO_AUDIO  # where the corpus stores the texts, if there is no table
    padding: float = SEGMENT_PADDING  # number of seconds to add at each end of a segment

    def __post_init__(self) -> None:
        for name in ("corpus", "mels", "trim", "convert"):
            folder = getattr(self, name)
            setattr(self, name, folder and Path(os.path.abspath(folder)))
        if re.search(r"[,\n\r]|\s#", str(self.out)) or str(self.out) != str(self.out).strip():
            raise UserError(
                f"--out {str(self.out)!r}: settings.txt cannot contain this path (expected a path "
                "without ',', ' #', line breaks, or spaces at its ends)"
            )
        for option, folder in {"--out": self.out, **self.new_folders}.items():
            check_is_folder(folder, option)
        if self.trim:
            check_is_outside(self.trim, self.corpus, "--trim-silence")
        if self.trim and self.trim == self.convert:
            raise UserError(
                f"--trim-silence {self.trim}: --convert uses the same folder. Choose another folder"
            )
        for option, folder in self.new_folders.items():
            if folder.resolve() == self.corpus.resolve():
                raise UserError(
                    f"{option} {folder}: this is the folder of the corpus. Choose a new folder"
                )
        for folder in filter(None, (self.folder, self.mels, self.trim)):
            if re.search("[|\n\r\ud800-\udfff]", str(folder)):
                raise UserError(
                    f"{folder}: filelists cannot contain this path (expected a UTF-8 path without "
                    "'|' or line breaks)"
                )
        if self.speakers.name:
            self.speakers = SpeakerSource(name=checked_name(self.speakers.name, "--speaker"))

    @property
    def folder(self) -> Path:
        return self.convert or self.corpus

    @property
    def new_folders(self) -> dict[str, Path]:
        """The folders for new files, as {command-line option: folder}."""
        folders = {
            "--cache-mels": self.mels,
            "--trim-silence": self.trim,
            "--convert": self.convert,
        }
        return {option: folder for option, folder in folders.items() if folder}


def prepare(asked: Preparation) -> list[Path]:
    """Check a corpus, write filelists and mels, and return the paths of the new files in `out`.

    Raises:
        UserError: if any clip is bad and `skip_bad` is False, or if any other check fails. The
            message lists every bad clip. No filelist is written if UserError is raised.
    """
    hparams = with_lexicon(check_text_settings(create_hparams(asked.overrides)), asked.lexicon)
    if hparams.symbols != "corpus":
        hparams = read_symbols(hparams)
    mel_files = None
    copies = None
    if asked.mels:
        read_from = asked.trim or asked.folder
        mel_files = mel_folder(asked.mels, hparams, read_from, trimmed=asked.trim is not None)
    if asked.trim:
        copies = trim_folder(asked.trim, asked.folder)
    for folder in filter(None, (mel_files, copies)):
        folder.check_settings()
    table = asked.table
    speakers = asked.speakers
    if asked.convert:
        bad, total = convert(
            asked.corpus, asked.convert, table, hparams, speakers, asked.texts, asked.padding
        )
        check_or_skip(bad, total, asked.skip_bad)
        table = Table(asked.convert / METADATA)
        speakers = SpeakerSource(SPEAKER_COLUMN if speakers.is_known else "")
    table_path = table.path if table else default_table(asked.folder)
    table_before = Clip(str(table_path), "", identity=Identity.of(table_path))
    texts = NEXT_TO_AUDIO if asked.convert else asked.texts
    entries, problems = read_layout(asked.folder, table, speakers, texts)
    if not asked.convert and not texts.repeated_words:
        check_repeated_words(entries)
    if note := note_of_unused_audio(entries, problems, asked.folder):
        print(note)
    clips, sources, hparams = usable_clips(asked, mel_files, copies, entries, problems, hparams)
    sets, origin = split_clips(asked, entries, clips)
    findings = clip_findings(clips, hparams)
    warnings = describe(sets, clips, findings, origin, asked, hparams)
    if "val" in sets:
        sets["val"] = with_examples_first(sets["val"], findings)
    plot = draw_corpus(clips, hparams)
    sources = [table_before, *sources]
    if changed := [clip.path for clip in sources if Identity.of(clip.path) != clip.identity]:
        others = f" and {len(changed) - 1:,} more files" * (len(changed) > 1)
        raise UserError(f"{changed[0]}{others}: {CHANGED_IN_CHECK}. No filelist was written.")
    plots = {
        "lengths.png": draw_lengths(sets, hparams),
        "corpus.png": plot,
        "audio.png": draw_audio(clips),
    }
    report = report_page(
        asked.corpus.name,
        summary_of(sets, clips, hparams),
        len(clips),
        findings,
        warnings,
        {PLOTS[name]: png for name, png in plots.items()},
        asked.out,
        hparams,
    )
    files = plots | {"report.html": report.encode()}
    return write_lists(sets, asked, hparams, files)


def with_examples_first(clips: Sequence[Clip], findings: Sequence[Finding]) -> list[Clip]:
    """Move one example clip per speaker to the front, because training plots the first clips.

    The example is the clip of median length among the speaker's clips without problems. If all
    clips of the speaker have problems, the example is the clip of median length among all clips of
    the speaker.
    """
    flagged = {clip.where for finding in findings for clip, _ in finding.notes}
    examples = []
    for own in by_speaker(clips).values():
        good = [clip for clip in own if clip.where not in flagged] or own
        ordered = sorted(good, key=lambda clip: clip.num_frames)
        examples.append(ordered[len(ordered) // 2])
    chosen = {clip.where for clip in examples}
    return examples + [clip for clip in clips if clip.where not in chosen]


def usable_clips(
    asked: Preparation,
    mel_files: DerivedFolder | None,
    copies: DerivedFolder | None,
    entries: list[Clip],
    problems: list[str],
    hparams: HParams,
) -> tuple[list[Clip], list[Clip], HParams]:
    """Check the clips. With --trim-silence, also trim the clips. With --cache-mels, also cache
    their mels.

    Returns:
        A tuple of three values: the clips to train on, all good clips before trimming, and the
        settings. With symbols=corpus, the settings contain the symbol table of the corpus.
    """
    makes_table = hparams.symbols == "corpus"
    hparams = with_symbols_of(entries, hparams) if makes_table else hparams
    clips, bad = check_clips(entries, hparams)
    check_ids(clips)
    recordings = clips
    total = len(entries) + len(problems)
    check_or_skip(problems + bad, total, asked.skip_bad)
    if copies and clips:
        clips, faulty = trim_clips(clips, copies, hparams)
        check_or_skip(list(faulty.values()), total, asked.skip_bad)
    max_samples = asked.max_seconds * hparams.sampling_rate
    if long := {clip.where for clip in clips if clip.measured.num_samples > max_samples}:
        print(
            f"--max-seconds {asked.max_seconds:g} leaves {len(long):,} of {len(clips):,} clips out "
            "of the filelists"
        )
        clips = [clip for clip in clips if clip.where not in long]
    if mel_files and clips:
        faulty = cache_mels(clips, mel_files, hparams)
        check_or_skip(list(faulty.values()), total, asked.skip_bad)
        clips = [clip for clip in clips if clip.where not in faulty]
    if makes_table and clips:
        clips, hparams = drop_unused_symbols(clips, hparams)
    return clips, recordings, hparams


def split_clips(
    asked: Preparation, entries: list[Clip], clips: list[Clip]
) -> tuple[dict[str, list[Clip]], str]:
    """Split the clips into "train" and, unless `val_fraction` is 0, "val".

    Returns:
        A tuple of {set: clips} and a description of the split.

    Raises:
        UserError: if a set is empty.
    """
    # Split all lines, including the lines of bad clips. If the bad lines were left out before the
    # split, other clips could move to a different set.
    validation, origin = choose_split(
        entries, asked.val_fraction, asked.seed, by_text=asked.split_by_text
    )
    held_out = {entry.where for entry in entries if entry.id in validation}
    sets = {
        "train": [clip for clip in clips if clip.where not in held_out],
        "val": [clip for clip in clips if clip.where in held_out],
    }
    if asked.val_fraction == 0:
        del sets["val"]
        origin = "no clips are held out for validation (--val-fraction 0)"
    if not all(sets.values()):
        counts = ", ".join(
            f"{name}: {count_of(len(members), 'clip')}" for name, members in sets.items()
        )
        raise UserError(
            f"{counts} ({origin}); expected at least one clip in each set. Add clips, or change "
            "--val-fraction (0: no validation) or --max-seconds. No filelist was written"
        )
    return sets, origin


def describe(
    sets: dict[str, list[Clip]],
    clips: list[Clip],
    findings: Sequence[Finding],
    origin: str,
    asked: Preparation,
    hparams: HParams,
) -> list[str]:
    """Print the symbols, the lengths, the split, the speakers and all warnings.

    Return the warnings about the corpus as a whole.
    """
    if hparams.symbols == "corpus":
        table = "".join(hparams.symbol_table)
        print(
            f"Symbol table: {len(hparams.symbol_table):,} symbols, beginning with the padding symbol: "
            f"{table:.1000}"
        )
    print(f"\n{table_of_lengths(sets | {'all': clips}, hparams)}\n\nSplit: {origin}")
    print(statistics_of(clips, hparams).describe())
    warnings = [warn_of_long_clips(seconds_of(clips, hparams), lambda i: clips[i].path)]
    warnings.append(unusual_frames(hparams))
    warnings += corpus_warnings(clips, hparams)
    warnings += [rare_symbols(clips, hparams), texts_in_both(sets)]
    facts = facts_of(sets, hparams)
    if len(facts) > 1:
        print(f"\n{speaker_table(facts)}\n")
        warnings += speaker_warnings(facts, is_converted=asked.convert is not None)
    found = [warning for warning in warnings if warning]
    for warning in [*found, *(finding.describe(len(clips)) for finding in findings)]:
        print(warning)
    return found


def listed_path(path: str, out: Path) -> str:
    """Return the path of a clip for a filelist in the folder `out`.

    The returned path is usually relative to `out`, so that the user can move filelists and clips
    together. The returned path is absolute only if a relative path would go up more than
    MAX_FOLDERS_UP levels, or would begin or end with a space.
    """
    # Resolve links in `out` first, because ".." after a link leads to the folder that contains the
    # link's target.
    relative = os.path.relpath(path, os.path.realpath(out))
    is_far = Path(relative).parts.count(os.pardir) > MAX_FOLDERS_UP
    return path if is_far or relative != relative.strip() else relative


def list_line(path: str, clip: Clip, seconds: float) -> str:
    speaker = f"|{clip.speaker}" if clip.speaker else ""
    return f"{path}|{clip.text}|{seconds:.6f}{speaker}\n"


def write_lists(
    sets: dict[str, list[Clip]], asked: Preparation, hparams: HParams, files: dict[str, bytes]
) -> list[Path]:
    """Write the filelists and all other files to `out`, and return the paths of the files. Files of
    an earlier `prepare` call are replaced.

    Args:
        files: the plots and the report.
    """
    out = asked.out
    mels = asked.mels
    contents = dict(files)
    contents["settings.txt"] = settings(
        asked.overrides,
        "_mel" if mels else "",
        has_validation="val" in sets,
        several_speakers=len({clip.speaker for clip in sets["train"]}) > 1,
        has_lexicon=bool(hparams.pronunciations),
    ).encode()
    given = asked.lexicon or hparams.lexicon
    is_given = bool(given) and os.path.realpath(given) == os.path.realpath(out / LEXICON_FILE)
    # If the user's lexicon is already in the folder `out`, do not replace it, because it may
    # contain comments.
    if hparams.pronunciations and not is_given:
        contents[LEXICON_FILE] = "".join(f"{one}\n" for one in hparams.pronunciations).encode()
    if hparams.symbols == "corpus":
        table = json.dumps(hparams.symbol_table, ensure_ascii=False, indent=0)
        contents[SYMBOLS_FILE] = f"{table}\n".encode()
    lists = {f"{name}.txt": clips for name, clips in sets.items()}
    if mels:
        for name, clips in sets.items():
            mel_paths = (str(mels / f"{clip.id}.npy") for clip in clips)
            lists[f"{name}_mel.txt"] = [
                replace(clip, path=path, identity=Identity.of(path))
                for clip, path in zip(clips, mel_paths, strict=True)
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
    make_folder(out, "--out")
    # Write settings.txt last, so that it never refers to a file that does not exist.
    contents["settings.txt"] = contents.pop("settings.txt")
    busy = "another process is writing to it; wait, or choose a different --out"
    with folder_locked(out, busy):
        check_is_ours(out, contents)
        replaced = put_into(out, contents)
        renamed = rename_earlier_lists(out, {*contents}, hparams)
        if replaced or renamed:
            print(note_of_earlier_files(out, replaced, renamed))
        for name, clips in lists.items():
            settings_of_list = replace(hparams, load_mel_from_disk=name.endswith("_mel.txt"))
            key = table_key(contents[name], settings_of_list)
            cache_table(ClipTable.of(out / name, enumerate(clips, 1), True, key), settings_of_list)
    written = [path for name in contents for path in (out / name, cache_path(out / name))]
    return sorted(path for path in written if path.exists())


def check_is_ours(out: Path, names: Iterable[str]) -> None:
    """Raise UserError if the folder `out` contains a file whose name is in `names` and that
    `prepare` did not write."""
    settings_file = out / "settings.txt"
    if settings_file.is_file() and read_bytes(settings_file).startswith(HEADER[:28].encode()):
        return
    # If FIRST_FILE exists, an earlier `prepare` call was killed before it wrote settings.txt.
    if (out / FIRST_FILE).exists():
        return
    found = sorted(name for name in names if (out / name).exists())
    if found:
        raise UserError(
            f"--out {out}: contains {', '.join(found)}, which this program did not write. Choose a "
            "new folder"
        )


def note_of_earlier_files(out: Path, replaced: Sequence[str], renamed: Sequence[str]) -> str:
    """Return a note about the files of an earlier `prepare` call with the same --out."""
    parts = []
    if replaced:
        parts.append(f"replaced {', '.join(replaced)}")
    if renamed:
        parts.append(f"renamed to NAME{EARLIER}: {', '.join(renamed)}")
    return f"note: {out} contained files from an earlier call: {'; '.join(parts)}"


def put_into(out: Path, contents: dict[str, bytes]) -> list[str]:
    """Write all files to a temporary folder, then move the files into `out`.

    Return the names of the existing files that were replaced and had different contents.
    """
    earlier = [name for name in contents if (out / name).exists()]
    replaced = [name for name in earlier if read_bytes(out / name) != contents[name]]
    with naming(out), tempfile.TemporaryDirectory(prefix=".prepare-", dir=out) as written:
        for name, content in contents.items():
            Path(written, name).write_bytes(content)
        for name in contents:
            os.replace(Path(written, name), out / name)
    return replaced


def rename_earlier_lists(out: Path, written: set[str], hparams: HParams) -> list[str]:
    """Rename the filelists and the symbol table of an earlier `prepare` call, and delete their
    caches.

    The filelists are renamed because they may assign clips to other sets than the new filelists.
    Call this function after settings.txt has been replaced, because the old settings.txt may list
    the old filelists.

    Returns:
        The names that the renamed files had before.
    """
    kept = {os.path.realpath(out / name) for name in written} | {os.path.realpath(hparams.symbols)}
    renamed = []
    for name in (*LISTS, SYMBOLS_FILE):
        path = out / name
        if path.is_file() and os.path.realpath(path) not in kept:
            os.replace(path, f"{path}{EARLIER}")
            cache_path(path).unlink(missing_ok=True)
            renamed.append(name)
    return renamed
