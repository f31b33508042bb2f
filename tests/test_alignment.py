"""Compare the guided attention loss and the sums in training/alignment.py with plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layers import padding_mask
from loss import SIGMA, guided_attention_loss
from training.alignment import NOTICED, alignment_sums

CLIPS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=4)


def alignments_of(clips, seed=0, beyond=0.0):
    """Return random alignments [B, T, N] for clips with these numbers of (decoder steps, symbols).

    The padding has the value `beyond`.
    """
    steps, symbols = (torch.tensor(counts) for counts in zip(*clips, strict=True))
    weights = torch.rand(
        (len(clips), int(steps.max()), int(symbols.max())),
        generator=torch.Generator().manual_seed(seed),
        dtype=torch.float64,
    )
    weights = weights.masked_fill(
        padding_mask(symbols, weights.shape[2], torch.device("cpu"))[:, None], 0.0
    )
    weights = weights / weights.sum(dim=2, keepdim=True)
    outside = padding_mask(steps, weights.shape[1], torch.device("cpu"))[:, :, None]
    return weights.masked_fill(outside, beyond), steps, symbols


def weight(t, n, num_steps, num_symbols, sigma):
    """Return the attention penalty of a symbol at a decoder step (Tachibana et al., 2018, section
    4.1)."""
    return 1 - math.exp(-((n / num_symbols - t / num_steps) ** 2) / (2 * sigma**2))


@given(CLIPS, st.sampled_from([0.1, 0.2, 0.5]), st.integers(0, 99))
def test_guided_attention_loss_equals_the_formula_in_the_paper(clips, sigma, seed):
    alignments, steps, symbols = alignments_of(clips, seed, beyond=7.0)
    expected = sum(
        float(alignments[b, t, n]) * weight(t, n, num_steps, num_symbols, sigma)
        for b, (num_steps, num_symbols) in enumerate(clips)
        for t in range(num_steps)
        for n in range(num_symbols)
    ) / sum(num_steps for num_steps, _ in clips)
    loss = guided_attention_loss(alignments, steps, symbols, sigma)
    assert float(loss) == pytest.approx(expected, rel=1e-5, abs=1e-7)


def test_guided_attention_loss_is_zero_when_attention_is_diagonal():
    steps = symbols = torch.tensor([40])
    straight = torch.eye(40)[None]
    assert float(guided_attention_loss(straight, steps, symbols)) == 0
    assert 0.6 < float(guided_attention_loss(straight.flip(2), steps, symbols)) < 1


@given(CLIPS, st.integers(0, 99))
def test_alignment_sums_equal_sums_computed_with_plain_loops(clips, seed):
    alignments, steps, symbols = alignments_of(clips, seed, beyond=9.0)
    sharpest = diagonal = covered = 0
    for b, (num_steps, num_symbols) in enumerate(clips):
        real = alignments[b, :num_steps, :num_symbols].tolist()
        sharpest += sum(max(row) for row in real)
        diagonal += sum(
            value * (1 - weight(t, n, num_steps, num_symbols, SIGMA))
            for t, row in enumerate(real)
            for n, value in enumerate(row)
        )
        covered += sum(max(column) >= NOTICED for column in zip(*real, strict=True))
    expected = pytest.approx([sharpest, diagonal, covered], rel=1e-5)
    assert alignment_sums(alignments, steps, symbols).tolist() == expected


def test_guided_attention_gradient_equals_finite_differences():
    alignments, steps, symbols = alignments_of([(4, 3), (2, 5), (1, 1)])
    loss = lambda weights: guided_attention_loss(weights, steps, symbols)  # noqa: E731
    assert torch.autograd.gradcheck(loss, alignments.requires_grad_())


def test_alignment_sums_use_float32_when_alignments_have_half_precision():
    alignments, steps, symbols = alignments_of([(9, 5), (4, 3)])
    for dtype in (torch.bfloat16, torch.float16):
        low = alignments.to(dtype)
        assert guided_attention_loss(low, steps, symbols).dtype == torch.float32
        exact = guided_attention_loss(low.double(), steps, symbols)
        assert float(guided_attention_loss(low, steps, symbols)) == pytest.approx(
            float(exact), rel=1e-5
        )
