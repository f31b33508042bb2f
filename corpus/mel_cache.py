"""Log-mels computed once and kept in a folder, for training with load_mel_from_disk=True."""

import contextlib
import json
import os
from pathlib import Path

import numpy as np
import torch

from audio import (
    frame_count,
    log_mel_spectrogram,
    mel_filters,
    mel_fingerprint,
    read_audio,
    write_mel,
)
from corpus.recordings import Recording
from data_utils import MEL_SETTINGS_FILE, mel_settings_problem
from errors import UserError
from files import map_in_threads, open_file, remove_leftovers, write_json
from hparams import HParams
from progress import progress_bar

TRIMMED = "silence_trimmed"  # in mel_settings.json where the clips were cut by --trim-silence


def mel_settings(hparams: HParams, trimmed: bool) -> dict[str, float | str | bool]:
    """What the mels in a folder depend on, beside the sounds."""
    return mel_fingerprint(hparams) | ({TRIMMED: True} if trimmed else {})


def refuse_other_mels(folder: Path, hparams: HParams, trimmed: bool) -> None:
    """Raise UserError where `folder` holds mels of other, or unknown, settings.

    Those of trimmed clips and those of whole ones do not mix either.
    """
    settings = folder / MEL_SETTINGS_FILE
    if settings.exists() or any(folder.glob("*.npy")):
        problem = mel_settings_problem(folder, hparams)
        if not problem and (TRIMMED in json.loads(settings.read_text("utf-8"))) != trimmed:
            problem = "of whole clips" if trimmed else "of clips cut by --trim-silence"
        if problem:
            raise UserError(
                f"--cache-mels {folder}: holds mels {problem}; name another folder, delete this "
                "one, or give those settings by --hparams"
            )


def cache_mels(
    clips: list[Recording], folder: Path, hparams: HParams, trimmed: bool
) -> dict[str, str]:
    """Write `folder`/ID.npy, float32 [n_mel_channels, frames], of every clip that lacks it.

    All processors work. Each clip is computed on one, as in a data loader's worker, so that the
    mels are bitwise those that training would compute.

    Returns:
        What is wrong with the clips that gave no mel, by id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    write_json(folder / MEL_SETTINGS_FILE, mel_settings(hparams, trimmed))
    cached = map_in_threads(lambda clip: is_cached(clip, folder, hparams), clips)
    todo = [clip for clip, is_there in zip(clips, cached, strict=True) if not is_there]
    if len(todo) < len(clips):
        print(f"{len(clips) - len(todo):,} of {len(clips):,} mels are in {folder} already.")
    mel_filters(hparams)  # computed here once, and not in every thread
    problems, threads_before = {}, torch.get_num_threads()
    torch.set_num_threads(1)
    try:  # what takes time here runs side by side
        mels = map_in_threads(lambda clip: cache_mel(clip, folder, hparams), todo, os.cpu_count())
        bar = progress_bar("Caching mels", len(todo), " clips")
        with bar, contextlib.closing(mels) as results:  # stopped, the mels begun are finished
            for clip, problem in zip(todo, results, strict=True):
                bar.update()
                if problem:
                    problems[clip.id] = f"{clip.path}: {problem}"
    finally:
        torch.set_num_threads(threads_before)
    return problems


def is_cached(clip: Recording, folder: Path, hparams: HParams) -> bool:
    """Whether the mel is there, whole, finite, and newer than the clip."""
    path = folder / f"{clip.id}.npy"
    try:
        open_file(path).close()  # a file, and none that would have to be waited for
        mel = np.load(path, mmap_mode="r", allow_pickle=False)
        newer = path.stat().st_mtime_ns > clip.path.stat().st_mtime_ns
    except (OSError, ValueError, EOFError):
        return False
    shape = (hparams.n_mel_channels, frame_count(clip.num_samples, hparams))
    good = newer and mel.shape == shape and mel.dtype == np.float32
    return bool(good and np.isfinite(mel).all())


def cache_mel(clip: Recording, folder: Path, hparams: HParams) -> str | None:
    """Compute and write one mel. Returns what is wrong with the clip, if anything."""
    try:
        samples = read_audio(clip.path, hparams)
        if len(samples) != clip.num_samples:
            return f"{len(samples)} samples, but {clip.num_samples} by its header; copy it again"
        mel = log_mel_spectrogram(samples, hparams).numpy()
    except UserError as error:
        return str(error)
    write_mel(folder / f"{clip.id}.npy", mel)
    return None
