"""Copy a corpus into the layout of LJSpeech, with audio for training (`prepare.py --convert`).

    problems, total = convert(Path("data/mine"), Path("data/new"), None, create_hparams())
    convert(corpus, folder, None, create_hparams(), SpeakerSource(folders=True))

The copies are 16-bit mono files with the sampling rate of the settings, the same speech level, and
little silence at the ends. The original recordings do not change.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np

from audio import SILENT_RANGE, are_missing, open_audio, read_samples
from corpus.audio_search import advice_on_formats, note_of_unused_audio, problem_of_missing
from corpus.checks import placeholders, problem_of_text, silence_at_ends, speech_level
from corpus.clips import Clip, Segment
from corpus.derived import KEPT_SECONDS, SOURCE, DerivedFolder, is_newer, path_from
from corpus.layouts import read_layout
from corpus.segment_padding import padded
from corpus.speaker_names import NO_SPEAKERS, SpeakerSource
from corpus.spoken_texts import check_repeated_words
from corpus.tables import METADATA, Table
from corpus.text_search import NEXT_TO_AUDIO, TextSource
from hparams import HParams
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.errors import UserError, count_of
from tacotron2_voice.utils.files import Identity, read_json, write_bytes, write_json

# Maximum number of characters of the speaker's name in a clip id, because file names are limited to
# 255 bytes.
MAX_PREFIX = 40
# Speech level of the copies, in dBFS. LJSpeech has this level, and published vocoders expect it.
LEVEL = -20
# Maximum absolute value of a sample. If a sample would be larger, the whole copy gets a lower
# level.
MAX_PEAK = 0.95
# Channels cancel each other out if the amplitude of their mean is less than this fraction of the
# loudest channel's amplitude.
MIN_MIXED = 0.5
MIN_SECONDS = 0.05  # minimum length of a recording or segment, in seconds
# Maximum length of a recording in seconds, because the whole recording is read into memory.
MAX_SECONDS = 600
SEGMENT_PADDING = 0.1  # default number of seconds to add at each end of a segment
# Maximum number of seconds by which a segment may extend beyond the end of its recording.
MAX_MISSING_SECONDS = 0.5
SETTINGS_FILE = "conversion_settings.json"
# JSON file that maps the id of each clip to its source. The source is a list of path, size,
# modification time and segment.
SOURCES_FILE = "sources.json"
SPEAKER_COLUMN = "2"  # number of the column with the speakers in the metadata.csv of the copies


def convert(
    corpus: Path,
    folder: Path,
    table: Table | None,
    hparams: HParams,
    speakers: SpeakerSource = NO_SPEAKERS,
    texts: TextSource = NEXT_TO_AUDIO,
    padding: float = SEGMENT_PADDING,
) -> tuple[list[str], int]:
    """Convert every recording that `read_layout` finds to FOLDER/wavs/ID.wav.

    Also write FOLDER/metadata.csv with lines of id|text or id|speaker|text. An existing copy is
    kept if it is newer than its recording. If all recordings are bad, no metadata.csv is written.

    Args:
        corpus: the folder of the recordings.
        folder: the folder for the copies.
        table: the table of the recordings; None for layouts without a table.
        texts: where the texts are if there is no table.
        padding: seconds to add at each end of the segments of long recordings.

    Returns:
        A tuple of the messages about bad recordings and the total number of recordings. Bad
        recordings are not copied.

    Raises:
        UserError: if the recordings or their texts cannot be found, if `folder` contains files made
            with different settings, or if one of the folders `folder` and `corpus` contains the
            other.
    """
    check_is_outside(folder, corpus, "--convert")
    wavs = folder / "wavs"
    made_with = {
        SOURCE: path_from(wavs, corpus),
        "sampling_rate": hparams.sampling_rate,
        "level": LEVEL,
        "kept_seconds": KEPT_SECONDS,
    }
    copies = DerivedFolder(wavs, "--convert", SETTINGS_FILE, made_with)
    copies.check_settings()
    if (folder / METADATA).exists() and not (wavs / SETTINGS_FILE).exists():
        raise UserError(
            f"--convert {folder}: contains a {METADATA} that this program did not write. Choose a "
            "new folder"
        )
    clips, problems = recordings_of(corpus, table, speakers, texts)
    total = len(clips) + len(problems)
    if not total:
        raise UserError(f"{corpus}: contains no recordings with a text")
    clips, overlapping = padded(clips, padding)
    problems += overlapping
    ids = dict(zip((clip.where for clip in clips), unique_ids(clips, corpus), strict=True))
    # Every clip needs its own id, because the id is the file name of the clip's copy.
    assert len(ids) == len(clips)
    cut_seconds = list[float]()

    def copy_of(clip: Clip) -> Path:
        return copies.path / f"{ids[clip.where]}.wav"

    damaged = list[Path]()

    def is_made(clip: Clip) -> bool:
        if not is_newer(copy_of(clip), clip):
            return False
        try:
            with open_audio(copy_of(clip)):
                return True
        except UserError:
            damaged.append(copy_of(clip))
            return False

    def make(clip: Clip) -> None:
        try:
            samples, cut = converted(clip.path, hparams.sampling_rate, clip.segment)
        except UserError as error:
            raise UserError(f"{error}{advice_on_formats(clip)}") from None
        cut_seconds.append(cut)
        write_bytes(copy_of(clip), encode(samples, hparams.sampling_rate))

    def record() -> None:
        record_sources(wavs, {ids[clip.where]: clip for clip in clips}, corpus)

    failed = copies.fill(clips, is_made, make, os.cpu_count() or 1, record)
    if damaged:
        print(
            f"note: {len(damaged):,} damaged copies, such as {min(damaged)}, were replaced with new "
            "copies"
        )
    good = [clip for clip in clips if clip.where not in failed]
    problems += failed.values()
    if not good:
        return problems, total
    lines = [metadata_line(ids[clip.where], clip) for clip in good]
    write_bytes(folder / METADATA, "".join(lines).encode())
    print(
        f"--convert: {folder} contains {count_of(len(good), 'recording')} ({len(cut_seconds):,} new). "
        f"{sum(cut_seconds):,.1f} s of silence were cut off at the ends of the new recordings"
    )
    if speakers.is_known:
        print(
            f"--convert: column {SPEAKER_COLUMN} of {folder / METADATA} contains the speaker names"
        )
    return problems, total


def recordings_of(
    corpus: Path, table: Table | None, speakers: SpeakerSource, texts: TextSource
) -> tuple[list[Clip], list[str]]:
    """Return the recordings that have audio and a text, and one message per bad recording.

    Also print notes about unused audio, and about folders that may be speakers.
    """
    clips, problems = read_layout(corpus, table, speakers, texts)
    if not texts.repeated_words:
        check_repeated_words(clips)
    if note := note_of_unused_audio(clips, problems, corpus):
        print(note)
    if not speakers.is_known and (note := note_of_folders(clips, corpus)):
        print(note)
    good = []
    missing = placeholders(clips)
    for clip in clips:
        if problem := problem_of_missing(clip) or problem_of_text(clip, missing):
            problems.append(problem)
        else:
            good.append(replace(clip, identity=Identity.of(clip.path)))
    return good, problems


def check_is_outside(folder: Path, corpus: Path, option: str) -> None:
    """Raise UserError if one of the two folders contains the other, directly or through a link.

    Args:
        option: the command-line option that specifies `folder`, for the beginning of the error
        message.
    """
    here = folder.resolve()
    there = corpus.resolve()
    if here.is_relative_to(there):
        raise UserError(f"{option} {folder}: this folder is inside {corpus}. Choose another folder")
    if there.is_relative_to(here):
        raise UserError(f"{option} {folder}: this folder contains {corpus}. Choose another folder")


def record_sources(wavs: Path, recordings: Mapping[str, Clip], corpus: Path) -> None:
    """Record the source of each copy. Delete copies whose id now belongs to a different recording.
    Call this function before you make any copy, so that the source of each copy is recorded even if
    the process is killed later.
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
        # Delete the copy if its id now belongs to a different recording. For example, the id 001
        # may now belong to a recording of another speaker.
        if before.get(name, source) != source:
            (wavs / f"{name}.wav").unlink(missing_ok=True)
    write_json(path, before | now)


