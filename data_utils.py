"""Filelists, the dataset that reads clips, their padding into batches, and the loader."""

import csv
import hashlib
import json
import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from audio import (
    check_sound,
    frame_count,
    log_mel_spectrogram,
    mel_fingerprint,
    read_audio,
    read_header,
)
from clip_table import (
    CHUNK,
    Clip,
    ClipTable,
    clip_id,
    decoded,
    read_table,
    table_path,
    write_table,
)
from errors import UserError
from files import map_in_threads, numbered_lines, open_file, write_atomically
from hparams import HParams
from text import can_be_spoken, text_to_sequence

MEL_SETTINGS_FILE = "mel_settings.json"  # beside cached mels: the settings they were made with
LENGTHS_FILE = "lengths.csv"  # in a run's folder: id,frames of the clips that it trains on
MOST_PROBLEMS_SHOWN = 20
LONG = 5  # times the median: clips longer than this are warned of
LONG_CLIPS_SHOWN = 3


# ---------------------------------------------------------------------------- filelists


def read_filelist(
    filelist: str | Path,
    hparams: HParams,
    progress: Callable = lambda lines: lines,
    skipped: Mapping[str, int | None] | None = None,
    *,
    new_run: bool = False,
) -> ClipTable:
    """Read and check a filelist: a clip a line, `path|text|seconds` or the reference's `path|text`.

    Fields are split on every `|` and stripped; relative paths count from the folder you run in.
    Lengths come from the sound files' headers (or the cached mels' shapes), and seconds, where
    given, must agree with them: to half a sample and one in a million, or to the frame.

    Args:
        progress: wraps the list of lines while they are checked, a tqdm bar for example.
        skipped: lengths in frames of clips whose files are not looked at, by the name of the file
            without folder and ending; None is the length that the list's seconds give.
        new_run: read all samples, or all values of the mels, too, and refuse what is not fit for
            training and texts with nothing to say. A run that began with some goes on.

    Raises:
        UserError: one message listing every bad line with its number, what is wrong with the
            line or its file, and how to mend it.
    """
    numbered, folders, problems = _lines(filelist), {}, []

    def checked() -> Iterator[tuple[int, Clip]]:
        measure = partial(_frames_or_problem, hparams, skipped or {}, new_run, folders)
        lengths = map_in_threads(measure, (line for _, line in numbered))
        for (number, line), num_frames in zip(progress(numbered), lengths, strict=True):
            where = f"{filelist}:{number}"
            try:
                path, text, _ = split_filelist_line(line)
                # Not in a thread: inflect, which spells numbers, is not made for several.
                symbols = bytes(text_to_sequence(text, hparams.text_cleaners))
                if not symbols or (new_run and not can_be_spoken(symbols)):
                    raise UserError(
                        f"text {text!r} leaves nothing to say after cleaning; write what is said"
                    )
                if isinstance(num_frames, UserError):
                    raise num_frames
                yield number, Clip(path, text, symbols, num_frames, where)
            except UserError as error:
                problems.append(f"{where}: {error}")

    # Not all clips at once: ten million of them are many times as large as their table.
    table = ClipTable.of(filelist, checked(), folders, complete=new_run)
    if problems:
        raise lines_refused(filelist, problems, len(numbered))
    if not len(table):
        raise UserError(f"{filelist}: no clip in it; expected lines of path|text|seconds")
    return table


def _lines(filelist: str | Path) -> list[tuple[int, str]]:
    return numbered_lines(
        filelist,
        "no such filelist; make one with scripts/prepare_ljspeech.py, or name yours with "
        "--hparams training_files=...,validation_files=...",
    )


def lines_refused(path: str | Path, problems: list[str], num_lines: int) -> UserError:
    """One message about all the bad lines of a file, to be raised."""
    shown = problems[:MOST_PROBLEMS_SHOWN]
    if len(problems) > len(shown):
        shown.append(f"... and {len(problems) - len(shown)} more")
    return UserError(
        f"{path}: {len(problems)} of {num_lines} lines refused:\n  " + "\n  ".join(shown)
    )


def split_filelist_line(line: str) -> tuple[str, str, float | None]:
    """(path, text, seconds or None) of a line of `path|text|seconds` or `path|text`.

    Raises:
        UserError: if it is neither.
    """
    parts = [part.strip() for part in line.split("|")]
    if len(parts) not in (2, 3):
        raise UserError(f"{len(parts)} fields, expected path|text|seconds or path|text: {line!r}")
    if len(parts) == 2:
        return parts[0], parts[1], None
    try:
        return parts[0], parts[1], float(parts[2])
    except ValueError:
        raise UserError(f"seconds {parts[2]!r}, expected a number") from None


