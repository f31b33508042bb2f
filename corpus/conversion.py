"""Writes the recordings of a corpus as training wants them, into a new folder in LJSpeech's layout.

    problems, total = convert(Path("data/mine"), Path("data/new"), None, create_hparams())
    convert(corpus, folder, None, create_hparams(), SpeakerSource(folders=True))

One channel, the sampling rate of the settings, an even level, 16 bits, little silence at the ends.
The recordings stay as they are.
"""

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from audio import SILENT_RANGE, is_cut_off_wav
from corpus.clip_table import Clip
from corpus.derived_files import KEPT_SECONDS, SOURCE, Folder, is_newer, path_from
from corpus.layouts import Table, read_layout, sounds_of, unique_ids
from corpus.missing_sounds import notice_of_unnamed
from corpus.recordings import silence_at_ends, speech_level
from corpus.speaker_names import NO_SPEAKERS, SpeakerSource
from hparams import HParams
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity, open_file, read_json, write_bytes, write_json

LEVEL = -20  # dB of full scale, of the speech: LJSpeech's, which published vocoders are trained on
MAX_PEAK = 0.95  # which a sound with high peaks reaches at a lower level
MIN_MIXED = 0.5  # of the loudest channel's level; a mean of channels below it cancels speech out
MAX_SECONDS = 600  # of a recording, which is held in memory
SETTINGS_FILE = "conversion_settings.json"
SOURCES_FILE = "sources.json"  # of each id its recording: path, size and time of change
SPEAKER_FIELD = "2"  # of the metadata.csv that is written, if speakers are known
ADVISED = "ffmpeg -nostdin"  # in messages on sounds that `convert` can mend


class Change(NamedTuple):
    """What was done to one recording."""

    channels: int
    sampling_rate: int
    gain: float  # dB
    cut_seconds: float  # of silence


def convert(
    corpus: Path,
    folder: Path,
    table: Table | None,
    hparams: HParams,
    speakers: SpeakerSource = NO_SPEAKERS,
) -> tuple[list[str], int]:
    """Write FOLDER/wavs/ID.wav of every recording that `read_layout` finds, unless it is there and
    newer than the recording, and, if any is good, FOLDER/metadata.csv (id|text, or
    id|speaker|text).

    Args:
        corpus: the folder of the recordings, which stay as they are.
        folder: for the copies; another than `corpus`.
        table: None for the layouts that need none.
        hparams: their sampling rate is the copies'.
        speakers: where the corpus names them.

    Returns:
        The problems of bad recordings, which have no copy, and the number of all recordings.

    Raises:
        UserError: as `read_layout`; if the folder holds files that were made otherwise, or is one
            with the recordings'.
    """
    if folder.is_relative_to(corpus) or corpus.is_relative_to(folder):
        raise UserError(f"--convert {folder}: expected a folder outside of {corpus}; name another")
    wavs = folder / "wavs"
    made_with = {
        SOURCE: path_from(wavs, corpus),
        "sampling_rate": hparams.sampling_rate,
        "level": LEVEL,
        "kept_seconds": KEPT_SECONDS,
    }
    copies = Folder(wavs, "--convert", SETTINGS_FILE, made_with)
    copies.refuse_others()
    clips, problems = read_layout(corpus, table, speakers)
    total = len(clips) + len(problems)
    if notice := unused_sounds(clips, problems, corpus):
        print(notice)
    if not speakers.is_known and (notice := several_folders(clips, corpus)):
        print(notice)
    faults = {clip.where: fault_of_text(clip.text) for clip in clips}
    problems += [f"{where}: {fault}" for where, fault in faults.items() if fault]
    clips = [clip for clip in clips if not faults[clip.where]]
    ids = dict(zip((clip.where for clip in clips), unique_ids(clips, corpus), strict=True))
    clips = [replace(clip, identity=Identity.of(clip.path)) for clip in clips]
    changes = dict[str, Change]()

    def copy_of(clip: Clip) -> Path:
        return copies.path / f"{ids[clip.where]}.wav"

    def is_made(clip: Clip) -> bool:
        return is_newer(copy_of(clip), clip)

    def make(clip: Clip) -> None:
        samples, changes[clip.where] = converted(clip.path, hparams.sampling_rate)
        write_bytes(copy_of(clip), encode(samples, hparams.sampling_rate))

    def record() -> None:
        record_sources(wavs, {ids[clip.where]: clip for clip in clips}, corpus)

    faulty = copies.fill(clips, is_made, make, os.cpu_count() or 1, record)
    good = [clip for clip in clips if clip.where not in faulty]
    if not good:
        return problems + list(faulty.values()), total
    lines = [metadata_line(ids[clip.where], clip) for clip in good]
    write_bytes(folder / "metadata.csv", "".join(lines).encode())
    print(f"--convert: {len(good):,} recordings are in {folder}: {summary([*changes.values()])}")
    if speakers.is_known:
        count = len({clip.speaker for clip in good})
        print(
            f"--convert: of {count:,} speaker{'s' * (count != 1)}, whom field {SPEAKER_FIELD} of "
            f"its metadata.csv names; to prepare from there: "
            f"python scripts/prepare.py {shlex.quote(str(folder))} "
            f"--speaker-column {SPEAKER_FIELD}"
        )
    return problems + list(faulty.values()), total