def note_of_folders(clips: Sequence[Clip], corpus: Path) -> str | None:
    """If the recordings are in several folders, return a note that each folder may contain one
    speaker, otherwise None."""
    parts = [os.path.relpath(clip.path, corpus).split(os.sep) for clip in clips]
    folders = sorted({first for first, *others in parts if others and first != os.pardir})
    if len(folders) < 2:
        return None
    return (
        f"note: the recordings are in {len(folders):,} folders of {corpus}, such as "
        f"{folders[0]!r} and {folders[1]!r}. If each folder contains one speaker, add "
        "--speaker-folders (docs/guides/speakers.md)"
    )


def metadata_line(name: str, clip: Clip) -> str:
    speaker = [clip.speaker] if clip.speaker else []
    return "|".join([name, *speaker, " ".join(clip.text.split())]) + "\n"


def converted(
    path: str | Path, sampling_rate: int, segment: Segment | None = None
) -> tuple[np.ndarray, float]:
    """Return the converted samples of a recording or segment, float32 [N] in [-1, 1].

    Also return how many seconds of silence were removed at the beginning and end.

    Raises:
        UserError: if the file cannot be read or is silent.
    """
    channels, rate = read_channels(path, segment)
    samples = mixed(channels)
    if len(samples) < MIN_SECONDS * rate:
        raise UserError(
            f"too short: {len(samples)} samples at {rate} Hz, expected at least {MIN_SECONDS} s"
        )
    if rate != sampling_rate:
        import soxr  # librosa installs soxr

        samples = soxr.resample(samples, rate, sampling_rate, quality="VHQ")
    before, after = silence_at_ends(samples, sampling_rate)
    kept = round(KEPT_SECONDS * sampling_rate)
    speech = samples[max(0, before - kept) : len(samples) - max(0, after - kept)]
    peak = float(np.abs(speech).max())
    gain = min(10 ** (LEVEL / 20) / speech_level(speech, sampling_rate), MAX_PEAK / peak)
    return gain * speech, (len(samples) - len(speech)) / sampling_rate


