"""Test batch norm, masks, dropout, and the gradient through previous attention weights."""

import math

import pytest
import torch
from test_model import seeded

from hparams import create_hparams
from layers import (
    BatchNorm,
    LocationSensitiveAttention,
    draw_keep_mask,
    dropout,
    packing,
    padding_mask,
)

CPU = torch.device("cpu")


def used_batch_norm() -> BatchNorm:
    norm = BatchNorm(3)
    norm.weight.data.uniform_(0.5, 2, generator=seeded(1))
    norm.bias.data.uniform_(-1, 1, generator=seeded(2))
    norm(torch.randn(4, 3, 5, generator=seeded(3)) + 1)  # this call updates the running statistics
    return norm


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_results_equal_torch_results_when_channels_have_several_values(training):
    ours, torchs = used_batch_norm().train(training), torch.nn.BatchNorm1d(3).train(training)
    torchs.load_state_dict(ours.state_dict())
    for shape in ((2, 3, 1), (1, 3, 2), (4, 3, 7)):
        x = torch.randn(shape, generator=seeded())
        assert torch.equal(ours(x), torchs(x))
    for name, value in ours.state_dict().items():
        assert torch.equal(value, torchs.state_dict()[name])


def test_batch_norm_uses_running_statistics_when_channels_have_one_value():
    norm = used_batch_norm()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = torch.randn(1, 3, 1, generator=seeded(), requires_grad=True)
    y = norm(x)
    with torch.no_grad():
        by_hand = (x[0, :, 0] - norm.running_mean) / (norm.running_var + 1e-5).sqrt()
        by_hand = by_hand * norm.weight + norm.bias
    torch.testing.assert_close(y[0, :, 0], by_hand)
    y.sum().backward()
    assert all((gradient != 0).all() for gradient in (x.grad, norm.weight.grad, norm.bias.grad))
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


@pytest.mark.parametrize("lengths", [[3], [1, 4, 2, 4, 3]])
def test_packed_sequences_equal_torch_packed_sequences(lengths):
    lengths, width = torch.tensor(lengths), 7
    x = torch.randn(len(lengths), width, 3, generator=seeded())
    places, batch_sizes = packing(lengths, width)
    packed = torch.nn.utils.rnn.pack_padded_sequence(
        x, lengths, batch_first=True, enforce_sorted=False
    )
    assert batch_sizes.tolist() == packed.batch_sizes.tolist()
    mine, theirs = x.flatten(0, 1)[places], packed.data
    for rows in batch_sizes.cumsum(0).tolist():  # clips of equal length may be in any order
        assert torch.equal(mine[:rows].sort(dim=0)[0], theirs[:rows].sort(dim=0)[0])
    first = places[: len(lengths)] // width  # the order of the clips is the same in every time step
    steps = places.split(batch_sizes.tolist())
    for t, step in enumerate(steps):
        assert torch.equal(step, first[: len(step)] * width + t)


@pytest.mark.parametrize("lengths", [[0, 3], [4, 5]])
def test_packing_raises_when_a_length_is_out_of_range(lengths):
    with pytest.raises(ValueError, match="from 1 to 4"):
        packing(torch.tensor(lengths), 4)


@pytest.mark.parametrize("p", [1e-9, 0.1, 0.5, 1 - 1e-9])
def test_fraction_of_dropped_values_equals_the_dropout_probability(p):
    """The test draws four million values. The tolerance is six standard deviations, plus the
    rounding of the probability to 1/65,536."""
    count = 2**22
    kept = draw_keep_mask((count,), p, CPU, seeded()).sum().item() / count
    assert abs(kept - (1 - p)) < 6 * math.sqrt(p * (1 - p) / count) + 2**-16 + 1e-6


def test_values_of_a_dropout_mask_are_independent():
    """Each random 64-bit word supplies four consecutive values of the mask, so the test checks that
    values 1, 2, 3, 4 and 8 positions apart are uncorrelated."""
    keep = draw_keep_mask((1_000_003,), 0.5, CPU, seeded()).double() - 0.5
    for distance in (1, 2, 3, 4, 8):
        assert abs((keep[:-distance] * keep[distance:]).mean()) < 6 * 0.25 / 1000
    for place in range(4):
        assert abs(keep[place::4].mean()) < 6 * 0.5 / 500


def test_dropout_scales_the_values_that_it_keeps():
    x = torch.randn(100, 200, generator=seeded(), requires_grad=True)
    torch.manual_seed(0)
    dropped = dropout(x, 0.25, training=True)
    kept = dropped != 0
    assert abs(kept.float().mean() - 0.75) < 0.02
    assert torch.allclose(dropped[kept], x[kept] / 0.75)
    dropped.sum().backward()
    assert torch.allclose(x.grad, kept / 0.75)
    torch.manual_seed(0)
    assert torch.equal(dropout(x, 0.25, training=True), dropped)
    assert dropout(x, 0.25, training=False) is x


def test_dropout_masks_depend_only_on_the_generator():
    masks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        masks.append(draw_keep_mask((1000,), 0.5, CPU, seeded(7)))
        assert torch.equal(torch.get_rng_state(), state)  # the global random state must not change
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], draw_keep_mask((1000,), 0.5, CPU, seeded(8)))


def test_gradient_through_previous_alignments_is_zero_when_this_gradient_is_turned_off():
    """The alignment, the context and all other gradients do not change."""
    found = []
    for location_gradient in (True, False):
        torch.manual_seed(0)
        h = create_hparams(
            "attention_rnn_dim=5,encoder_embedding_dim=6,attention_dim=4,"
            "attention_location_n_filters=3,attention_location_kernel_size=7,"
            f"attention_location_gradient={location_gradient}"
        )
        attention = LocationSensitiveAttention(h)
        memory, past = torch.randn(3, 9, 6), torch.rand(3, 2, 9, requires_grad=True)
        query = torch.randn(3, 5, requires_grad=True)
        mask = padding_mask(torch.tensor([9, 4, 1]), 9, CPU)
        outputs = attention(query, memory, attention.memory_layer(memory), past, mask)
        torch.cat(outputs, dim=1).square().sum().backward()
        gradients = [p.grad for p in (query, *attention.parameters())]
        found.append([output.detach() for output in outputs] + gradients)
        assert (past.grad is not None and bool(past.grad.any())) == location_gradient
    for whole, cut in zip(*found, strict=True):
        assert torch.equal(whole, cut)
        assert cut.any()