def _frames_or_problem(
    hparams: HParams,
    skipped: Mapping[str, int | None],
    read_contents: bool,
    checked_folders: dict,
    line: str,
) -> int | UserError:
    """Frames of a line's clip, or what is wrong with it. Works in a thread."""
    try:
        path, _, seconds = split_filelist_line(line)
        if clip_id(path) in skipped:
            return skipped[clip_id(path)] or _frames_listed(path, seconds, hparams)
        if not hparams.load_mel_from_disk:
            return _frames_of_sound(path, seconds, hparams, read_contents)
        _check_mel_settings(Path(path).parent, hparams, checked_folders)
        return _frames_of_mel(path, seconds, hparams, read_contents)
    except UserError as error:
        return error


def _frames_listed(path: str, seconds: float | None, hparams: HParams) -> int:
    if seconds is None or not 0 < seconds < 1e6:
        raise UserError(
            f"{path}: skipped, but its length is in no lengths.csv, and the list has no seconds of "
            "it; write path|text|seconds"
        )
    return frame_count(round(seconds * hparams.sampling_rate), hparams)


def _frames_of_sound(
    path: str, seconds: float | None, hparams: HParams, read_contents: bool
) -> int:
    if path.endswith(".npy"):
        raise UserError(f"{path}: a cached mel; read it with load_mel_from_disk=True")
    try:
        num_samples = (check_sound if read_contents else read_header)(path, hparams)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    actual = num_samples / hparams.sampling_rate
    if seconds is not None and not abs(seconds - actual) <= 0.5 / hparams.sampling_rate + 1e-6:
        raise UserError(
            f"{path}: {seconds:.6f} seconds in the list, {actual:.6f} in the file; the clip "
            "changed after the list was made: make the list again"
        )
    return frame_count(num_samples, hparams)


def _frames_of_mel(path: str, seconds: float | None, hparams: HParams, read_contents: bool) -> int:
    mel = _read_mel(path, hparams, mmap_mode="r")  # the shape costs no more than the header
    num_frames = mel.shape[1]
    if seconds is not None:
        promised = math.nan
        if 0 <= seconds < 1e9:
            promised = frame_count(round(seconds * hparams.sampling_rate), hparams)
        if num_frames != promised:
            raise UserError(
                f"{path}: {num_frames} frames, but {seconds:.6f} seconds in the list are "
                f"{promised}; cache the mels and make the list again"
            )
    if read_contents and not np.isfinite(mel).all():
        frame = int(np.isfinite(mel).all(axis=0).argmin())
        raise UserError(
            f"{path}: frame {frame} holds nan or infinity, expected finite numbers; cache the mels "
            "again"
        )
    return num_frames


def _read_mel(path: str, hparams: HParams, mmap_mode: str | None = None) -> np.ndarray:
    """A cached log-mel [n_mel_channels, frames]; UserError if the file holds anything else."""
    try:
        open_file(path, "no such file; run prepare_ljspeech.py --cache-mels").close()
        mel = np.load(path, mmap_mode=mmap_mode, allow_pickle=False)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: not a .npy array ({error}); cache the mels again") from None
    if not isinstance(mel, np.ndarray):
        raise UserError(f"{path}: an archive of arrays; cache the mels again")
    if mel.ndim != 2 or mel.shape[0] != hparams.n_mel_channels or mel.shape[1] == 0:
        raise UserError(
            f"{path}: shape {mel.shape}, expected ({hparams.n_mel_channels}, frames); "
            "cache the mels again"
        )
    if mel.dtype != np.float32:
        raise UserError(
            f"{path}: numbers of type {mel.dtype}, expected float32; cache the mels again"
        )
    return mel


def mel_settings_problem(folder: Path, hparams: HParams) -> str | None:
    """How the audio settings that the mels in `folder` were made with differ from `hparams`."""
    wanted = mel_fingerprint(hparams)
    try:
        made = json.loads((folder / MEL_SETTINGS_FILE).read_text(encoding="utf-8"))
        differing = [
            f"{name}={made.get(name)}, this run has {wanted[name]}"
            for name in wanted
            if name != "sha256" and made.get(name) != wanted[name]
        ]
    except (OSError, ValueError, AttributeError):
        return f"settings unknown, no readable {MEL_SETTINGS_FILE} beside the mels"
    return "made with " + "; ".join(differing) if differing else None


