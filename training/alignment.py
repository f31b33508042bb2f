"""Alignments in numbers: whether attention follows the text.

An alignment [T, N] holds the attention weights of every decoder step over the symbols of the text,
which add up to 1. Padding counts nowhere here.
"""

import torch

from loss import SIGMA, off_diagonal, real_weights

NOTICED = 0.1  # a symbol is covered if some step gives it at least this weight


def alignment_sums(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor
) -> torch.Tensor:
    """[3] sums of a batch: the largest weight and the share near the diagonal of real steps, and
    the number of covered symbols. Divided by the numbers of steps and symbols they are sharpness,
    diagonality (1 minus the guided attention loss) and coverage."""
    weights = real_weights(alignments, steps, symbols)
    near = 1 - off_diagonal(alignments, steps, symbols, SIGMA)
    covered = weights.amax(dim=1) >= NOTICED
    return torch.stack([weights.amax(dim=2).sum(), (weights * near).sum(), covered.sum().float()])
