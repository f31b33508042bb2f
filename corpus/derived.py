"""Create files that are derived from clips: trimmed copies and cached log-mels.

folder = mel_folder(Path("mels/mine"), hparams, corpus, trimmed=False)
folder.check_settings()
problems = cache_mels(clips, folder, hparams)
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import audio
from corpus.checks import SILENCE_DECIBELS, WINDOW_SECONDS
from corpus.clips import Clip
from corpus.filelist import MEL_SETTINGS_FILE, mel_length, settings_problem
from hparams import HParams
from tacotron2_voice.utils.audio_files import encode, write_mel
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    READING_THREADS,
    Identity,
    folder_locked,
    make_folder,
    map_in_threads,
    remove_leftovers,
    write_bytes,
    write_json,
)

KEPT_SECONDS = 0.05  # number of seconds of silence to keep at each end of a clip
# Key in the settings file of a derived folder. The value is the relative path from this folder to
# the original clips.
SOURCE = "corpus"
EXACT_SUBTYPES = ("PCM_U8", "PCM_S8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE")


@dataclass(frozen=True)
class DerivedFolder:
    """A folder of derived files that were all made with the same settings."""

    path: Path
    option: str
    settings_file: str  # name of the settings file in the folder
    settings: dict[str, Any]

    def check_settings(self) -> None:
        """Raise UserError if the folder contains files made with different or unknown settings."""
        if not any(path.suffix in (".npy", ".wav", ".flac") for path in self.path.glob("*")):
            return
        # Do not replace files whose settings are unknown, because these files may be original
        # recordings.
        file = self.path / self.settings_file
        if problem := settings_problem(file, self.settings):
            raise UserError(
                f"{self.option} {self.path}: contains files {problem}. Choose a different folder, "
                "or use the settings of these files"
            )

    def fill(
        self,
        clips: list[Clip],
        is_made: Callable[[Clip], bool],
        make: Callable[[Clip], object],
        threads: int = READING_THREADS,
        first: Callable[[], object] = lambda: None,
    ) -> dict[str, str]:
        """Make the missing derived files in several threads, one file per clip.

        Args:
            is_made: a function that returns whether the derived file of a clip exists, and raises
                UserError if this file is bad.
            make: a function that makes the derived file of a clip, and raises UserError if the clip
                is bad.
            first: a function that is called once, after the folder is locked and before any file is
                made.

        Returns:
            {`Clip.where`: message} for the bad clips.
        """

        def made_or_problem(clip: Clip) -> bool | str:
            with contextlib.suppress(OSError, UserError):
                if is_made(clip):
                    return False
            try:
                make(clip)
            except UserError as error:
                where = f"{clip.where} of {clip.path}" if clip.segment else clip.path
                return f"{where}: {error}"
            return True

        make_folder(self.path, self.option)
        # Without the lock, this process might delete files that another process is still writing.
        busy = f"another process is writing to it; wait, or choose a different {self.option}"
        with folder_locked(self.path, busy):
            remove_leftovers(self.path)
            write_json(self.path / self.settings_file, self.settings)
            first()
            progress = progress_bar(self.option, len(clips), " clips", iterable=clips)
            # Close the iterator even after an interrupt, so that the threads finish their current
            # files.
            with contextlib.closing(map_in_threads(made_or_problem, clips, threads)) as results:
                outcomes = {c.where: result for c, result in zip(progress, results, strict=True)}
        if already := [*outcomes.values()].count(False):
            print(
                f"{self.option}: {already:,} of {len(clips):,} files already exist in {self.path}"
            )
        return {where: result for where, result in outcomes.items() if isinstance(result, str)}


def is_newer(path: str | Path, clip: Clip) -> bool:
    """Return whether the file at `path` was written after the clip's file was last changed or
    renamed."""
    return Identity.of(path).modified > max(Identity.of(clip.path)[1:])


def mel_folder(path: Path, hparams: HParams, clips: Path, trimmed: bool) -> DerivedFolder:
    """Return the `DerivedFolder` for the cached log-mels of a corpus.

    Args:
        clips: the folder of the clips.
        trimmed: whether the clips are trimmed copies. A folder must not contain mels of trimmed
            clips together with mels of original clips.
    """
    source = {"silence_trimmed": trimmed, SOURCE: path_from(path, clips)}
    settings = audio.mel_fingerprint(hparams) | source
    return DerivedFolder(path, "--cache-mels", MEL_SETTINGS_FILE, settings)


def cache_mels(clips: list[Clip], folder: DerivedFolder, hparams: HParams) -> dict[str, str]:
    """Write the missing log-mels of the clips as ID.npy, float32 [n_mel_channels, frames].

    PyTorch computes each mel with one thread, as in training, so cached mels are bitwise equal to
    mels that are computed during training.

    Returns:
        {`Clip.where`: message} for the bad clips.
    """

    def is_cached(clip: Clip) -> bool:
        path = str(folder.path / f"{clip.id}.npy")
        num_frames = mel_length(path, None, hparams, read_contents=True)
        return num_frames == clip.num_frames and is_newer(path, clip)

    def cache(clip: Clip) -> None:
        mel = audio.log_mel_spectrogram(audio.read_audio(clip.path, hparams), hparams).numpy()
        if mel.shape[1] != clip.num_frames:
            counts = f"{mel.shape[1]} frames instead of {clip.num_frames}"
            raise UserError(
                f"the file has changed since it was checked ({counts}); run the command again"
            )
        write_mel(folder.path / f"{clip.id}.npy", mel)

    # Call `silent_bands` before the threads start, because it also caches the mel filters. Without
    # this call, every thread would compute the mel filters.
    if warning := audio.silent_bands(hparams):
        print(warning)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return folder.fill(clips, is_cached, cache, os.cpu_count() or 1)
    finally:
        torch.set_num_threads(threads_before)


def path_from(folder: Path, corpus: Path) -> str:
    """Return the relative path from a derived folder to the corpus.

    The relative path stays valid if the folder and the corpus are moved together.
    """
    return os.path.relpath(os.path.realpath(corpus), os.path.realpath(folder))


def trim_folder(path: Path, corpus: Path) -> DerivedFolder:
    """Return the `DerivedFolder` for trimmed copies of a corpus's clips."""
    settings = {
        SOURCE: path_from(path, corpus),
        "silence_decibels": SILENCE_DECIBELS,
        "window_seconds": WINDOW_SECONDS,
        "kept_seconds": KEPT_SECONDS,
    }
    return DerivedFolder(path, "--trim-silence", "trim_settings.json", settings)


