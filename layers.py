"""Define the building blocks of Tacotron 2: layers, prenet, attention, masks and dropout.

Parameters have the same names as in NVIDIA's implementation. Dimensions: B clips, T_in symbols, T
decoder steps.

To use a different attention, add its class to this file and return an instance from
`make_attention`.
"""

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from hparams import HParams

Gain = Literal["linear", "sigmoid", "tanh", "relu"]  # non-linearity that follows a linear layer


class Linear(nn.Module):
    """Linear layer. The initial weights are Xavier-uniform, for the non-linearity `gain`."""

    def __init__(self, in_dim: int, out_dim: int, bias: bool = True, gain: Gain = "linear"):
        super().__init__()
        self.linear_layer = nn.Linear(in_dim, out_dim, bias=bias)
        nn.init.xavier_uniform_(self.linear_layer.weight, nn.init.calculate_gain(gain))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [..., in_dim] -> [..., out_dim]
        return self.linear_layer(x)


class Conv1d(nn.Module):
    """Convolution with an odd kernel size. The output is as long as the input.

    The initial weights are Xavier-uniform.
    """

    def __init__(
        self, in_dim: int, out_dim: int, kernel_size: int, bias: bool = True, gain: Gain = "linear"
    ):
        super().__init__()
        self.conv = nn.Conv1d(in_dim, out_dim, kernel_size, padding=kernel_size // 2, bias=bias)
        nn.init.xavier_uniform_(self.conv.weight, nn.init.calculate_gain(gain))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, in_dim, T] -> [B, out_dim, T]
        return self.conv(x)


class BatchNorm(nn.BatchNorm1d):
    """Batch norm that accepts training batches with a single value per channel.

    A batch of one clip with one symbol or frame has no variance. For a batch without variance, the
    layer uses its running statistics and does not update them.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, dim, T] -> [B, dim, T]
        if x.shape[0] * x.shape[2] > 1:
            return super().forward(x)
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
        )


def without_waiting(x: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy `x` to `device` without waiting for the GPU. Copies from the CPU use pinned memory."""
    if device.type == "cuda" and x.device.type == "cpu":
        x = x.pin_memory()
    return x.to(device, non_blocking=True)


def padding_mask(lengths: torch.Tensor, max_length: int, device: torch.device) -> torch.Tensor:
    """Return a bool mask [B, max_length] that is True beyond the length of each sequence."""
    return torch.arange(max_length, device=device) >= without_waiting(lengths, device)[:, None]