def record_sources(wavs: Path, recordings: Mapping[str, Clip], corpus: Path) -> None:
    """Write which recording each copy is of, and delete copies of others. Before any copy is made:
    so a call that is killed leaves none whose recording is unknown."""
    path = wavs / SOURCES_FILE
    try:
        before = dict(read_json(path))
    except (ValueError, TypeError):
        before = {}
    now = {
        name: [os.path.relpath(clip.path, corpus), clip.identity.size, clip.identity.modified]
        for name, clip in recordings.items()
    }
    for name, source in now.items():
        # An id may have become another recording's, as 001 of a speaker who has come in place of
        # one. Earlier versions wrote the path alone.
        if before.get(name, source) not in (source, source[0]):
            (wavs / f"{name}.wav").unlink(missing_ok=True)
    write_json(path, before | now)


def unused_sounds(clips: Sequence[Clip], problems: Sequence[str], corpus: Path) -> str | None:
    """A notice about sounds that no line and no text names, and that are no problems either; those
    of the same name in another format are none."""
    used = {os.path.splitext(os.path.realpath(clip.path))[0] for clip in clips}
    refused = {problem.partition(": ")[0] for problem in problems}
    unused = [
        os.path.relpath(path, corpus)
        for path in sounds_of(corpus)
        if str(path) not in refused and os.path.splitext(os.path.realpath(path))[0] not in used
    ]
    return notice_of_unnamed(unused, "no line", str(corpus)) if unused else None


def several_folders(clips: Sequence[Clip], corpus: Path) -> str | None:
    """A notice about recordings in several folders, which may be speakers."""
    parts = [os.path.relpath(clip.path, corpus).split(os.sep) for clip in clips]
    folders = sorted({first for first, *others in parts if others and first != os.pardir})
    if len(folders) < 2:
        return None
    return (
        f"Notice: the recordings are in {len(folders):,} folders of {corpus}, such as "
        f"{folders[0]!r} and {folders[1]!r}; if these are speakers, add --speaker-folders "
        "(docs/speakers.md)"
    )


def metadata_line(name: str, clip: Clip) -> str:
    speaker = [clip.speaker] if clip.speaker else []
    return "|".join([name, *speaker, " ".join(clip.text.split())]) + "\n"


def fault_of_text(text: str) -> str:
    """Why metadata.csv could not hold a text, and what to do; empty for a good one."""
    if not text.strip():
        return "no text; write what is spoken, or leave the recording out"
    if "|" in text:
        return f"{text[:60]!r} holds a bar, which separates fields; write what is spoken there"
    return ""


