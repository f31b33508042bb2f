"""Write a corpus in LJSpeech's layout, with audio that training can use: `prepare.py --convert`.

    problems, total = convert(Path("data/mine"), Path("data/new"), None, create_hparams())
    convert(corpus, folder, None, create_hparams(), SpeakerSource(folders=True))

The copies have one channel, the sampling rate of the settings, an even level, 16 bits, and little
silence at the ends. The recordings stay as they are.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from audio import SILENT_RANGE, open_audio, read_samples
from corpus.checks import silence_at_ends, speech_level
from corpus.clips import Clip, Segment
from corpus.derived import KEPT_SECONDS, SOURCE, DerivedFolder, is_newer, path_from
from corpus.layouts import (
    METADATA,
    NEXT_TO_AUDIO,
    TextSource,
    note_of_unused_audio,
    problem_of_missing,
    read_layout,
    unique_ids,
)
from corpus.segments import padded
from corpus.speaker_names import NO_SPEAKERS, SpeakerSource
from corpus.tables import Table
from hparams import HParams
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity, read_json, write_bytes, write_json

# Level of the speech in dB of full scale: LJSpeech's level, which public vocoders expect.
LEVEL = -20
MAX_PEAK = 0.95  # audio with high peaks gets a lower level than LEVEL
# Share of the loudest channel's level; if the channels' mean is below it, speech cancels out.
MIN_MIXED = 0.5
MAX_SECONDS = 600  # length of a recording, because it is kept in memory
SEGMENT_PADDING = 0.1  # seconds
MAX_MISSING_SECONDS = 0.5  # a segment may end this much after its recording
SETTINGS_FILE = "conversion_settings.json"
# Contains the recording of each id: path, size, time of change, segment.
SOURCES_FILE = "sources.json"
SPEAKER_COLUMN = "2"  # column of speakers in the metadata.csv that is written


def convert(
    corpus: Path,
    folder: Path,
    table: Table | None,
    hparams: HParams,
    speakers: SpeakerSource = NO_SPEAKERS,
    texts: TextSource = NEXT_TO_AUDIO,
    padding: float = SEGMENT_PADDING,
) -> tuple[list[str], int]:
    """Write FOLDER/wavs/ID.wav of every recording that `read_layout` finds, and FOLDER/metadata.csv
    with lines of id|text or id|speaker|text.

    A copy that is newer than its recording is kept. If no recording is good, no metadata.csv is
    written.

    Args:
        corpus: the folder of the recordings.
        folder: the folder of the copies.
        table: the table of the recordings; None for layouts that need none.
        hparams: settings with the sampling rate of the copies.
        speakers: where the corpus names its speakers.
        texts: where the texts are, without a table.
        padding: seconds by which segments of long recordings are lengthened at both ends.

    Returns:
        The problems of bad recordings, which have no copy, and the number of all recordings.

    Raises:
        UserError: see `read_layout`; also if the folder contains files made with other settings, or
            is inside the corpus.
    """
    check_is_outside(folder, corpus)
    wavs = folder / "wavs"
    made_with = {
        SOURCE: path_from(wavs, corpus),
        "sampling_rate": hparams.sampling_rate,
        "level": LEVEL,
        "kept_seconds": KEPT_SECONDS,
    }
    copies = DerivedFolder(wavs, "--convert", SETTINGS_FILE, made_with)
    copies.check_settings()
    clips, problems = recordings_of(corpus, table, speakers, texts)
    total = len(clips) + len(problems)
    clips, overlapping = padded(clips, padding)
    problems += overlapping
    ids = dict(zip((clip.where for clip in clips), unique_ids(clips, corpus), strict=True))
    cut_seconds = list[float]()

    def copy_of(clip: Clip) -> Path:
        return copies.path / f"{ids[clip.where]}.wav"

    def is_made(clip: Clip) -> bool:
        return is_newer(copy_of(clip), clip)

    def make(clip: Clip) -> None:
        samples, cut = converted(clip.path, hparams.sampling_rate, clip.segment)
        cut_seconds.append(cut)
        write_bytes(copy_of(clip), encode(samples, hparams.sampling_rate))

    def record() -> None:
        record_sources(wavs, {ids[clip.where]: clip for clip in clips}, corpus)

    failed = copies.fill(clips, is_made, make, os.cpu_count() or 1, record)
    good = [clip for clip in clips if clip.where not in failed]
    problems += failed.values()
    if not good:
        return problems, total
    lines = [metadata_line(ids[clip.where], clip) for clip in good]
    write_bytes(folder / METADATA, "".join(lines).encode())
    print(
        f"--convert: {len(good):,} recordings are in {folder}: {len(cut_seconds):,} are new, without "
        f"{sum(cut_seconds):,.1f} s of silence at their ends"
    )
    if speakers.is_known:
        print(f"--convert: column {SPEAKER_COLUMN} of {folder / METADATA} contains the speakers")
    return problems, total


def recordings_of(
    corpus: Path, table: Table | None, speakers: SpeakerSource, texts: TextSource
) -> tuple[list[Clip], list[str]]:
    """Return the recordings that have audio and a text, and the problems of other recordings. Print
    notes about unused audio and about folders that may be speakers."""
    clips, problems = read_layout(corpus, table, speakers, texts)
    if note := note_of_unused_audio(clips, problems, corpus):
        print(note)
    if not speakers.is_known and (note := note_of_folders(clips, corpus)):
        print(note)
    good = []
    for clip in clips:
        if problem := problem_of_missing(clip) or problem_of_text(clip):
            problems.append(problem)
        else:
            good.append(replace(clip, identity=Identity.of(clip.path)))
    return good, problems


def check_is_outside(folder: Path, corpus: Path) -> None:
    """Raise UserError if one folder contains the other, directly or by a link."""
    here = folder.resolve()
    there = corpus.resolve()
    if here.is_relative_to(there) or there.is_relative_to(here):
        raise UserError(f"--convert {folder}: expected a folder outside of {corpus}")


def record_sources(wavs: Path, recordings: Mapping[str, Clip], corpus: Path) -> None:
    """Write which recording each copy was made from, and delete copies of other recordings.

    This happens before any copy is made, so that the recording of each copy is known even if the
    call is killed.
    """
    path = wavs / SOURCES_FILE
    try:
        before = dict(read_json(path))
    except (ValueError, TypeError):
        before = {}
    now = {
        name: [
            os.path.relpath(clip.path, corpus),
            clip.identity.size,
            clip.identity.modified,
            *(astuple(clip.segment) if clip.segment else ()),
        ]
        for name, clip in recordings.items()
    }
    for name, source in now.items():
        # An id may now belong to another recording, for example 001 of another speaker.
        if before.get(name, source) != source:
            (wavs / f"{name}.wav").unlink(missing_ok=True)
    write_json(path, before | now)


def note_of_folders(clips: Sequence[Clip], corpus: Path) -> str | None:
    """Return a note if the recordings are in several folders, because each folder may be a
    speaker."""
    parts = [os.path.relpath(clip.path, corpus).split(os.sep) for clip in clips]
    folders = sorted({first for first, *others in parts if others and first != os.pardir})
    if len(folders) < 2:
        return None
    return (
        f"note: the recordings are in {len(folders):,} folders of {corpus}, such as "
        f"{folders[0]!r} and {folders[1]!r}. If these are speakers, add --speaker-folders "
        "(docs/guides/speakers.md)"
    )


def metadata_line(name: str, clip: Clip) -> str:
    speaker = [clip.speaker] if clip.speaker else []
    return "|".join([name, *speaker, " ".join(clip.text.split())]) + "\n"


def problem_of_text(clip: Clip) -> str:
    """Return why metadata.csv cannot contain the text of a clip; "" for a good text."""
    if not clip.text.strip():
        return f"{clip.where}: no text, expected the words that are spoken"
    if "|" in clip.text:
        found = f"{clip.text[:60]!r} contains a pipe, which separates columns"
        return f"{clip.where}: {found}; write the spoken word for it"
    return ""


def converted(
    path: str | Path, sampling_rate: int, segment: Segment | None = None
) -> tuple[np.ndarray, float]:
    """Return the samples [N] of a recording or its segment, float32 in [-1, 1], and the seconds of
    silence that were cut off at its ends.

    Raises:
        UserError: if the file cannot be read, or is silent.
    """
    channels, rate = read_channels(path, segment)
    samples = mixed(channels)
    if rate != sampling_rate:
        import soxr  # installed with librosa

        samples = soxr.resample(samples, rate, sampling_rate, quality="VHQ")
    before, after = silence_at_ends(samples, sampling_rate)
    kept = round(KEPT_SECONDS * sampling_rate)
    speech = samples[max(0, before - kept) : len(samples) - max(0, after - kept)]
    peak = float(np.abs(speech).max())
    gain = min(10 ** (LEVEL / 20) / speech_level(speech, sampling_rate), MAX_PEAK / peak)
    return gain * speech, (len(samples) - len(speech)) / sampling_rate


def read_channels(path: str | Path, segment: Segment | None = None) -> tuple[np.ndarray, int]:
    """Read the samples of a recording, float32 [N, channels] in [-1, 1], and its sampling rate.

    Samples of floating-point files that are outside this range are scaled down. libsndfile reads
    WAV, FLAC, Ogg, Opus, MP3 and AIFF.

    Raises:
        UserError: see `audio.open_audio`; also if the segment is not in the recording, if the
            samples are not finite, or if all are silent.
    """
    with open_audio(path) as audio:
        rate = audio.samplerate
        if segment is None:
            samples = read_samples(audio, "float32", MAX_SECONDS * rate, always_2d=True)
        else:
            samples = read_segment(audio, segment)
    if not np.isfinite(samples).all():
        raise UserError("contains nan or infinity, expected finite samples")
    if not len(samples) or np.ptp(samples, axis=0).max() <= SILENT_RANGE:
        raise UserError("silent from beginning to end; record it again, or leave it out")
    # Without this, the squares of large numbers could overflow.
    return samples / max(1, np.abs(samples).max()), rate


def read_segment(audio: Any, segment: Segment) -> np.ndarray:
    """Read the samples of a segment, float32 [N, channels]. Raises the errors of
    `read_channels`."""
    rate = audio.samplerate
    total = audio.frames / rate
    seconds = total - segment.start if segment.seconds is None else segment.seconds
    end = segment.start + seconds
    if not 0 < seconds <= MAX_SECONDS or end > total + MAX_MISSING_SECONDS:
        raise UserError(
            f"offset {segment.start:g} and duration {seconds:g} s, expected a part of the "
            f"{total:.2f} s of the file, at most {MAX_SECONDS} s long"
        )
    audio.seek(round(segment.start * rate))
    return audio.read(round(seconds * rate), dtype="float32", always_2d=True)


def mixed(channels: np.ndarray) -> np.ndarray:
    """Return one channel [N] of samples [N, channels], without a constant offset.

    This is the mean of the channels, or the loudest one if the mean cancels speech out, as it does
    for channels of opposite sign.
    """
    channels = channels - channels.mean(axis=0)
    mean = channels.mean(axis=1)
    loudest = channels[:, np.argmax(np.square(channels).sum(axis=0))]
    cancels = np.linalg.norm(mean) < MIN_MIXED * np.linalg.norm(loudest)
    return loudest if cancels else mean