def _check_mel_settings(folder: Path, hparams: HParams, checked: dict[Path, str | None]) -> None:
    """Refuse mels made with other audio settings, or with unknown ones; a folder is read once."""
    if folder not in checked:
        checked[folder] = mel_settings_problem(folder, hparams)
    if checked[folder]:
        raise UserError(
            f"{folder}: mels {checked[folder]}; set those, or cache the mels again with "
            "prepare_ljspeech.py --cache-mels"
        )


def warn_of_long_clips(
    seconds: Sequence[float] | np.ndarray, name_of: Callable[[int], str]
) -> str | None:
    """A warning that names the clips many times longer than the rest; None without one.

    Args:
        seconds: [clips]
        name_of: gives the name of the clip with this index.
    """
    seconds = np.asarray(seconds)
    if len(seconds) == 0:
        return None
    median = float(np.median(seconds))
    long = np.flatnonzero(seconds > LONG * median)
    if not long.size:
        return None
    longest = long[np.argsort(seconds[long], kind="stable")[::-1]][:LONG_CLIPS_SHOWN]
    shown = ", ".join(f"{name_of(int(i))} ({seconds[i]:.1f} s)" for i in longest)
    more = len(long) - LONG_CLIPS_SHOWN
    return (
        f"warning: {len(long):,} of {len(seconds):,} clips are more than {LONG} times as long as "
        f"the median, {median:.1f} s: {shown}{f' and {more:,} more' if more > 0 else ''}. The "
        "longest clip sets the memory that a run needs and, with dynamic_batch_size, the size of "
        "every batch: leave such clips out (prepare_ljspeech.py --max-seconds S, or take their "
        "lines out of the list), or cut them up"
    )


def corpus_fingerprint(*tables: ClipTable) -> str:
    """Hash of file names, texts and lengths, whatever folder the files lie in."""
    return hashlib.sha256("|".join(table.fingerprint for table in tables).encode()).hexdigest()


def earlier_corpus_fingerprint(*tables: ClipTable) -> str:
    """The same of versions without tables. It goes through all clips: seconds for a million."""
    digest = hashlib.sha256()
    for table in tables:
        for line in table.described():
            digest.update(line)
        digest.update(b"--\n")
    return digest.hexdigest()


def write_lengths(path: Path, clips: ClipTable) -> None:
    """`lengths.csv`: id, frames of every training clip, for tools that need no audio."""

    def write(temporary: Path) -> None:
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("id", "frames"))
            writer.writerows(zip(clips.ids(), clips.num_frames, strict=True))

    write_atomically(path, write)


# ---------------------------------------------------------------------------- kept tables


def table_key(filelist: str | Path, hparams: HParams) -> dict:
    """What a table of this filelist is made from: with another key it is made again.

    Raises:
        UserError: if the list cannot be read.
    """
    digest = hashlib.sha256()
    with open_file(filelist) as file:
        while block := file.read(2**20):
            digest.update(block)
    audio = mel_fingerprint(hparams)
    if not hparams.load_mel_from_disk:  # what decides lengths, and which clips are too short
        names = ("sampling_rate", "hop_length", "filter_length")
        audio = {name: getattr(hparams, name) for name in names}
    return {
        "filelist": digest.hexdigest(),
        "load_mel_from_disk": hparams.load_mel_from_disk,
        "audio": audio,
        "text_cleaners": list(hparams.text_cleaners),
        "text": _fingerprint_of_text_code(),
    }


