"""Read the manifests of Kaldi and lhotse, and the texts of LibriSpeech.

entries = read_kaldi(Path("data/train"))
entries = read_lhotse(Path("data/supervisions.jsonl.gz"))
"""

import gzip
import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from corpus.clips import MAX_OVERLAP, Segment
from corpus.tables import Entry
from corpus.text_files import read_text
from tacotron2_voice.utils.errors import UserError

KALDI_FILES = ("wav.scp", "text")


class _Line(NamedTuple):
    text: str  # text that follows the key on the same line
    where: str  # "file:line", for messages


def is_kaldi(folder: Path) -> bool:
    return all((folder / name).is_file() for name in KALDI_FILES)


def read_kaldi(folder: Path) -> list[Entry]:
    """Read a Kaldi data directory: wav.scp, text and, if they exist, segments and utt2spk.

    Raises:
        UserError: in any of these cases:
            - wav.scp contains a command instead of a path.
            - An id that must be in two files is missing from one of them.
            - A line is malformed.
            - A segment with the end -1 overlaps another segment.
    """
    recordings = _read_map(folder / "wav.scp")
    for line in recordings.values():
        if line.text.endswith("|"):
            raise UserError(f"{line.where}: {line.text[:60]!r} is a command, expected a path")
    segments = {}
    if (folder / "segments").is_file():
        segments = _read_map(folder / "segments")
    speakers = {}
    if (folder / "utt2spk").is_file():
        speakers = _read_map(folder / "utt2spk")
    texts = _read_map(folder / "text")
    if without_text := [utterance for utterance in segments if utterance not in texts]:
        print(
            f"note: {len(without_text):,} of {len(segments):,} segments, such as {without_text[0]}, "
            f"have no text in {folder / 'text'}, so they are not used"
        )
    entries = []
    for utterance, (text, where) in texts.items():
        recording = utterance
        segment = None
        if segments:
            if utterance not in segments:
                raise UserError(
                    f"{where}: the utterance {utterance!r} is not in {folder / 'segments'}"
                )
            recording, segment = _kaldi_segment(segments[utterance])
        if recording not in recordings:
            raise UserError(f"{where}: the recording {recording!r} is not in {folder / 'wav.scp'}")
        path = recordings[recording].text
        speaker = speakers[utterance].text if utterance in speakers else ""
        entries.append(Entry(path, text, where, speaker, segment))
    _check_open_ends(entries)
    return entries


def read_librispeech(path: Path, corpus: Path) -> list[Entry]:
    """Read the texts of a chapter of LibriSpeech (84-121123.trans.txt): an id and a text per line.

    The audio files are in the same folder, with the ids as names.

    Raises:
        UserError: if an id occurs twice.
    """
    folder = path.parent.relative_to(corpus)
    return [Entry(str(folder / name), *line) for name, line in _read_map(path).items()]


def _check_open_ends(entries: Sequence[Entry]) -> None:
    """Raise UserError if a segment without an end time overlaps another segment of its recording.

    A segment without an end time lasts until the end of the recording, so it must be the last
    segment of the recording.
    """
    latest: dict[str, Entry] = {}
    for entry in entries:
        if entry.segment:
            last = latest.setdefault(entry.name, entry)
            assert last.segment is not None
            if entry.segment.start > last.segment.start:
                latest[entry.name] = entry
    for entry in entries:
        last = latest.get(entry.name, entry)
        if entry is last or not entry.segment:
            continue
        assert last.segment is not None
        if entry.segment.seconds is None:
            raise UserError(
                f"{entry.where}: the segment ends at -1, which means the end of the recording, but "
                f"{last.where} is a later segment of this recording (expected the end in seconds)"
            )
        end = entry.segment.start + entry.segment.seconds
        if last.segment.seconds is None and end > last.segment.start + MAX_OVERLAP:
            raise UserError(
                f"{entry.where}: the segment ends at {end:g} s, but the segment in {last.where} "
                f"starts at {last.segment.start:g} s (expected segments that do not overlap)"
            )