def trim_clips(
    clips: list[Clip], folder: DerivedFolder, hparams: HParams
) -> tuple[list[Clip], dict[str, str]]:
    """Write a trimmed copy of every clip to the folder.

    At each end, silence that is longer than KEPT_SECONDS is shortened to KEPT_SECONDS. The
    remaining samples are copied bit for bit. An existing copy is kept if it is newer than its clip
    and has the expected length.

    Returns:
        A tuple of the trimmed clips and {`Clip.where`: message} for the bad clips.
    """
    copies = {clip.where: trimmed(clip, folder.path, hparams) for clip in clips}

    def is_trimmed(clip: Clip) -> bool:
        copy = copies[clip.where]
        size = len(audio.read_checked(copy.path, hparams))
        return size == copy.measured.num_samples and is_newer(copy.path, clip)

    def write(clip: Clip) -> None:
        copy = copies[clip.where]
        start = clip.measured.silence_before - copy.measured.silence_before
        stop = start + copy.measured.num_samples
        write_bytes(copy.path, encoded_part(clip.path, start, stop))

    problems = folder.fill(clips, is_trimmed, write)
    good = [clip for clip in clips if clip.where not in problems]
    cuts = [clip.measured.num_samples - copies[clip.where].measured.num_samples for clip in good]
    print(
        f"--trim-silence: cut {sum(cuts) / hparams.sampling_rate:,.1f} s of silence from "
        f"{sum(cut > 0 for cut in cuts):,} of {len(good):,} clips in {folder.path}. Up to "
        f"{KEPT_SECONDS:g} s of silence remain at each end"
    )
    good_copies = [copies[clip.where] for clip in good]
    return [replace(copy, identity=Identity.of(copy.path)) for copy in good_copies], problems


def encoded_part(path: str, start: int, stop: int) -> memoryview:
    """Encode the samples `start` to `stop` - 1 of an audio file as a new audio file.

    The samples and the file format stay the same, except that WAV files with compressed samples
    become 16-bit PCM.
    """
    with audio.open_audio(path) as source:
        subtype = source.subtype if source.subtype in EXACT_SUBTYPES else "PCM_16"
        # Choose a dtype that represents all samples of the file exactly: float64 for floating-point
        # samples, and int32 for integer samples.
        dtype = "float64" if subtype in ("FLOAT", "DOUBLE") else "int32"
        samples = audio.read_samples(source, dtype, audio.MAX_SAMPLES)
        if len(samples) < stop:
            raise UserError(
                f"the file has changed since it was checked: {len(samples)} samples, expected at "
                f"least {stop}; run the command again"
            )
        return encode(samples[start:stop], source.samplerate, source.format, subtype)


def trimmed(clip: Clip, folder: Path, hparams: HParams) -> Clip:
    """Return the `Clip` of the trimmed copy in `folder`.

    A clip is not trimmed if the trimmed copy would be too short.
    """
    measured = clip.measured
    kept_samples = round(KEPT_SECONDS * hparams.sampling_rate)
    before = min(measured.silence_before, kept_samples)
    after = min(measured.silence_after, kept_samples)
    length = measured.speech_samples + before + after
    if length >= audio.minimum_samples(hparams):
        measured = replace(measured, num_samples=length, silence_before=before, silence_after=after)
    path = folder / Path(clip.path).name
    num_frames = audio.frame_count(measured.num_samples, hparams)
    return replace(clip, path=str(path), num_frames=num_frames, measured=measured)
