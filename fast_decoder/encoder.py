"""The encoder's LSTM in training by the fast decoder's loop over an LSTM, on a GPU.

    model.encoder.run_lstm = bidirectional_lstm

cuDNN makes several launches a symbol, one after another: at 16 texts of 120 symbols they kept the
host of an H100 busy for 11.6 ms a training step. This loop took it 0.3 ms, and the GPU 1.9 ms.
"""

from collections.abc import Callable

import torch

import layers
from fast_decoder import graphs
from fast_decoder.plain import PlainLoops
from fast_decoder.recurrences import LSTMRecurrence
from model import packed_lstm

DIRECTIONS = ("", "_reverse")  # how torch names their parameters


def bidirectional_lstm(
    lstm: torch.nn.LSTM,
    x: torch.Tensor,  # [B, N, in]
    lengths: torch.Tensor,  # [B], on the CPU if it is not to wait
    loops_for: Callable = graphs.lstm_graphs_for,
) -> torch.Tensor:  # [B, N, out], zeros at padding
    """`model.packed_lstm` with the kernels, or itself where they do not run. Under autocast the
    products have its precision, and everything else the parameters'. ValueError as there."""
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
        rows, outputs = x.to(dtype), []
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
    """The loops in plain operations, for comparison; `weight` and `batch_size` are not used."""
    return PlainLoops(operand_dtype, 0.0, 0.0)


def _permuted(x: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Each clip's rows [B, N, dim] in its order [B, N]."""
    return x.flatten(0, 1).index_select(0, order.flatten()).view_as(x)
