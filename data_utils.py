"""The dataset of a filelist's clips, padded batches, and the loader (`make_loader`)."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from audio import log_mel_spectrogram, read_audio
from corpus.cache import ClipTable, cache_path
from corpus.filelist import read_mel
from hparams import HParams
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity

HOW_TO_CHANGE_CLIPS = (
    "Fix the clip, or remove its line from the filelist and add --resume --new-clips"
)


class TextMelDataset(Dataset):
    """Reads clips: item i is (symbol ids int64 [T_in], log-mel float32 [n_mels, frames], i,
    labels). `labels`: by label, the index of the clip's name in hparams.labels."""

    def __init__(self, clips: ClipTable, hparams: HParams):
        self.clips, self.hparams = clips, hparams
        self._indices = {}  # by label, of each of the table's names
        for label, names in hparams.labels.items():
            index_of = {name: index for index, name in enumerate(names)}
            self._indices[label] = [index_of[name] for name in clips.names[label]]

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        clip = self.clips[index]
        name = f"{clip.where}: {clip.path}"
        if (symbol := max(clip.symbols, default=0)) >= self.hparams.n_symbols:
            table = cache_path(self.clips.filelist)
            raise UserError(f"{name}: symbol {symbol} is not in the model; delete {table}")
        try:
            mel = self._mel(clip.path)
        except UserError as error:
            raise UserError(f"{name}: {error}. {HOW_TO_CHANGE_CLIPS}") from None
        lengths = f"{clip.num_frames} frames before, {mel.shape[1]} now"
        # Without the third part, which a backup or another mode changes too.
        if mel.shape[1] != clip.num_frames or Identity.of(clip.path)[:2] != clip.identity[:2]:
            raise UserError(
                f"{name}: changed ({lengths}); put the old file back and add --resume, or make the "
                "list again and add --resume --new-clips"
            )
        numbers = self.clips.numbers
        labels = {x: indices[numbers[x][index]] for x, indices in self._indices.items()}
        return torch.tensor(clip.symbols), mel, index, labels

    def _mel(self, path: str) -> torch.Tensor:
        if self.hparams.load_mel_from_disk:
            return torch.from_numpy(read_mel(path, self.hparams))
        # One thread, as in a loader's worker: matrix products split over more threads may round
        # differently, and a run must not depend on num_workers.
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
    # By label, [B] int64, indices in hparams.labels; {}: one voice
    labels: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def num_steps(self, frames_per_step: int) -> torch.Tensor:
        """[B] int64, decoder steps of each clip."""
        return -(-self.mel_lengths // frames_per_step)

    def to(self, device: torch.device | str) -> "Batch":
        """Move text, mel, gate and labels to `device`; the rest stays on the CPU, for packing and
        messages. From pinned memory the copy overlaps with queued kernels, and later ones wait for
        it."""
        device = torch.device(device)
        if device.type != "cuda":
            return self._with(lambda tensor: tensor.to(device))
        using, copying = torch.cuda.current_stream(device), _copy_stream(device)
        with torch.cuda.stream(copying):
            moved = self._with(lambda tensor: tensor.to(device, non_blocking=True))
        using.wait_stream(copying)
        for tensor in (moved.text, moved.mel, moved.gate, *moved.labels.values()):
            tensor.record_stream(using)  # its memory is not reused before it was read
        return moved

    def pin_memory(self) -> "Batch":  # a DataLoader with pin_memory=True calls it
        return self._with(torch.Tensor.pin_memory)

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        labels = {label: change(tensor) for label, tensor in self.labels.items()}
        text, mel, gate = map(change, (self.text, self.mel, self.gate))
        return replace(self, text=text, mel=mel, gate=gate, labels=labels)


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def collate(items: Sequence[tuple], n_frames_per_step: int = 1) -> Batch:
    """Pad items (text [T_in], mel [n_mels, T], optionally index and labels) to a Batch, in their
    order."""
    texts, mels = [item[0] for item in items], [item[1] for item in items]
    mel_lengths = torch.tensor([mel.shape[1] for mel in mels])
    num_steps = -(-int(mel_lengths.max()) // n_frames_per_step)
    mel = torch.zeros(len(items), mels[0].shape[0], num_steps * n_frames_per_step)
    for row, item in zip(mel, mels, strict=True):
        row[:, : item.shape[1]] = item
    last_step = (mel_lengths - 1) // n_frames_per_step
    return Batch(
        text=torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).long(),
        text_lengths=torch.tensor([len(text) for text in texts]),
        mel=mel,
        gate=(torch.arange(num_steps) >= last_step[:, None]).float(),
        mel_lengths=mel_lengths,
        clip_indices=torch.tensor([item[2] for item in items]) if len(items[0]) > 2 else None,
        labels={
            label: torch.tensor([item[3][label] for item in items])
            for label in (items[0][3] if len(items[0]) > 3 else ())
        },
    )


def collate_and_share(items: Sequence[tuple], n_frames_per_step: int) -> Batch:
    """`collate`, and in a worker move the batch to shared memory. UserError if that is full:
    otherwise torch does it in a thread, which only prints the error, and the loader hangs."""
    batch = collate(items, n_frames_per_step)
    if torch.utils.data.get_worker_info() is not None:
        try:
            tensors = [*vars(batch).values(), *batch.labels.values()]
            for tensor in filter(torch.is_tensor, tensors):
                tensor.share_memory_()
        except RuntimeError as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"no shared memory for a batch ({reason}): make room in /dev/shm (docker run "
                "--shm-size), or set num_workers=0"
            ) from None
    return batch


def synthetic_batch(
    mel_lengths: Iterable[int], text_lengths: Iterable[int], hparams: HParams, seed: int = 0
) -> Batch:
    """Make a batch of noise for clips of [B] frames and [B] symbols, the same for a seed. All
    have the first name of each label."""
    generator, channels = torch.Generator().manual_seed(seed), hparams.n_mel_channels
    items = [
        (
            torch.randint(1, hparams.n_symbols, (int(symbols),), generator=generator),
            torch.randn(channels, int(frames), generator=generator) - 5,  # as loud as speech
        )
        for frames, symbols in zip(mel_lengths, text_lengths, strict=True)
    ]
    batch = collate(items, hparams.n_frames_per_step)
    return replace(batch, labels={x: torch.zeros(len(items)).long() for x in hparams.labels})


def _start_worker(_worker_id: int) -> None:
    """Make a worker ignore signals that reach every process (Ctrl-C, SIGHUP, a job system's
    SIGTERM). It ends with its parent, or when the parent sends SIGTERM."""
    parent = multiprocessing.parent_process()
    assert parent is not None  # a worker has one

    def end_when_parent_says() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
            pass
        os._exit(0)

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if hasattr(signal, "sigwaitinfo"):  # not on macOS, where any SIGTERM ends a worker
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # in all threads but this one
        threading.Thread(target=end_when_parent_says, daemon=True).start()
    threading.Thread(target=end_with_parent, daemon=True).start()


def make_loader(
    clips: ClipTable, hparams: HParams, pin_memory: bool, batch_sampler, **options
) -> DataLoader:
    """Make a DataLoader of `Batch`es; `options` are DataLoader's."""
    return DataLoader(
        TextMelDataset(clips, hparams),
        batch_sampler=batch_sampler,
        collate_fn=partial(collate_and_share, n_frames_per_step=hparams.n_frames_per_step),
        num_workers=hparams.num_workers,
        pin_memory=pin_memory,
        worker_init_fn=_start_worker,
        generator=torch.Generator(),  # its own, so that loading never changes the global generator
        **options,
    )
