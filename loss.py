"""Compute the losses: mel error, stop-token error and the guided attention loss.

    losses = Tacotron2Loss(gate_positive_weight=5)(model(batch), batch)
    losses.total.backward()

To add a term to the training loss:
- Write a function of (outputs, batch) in this file, such as `guided_attention_loss`.
- Add the term and its weight in `Trainer.losses_of` (training/trainer.py). If the weight changes
  during a run, add the weight to `Schedule` (training/optimizer.py).
- To log the new term, add it to `LossTerms` (training/trainer.py) and to the sums of `LoopState`
  (training/checkpoint.py).
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from batch import Batch
from layers import padding_mask, without_waiting
from model import Outputs


class Losses(NamedTuple):
    """The losses of a batch, as scalars.

    The first four losses are means that include padding, as in NVIDIA's implementation. All other
    losses are masked losses: means over real frames, or over real decoder steps for the stop token.
    """

    total: torch.Tensor
    mel: torch.Tensor
    mel_postnet: torch.Tensor
    gate: torch.Tensor
    total_unpadded: torch.Tensor  # masked loss: the sum of the other three masked losses
    mel_unpadded: torch.Tensor
    mel_postnet_unpadded: torch.Tensor
    gate_unpadded: torch.Tensor


class Tacotron2Loss(nn.Module):
    """Compute the mel error before and after the postnet, and the stop-token error.

    The mel error is a mean squared error. The stop-token ("gate") error is a binary cross-entropy.

    With gate_positive_weight=1, the padded loss is the loss of NVIDIA's implementation. Batches
    with more padding have a smaller padded loss, because padded frames count in the mean but add no error. Use the padded loss to
    compare results with published results. Use the masked loss to compare batching strategies.

    Args:
        gate_positive_weight: weight of the stop-token error where the target is 1, which is at the
            last decoder step of a clip and in the padding. 1: unweighted. A weight above 1 is
            useful, because a clip has only one positive example among hundreds of decoder steps.
    """

    def __init__(self, gate_positive_weight: float = 1.0):
        super().__init__()
        self.gate_positive_weight = gate_positive_weight

    def forward(self, outputs: Outputs, batch: Batch) -> Losses:
        num_mels, num_frames = batch.mel.shape[1:]
        frames_per_step = num_frames // outputs.gate.shape[1]
        frame_mask, step_mask = _padding_masks(outputs, batch)
        real_values = int(batch.mel_lengths.sum()) * num_mels
        real_steps = int(batch.num_steps(frames_per_step).sum())
        mel, mel_postnet, gate = _at_least_float32(outputs)
        padded = []
        unpadded = []
        for output in (mel, mel_postnet):
            error = F.mse_loss(output, batch.mel, reduction="none")
            padded.append(error.mean())
            unpadded.append(error.masked_fill(frame_mask.unsqueeze(1), 0.0).sum() / real_values)
        error = F.binary_cross_entropy_with_logits(gate, batch.gate, reduction="none")
        error = error * (1 + (self.gate_positive_weight - 1) * batch.gate)
        padded.append(error.mean())
        unpadded.append(error.masked_fill(step_mask, 0.0).sum() / real_steps)
        return Losses._make([sum(padded), *padded, sum(unpadded), *unpadded])


def sums_of_clips(outputs: Outputs, batch: Batch) -> torch.Tensor:
    """Return the summed mel error and the summed stop-token error of each clip, float32 [2, B].

    The first row contains the squared mel errors before and after the postnet, averaged over bands
    and summed over the clip's real frames. The second row contains the unweighted cross-entropy of
    the stop token, summed over the clip's real decoder steps.

    The masked loss of a clip is (mel error / number of frames) + (stop-token error / number of
    decoder steps). To compute the masked loss of several clips, first sum the errors, the numbers
    of frames and the numbers of decoder steps over the clips.
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


def _padding_masks(outputs: Outputs, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return bool masks [B, T_out] and [B, T] that are True beyond the end of each clip."""
    num_frames = batch.mel.shape[2]
    frame_mask = padding_mask(batch.mel_lengths, num_frames, outputs.mel.device)
    # A decoder step is padding if its first frame is beyond the end of the clip.
    step_mask = frame_mask[:, :: num_frames // outputs.gate.shape[1]]
    return frame_mask, step_mask


def _at_least_float32(outputs: Outputs) -> list[torch.Tensor]:
    """Return `mel`, `mel_postnet` and `gate`, in float32 or a higher precision.

    Under autocast, the outputs may be in half precision, which is too coarse for sums.
    """
    return [x.to(torch.promote_types(x.dtype, torch.float32)) for x in outputs[:3]]


# ---------------------------------------------------------------------------- attention

SIGMA = 0.2  # width of the diagonal, relative to the length of the text


def off_diagonal(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor, sigma: float
) -> torch.Tensor:
    """Return each attention weight's distance from the diagonal, float32 [B, T, N].

    The distance W is 0 on the diagonal and near 1 far from the diagonal:

        W[t, n] = 1 - exp(-(n / N - t / T)^2 / (2 g^2))

    T and N are the numbers of decoder steps and symbols of the clip. t and n are counted from 0. g
    is `sigma`. Source: Tachibana et al., "Efficiently trainable text-to-speech system based on deep
    convolutional networks with guided attention", 2018, section 4.1.

    Args:
        alignments: tensor [B, T, N], of which only the shape and the device are used.
        steps: number of decoder steps of each clip, int64 [B] on the CPU.
        symbols: number of symbols of each clip, int64 [B] on the CPU.
    """
    device = alignments.device
    _, max_steps, max_symbols = alignments.shape
    t = torch.arange(max_steps, device=device) / without_waiting(steps, device)[:, None]
    n = torch.arange(max_symbols, device=device) / without_waiting(symbols, device)[:, None]
    return 1 - torch.exp(-((n[:, None, :] - t[:, :, None]) ** 2) / (2 * sigma**2))


def real_weights(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor
) -> torch.Tensor:
    """Return the alignments [B, T, N] in float32 or a higher precision, with 0 beyond the end of
    each clip."""
    num_steps, num_symbols = alignments.shape[1:]
    beyond_steps = padding_mask(steps, num_steps, alignments.device)[:, :, None]
    beyond = beyond_steps | padding_mask(symbols, num_symbols, alignments.device)[:, None, :]
    alignments = alignments.to(torch.promote_types(alignments.dtype, torch.float32))
    return alignments.masked_fill(beyond, 0.0)


def guided_attention_loss(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor, sigma: float = SIGMA
) -> torch.Tensor:
    """Return a penalty from 0 to 1 for attention that is far from the diagonal.

    The penalty is the mean of sum_n A[t, n] W[t, n] over the real decoder steps t. A is
    `alignments`. The docstring of `off_diagonal` defines W and the arguments.
    """
    weights = off_diagonal(alignments, steps, symbols, sigma)
    return (real_weights(alignments, steps, symbols) * weights).sum() / int(steps.sum())
