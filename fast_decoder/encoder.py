"""Run the encoder LSTM on a GPU in training, with the LSTM kernels of the fast decoder.

    model.encoder.run_lstm = bidirectional_lstm

cuDNN launches several kernels per symbol, one after another. With 16 texts of 120 symbols, cuDNN's
launches took 11.6 ms of host time per optimizer step on an H100. The loop in this file takes 0.3 ms
of host time for the same texts.
"""

from collections.abc import Callable

import torch

import layers
from fast_decoder import graphs
from fast_decoder.plain import PlainLoops
from fast_decoder.recurrences import LSTMRecurrence
from model import packed_lstm

DIRECTIONS = ("", "_reverse")  # suffixes of PyTorch's parameter names


def bidirectional_lstm(
    lstm: torch.nn.LSTM,
    x: torch.Tensor,  # [B, N, in]
    lengths: torch.Tensor,  # [B], preferably on the CPU, so that the host does not wait for the GPU
    loops_for: Callable = graphs.lstm_graphs_for,
) -> torch.Tensor:  # [B, N, out], 0 at padding
    """Compute the same outputs as `model.packed_lstm`, with Triton kernels.

    If this machine does not support the kernels, call `model.packed_lstm`. Under autocast, matrix
    products have the precision of autocast, and all other operations have the precision of the
    parameters.

    Raises:
        ValueError: if a length is less than 1 or greater than N.
    """
    weights = dict(lstm.named_parameters())
    operand_dtype = dtype = weights["weight_hh_l0"].dtype
    if torch.is_autocast_enabled(x.device.type):
        operand_dtype = torch.get_autocast_dtype(x.device.type)
    loops = loops_for(weights["weight_hh_l0"], len(x), operand_dtype)
    if isinstance(loops, str):
        return packed_lstm(lstm, x, lengths)
    order, mask = layers.reversal(lengths.cpu(), x.shape[1])
    order, mask = (layers.without_waiting(place, x.device) for place in (order, mask))
    with torch.autocast(x.device.type, enabled=False):
        rows = x.to(dtype)
        outputs = []
        for direction in DIRECTIONS:
            if direction:
                rows = _permuted(rows, order)
            hidden = LSTMRecurrence.apply(
                loops,
                None,
                rows.transpose(0, 1).contiguous(),
                weights[f"weight_ih_l0{direction}"],
                weights[f"bias_ih_l0{direction}"] + weights[f"bias_hh_l0{direction}"],
                weights[f"weight_hh_l0{direction}"],
                0,
            ).transpose(0, 1)
            outputs.append(_permuted(hidden, order) if direction else hidden)
        return torch.cat(outputs, dim=2).masked_fill(mask.unsqueeze(2), 0.0)


def plain_lstm_loops(
    weight: torch.Tensor, batch_size: int, operand_dtype: torch.dtype
) -> PlainLoops:
    """Return an object that runs the encoder LSTM with ordinary PyTorch operations. `weight` and
    `batch_size` are not used."""
    return PlainLoops(operand_dtype, 0.0, 0.0)


def _permuted(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Reorder the rows of each clip in x [B, N, dim] by `order` [B, N]."""
    return x.flatten(0, 1).index_select(0, order.flatten()).view_as(x)
