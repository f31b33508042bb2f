"""Files derived from a corpus's clips, in folders: trimmed copies and cached log-mels."""

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import audio
from corpus.clip_table import Clip
from corpus.filelist import MEL_SETTINGS_FILE, mel_length, settings_problem
from corpus.recordings import SILENCE_DECIBELS, WINDOW_SECONDS
from hparams import HParams
from tacotron2_voice.utils.audio_files import write_mel
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import (
    READING_THREADS,
    Identity,
    folder_locked,
    map_in_threads,
    read_json,
    remove_leftovers,
    write_json,
)

KEPT_SECONDS = 0.05  # of silence at either end
SOURCE = "corpus"  # in a folder's settings: the path of what its files were made of, from there


@dataclass(frozen=True)
class Folder:
    """A folder of files that were all made with the same settings."""

    path: Path
    option: str  # that names it on the command line
    settings_file: str  # its name in the folder
    settings: dict[str, Any]

    def refuse_others(self) -> None:
        """Raise UserError if the folder holds files made with other, or unknown, settings."""
        if not any(path.suffix in (".npy", ".wav", ".flac") for path in self.path.glob("*")):
            return
        if not (self.path / self.settings_file).exists():  # they may be the only recordings
            raise UserError(
                f"{self.option} {self.path}: holds files made with unknown settings, with no "
                f"{self.settings_file} beside them; name a new folder"
            )
        file = self.path / self.settings_file
        # Older folders of mels do not say what they were made of.
        wanted = {name: value for name, value in self.settings.items() if name != SOURCE}
        if problem := settings_problem(file, wanted):
            raise UserError(
                f"{self.option} {self.path}: holds files {problem}; name another folder, delete "
                "this one, or give those settings"
            )
        source, ours = dict(read_json(file)).get(SOURCE), self.settings[SOURCE]
        if source not in (None, ours):
            folder = os.path.realpath(self.path)
            theirs, here = (os.path.normpath(f"{folder}/{path}") for path in (source, ours))
            raise UserError(
                f"{self.option} {self.path}: holds files made of {theirs}, expected of {here}; "
                f"name another {self.option} folder, or, if it is the same corpus and was moved, "
                f'write "{SOURCE}": {json.dumps(ours)} in {file}'
            )

    def fill(
        self,
        clips: list[Clip],
        is_made: Callable[[Clip], bool],
        make: Callable[[Clip], object],
        threads: int = READING_THREADS,
        first: Callable[[], object] = lambda: None,
    ) -> dict[str, str]:
        """Make the missing file of every clip, in threads. Returns problems by `Clip.where`.

        `first` is called before, while no other process makes files there.
        A UserError from `is_made` means that the file is bad: it is made again. One from `make`
        means that the clip is bad, which is a problem.
        """

        def made_or_problem(clip: Clip) -> bool | str:
            with contextlib.suppress(OSError, UserError):
                if is_made(clip):
                    return False
            try:
                make(clip)
            except UserError as error:
                return f"{clip.path}: {error}"
            return True

        self.path.mkdir(parents=True, exist_ok=True)
        # Another process's unfinished files are no leftovers.
        busy = f"another process is preparing in it; wait, or choose another {self.option}"
        with folder_locked(self.path, busy):
            remove_leftovers(self.path)
            write_json(self.path / self.settings_file, self.settings)
            first()
            progress = progress_bar(self.option, len(clips), " clips", iterable=clips)
            # Closed when interrupted: the files begun are then finished.
            with contextlib.closing(map_in_threads(made_or_problem, clips, threads)) as results:
                outcomes = {c.where: result for c, result in zip(progress, results, strict=True)}
        if already := [*outcomes.values()].count(False):
            print(f"{self.option}: {already:,} of {len(clips):,} files were already in {self.path}")
        return {where: result for where, result in outcomes.items() if isinstance(result, str)}


def is_newer(path: str | Path, clip: Clip) -> bool:
    """Whether `path` is newer than the clip: its content, and its last renaming or copying."""
    return Identity.of(path).modified > max(Identity.of(clip.path)[1:])


def mel_folder(path: Path, hparams: HParams, clips: Path, trimmed: bool) -> Folder:
    """The folder for log-mels of the clips in the folder `clips`, whole or trimmed
    (--trim-silence), which do not mix."""
    source = {"silence_trimmed": trimmed, SOURCE: path_from(path, clips)}
    settings = audio.mel_fingerprint(hparams) | source
    return Folder(path, "--cache-mels", MEL_SETTINGS_FILE, settings)


