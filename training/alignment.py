"""Measure alignments: whether attention follows the text.

An alignment [T, N] holds the attention weights of every decoder step over the symbols of the text;
each step's weights add up to 1. Padding is ignored throughout.
"""

import torch

from loss import SIGMA, off_diagonal, real_weights

NOTICED = 0.1  # a symbol is covered if some step gives it at least this weight


def alignment_sums(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor
) -> torch.Tensor:
    """Return three sums over a batch [3]: each real step's largest weight, each real step's weight
    near the diagonal, and the number of covered symbols. Divided by the number of steps, steps and
    symbols they are sharpness, diagonality (1 minus the guided attention loss) and coverage."""
    weights = real_weights(alignments, steps, symbols)
    near = 1 - off_diagonal(alignments, steps, symbols, SIGMA)
    covered = weights.amax(dim=1) >= NOTICED
    return torch.stack([weights.amax(dim=2).sum(), (weights * near).sum(), covered.sum().float()])