@lru_cache
def _fingerprint_of_text_code() -> str:
    """Of all that makes symbols of a text, the symbols themselves included."""
    digest = hashlib.sha256()
    for path in sorted((Path(__file__).parent / "text").glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def kept_table(filelist: str | Path, hparams: HParams) -> ClipTable | None:
    """The table beside a filelist, if it was made from this very list with these settings, and
    mels still lie where they lay, made with these settings too."""
    try:
        table = read_table(filelist, table_key(filelist, hparams))
    except (UserError, OSError):  # whoever reads the list says what is wrong
        return None
    if table and any(mel_settings_problem(Path(f), hparams) for f in table.mel_folders):
        return None
    return table


def keep_table(table: ClipTable, hparams: HParams) -> ClipTable:
    """Write the table beside its filelist. Returns it mapped, where that is possible."""
    try:
        key = table_key(table.filelist, hparams)
        write_table(table, key)
    except (OSError, UserError) as error:
        print(
            f"{table_path(table.filelist)}: cannot be written ({error}): "
            "the next start checks every clip again"
        )
        return table
    return read_table(table.filelist, key) or table


def changed_clips(table: ClipTable, progress: Callable = lambda chunks: chunks) -> np.ndarray:
    """Indices of the clips whose files changed since the table was written, or cannot be found.

    Args:
        progress: wraps the list of parts, CHUNK clips each, that are looked at one after another.
    """

    def look(start: int) -> list[int]:
        changed, since = [], table.time
        for index, path in enumerate(table.paths.part(start, start + CHUNK), start):
            try:
                if os.stat(decoded(path)).st_mtime_ns >= since:
                    changed.append(index)
            except (OSError, ValueError):  # whoever reads it says what is wrong
                changed.append(index)
        return changed

    starts = list(range(0, len(table), CHUNK))
    found = zip(progress(starts), map_in_threads(look, starts), strict=True)
    return np.array([index for _, part in found for index in part], np.int64)


def check_again(
    table: ClipTable,
    changed: np.ndarray,
    hparams: HParams,
    progress: Callable = lambda lines: lines,
) -> ClipTable:
    """The table after another check of the clips with these indices, as for a new run.

    Raises:
        UserError: as `read_filelist`.
    """
    lines = dict(_lines(table.filelist))
    chosen = [(int(i), lines[int(table.lines[i])]) for i in changed]
    measure = partial(_frames_or_problem, hparams, {}, True, {})
    lengths = map_in_threads(measure, (line for _, line in chosen))
    frames, problems = {}, []
    for (index, _), num_frames in zip(progress(chosen), lengths, strict=True):
        if isinstance(num_frames, UserError):
            problems.append(f"{table.where(index)}: {num_frames}")
        frames[index] = num_frames
    if problems:
        raise lines_refused(table.filelist, problems, len(table))
    return table.with_frames(frames)


# ---------------------------------------------------------------------------- clips and batches


class TextMelDataset(Dataset):
    """Item i: (symbol ids int64 [T_in], log-mel float32 [n_mels, frames], i)."""

    def __init__(self, clips: ClipTable, hparams: HParams):
        self.clips, self.hparams = clips, hparams

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        # Column by column: a Clip would read the text too, and with it map all texts into memory.
        clips, path = self.clips, self.clips.path(index)
        text = torch.from_numpy(
            np.frombuffer(clips.symbols[index], dtype=np.uint8).astype(np.int64)
        )
        try:
            mel = self._mel(path)
        except UserError as error:
            raise UserError(f"{clips.where(index)}: {path}: {error}") from None
        num_frames = int(clips.num_frames[index])
        if mel.shape[1] != num_frames:
            raise UserError(
                f"{clips.where(index)}: {path}: {mel.shape[1]} frames, but {num_frames} when "
                "the run began; the file changed underneath it"
            )
        return text, mel, index

    def _mel(self, path: str) -> torch.Tensor:
        if self.hparams.load_mel_from_disk:
            return torch.from_numpy(_read_mel(path, self.hparams))
        # One thread, as in a loader's worker: matrix products split over more threads may round
        # otherwise, and a run must not depend on num_workers.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return log_mel_spectrogram(read_audio(path, self.hparams), self.hparams)
        finally:
            torch.set_num_threads(threads)


@dataclass(frozen=True)
class Batch:
    """Clips padded to common lengths. r is n_frames_per_step; T_out is a multiple of it."""

    text: torch.Tensor  # [B, T_in] int64, padded with symbol 0
    text_lengths: torch.Tensor  # [B] int64
    mel: torch.Tensor  # [B, n_mels, T_out] float32, padded with 0.0 as the reference does
    gate: torch.Tensor  # [B, T_out / r] float32, 1 from the step that holds the last real frame
    mel_lengths: torch.Tensor  # [B] int64, real frames
    clip_indices: torch.Tensor | None = None  # [B] int64, rows of the dataset

    _MOVED = ("text", "mel", "gate")  # not annotated, so no field

    def num_steps(self, frames_per_step: int) -> torch.Tensor:
        """[B] int64, decoder steps of each clip."""
        return -(-self.mel_lengths // frames_per_step)

    def to(self, device: torch.device | str) -> "Batch":
        """Text, mel and gate on `device`. Lengths and indices stay on the CPU, where packing and
        messages need them: reading them back would stall.

        From pinned memory nothing waits here, and the copy goes on beside the kernels that the GPU
        still has to do; those queued after this wait for it."""
        device = torch.device(device)
        if device.type != "cuda":
            return replace(self, **{name: getattr(self, name).to(device) for name in self._MOVED})
        using, copying = torch.cuda.current_stream(device), _copy_stream(device)
        with torch.cuda.stream(copying):
            moved = {
                name: getattr(self, name).to(device, non_blocking=True) for name in self._MOVED
            }
        using.wait_stream(copying)
        for tensor in moved.values():
            tensor.record_stream(using)  # once freed, not overwritten before it has been used
        return replace(self, **moved)

    def pin_memory(self) -> "Batch":
        """Called by a DataLoader with pin_memory=True."""
        return replace(self, **{name: getattr(self, name).pin_memory() for name in self._MOVED})


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


class TextMelCollate:
    """Pads items (text [T_in], mel [n_mels, T], optionally index) to a Batch, in the order given.

    Raises:
        ValueError: on an empty list, an empty text or mel, and n_frames_per_step below 1.
    """

    def __init__(self, n_frames_per_step: int = 1):
        if n_frames_per_step < 1:
            raise ValueError(f"n_frames_per_step={n_frames_per_step}: expected at least 1")
        self.n_frames_per_step = n_frames_per_step

    def __call__(self, items: Sequence[tuple]) -> Batch:
        if not items:
            raise ValueError("no items to collate")
        texts, mels = [item[0] for item in items], [item[1] for item in items]
        text_lengths = torch.tensor([len(text) for text in texts])
        mel_lengths = torch.tensor([mel.shape[1] for mel in mels])
        if text_lengths.min() == 0 or mel_lengths.min() == 0:
            raise ValueError("an item has no symbols or no frames")
        num_steps = -(-int(mel_lengths.max()) // self.n_frames_per_step)
        mel = torch.zeros(len(items), mels[0].shape[0], num_steps * self.n_frames_per_step)
        for row, item in zip(mel, mels, strict=True):
            row[:, : item.shape[1]] = item
        last_step = (mel_lengths - 1) // self.n_frames_per_step
        indices = torch.tensor([item[2] for item in items]) if len(items[0]) > 2 else None
        return Batch(
            text=torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).long(),
            text_lengths=text_lengths,
            mel=mel,
            gate=(torch.arange(num_steps) >= last_step[:, None]).float(),
            mel_lengths=mel_lengths,
            clip_indices=indices,
        )


def synthetic_batch(
    mel_lengths: Iterable[int], text_lengths: Iterable[int], hparams: HParams, seed: int = 0
) -> Batch:
    """Noise in place of clips of these lengths, the same for the same seed.

    Args:
        mel_lengths: [B], in frames.
        text_lengths: [B], in symbols.
    """
    generator, channels = torch.Generator().manual_seed(seed), hparams.n_mel_channels
    items = [
        (
            torch.randint(1, hparams.n_symbols, (int(symbols),), generator=generator),
            torch.randn(channels, int(frames), generator=generator) - 5,  # as loud as speech
        )
        for frames, symbols in zip(mel_lengths, text_lengths, strict=True)
    ]
    return TextMelCollate(hparams.n_frames_per_step)(items)


def end_with_parent() -> None:
    """Let this worker process not outlive its parent, even one that was killed."""

    def wait() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def end_when_parent_says() -> None:
    """Let SIGTERM end this worker process only if its parent sent it, as it does when it ends."""
    if not hasattr(signal, "sigwaitinfo"):  # macOS, where any SIGTERM ends a worker
        return
    parent = multiprocessing.parent_process().pid

    def wait() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent:
            pass
        os._exit(0)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # for `wait` to be given it
    threading.Thread(target=wait, daemon=True).start()


def start_worker(_worker_id: int) -> None:
    """Ctrl-C, a job system's SIGTERM and the SIGHUP of a closed terminal reach every process; only
    the trainer answers them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_when_parent_says()
    end_with_parent()


def make_loader(
    clips: ClipTable, hparams: HParams, pin_memory: bool, batch_sampler, **options
) -> DataLoader:
    """A loader of `Batch`es; `options` are DataLoader's."""
    return DataLoader(
        TextMelDataset(clips, hparams),
        batch_sampler=batch_sampler,
        collate_fn=TextMelCollate(hparams.n_frames_per_step),
        num_workers=hparams.num_workers,
        pin_memory=pin_memory,
        worker_init_fn=start_worker,
        generator=torch.Generator(),  # its own, so that loading never moves the global one
        **options,
    )
