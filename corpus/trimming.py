"""Copies of clips with the silence at their ends cut off, kept in a folder of their own."""

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from audio import check_sound, copy_part, minimum_samples
from corpus.recordings import Recording
from corpus.sound_measures import SILENCE_DECIBELS, WINDOW_SECONDS
from errors import UserError
from files import map_in_threads, remove_leftovers, write_json
from hparams import HParams
from progress import progress_bar

KEPT_SECONDS = 0.05  # of silence at either end
TRIM_SETTINGS_FILE = "trim_settings.json"  # beside the copies: of which corpus, and how cut


def trim_settings(corpus: Path) -> dict[str, str | float]:
    """What the copies in a folder depend on, beside the sounds."""
    return {
        "corpus": str(corpus),
        "silence_decibels": SILENCE_DECIBELS,
        "window_seconds": WINDOW_SECONDS,
        "kept_seconds": KEPT_SECONDS,
    }


def refuse_other_sounds(folder: Path, corpus: Path) -> None:
    """Raise UserError where `folder` holds sounds that are no trimmed copies of this corpus."""
    settings = folder / TRIM_SETTINGS_FILE
    has_sounds = any(path.suffix in (".wav", ".flac") for path in folder.glob("*"))
    if not settings.exists() and not has_sounds:
        return
    try:
        made = json.loads(settings.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        made = None
    if made == trim_settings(corpus):
        return
    what = f"sounds trimmed with {made}" if made else f"sounds and no readable {settings.name}"
    raise UserError(
        f"--trim-silence {folder}: holds {what}, expected an empty folder or copies trimmed with "
        f"{trim_settings(corpus)}; name another folder"
    )


def trim_clips(
    clips: Sequence[Recording], corpus: Path, folder: Path, hparams: HParams
) -> tuple[list[Recording], dict[str, str]]:
    """Write a copy of every clip to `folder` unless it is there, and newer than the clip.

    Silence beyond KEPT_SECONDS is cut off at either end; all other samples stay bitwise the same.

    Returns:
        The clips as they are in `folder`, and what is wrong with those that changed since they
        were checked, by id.
    """
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    write_json(folder / TRIM_SETTINGS_FILE, trim_settings(corpus))
    pairs = [(clip, trimmed(clip, folder, hparams)) for clip in clips]
    there = map_in_threads(lambda pair: is_trimmed(*pair, hparams), pairs)
    todo = [pair for pair, is_there in zip(pairs, there, strict=True) if not is_there]
    if len(todo) < len(clips):
        print(f"{len(clips) - len(todo):,} of {len(clips):,} trimmed clips are in {folder} already")
    problems = {}
    bar, results = progress_bar("Trimming", len(todo), " clips"), map_in_threads(write_copy, todo)
    with bar, contextlib.closing(results):  # stopped, the copies begun are finished
        for (clip, _), problem in zip(todo, results, strict=True):
            bar.update()
            if problem:
                problems[clip.id] = f"{clip.path}: {problem}"
    good = [(clip, copy) for clip, copy in pairs if clip.id not in problems]
    cuts = [clip.num_samples - copy.num_samples for clip, copy in good]
    cut_clips = sum(cut > 0 for cut in cuts)
    print(
        f"--trim-silence: {cut_clips:,} of {len(good):,} clips are shorter in {folder}, by "
        f"{sum(cuts) / hparams.sampling_rate:,.1f} s in all; {KEPT_SECONDS:g} s of silence is kept "
        "at either end"
    )
    return [copy for _, copy in good], problems


def trimmed(clip: Recording, folder: Path, hparams: HParams) -> Recording:
    """The clip as it becomes in `folder`; whole where too little for a mel would be left."""
    kept = round(KEPT_SECONDS * hparams.sampling_rate)
    before, after = min(clip.silence_before, kept), min(clip.silence_after, kept)
    path = folder / clip.path.name
    num_samples = clip.speech_samples + before + after
    if num_samples < minimum_samples(hparams):
        return replace(clip, path=path)
    return replace(
        clip, path=path, num_samples=num_samples, silence_before=before, silence_after=after
    )


def is_trimmed(clip: Recording, copy: Recording, hparams: HParams) -> bool:
    """Whether the copy is there, whole, as long as it should be, and newer than the clip."""
    try:
        newer = copy.path.stat().st_mtime_ns > clip.path.stat().st_mtime_ns
        return newer and check_sound(copy.path, hparams) == copy.num_samples
    except (OSError, UserError):
        return False


def write_copy(pair: tuple[Recording, Recording]) -> str | None:
    """Write the second clip as part of the first. Returns what is wrong with it, if anything."""
    clip, copy = pair
    start = clip.silence_before - copy.silence_before
    try:
        copy_part(clip.path, copy.path, start, start + copy.num_samples)
    except UserError as error:
        return str(error)
    return None