def summary(changes: Sequence[Change]) -> str:
    """What was done to the recordings that were written now."""
    if not changes:
        return "all were there already"
    kinds = Counter((change.sampling_rate, change.channels) for change in changes)
    of_kinds = [
        f"{count:,} of {rate:,} Hz and {channels} channel{'s' * (channels > 1)}"
        for (rate, channels), count in sorted(kinds.items())
    ]
    gains = np.array([change.gain for change in changes])
    cut = sum(change.cut_seconds for change in changes)
    return (
        f"{', '.join(of_kinds)}; level {LEVEL} dB, a gain of {np.median(gains):+.1f} dB "
        f"({gains.min():+.1f} to {gains.max():+.1f}); {cut:,.1f} s of silence cut off at the ends"
    )


def converted(path: str | Path, sampling_rate: int) -> tuple[np.ndarray, Change]:
    """The samples [N] of a recording, float32 in [-1, 1], and what was done to it. UserError for a
    sound that cannot be read, and for a silent one."""
    channels, rate = read_channels(path)
    samples = mixed(channels)
    if rate != sampling_rate:
        import soxr  # librosa brings it

        samples = soxr.resample(samples, rate, sampling_rate, quality="VHQ")
    before, after = silence_at_ends(samples, sampling_rate)
    kept = round(KEPT_SECONDS * sampling_rate)
    speech = samples[max(0, before - kept) : len(samples) - max(0, after - kept)]
    gain = min(10 ** (LEVEL / 20) / speech_level(speech, sampling_rate), MAX_PEAK / _peak(speech))
    cut = (len(samples) - len(speech)) / sampling_rate
    return gain * speech, Change(channels.shape[1], rate, 20 * float(np.log10(gain)), cut)


def read_channels(path: str | Path) -> tuple[np.ndarray, int]:
    """The samples of a sound file, float32 [N, channels], and its sampling rate. libsndfile reads
    WAV, FLAC, Ogg, Opus, MP3 and AIFF. UserError if it cannot, and for silence."""
    import soundfile

    with open_file(path) as file:
        try:
            sound = soundfile.SoundFile(file.fileno(), closefd=False)
            is_cut_off = is_cut_off_wav(file)
            rate = sound.samplerate
            # Of a stream the header does not say how long it is.
            samples = sound.read(MAX_SECONDS * rate + 1, dtype="float32", always_2d=True)
        except soundfile.SoundFileError as error:
            reason = getattr(error, "error_string", error)  # without the number of the descriptor
            target = shlex.quote(str(Path(path).with_suffix(".flac")))
            fix = f"convert it: ffmpeg -nostdin -i {shlex.quote(str(path))} {target}"
            raise UserError(f"no sound that libsndfile reads ({reason}); {fix}") from None
    if is_cut_off:
        raise UserError("truncated, shorter than its header says; copy it again")
    if len(samples) > MAX_SECONDS * rate:
        raise UserError(f"longer than {MAX_SECONDS} s; cut it into sentences")
    if not np.isfinite(samples).all():
        raise UserError("holds nan or infinity; convert it again, or leave it out")
    if not len(samples) or np.ptp(samples, axis=0).max() <= SILENT_RANGE:
        raise UserError("silent from beginning to end; record it again, or leave it out")
    return samples, rate


def mixed(channels: np.ndarray) -> np.ndarray:
    """One channel [N] of samples [N, channels], without a constant offset: the mean, or the loudest
    one where the mean cancels speech out, as with channels of opposite sign."""
    channels = channels - channels.mean(axis=0)
    mean, loudest = channels.mean(axis=1), channels[:, np.argmax(np.square(channels).sum(axis=0))]
    cancels = np.linalg.norm(mean) < MIN_MIXED * np.linalg.norm(loudest)
    return loudest if cancels else mean


def _peak(samples: np.ndarray) -> float:
    return float(np.abs(samples).max())