def _kaldi_segment(line: _Line) -> tuple[str, Segment]:
    """Parse a line of the file `segments`, and return the recording's id and the segment."""
    values = line.text.split()
    if len(values) != 3:
        raise UserError(
            f"{line.where}: {len(values) + 1} fields, expected four: utterance, recording, start and "
            "end"
        )
    start = _seconds(values[1], line.where)
    # In Kaldi, an end time of -1 means the end of the recording.
    seconds = None if values[2] == "-1" else _seconds(values[2], line.where) - start
    return values[0], Segment(start, seconds)


def _read_map(path: Path) -> dict[str, _Line]:
    """Read a file whose lines contain a key, a space and a value."""
    values = dict[str, _Line]()
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        key, *rest = line.split(maxsplit=1)
        if key in values:
            raise UserError(f"{path}:{number}: the id {key!r} occurs twice, expected unique ids")
        values[key] = _Line(rest[0].strip() if rest else "", f"{path}:{number}")
    return values


def _seconds(value: str, where: str) -> float:
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        raise UserError(f"{where}: {value!r} is not a number of seconds")
    return float(value)


def is_lhotse(path: Path) -> bool:
    """Return whether a file is named like a lhotse supervision manifest."""
    return bool(re.search(r"supervisions.*\.jsonl(\.gz)?$", path.name))


def read_lhotse(path: Path) -> list[Entry]:
    """Read a lhotse supervision manifest and the recording manifest in the same folder.

    The file name of the recording manifest contains `recordings` instead of `supervisions`.

    Raises:
        UserError: if a manifest cannot be read, or if a recording is missing or consists of several
            files or channels.
    """
    recordings_path = path.with_name(path.name.replace("supervisions", "recordings"))
    sources = {}
    for where, recording in _json_lines(recordings_path):
        try:
            files = [x for x in recording["sources"] if x.get("type") == "file"]
            [file] = files
            sources[str(recording["id"])] = file["source"]
            channels = [*(file.get("channels") or recording.get("channel_ids") or [0])]
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(
                f"{where}: invalid recording (expected an id and exactly one source of the type 'file')"
            ) from None
        if channels != [0]:
            raise UserError(
                f"{where}: the recording has the channels {channels!r:.60} (expected only channel "
                "0). Write each channel to its own file"
            )
    entries = []
    for where, supervision in _json_lines(path):
        recording_id = str(supervision.get("recording_id"))
        if recording_id not in sources:
            raise UserError(f"{where}: recording {recording_id!r} is not in {recordings_path}")
        try:
            start, seconds = (float(supervision[name]) for name in ("start", "duration"))
        except (KeyError, TypeError, ValueError, OverflowError):
            raise UserError(
                f"{where}: no valid start and duration (expected numbers of seconds)"
            ) from None
        if not (0 <= start < math.inf and 0 < seconds < math.inf):
            raise UserError(
                f"{where}: invalid start {start:g} s or duration {seconds:g} s (expected a start "
                "of at least 0 s and a duration above 0 s)"
            )
        channel = supervision.get("channel")
        if channel not in (None, 0, [0]):
            raise UserError(f"{where}: the channel is {channel!r:.60}, expected 0")
        text, speaker = (supervision.get(name) or "" for name in ("text", "speaker"))
        for name, value in (("text", text), ("speaker", speaker)):
            if not isinstance(value, str | int):
                raise UserError(f"{where}: the {name} is {value!r:.60}, expected a string")
        text = " ".join(str(text).split())
        speaker = str(speaker)
        segment = Segment(start, seconds)
        entries.append(Entry(str(sources[recording_id]), text, where, speaker, segment))
    return entries


def _json_lines(path: Path) -> Iterator[tuple[str, Mapping]]:
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read as a lhotse manifest ({error})") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = dict(json.loads(line))
        except (ValueError, TypeError, RecursionError):
            raise UserError(f"{path}:{number}: {line[:60]!r} is not a JSON object") from None
        yield f"{path}:{number}", value
