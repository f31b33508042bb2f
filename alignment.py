"""Alignments in numbers: whether attention follows the text, and a loss that helps it to.

An alignment [T, N] holds the attention weights of every decoder step over the symbols of the text,
which add up to 1. Padding counts nowhere here.
"""

import torch

from layers import padding_mask, without_waiting

SIGMA = 0.2  # width of the diagonal, as a fraction of the text
NOTICED = 0.1  # a symbol is covered if some step gives it at least this weight


def off_diagonal(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor, sigma: float
) -> torch.Tensor:
    """float32 [B, T, N]: how far every step and symbol is from the diagonal, 0 on it, near 1 far.

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
    """The weights, float32 at least, with 0 beyond the steps and symbols of each clip."""
    num_steps, num_symbols = alignments.shape[1:]
    beyond_steps = padding_mask(steps, num_steps, alignments.device)[:, :, None]
    beyond = beyond_steps | padding_mask(symbols, num_symbols, alignments.device)[:, None, :]
    alignments = alignments.to(torch.promote_types(alignments.dtype, torch.float32))
    return alignments.masked_fill(beyond, 0.0)


def guided_attention_loss(
    alignments: torch.Tensor, steps: torch.Tensor, symbols: torch.Tensor, sigma: float = SIGMA
) -> torch.Tensor:
    """Attention away from the diagonal: the mean over real steps of sum_n A[t, n] W[t, n], from 0
    to 1. `off_diagonal` has W, the source and the arguments; alignments: [B, T, N].
    """
    weights = off_diagonal(alignments, steps, symbols, sigma)
    return (real_weights(alignments, steps, symbols) * weights).sum() / int(steps.sum())


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
