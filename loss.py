"""The losses: errors of mel and gate, and attention away from the diagonal.

losses = Tacotron2Loss(gate_positive_weight=5)(model(batch), batch)
losses.total.backward()
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from layers import padding_mask, without_waiting
from model import Outputs


class Losses(NamedTuple):
    """Scalars. The first four are the reference's means over padding too, the others are sums
    over real frames (gate: real steps) divided by their number."""

    total: torch.Tensor
    mel: torch.Tensor
    mel_postnet: torch.Tensor
    gate: torch.Tensor
    total_unpadded: torch.Tensor
    mel_unpadded: torch.Tensor
    mel_postnet_unpadded: torch.Tensor
    gate_unpadded: torch.Tensor


class Tacotron2Loss(nn.Module):
    """MSE before and after the postnet, and binary cross-entropy of the gate.

    The padded mean falls as padding grows, because masked padding costs nothing but is counted. Use
    it to compare with the paper, and the unpadded mean to compare batching strategies.

    `gate_positive_weight` multiplies the gate's error at a clip's last step, the one positive among
    hundreds."""

    def __init__(self, gate_positive_weight: float = 1.0):
        super().__init__()
        self.gate_positive_weight = gate_positive_weight

    def forward(self, outputs: Outputs, batch) -> Losses:
        """`batch` is the `data_utils.Batch` that `outputs` were made from."""
        num_mels, num_frames = batch.mel.shape[1:]
        frames_per_step = num_frames // outputs.gate.shape[1]
        frame_mask, step_mask = _padding_masks(outputs, batch)
        real_values = int(batch.mel_lengths.sum()) * num_mels
        real_steps = int((-(-batch.mel_lengths // frames_per_step)).sum())
        mel, mel_postnet, gate = _at_least_float32(outputs)
        padded, unpadded = [], []
        for output in (mel, mel_postnet):
            error = F.mse_loss(output, batch.mel, reduction="none")
            padded.append(error.mean())
            unpadded.append(error.masked_fill(frame_mask.unsqueeze(1), 0.0).sum() / real_values)
        error = F.binary_cross_entropy_with_logits(gate, batch.gate, reduction="none")
        error = error * (1 + (self.gate_positive_weight - 1) * batch.gate)
        padded.append(error.mean())
        unpadded.append(error.masked_fill(step_mask, 0.0).sum() / real_steps)
        return Losses._make([sum(padded), *padded, sum(unpadded), *unpadded])


def sums_of_clips(outputs: Outputs, batch) -> torch.Tensor:
    """Return float32 [2, B], of each clip: the squared errors of the mel before and after the
    postnet, means over bands, summed over its real frames; the gate's cross-entropy, without
    weights, summed over its real steps. Divided by the numbers of frames and steps they add up to
    the unpadded loss of the clip alone, or of several clips if both are summed before.
    """
    frame_mask, step_mask = _padding_masks(outputs, batch)
    mel, mel_postnet, gate = _at_least_float32(outputs)
    error = F.mse_loss(mel, batch.mel, reduction="none")
    error = error + F.mse_loss(mel_postnet, batch.mel, reduction="none")
    gate_error = F.binary_cross_entropy_with_logits(gate, batch.gate, reduction="none")
    return torch.stack(
        [
            error.mean(dim=1).masked_fill(frame_mask, 0.0).sum(dim=1),
            gate_error.masked_fill(step_mask, 0.0).sum(dim=1),
        ]
    )


def _padding_masks(outputs: Outputs, batch) -> tuple[torch.Tensor, torch.Tensor]:
    """bool [B, T_out] and [B, T_out / r], True beyond the end of a clip."""
    num_frames = batch.mel.shape[2]
    frame_mask = padding_mask(batch.mel_lengths, num_frames, outputs.mel.device)
    # A step is beyond the end if its first frame is.
    return frame_mask, frame_mask[:, :: num_frames // outputs.gate.shape[1]]


def _at_least_float32(outputs: Outputs) -> list[torch.Tensor]:
    """Mel, mel after the postnet and gate. Under autocast they have half precision, of which a sum
    needs more."""
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in outputs[:3]]


# ---------------------------------------------------------------------------- attention

SIGMA = 0.2  # width of the diagonal, as a fraction of the text


def off_diagonal(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor, sigma: float
) -> torch.Tensor:
    """Return float32 [B, T, N], the distance of every step and symbol from the diagonal: 0 on it,
    near 1 far away.

    W[t, n] = 1 - exp(-(n / N - t / T)^2 / (2 g^2)) with a clip's own T steps and N symbols, counted
    from 0, and g = `sigma`: Tachibana et al., "Efficiently trainable text-to-speech system based on
    deep convolutional networks with guided attention", 2018, section 4.1.

    Args:
        alignments: [B, T, N]. steps, symbols: int64 [B] of each clip, on the CPU.
    """
    t, n = (
        torch.arange(size, device=alignments.device)
        / without_waiting(counts, alignments.device)[:, None]
        for size, counts in zip(alignments.shape[1:], (steps, symbols), strict=True)
    )
    return 1 - torch.exp(-((n[:, None, :] - t[:, :, None]) ** 2) / (2 * sigma**2))


def real_weights(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor
) -> torch.Tensor:
    """Alignments [B, steps, symbols], at least float32, set to 0 beyond each clip's own."""
    num_steps, num_symbols = alignments.shape[1:]
    beyond_steps = padding_mask(steps, num_steps, alignments.device)[:, :, None]
    beyond = beyond_steps | padding_mask(symbols, num_symbols, alignments.device)[:, None, :]
    alignments = alignments.to(torch.promote_types(alignments.dtype, torch.float32))
    return alignments.masked_fill(beyond, 0.0)


def guided_attention_loss(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor, sigma: float = SIGMA
) -> torch.Tensor:
    """Penalise attention away from the diagonal: the mean over real steps of sum_n A[t, n] W[t, n],
    from 0 to 1. `off_diagonal` gives W, and has the source and the arguments.
    """
    weights = off_diagonal(alignments, steps, symbols, sigma)
    return (real_weights(alignments, steps, symbols) * weights).sum() / int(steps.sum())