def cache_mels(clips: list[Clip], folder: Folder, hparams: HParams) -> dict[str, str]:
    """Write the missing ID.npy, float32 [n_mel_channels, frames], of every clip; returns what
    `Folder.fill` returns.

    Each mel is computed by one thread, so that it is bitwise what training would compute.
    """

    written = list[str]()

    def is_cached(clip: Clip) -> bool:
        path = str(folder.path / f"{clip.id}.npy")
        num_frames = mel_length(path, None, hparams, read_contents=True)
        return num_frames == clip.num_frames and is_newer(path, clip)

    def cache(clip: Clip) -> None:
        mel = audio.log_mel_spectrogram(audio.read_audio(clip.path, hparams), hparams).numpy()
        if mel.shape[1] != clip.num_frames:
            counts = f"{mel.shape[1]} frames, but {clip.num_frames}"
            raise UserError(f"{counts} when it was checked; run again")
        write_mel(folder.path / f"{clip.id}.npy", mel)
        written.append(clip.id)

    # Computed here once, and not in every thread.
    if warning := audio.silent_bands(hparams):
        print(warning)
    threads_before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        problems = folder.fill(clips, is_cached, cache, os.cpu_count() or 1)
    finally:
        torch.set_num_threads(threads_before)
    if written:
        print(f"{folder.option}: wrote {len(written):,} of {len(clips):,} mels to {folder.path}")
    return problems


def path_from(folder: Path, corpus: Path) -> str:
    """The corpus's path from a folder of derived files, so that both may be moved together."""
    return os.path.relpath(os.path.realpath(corpus), os.path.realpath(folder))


def trim_folder(path: Path, corpus: Path) -> Folder:
    """The folder for trimmed copies of the corpus's clips."""
    settings = {
        SOURCE: path_from(path, corpus),
        "silence_decibels": SILENCE_DECIBELS,
        "window_seconds": WINDOW_SECONDS,
        "kept_seconds": KEPT_SECONDS,
    }
    return Folder(path, "--trim-silence", "trim_settings.json", settings)


def trim_clips(
    clips: list[Clip], folder: Folder, hparams: HParams
) -> tuple[list[Clip], dict[str, str]]:
    """Write a trimmed copy of every clip to the folder unless a newer one is there. Silence beyond
    KEPT_SECONDS is cut off at either end; all other samples stay bitwise the same. Returns the
    trimmed clips and what `Folder.fill` returns."""
    copies = {clip.where: trimmed(clip, folder.path, hparams) for clip in clips}

    def is_trimmed(clip: Clip) -> bool:
        copy = copies[clip.where]
        size = len(audio.read_checked(copy.path, hparams))
        return size == copy.sound.num_samples and is_newer(copy.path, clip)

    def write(clip: Clip) -> None:
        copy = copies[clip.where]
        start = clip.sound.silence_before - copy.sound.silence_before
        stop = start + copy.sound.num_samples
        audio.copy_part(clip.path, Path(copy.path), start, stop, hparams)

    problems = folder.fill(clips, is_trimmed, write)
    good = [clip for clip in clips if clip.where not in problems]
    cuts = [clip.sound.num_samples - copies[clip.where].sound.num_samples for clip in good]
    print(
        f"--trim-silence: {sum(cut > 0 for cut in cuts):,} of {len(good):,} clips are shorter in "
        f"{folder.path}, by {sum(cuts) / hparams.sampling_rate:,.1f} s in all; {KEPT_SECONDS:g} s "
        "of silence is kept at either end"
    )
    good_copies = [copies[clip.where] for clip in good]
    return [replace(copy, identity=Identity.of(copy.path)) for copy in good_copies], problems


def trimmed(clip: Clip, folder: Path, hparams: HParams) -> Clip:
    """The trimmed clip in `folder`; untrimmed if too little would be left for a mel."""
    sound, kept_samples = clip.sound, round(KEPT_SECONDS * hparams.sampling_rate)
    before, after = min(sound.silence_before, kept_samples), min(sound.silence_after, kept_samples)
    length = sound.speech_samples + before + after
    if length >= audio.minimum_samples(hparams):
        sound = replace(sound, num_samples=length, silence_before=before, silence_after=after)
    path, num_frames = folder / Path(clip.path).name, audio.frame_count(sound.num_samples, hparams)
    return replace(clip, path=str(path), num_frames=num_frames, sound=sound)
