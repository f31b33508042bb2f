"""Define the dataset of the clips in a filelist, and the DataLoader of padded batches.

loader = make_loader(clips, hparams, sampler, pin_memory=True)
for batch in loader:
    ...
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from audio import log_mel_spectrogram, read_audio
from batch import Batch, collate
from corpus.cache import ClipTable
from corpus.filelist import read_mel
from hparams import HParams
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import Identity

HOW_TO_CHANGE_CLIPS = (
    "Fix the clip, or remove its line from the filelist and add --resume --new-clips"
)


class TextMelDataset(Dataset):
    """A map-style PyTorch dataset of the clips in a filelist.

    Item i is (symbol ids int64 [T_in], log-mel float32 [n_mels, frames], i, labels). `labels` maps
    each label to an index in hparams.labels: for the label "speaker", the index of the clip's
    speaker.

    Raises:
        UserError: if a clip cannot be read, or if its file has changed since the filelist was read.
    """

    def __init__(self, clips: ClipTable, hparams: HParams):
        self.clips = clips
        self.hparams = hparams
        # For each label, such as "speaker": a list that contains, for each name in the filelist,
        # the index of the name in hparams.labels.
        self._indices: dict[str, list[int]] = {}
        for label, names in hparams.labels.items():
            index_of = {name: index for index, name in enumerate(names)}
            self._indices[label] = [index_of[name] for name in clips.names[label]]

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        clip = self.clips[index]
        name = f"{clip.where}: {clip.path}"
        try:
            mel = self._mel(clip.path)
        except UserError as error:
            raise UserError(f"{name}: {error}. {HOW_TO_CHANGE_CLIPS}") from None
        # Compare only the size and the modification time of the file. Do not compare the status
        # change time, because a backup or a change of permissions also changes this time.
        is_same_file = Identity.of(clip.path)[:2] == clip.identity[:2]
        if mel.shape[1] != clip.num_frames or not is_same_file:
            raise UserError(
                f"{name}: the file has changed since the filelist was read (now {mel.shape[1]} "
                f"frames, previously {clip.num_frames}). Restore the old file and add --resume, or "
                "prepare the filelist again and add --resume --new-clips"
            )
        labels = {
            label: indices[self.clips.numbers[label][index]]
            for label, indices in self._indices.items()
        }
        return torch.tensor(clip.symbols), mel, index, labels

    def _mel(self, path: str) -> torch.Tensor:
        if self.hparams.load_mel_from_disk:
            return torch.from_numpy(read_mel(path, self.hparams))
        # Use one thread, as DataLoader workers do. With several threads, matrix products may be
        # rounded differently, and the results of a run must not depend on num_workers.
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return log_mel_spectrogram(read_audio(path, self.hparams), self.hparams)
        finally:
            torch.set_num_threads(threads)


def collate_and_share(items: Sequence[tuple[Any, ...]], n_frames_per_step: int) -> Batch:
    """Run `collate`. In a DataLoader worker, also move the batch to shared memory.

    By default, a thread of PyTorch moves the batch to shared memory. This thread only prints
    errors, so the DataLoader would hang after an error.

    Raises:
        UserError: if shared memory is full.
    """
    batch = collate(items, n_frames_per_step)
    if torch.utils.data.get_worker_info() is None:
        return batch
    try:
        for tensor in (*vars(batch).values(), *batch.labels.values()):
            if torch.is_tensor(tensor):
                tensor.share_memory_()
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise UserError(
            f"not enough shared memory for a batch ({reason}). Free space in /dev/shm or make it "
            "larger (docker run --shm-size), or set num_workers=0"
        ) from None
    return batch


def _start_worker(_worker_id: int) -> None:
    """Make a DataLoader worker ignore stop signals that do not come from its parent process.

    Terminals (SIGINT, SIGHUP) and job schedulers (SIGTERM) send their signals to every process. A
    worker must continue until its parent exits or sends SIGTERM.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None  # DataLoader workers always have a parent process

    def end_when_parent_says() -> None:
        while signal.sigwaitinfo({signal.SIGTERM}).si_pid != parent.pid:
            pass
        os._exit(0)

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    # Without this call, a signal to a forked worker would also be written to the main process's
    # wakeup socket.
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # macOS lacks sigwaitinfo. Therefore a worker on macOS exits after any SIGTERM.
    if hasattr(signal, "sigwaitinfo"):
        # Block SIGTERM in the current thread and in all threads that start later, so that only the
        # thread in `sigwaitinfo` receives SIGTERM.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        threading.Thread(target=end_when_parent_says, daemon=True).start()
    threading.Thread(target=end_with_parent, daemon=True).start()


def make_loader(
    clips: ClipTable,
    hparams: HParams,
    batch_sampler: Iterable[list[Any]],
    *,
    pin_memory: bool,
) -> DataLoader[Any]:
    """Return a DataLoader that yields a `Batch` for each batch of `batch_sampler`, in order.

    DataLoader workers stay alive between epochs.

    Args:
        pin_memory: whether to copy batches to pinned memory, from which copies to a GPU are faster.
    """
    return DataLoader(
        TextMelDataset(clips, hparams),
        batch_sampler=batch_sampler,
        collate_fn=partial(collate_and_share, n_frames_per_step=hparams.n_frames_per_step),
        num_workers=hparams.num_workers,
        pin_memory=pin_memory,
        persistent_workers=hparams.num_workers > 0,
        worker_init_fn=_start_worker,
        # Give the DataLoader its own generator, so that loading never changes the global random
        # state.
        generator=torch.Generator(),
    )