def read_channels(path: str | Path, segment: Segment | None = None) -> tuple[np.ndarray, int]:
    """Return the samples of a recording, float32 [N, channels] in [-1, 1], and its sampling rate.

    Samples of floating-point files that exceed [-1, 1] are scaled down. libsndfile can read WAV,
    FLAC, Ogg, Opus, MP3 and AIFF.

    Raises:
        UserError: if the file cannot be read, if the segment is outside the recording, if a sample
            is not finite, or if the recording is empty or silent.
    """
    with open_audio(path) as audio:
        rate = audio.samplerate
        if segment is None:
            samples = read_samples(audio, "float32", MAX_SECONDS * rate, always_2d=True)
        else:
            samples = read_segment(audio, segment)
    if not np.isfinite(samples).all():
        raise UserError("contains samples that are NaN or infinite")
    if not len(samples):
        raise UserError(
            "contains no samples according to its header; export it again, or remove it from the corpus"
        )
    if np.ptp(samples, axis=0).max() <= SILENT_RANGE:
        raise UserError(
            "silent from beginning to end; record it again, or remove it from the corpus"
        )
    # Scale the samples down if the largest sample exceeds 1. Scaling also prevents overflow when
    # samples are squared.
    return samples / max(1, np.abs(samples).max()), rate


def read_segment(audio: Any, segment: Segment) -> np.ndarray:
    """Return the samples of a segment, float32 [N, channels].

    Raises:
        UserError: if the segment is too long or is not within the recording.
    """
    rate = audio.samplerate
    total = audio.frames / rate
    seconds = total - segment.start if segment.seconds is None else segment.seconds
    end = segment.start + seconds
    is_inside = segment.start < total and end <= total + MAX_MISSING_SECONDS
    if not 0 < seconds <= MAX_SECONDS or not is_inside:
        raise UserError(
            f"invalid segment from {segment.start:g} s to {end:g} s: the segment must be at "
            f"most {MAX_SECONDS} s long and inside the file ({total:.2f} s)"
        )
    first = round(segment.start * rate)
    count = min(round(seconds * rate), audio.frames - first)
    import soundfile

    try:
        audio.seek(first)
        samples = audio.read(count, dtype="float32", always_2d=True)
    except soundfile.SoundFileError as error:
        raise UserError(f"truncated or damaged ({error}); copy it again") from None
    if are_missing(audio, count - len(samples)):
        counts = f"{len(samples):,} of {count:,} samples at {segment.start:g} s"
        raise UserError(f"truncated or damaged: {counts}; copy it again")
    return samples


def mixed(channels: np.ndarray) -> np.ndarray:
    """Mix samples [N, channels] to one channel [N], and remove a constant offset from the samples.

    The mixed channel is the mean of all channels. If channels of opposite polarity would cancel
    each other out, the result is the loudest channel instead.
    """
    channels = channels - channels.mean(axis=0)
    mean = channels.mean(axis=1)
    loudest = channels[:, np.argmax(np.square(channels).sum(axis=0))]
    cancels = np.linalg.norm(mean) < MIN_MIXED * np.linalg.norm(loudest)
    return loudest if cancels else mean


def unique_ids(clips: Sequence[Clip], corpus: Path) -> list[str]:
    """Return a unique id for each clip, for file names and for the new metadata.csv.

    The id is the name of the audio file. The id of a segment also contains the start of the segment
    in milliseconds. If several clips would have the same id (ignoring case), the speaker's name is
    put before the ids of these clips. If some ids are still equal, or if the clips have no
    speakers, the names of the folders are also put before the ids.
    """

    def clean(name: str) -> str:
        return re.sub(r"[|/\\\s]+|^\.", "_", name)

    def candidates(clip: Clip) -> list[str]:
        stem = clean(Path(clip.path).stem)
        if clip.segment:
            stem = f"{stem}-{round(1000 * clip.segment.start):07d}"
        speaker = [clean(clip.speaker)[:MAX_PREFIX]] if clip.speaker else []
        parts = os.path.relpath(clip.path, corpus).split(os.sep)[:-1]
        folders = [clean(x) for x in parts if x not in (os.pardir, os.curdir, clip.speaker)]
        return ["-".join(parts) for parts in ([stem], [*speaker, stem], [*speaker, *folders, stem])]

    all_candidates = [candidates(clip) for clip in clips]
    counts = Counter(name.lower() for names in all_candidates for name in {*names})
    ids = []
    taken = set[str]()
    for names in all_candidates:
        name = next((x for x in names if counts[x.lower()] == 1), names[-1])
        while name.lower() in taken:
            name += "_"
        taken.add(name.lower())
        ids.append(name)
    return ids
