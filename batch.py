"""Define `Batch`, the padded batch that the DataLoader passes to the model and the losses.

    batch = collate([(text, mel), (text, mel)], n_frames_per_step=2)
    outputs = model(batch.to("cuda"))

Dimensions: B clips, T_in symbols, r frames per decoder step, T decoder steps, T_out = T * r frames.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch

from hparams import HParams


@dataclass(frozen=True)
class Batch:
    """A batch of padded clips. `text` and `mel` are padded with 0, and `gate` is padded with 1.

    A batch is immutable, so `to` and `pin_memory` return new batches.
    """

    text: torch.Tensor  # [B, T_in] int64, symbol ids
    text_lengths: torch.Tensor  # [B] int64
    mel: torch.Tensor  # [B, n_mels, T_out] float32, log-mel
    gate: torch.Tensor  # [B, T] float32, 1 at the last real decoder step and at padding
    mel_lengths: torch.Tensor  # [B] int64, number of real frames
    clip_indices: torch.Tensor | None = None  # [B] int64, indices of the clips in the dataset
    # {label: int64 [B]}. For the label "speaker", the values are the indices of the clips' speakers
    # in hparams.labels. Empty for a single-speaker model.
    labels: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def num_steps(self, frames_per_step: int) -> torch.Tensor:
        """Return the number of decoder steps of each clip, int64 [B]."""
        return -(-self.mel_lengths // frames_per_step)

    def to(self, device: torch.device | str) -> "Batch":
        """Return a copy of the batch with text, mel, gate and labels on `device`.

        The lengths and the clip indices stay on the CPU, where the encoder and error messages need
        them. If the batch is in pinned memory, the copy overlaps with kernels that are already
        queued. Kernels that are queued after this call wait for the copy.
        """
        device = torch.device(device)
        if device.type != "cuda":
            return self._with(lambda tensor: tensor.to(device))
        using = torch.cuda.current_stream(device)
        copying = _copy_stream(device)
        with torch.cuda.stream(copying):
            moved = self._with(lambda tensor: tensor.to(device, non_blocking=True))
        using.wait_stream(copying)
        for tensor in (moved.text, moved.mel, moved.gate, *moved.labels.values()):
            # Without `record_stream`, PyTorch might reuse the memory of a tensor before the kernels
            # have read the tensor.
            tensor.record_stream(using)
        return moved

    def pin_memory(self) -> "Batch":
        """Return a copy of the batch in pinned memory. A DataLoader with pin_memory=True calls this
        method."""
        return self._with(torch.Tensor.pin_memory)

    def _with(self, change: Callable[[torch.Tensor], torch.Tensor]) -> "Batch":
        labels = {label: change(tensor) for label, tensor in self.labels.items()}
        return replace(
            self,
            text=change(self.text),
            mel=change(self.mel),
            gate=change(self.gate),
            labels=labels,
        )


@lru_cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def collate(items: Sequence[tuple[Any, ...]], n_frames_per_step: int = 1) -> Batch:
    """Pad the clips in `items` and join them into a batch, in the same order.

    Args:
        items: one tuple per clip: text [T_in], mel [n_mels, frames] and, optionally, the clip's
            index in the dataset and the clip's labels.
    """
    texts = [item[0] for item in items]
    mels = [item[1] for item in items]
    mel_lengths = torch.tensor([mel.shape[1] for mel in mels])
    num_steps = -(-int(mel_lengths.max()) // n_frames_per_step)
    mel = torch.zeros(len(items), mels[0].shape[0], num_steps * n_frames_per_step)
    for row, item in zip(mel, mels, strict=True):
        row[:, : item.shape[1]] = item
    last_step = (mel_lengths - 1) // n_frames_per_step
    names = items[0][3] if len(items[0]) > 3 else ()
    return Batch(
        text=torch.nn.utils.rnn.pad_sequence(texts, batch_first=True).long(),
        text_lengths=torch.tensor([len(text) for text in texts]),
        mel=mel,
        gate=(torch.arange(num_steps) >= last_step[:, None]).float(),
        mel_lengths=mel_lengths,
        clip_indices=torch.tensor([item[2] for item in items]) if len(items[0]) > 2 else None,
        labels={label: torch.tensor([item[3][label] for item in items]) for label in names},
    )


def synthetic_batch(
    mel_lengths: Iterable[int], text_lengths: Iterable[int], hparams: HParams, seed: int = 0
) -> Batch:
    """Return a batch of random mels and texts.

    The same seed always gives the same batch. If the model has several speakers, all clips
    are assigned to the first speaker.

    Args:
        mel_lengths: numbers of frames [B].
        text_lengths: numbers of symbols [B].
    """
    generator = torch.Generator().manual_seed(seed)
    items = [
        (
            torch.randint(1, hparams.n_symbols, (int(symbols),), generator=generator),
            # Subtract 5, so that the random mels have about the level of speech.
            torch.randn(hparams.n_mel_channels, int(frames), generator=generator) - 5,
        )
        for frames, symbols in zip(mel_lengths, text_lengths, strict=True)
    ]
    batch = collate(items, hparams.n_frames_per_step)
    return replace(batch, labels={x: torch.zeros(len(items)).long() for x in hparams.labels})