def packing(lengths: torch.Tensor, max_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row indices and the `batch_sizes` for packing a padded batch into a
    PackedSequence.

    The function flattens the batch to B * max_length rows, and returns the indices of rows in this
    flattened batch, sorted by time step. Within a time step, rows of longer sequences come first.

    Raises:
        ValueError: if a length is less than 1 or greater than max_length.
    """
    _check_lengths(lengths, max_length)
    order = torch.argsort(lengths, descending=True, stable=True)
    steps = torch.arange(int(lengths.max())).unsqueeze(1)
    real = steps < lengths[order]  # [steps, B]
    return (order * max_length + steps)[real], real.sum(dim=1)


def reversal(lengths: torch.Tensor, max_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return row indices that reverse each sequence in a batch, and the padding mask.

    Indices and mask have the shape [B, max_length]. The indices are rows of the batch flattened to
    [B * max_length]. Padding stays in place, so applying the indices twice restores the original
    order.

    Raises:
        ValueError: if a length is less than 1 or greater than max_length.
    """
    _check_lengths(lengths, max_length)
    position = torch.arange(max_length)
    length = lengths.unsqueeze(1)
    mask = position >= length
    order = torch.where(mask, position, length - 1 - position)
    return order + max_length * torch.arange(len(lengths)).unsqueeze(1), mask


def _check_lengths(lengths: torch.Tensor, max_length: int) -> None:
    if int(lengths.min()) < 1 or int(lengths.max()) > max_length:
        raise ValueError(
            f"lengths {lengths.tolist()}: out of range (expected values from 1 to {max_length})"
        )


def drop(x: torch.Tensor, keep: torch.Tensor | None, p: float) -> torch.Tensor:
    """Apply dropout with a mask from `draw_keep_mask`, which is True with probability 1 - p."""
    return x if keep is None else x * keep / (1 - p)


def draw_keep_mask(
    shape: tuple[int, ...], p: float, device: torch.device, generator: torch.Generator | None = None
) -> torch.Tensor | None:
    """Draw a bool mask for `drop`, or return None if p is 0.

    With a generator, the mask is drawn on the generator's device. On a CPU, each random 64-bit word
    is split into four 16-bit values, so the probability is rounded to a multiple of 1/65,536.
    Splitting random words is three times faster than `torch.Tensor.bernoulli_`.
    """
    if p == 0:
        return None
    drawn_on = generator.device if generator else device
    if drawn_on.type != "cpu":
        mask = torch.empty(shape, dtype=torch.bool, device=drawn_on)
        return mask.bernoulli_(1 - p, generator=generator).to(device)
    count = math.prod(shape)
    words = torch.empty(-(-count // 4), dtype=torch.int64)
    words.random_(-(2**63), None, generator=generator)
    # The 16-bit values are uniformly distributed from -2^15 to 2^15 - 1.
    values = words.view(torch.int16)[:count].view(shape)
    # Keep an element if its value is among the `num_kept` smallest 16-bit values.
    num_kept = min(max(round((1 - p) * 2**16), 1), 2**16 - 1)
    return (values < num_kept - 2**15).to(device)


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Apply dropout. On a CPU, the mask comes from `draw_keep_mask`, because `F.dropout` is five
    times slower."""
    if x.device.type != "cpu":
        return F.dropout(x, p, training)
    return drop(x, draw_keep_mask(x.shape, p, x.device), p) if training else x


class Prenet(nn.Module):
    """The prenet: two ReLU layers without bias. Dropout stays active during synthesis."""

    def __init__(self, in_dim: int, dim: int, p_dropout: float):
        super().__init__()
        self.dim = dim
        self.p_dropout = p_dropout
        self.layers = nn.ModuleList([Linear(in_dim, dim, bias=False), Linear(dim, dim, bias=False)])

    def forward(
        self, x: torch.Tensor, keep: tuple[torch.Tensor | None, ...]
    ) -> torch.Tensor:  # [..., in_dim], one keep mask [..., dim] per layer -> [..., dim]
        for layer, layer_keep in zip(self.layers, keep, strict=True):
            x = drop(torch.relu(layer(x)), layer_keep, self.p_dropout)
        return x


class LocationLayer(nn.Module):
    """Compute attention features from the past alignments with a convolution and a linear layer."""

    def __init__(self, n_filters: int, kernel_size: int, attention_dim: int):
        super().__init__()
        self.location_conv = Conv1d(2, n_filters, kernel_size, bias=False)
        self.location_dense = Linear(n_filters, attention_dim, bias=False, gain="tanh")

    def forward(self, past: torch.Tensor) -> torch.Tensor:  # [B, 2, T_in] -> [B, T_in, dim]
        return self.location_dense(self.location_conv(past).transpose(1, 2))


class Attention(nn.Module):
    """The interface of all attention modules, which consists of `memory_layer` and `forward`."""

    # Maps the memory [B, T_in, memory_dim] to the processed memory. The decoder calls this layer
    # once per text.
    memory_layer: nn.Module

    def forward(
        self,
        query: torch.Tensor,  # [B, attention_rnn_dim]
        memory: torch.Tensor,  # [B, T_in, memory_dim]
        processed_memory: torch.Tensor,  # [B, T_in, ...], memory_layer(memory)
        past: torch.Tensor,  # [B, 2, T_in], the previous and the cumulative alignment
        mask: torch.Tensor,  # [B, T_in] bool, True where attention is not allowed
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the context [B, memory_dim] and the alignment [B, T_in] (each row sums to 1)."""
        raise NotImplementedError


class LocationSensitiveAttention(Attention):
    """Location-sensitive attention (Chorowski et al. 2015) in the form that Tacotron 2 uses.

    If `attention_location_gradient` is False, no gradient flows through past alignments. Over many
    decoder steps, the gradient through past alignments can become very large and hide the gradients
    that teach attention to follow the text (docs/guides/training-runs.md).
    """

    def __init__(self, hparams: HParams):
        super().__init__()
        h = hparams
        dim = hparams.attention_dim
        self.location_gradient = h.attention_location_gradient
        self.query_layer = Linear(h.attention_rnn_dim, dim, bias=False, gain="tanh")
        self.memory_layer = Linear(h.memory_dim, dim, bias=False, gain="tanh")
        self.v = Linear(dim, 1, bias=False)
        n_filters = h.attention_location_n_filters
        kernel_size = h.attention_location_kernel_size
        self.location_layer = LocationLayer(n_filters, kernel_size, dim)

    def forward(
        self,
        query: torch.Tensor,
        memory: torch.Tensor,
        processed_memory: torch.Tensor,  # [B, T_in, attention_dim]
        past: torch.Tensor,
        mask: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the context [B, memory_dim] and the alignment [B, T_in]."""
        if not self.location_gradient:
            past = past.detach()
        projected = self.query_layer(query).unsqueeze(1)
        energies = self.v(torch.tanh(projected + processed_memory + self.location_layer(past)))
        alignment = torch.softmax(energies.squeeze(2).masked_fill(mask, -torch.inf), dim=1)
        return torch.bmm(alignment.unsqueeze(1), memory).squeeze(1), alignment


def make_attention(hparams: HParams) -> Attention:
    """Return the attention module of the decoder. To change the attention, change only this
    function.

    The fast decoder supports only `LocationSensitiveAttention` (training/decoders.py). With any
    other attention, training uses the reference decoder.
    """
    return LocationSensitiveAttention(hparams)
