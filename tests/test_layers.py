"""Building blocks: initial weights, masks, dropout, prenet, attention."""

import math

import numpy as np
import pytest
import torch

from layers import Attention, Conv1d, Linear, Prenet, draw_keep_mask, drop, padding_mask

CPU = torch.device("cpu")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# Glorot and Bengio 2010, uniform: gain * sqrt(6 / (fan in + fan out)); gains as in torch's manual.
GAINS = [("linear", 1.0), ("sigmoid", 1.0), ("tanh", 5 / 3), ("relu", math.sqrt(2))]


@pytest.mark.parametrize(("non_linearity", "gain"), GAINS)
def test_weights_begin_xavier_uniform_with_the_gain(non_linearity, gain):
    linear = Linear(300, 200, init_gain=non_linearity).linear_layer.weight
    conv = Conv1d(60, 40, 5, init_gain=non_linearity).conv.weight
    for weight, fans in ((linear, 300 + 200), (conv, (60 + 40) * 5)):
        bound = gain * math.sqrt(6 / fans)
        assert 0.99 * bound < weight.abs().max() <= bound
        assert abs(weight.std() * math.sqrt(3) / bound - 1) < 0.05  # uniform
        assert abs(weight.mean()) < 0.05 * bound


def test_linear_and_convolution_without_bias_have_none():
    assert Linear(3, 2, bias=False).linear_layer.bias is None
    assert Conv1d(3, 2, 5, bias=False).conv.bias is None
    assert Linear(3, 2).linear_layer.bias.shape == Conv1d(3, 2, 5).conv.bias.shape == (2,)


@pytest.mark.parametrize("kernel_size", [1, 3, 5, 31])
def test_a_convolution_keeps_the_length_and_its_centre(kernel_size):
    conv = Conv1d(1, 1, kernel_size, bias=False)
    with torch.no_grad():
        conv.conv.weight.zero_()
        conv.conv.weight[0, 0, kernel_size // 2] = 1.0
    x = torch.randn(2, 1, 40, generator=seeded())
    assert torch.equal(conv(x), x)


def test_the_padding_mask_is_true_beyond_each_length():
    mask = padding_mask(torch.tensor([3, 1, 4]), 4, CPU)
    assert mask.dtype == torch.bool
    assert mask.tolist() == [
        [False, False, False, True],
        [False, True, True, True],
        [False, False, False, False],
    ]
    assert padding_mask(torch.tensor([2]), 5, CPU).tolist() == [[False, False, True, True, True]]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.75])
def test_dropout_keeps_the_expectation(p):
    x = torch.full((100_000,), 2.0)
    keep = draw_keep_mask(x.shape, p, CPU, seeded())
    dropped = drop(x, keep, p)
    assert torch.equal(dropped == 0, ~keep)
    assert torch.allclose(dropped[keep], torch.tensor(2.0 / (1 - p)))
    assert abs(keep.float().mean() - (1 - p)) < 0.01  # six standard deviations and more
    assert abs(dropped.mean() - 2.0) < 0.05


def test_no_mask_is_no_dropout():
    x = torch.randn(5, generator=seeded())
    assert drop(x, None, 0.5) is x
    assert draw_keep_mask((5,), 0, CPU) is None


def test_a_generator_alone_decides_its_masks():
    masks = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        masks.append(draw_keep_mask((1000,), 0.5, CPU, seeded(7)))
        assert torch.equal(torch.get_rng_state(), state)  # and the global one is left alone
    assert torch.equal(*masks)
    assert not torch.equal(masks[0], draw_keep_mask((1000,), 0.5, CPU, seeded(8)))


def test_dropout_leaves_the_type_alone():
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        assert drop(torch.ones(4, dtype=dtype), torch.ones(4).bool(), 0.5).dtype == dtype


def test_the_prenet_is_two_relu_layers_each_with_its_mask():
    prenet = Prenet(6, 4, 0.5)
    x = torch.randn(3, 6, generator=seeded())
    keep = tuple(draw_keep_mask((3, 4), 0.5, CPU, seeded(i)) for i in (1, 2))
    expected = x.numpy()
    for layer, layer_keep in zip(prenet.layers, keep, strict=True):
        assert layer.linear_layer.bias is None
        weight = layer.linear_layer.weight.detach().numpy()
        expected = np.maximum(expected @ weight.T, 0) * layer_keep.numpy() * 2
    for training in (True, False):  # dropout stays on when the model speaks
        prenet.train(training)
        np.testing.assert_allclose(prenet(x, keep).detach().numpy(), expected, atol=1e-6)
    np.testing.assert_array_equal(prenet(x, keep).detach().numpy() != 0, expected != 0)


def test_attention_looks_at_symbols_only_and_weights_sum_to_one():
    attention = Attention(5, 6, 4, 3, 7)
    memory, past = torch.randn(3, 9, 6, generator=seeded()), torch.rand(3, 2, 9)
    lengths = torch.tensor([9, 4, 1])
    context, alignment = attention(
        torch.randn(3, 5, generator=seeded(1)),
        memory,
        attention.memory_layer(memory),
        past,
        padding_mask(lengths, 9, CPU),
    )
    assert torch.allclose(alignment.sum(dim=1), torch.ones(3))
    for row, length in enumerate(lengths):
        assert (alignment[row, :length] > 0).all()
        assert (alignment[row, length:] == 0).all()
        weighted = sum(alignment[row, i] * memory[row, i] for i in range(length))
        assert torch.allclose(context[row], weighted, atol=1e-6)
    assert torch.allclose(context[2], memory[2, 0])  # a text of one symbol has one place to look
