"""Measure how well attention follows the text.

An alignment [T, N] contains the attention weights of T decoder steps over the N symbols of the
text. The attention weights of each decoder step add up to 1. Padding is ignored.
"""

import torch

from loss import SIGMA, off_diagonal, real_weights

# A symbol counts as covered if its attention weight reaches this value in any decoder step.
NOTICED = 0.1


def alignment_sums(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor
) -> torch.Tensor:
    """Return the sums from which focus rate, diagonality and coverage are computed, as a tensor
    [3].

    - The sum of the largest weight of each decoder step. Divided by the number of decoder steps,
      this sum is the focus rate.
    - The sum of all weights, scaled down with their distance from the diagonal. Divided by the
      number of decoder steps, this sum is the diagonality, which is 1 - guided attention loss.
    - The number of symbols that attention covers. Divided by the number of symbols, this number is
      the coverage.
    """
    weights = real_weights(alignments, steps, symbols)
    near = 1 - off_diagonal(alignments, steps, symbols, SIGMA)
    covered = weights.amax(dim=1) >= NOTICED
    return torch.stack([weights.amax(dim=2).sum(), (weights * near).sum(), covered.sum().float()])
