"""Read the recordings that an evaluation compares with the model's speech.

recordings = read_recordings(Path("unseen"))           # metadata.csv and wavs/
recordings = read_recordings(Path("lists/val.txt"))    # a filelist
names = speakers_of_texts(recordings, synthesizer.settings.speakers, None, path, checkpoint)
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from corpus.filelist import path_of_clip, split_filelist_line
from corpus.layouts import read_layout
from corpus.speaker_names import SpeakerSource
from tacotron2_voice.speakers import chosen_index, speaker_index
from tacotron2_voice.utils.errors import UserError, grouped, lines_rejected
from tacotron2_voice.utils.files import naming, numbered_lines


class Recording(NamedTuple):
    path: Path
    text: str
    speaker: str = ""  # name of the speaker; empty if the filelist has no speakers


def read_recordings(path: Path, speaker_column: str = "") -> list[Recording]:
    """Return the recordings in a corpus or a filelist.

    Args:
        speaker_column: title or number (from 1) of the column with speakers in the corpus's
            metadata.csv.

    Raises:
        UserError: if any line of the table or filelist is bad. The error message lists all
        problems.
    """
    if path.is_file():
        if speaker_column:
            expected = f"{path} is a filelist, which contains the speakers in its fourth field"
            raise UserError(f"--speaker-column {speaker_column}: {expected}")
        return _read_filelist(path)
    clips, problems = read_layout(path, speakers=SpeakerSource(speaker_column))
    if problems:
        raise UserError("\n".join(grouped(problems)))
    return [Recording(Path(clip.path), clip.text, clip.speaker) for clip in clips]


def _read_filelist(path: Path) -> list[Recording]:
    lines = numbered_lines(path)
    recordings: list[Recording] = []
    problems: list[str] = []
    for number, line in lines:
        try:
            listed = split_filelist_line(line)
            if listed.path.endswith(".npy"):
                raise UserError("this is a cached mel (expected an audio file)")
            audio_path, _ = path_of_clip(listed.path, path)
            recordings.append(Recording(Path(audio_path), listed.text, listed.speaker))
        except UserError as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise lines_rejected(path, problems, len(lines))
    return recordings


def speakers_of_texts(
    recordings: Sequence[Recording],
    known: Sequence[str],
    chosen: str | None,
    path: Path,
    checkpoint: Path,
) -> list[str | None]:
    """Return the speaker that the model uses for the text of each recording.

    Args:
        known: the model's speakers; empty for a single-speaker model, for which the result contains
            only None.

    Raises:
        UserError: if the model lacks a speaker, if `chosen` is missing, or if `chosen` is set
            although the recordings have speakers.
    """
    named = {recording.speaker for recording in recordings} - {""}
    if not known or not named:
        index = chosen_index(chosen, known, str(checkpoint))
        return [None if index is None else known[index]] * len(recordings)
    if chosen is not None:
        raise UserError(f"--speaker {chosen}: {path} already contains the speaker of each text")
    with naming(path):
        return [known[speaker_index(x.speaker, known, str(checkpoint))] for x in recordings]


def indices_by_speaker(names: Sequence[str | None]) -> dict[str, list[int]]:
    """Return {speaker: indices of the speaker's recordings} in alphabetical order, or {} for a
    single speaker."""
    indices: dict[str, list[int]] = {}
    for index, name in enumerate(names):
        indices.setdefault(name or "", []).append(index)
    if len(indices) < 2:
        return {}
    return {name: indices[name] for name in sorted(indices)}
