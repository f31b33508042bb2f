"""Run the decoder loops with ordinary PyTorch operations, for devices that do not support the
Triton kernels.

In the backward pass, all values that do not depend on later steps are computed for CHUNK steps at
once: the slopes of the LSTM cells, the slopes of the tanh in attention, and band matrices. A band
matrix maps the gradient of a step's energies to the gradients of the previous and the cumulative
alignment. The docstring of recurrences.py defines the names of dimensions.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fast_decoder.operations import new, product, product_by, weight_gradient
from fast_decoder.recurrences import AttentionBuffers, AttentionGradients, LSTMBuffers

CHUNK = 8  # number of decoder steps whose slopes are computed at once


@dataclass
class PlainLoops:
    """Run the forward and backward loops. The class has the same methods as `graphs.Graphs`."""

    operand_dtype: torch.dtype  # dtype of the operands in the matrix products of the LSTMs
    p_attention_dropout: float
    p_decoder_dropout: float
    location_gradient: bool = True  # whether gradients flow through the alignments of earlier steps

    def attention_forward(self, buffers: AttentionBuffers) -> None:
        """Run all steps of the attention recurrence."""
        gates = buffers.gates
        cells = buffers.cells
        states = buffers.rows
        memory = buffers.memory
        mask = buffers.mask
        past = buffers.past
        v = buffers.v
        num_steps, batch_size, size = cells.shape
        num_symbols = memory.shape[1]
        half = buffers.location_weight.shape[1] // 4
        middle = slice(half, half + num_symbols)
        keys = buffers.processed_memory.reshape(-1, len(v))
        windows = new(memory, batch_size, num_symbols, 2, 2 * half + 1)
        scales = _scales(buffers, self.p_attention_dropout)
        multiply = product_by(buffers.weight, batch_size, self.operand_dtype)
        locate = product_by(buffers.location_weight, len(keys), memory.dtype)
        cell = torch.zeros_like(cells[0])
        for t in range(num_steps):
            total = gates[t] if t == 0 else multiply(states[t - 1], gates[t])
            hidden = states[t, :, :size]
            context = states[t, :, size:]
            _cell_forward(total, cell, gates[t], cells[t], hidden, scales[t])
            cell = cells[t]
            windows.copy_(_windows(past[t], half))
            pre = locate(windows.view(len(keys), -1), keys).view_as(buffers.processed_memory)
            pre.add_(F.linear(hidden, buffers.query_weight).unsqueeze(1)).tanh_()
            energies = torch.mv(pre.view_as(keys), v).view_as(mask).masked_fill_(mask, -torch.inf)
            alignment = torch.softmax(energies, dim=1, out=buffers.alignments[t])
            torch.bmm(alignment.unsqueeze(1), memory, out=context.unsqueeze(1))
            if t + 1 < num_steps:
                past[t + 1, :, 0, middle] = alignment
                torch.add(past[t, :, 1, middle], alignment, out=past[t + 1, :, 1, middle])

    def lstm_forward(self, buffers: LSTMBuffers) -> None:
        """Run all steps of the LSTM."""
        gates = buffers.gates
        cells = buffers.cells
        outputs = buffers.hidden
        num_steps, batch_size, _ = cells.shape
        scales = _scales(buffers, self.p_decoder_dropout)
        multiply = product_by(buffers.weight, batch_size, self.operand_dtype)
        hidden = torch.empty_like(cells[0])
        cell = torch.zeros_like(cells[0])
        for t in range(num_steps):
            total = gates[t] if t == 0 else multiply(hidden, gates[t])
            _cell_forward(total, cell, gates[t], cells[t], hidden, scales[t])
            cell = cells[t]
            outputs[t] = hidden

    def attention_backward(
        self, buffers: AttentionBuffers, grad_states: Tensor, grad_alignments: Tensor | None
    ) -> AttentionGradients:
        """Run the backward pass of the attention recurrence.

        Args:
            grad_states: gradient of the states [T, B, A + E].
            grad_alignments: gradient of the alignments [T, B, N].
        """
        gates = buffers.gates
        alignments = buffers.alignments
        past = buffers.past
        memory = buffers.memory
        query_weight = buffers.query_weight
        num_steps, batch_size, num_symbols = alignments.shape
        size = query_weight.shape[1]
        half = buffers.location_weight.shape[1] // 4
        middle = slice(half, half + num_symbols)
        gradients = AttentionGradients(
            gates=gates,
            contexts=new(memory, num_steps, batch_size, memory.shape[2]),
            queries=new(memory, num_steps, batch_size, len(buffers.v)),
            processed_memory=torch.zeros_like(buffers.processed_memory),
            location_weight=torch.zeros_like(buffers.location_weight),
            v=torch.zeros_like(buffers.v),
        )
        denergies = new(memory, CHUNK, batch_size, num_symbols)
        dcumulative, dalignment = (torch.zeros_like(alignments[0]) for _ in range(2))
        attention = _AttentionSlopes(buffers, self.location_gradient)
        cell = _CellBackward(buffers, self.p_attention_dropout)
        multiply = product_by(buffers.weight.T, batch_size, self.operand_dtype)
        for stop in range(num_steps, 0, -CHUNK):
            start = max(stop - CHUNK, 0)
            cell.prepare(start, stop)
            slopes, band = attention.prepare(start, stop)
            for t in reversed(range(start, stop)):
                dstate = grad_states[t]
                if t + 1 < num_steps:
                    dstate = multiply(gates[t + 1], dstate)
                dcontext = gradients.contexts[t].copy_(dstate[:, size:])
                if grad_alignments is not None:
                    dalignment = dalignment + grad_alignments[t]
                # Avoid a product with a single column, because MKL is twelve times slower for this
                # product.
                by_context = torch.bmm(dcontext.unsqueeze(1), memory.transpose(1, 2)).squeeze(1)
                dalignment = by_context.add_(dalignment)
                denergy = torch.ops.aten._softmax_backward_data(
                    dalignment, alignments[t], 1, memory.dtype
                ).unsqueeze(1)
                denergies[t - start] = denergy.squeeze(1)
                dquery = gradients.queries[t].unsqueeze(1)
                torch.bmm(denergy, slopes[t - start], out=dquery)
                cell.step(t, torch.addmm(dstate[:, :size], dquery.squeeze(1), query_weight))
                if band is not None:
                    dpast = torch.bmm(denergy, band[t - start]).view_as(past[t])[:, :, middle]
                    dcumulative += dpast[:, 1]
                    dalignment = dpast[:, 0] + dcumulative
                else:
                    dalignment = dcumulative
            attention.finish(denergies[: stop - start], gradients)
        return gradients

    def lstm_backward(self, buffers: LSTMBuffers, grad_outputs: Tensor) -> Tensor:
        """Run the backward pass of the LSTM, and return the gradients of the gates [T, B, 4 * H].

        Args:
            grad_outputs: gradient of the outputs [T, B, H + E].
        """
        gates = buffers.gates
        num_steps, batch_size, size = buffers.cells.shape
        cell = _CellBackward(buffers, self.p_decoder_dropout)
        multiply = product_by(buffers.weight.T, batch_size, self.operand_dtype)
        for stop in range(num_steps, 0, -CHUNK):
            start = max(stop - CHUNK, 0)
            cell.prepare(start, stop)
            for t in reversed(range(start, stop)):
                dhidden = grad_outputs[t, :, :size]
                if t + 1 < num_steps:
                    dhidden = multiply(gates[t + 1], dhidden)
                cell.step(t, dhidden)
        return gates


# ---------------------------------------------------------------------------- the LSTM cell


def _cell_forward(
    gates: Tensor,  # [B, 4 * H], before activation, in the order i, f, g, o
    previous_cell: Tensor,  # [B, H]
    activated: Tensor,  # [B, 4 * H], overwritten; may be the same tensor as `gates`
    cell: Tensor,  # [B, H], output
    hidden: Tensor,  # [B, H], output
    scale: Tensor | None,  # [B, H], 0 for dropped values, otherwise 1 / (1 - p)
) -> None:
    """Compute cell = f * previous_cell + i * g and hidden = scale * o * tanh(cell)."""
    size = cell.shape[1]
    torch.sigmoid(gates[:, : 2 * size], out=activated[:, : 2 * size])
    torch.tanh(gates[:, 2 * size : 3 * size], out=activated[:, 2 * size : 3 * size])
    torch.sigmoid(gates[:, 3 * size :], out=activated[:, 3 * size :])
    i, f, g, o = activated.chunk(4, dim=1)
    torch.mul(f, previous_cell, out=cell).addcmul_(i, g)
    torch.tanh(cell, out=hidden).mul_(o)
    if scale is not None:
        hidden.mul_(scale)


class _CellBackward:
    """Run the backward steps of an LSTM. Each backward step replaces the activated gates of a
    decoder step with their gradients.

    The prefix d means the derivative of the loss with respect to a value. Before the first formula,
    dcell contains only the contribution of later steps.

        dcell += dhidden * scale * o * (1 - tanh(cell)^2)
        di = dcell * g * i * (1 - i)                         with respect to i before its sigmoid
        df = dcell * previous_cell * f * (1 - f)
        dg = dcell * i * (1 - g^2)
        do = dhidden * scale * tanh(cell) * o * (1 - o)
        dcell of the step before = dcell * f

    All factors in the formulas except dcell and dhidden are known before the loop over steps.
    `prepare` computes these known factors for many steps at once.
    """

    def __init__(self, buffers: LSTMBuffers, p_dropout: float):
        self.gates = buffers.gates
        self.cells = buffers.cells
        self.keep = buffers.keep
        self.p_dropout = p_dropout
        cells = buffers.cells
        _, batch_size, size = cells.shape
        self.gate_slopes = new(cells, CHUNK, batch_size, 4, size)
        self.cell_slopes = new(cells, CHUNK, batch_size, size)
        self.dcell = cells.new_zeros(batch_size, size)

    def prepare(self, start: int, stop: int) -> None:
        """Compute the factors of the LSTM gradients for steps `stop` - 1 down to `start`, at most
        CHUNK steps."""
        self.start = start
        count = stop - start
        cells = self.cells[start:stop]
        previous = self.cells[max(start, 1) - 1 : stop - 1]
        if start == 0:
            previous = F.pad(previous, (0, 0, 0, 0, 1, 0))
        i, f, g, o = self.gates[start:stop].chunk(4, dim=2)
        tanh_cells = torch.tanh(cells)
        by_hidden = o
        by_output = tanh_cells
        if self.keep is not None:
            scale = _scale(self.keep[start:stop], self.p_dropout, cells.dtype)
            by_hidden = o * scale
            by_output = tanh_cells * scale
        slopes = self.gate_slopes[:count]
        for_sigmoid = torch.ops.aten.sigmoid_backward.grad_input  # a, y -> a * y * (1 - y)
        for_tanh = torch.ops.aten.tanh_backward.grad_input  # a, y -> a * (1 - y^2)
        for_tanh(by_hidden, tanh_cells, grad_input=self.cell_slopes[:count])
        for_sigmoid(g, i, grad_input=slopes[:, :, 0])
        for_sigmoid(previous, f, grad_input=slopes[:, :, 1])
        for_tanh(i, g, grad_input=slopes[:, :, 2])
        for_sigmoid(by_output, o, grad_input=slopes[:, :, 3])

    def step(self, t: int, dhidden: Tensor) -> None:
        """Run the backward pass of decoder step t. `dhidden` [B, H] is the gradient of the hidden
        state after dropout."""
        slopes = self.gate_slopes[t - self.start]
        gates = self.gates[t].unflatten(1, (4, -1))
        dcell = self.dcell.addcmul_(dhidden, self.cell_slopes[t - self.start])
        self.dcell = dcell * gates[:, 1]  # must run before the gradient df overwrites f
        torch.mul(dcell.unsqueeze(1), slopes[:, :3], out=gates[:, :3])
        torch.mul(dhidden, slopes[:, 3], out=gates[:, 3])


def _scales(buffers: LSTMBuffers, p_dropout: float) -> Tensor | list[None]:
    """Return the dropout factors of all steps, or a list of None if there is no dropout."""
    keep = buffers.keep
    cells = buffers.cells
    return [None] * len(cells) if keep is None else _scale(keep, p_dropout, cells.dtype)


def _scale(keep: Tensor, p_dropout: float, dtype: torch.dtype) -> Tensor:
    """Return the dropout factors: 0 for dropped values, otherwise 1 / (1 - p)."""
    return keep.to(dtype).div_(1 - p_dropout)


# ---------------------------------------------------------------------------- attention


def _windows(past: Tensor, half: int) -> Tensor:
    """Return the attention windows [..., N, 2, K] as a view of `past` [..., 2, N + 2 * half].

    An attention window contains the K = 2 * half + 1 values around a symbol.
    """
    return past.unfold(-1, 2 * half + 1, 1).transpose(-3, -2)


class _AttentionSlopes:
    """Compute factors of the attention gradients for several decoder steps at once."""

    def __init__(self, buffers: AttentionBuffers, with_band: bool):
        self.buffers = buffers
        self.band = None
        if not with_band:
            return
        _, batch_size, num_symbols = buffers.alignments.shape
        half = buffers.location_weight.shape[1] // 4
        width = num_symbols + 2 * half
        # band[n, source, n + k] = (location_weight^T slope_n)[source, k]. All other values are 0.
        self.band = buffers.v.new_zeros(CHUNK, batch_size, num_symbols, 2 * width)
        self.diagonals = self.band.as_strided(
            (CHUNK, batch_size, num_symbols, 2, 2 * half + 1),
            (*self.band.stride()[:2], 2 * width + 1, width, 1),
        )

    def prepare(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Return the slopes of the tanh [C, B, N, D] and the band matrices of steps `start` to
        `stop` - 1."""
        buffers = self.buffers
        half = buffers.location_weight.shape[1] // 4
        windows = _windows(buffers.past[start:stop], half)
        self.windows = windows.reshape(-1, buffers.location_weight.shape[1])
        pre = product(self.windows, buffers.location_weight, buffers.v.dtype)
        pre = pre.view(*windows.shape[:3], -1).add_(buffers.processed_memory)
        self.tanh = pre.add_(
            (buffers.hidden[start:stop] @ buffers.query_weight.T).unsqueeze(2)
        ).tanh_()
        self.slopes = torch.ops.aten.tanh_backward(buffers.v.expand_as(pre), self.tanh)
        if self.band is not None:
            filters = product(self.slopes.flatten(0, 2), buffers.location_weight.T, buffers.v.dtype)
            self.diagonals[: stop - start] = filters.view_as(windows)
        return self.slopes, self.band

    def finish(self, denergies: Tensor, gradients: AttentionGradients) -> None:
        """Add to `gradients` the contributions of the steps in the last `prepare` call.

        Args:
            denergies: [C, B, N].
        """
        # Sum within each clip and decoder step first. In a single long sum, terms cancel each
        # other, and the result loses two digits.
        tanh = self.tanh.flatten(0, 1)
        gradients.v += torch.bmm(denergies.flatten(0, 1).unsqueeze(1), tanh).sum((0, 1))
        dpre = self.slopes.mul_(denergies.unsqueeze(3))
        gradients.processed_memory += dpre.sum(dim=0)
        gradients.location_weight += weight_gradient(dpre.flatten(0, 2), self.windows, tanh.dtype)
