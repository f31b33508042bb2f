"""The teacher-forced decoder of model.py at the hardware's speed: same parameters, same results.

`teacher_forced` has the signature and meaning of `model.teacher_forced`. Under teacher forcing
only attention is recurrent in the whole: its query is the attention LSTM's hidden state, which
never sees the decoder LSTM. So one loop runs the attention LSTM and the attention, a second the
decoder LSTM, and everything else is one matrix product over all steps: the prenet, the inputs'
share of both LSTMs' gates, the projections. The backward passes of both loops are written out by
hand, which makes every weight's gradient one product over steps x batch too, in the place of one
accumulation a step, and needs no graph of tens of thousands of nodes.

In shapes: T steps, B clips, N symbols; P, E, A, D, H are prenet_dim, encoder_embedding_dim,
attention_rnn_dim, attention_dim and decoder_rnn_dim, K attention_location_kernel_size.
"""

import functools
import os
import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.autograd import Function

from fast_decoder import graphs as decoder_graphs

CHUNK = 8  # steps whose derivatives are worked out together in the backward loops, without kernels


def teacher_forced(
    decoder,  # model.Decoder
    memory: torch.Tensor,  # [B, N, E]
    mask: torch.Tensor,  # [B, N] bool, True at padding
    mel: torch.Tensor,  # [B, n_mels, T_out], the frames to be spoken
    dropout_masks,  # model.DropoutMasks
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`model.teacher_forced`: mel [B, n_mels, T_out], gate logits [B, T], alignments [B, T, N].

    All three can be differentiated, once: a second derivative and a second backward pass through
    the same graph (retain_graph) are refused. Under autocast the LSTMs' products, the prenet and
    the projections are made in its precision, everything else and every sum in the parameters'.
    """
    attention, device = decoder.attention_layer, memory.device.type
    previous = F.pad(decoder.to_steps(mel)[:-1], (0, 0, 0, 0, 1, 0))  # [T, B, n_mels * r]
    prenet_outputs = decoder.prenet(previous, dropout_masks.prenet)
    processed_memory = attention.memory_layer(memory)
    rnn = decoder.attention_rnn
    dtype = operand_dtype = rnn.weight_hh.dtype
    if torch.is_autocast_enabled(device):
        operand_dtype = torch.get_autocast_dtype(device)
    graphs = _graphs_for(decoder, memory, operand_dtype, dropout_masks)
    with torch.autocast(device, enabled=False):
        # The location layer's convolution 2 -> filters and its dense layer are one map.
        location = attention.location_layer
        location_weight = location.location_dense.linear_layer.weight @ (
            location.location_conv.conv.weight.flatten(1)
        )  # [D, 2 * K]
        input_weight, context_weight = rnn.weight_ih.split(
            [prenet_outputs.shape[2], memory.shape[2]], dim=1
        )
        states, alignments = _AttentionRecurrence.apply(
            graphs,
            operand_dtype,
            dropout_masks.attention_hidden,
            decoder.p_attention_dropout,
            mask,
            prenet_outputs.to(dtype),
            memory.to(dtype),
            processed_memory.to(dtype),
            input_weight,
            rnn.bias_ih + rnn.bias_hh,
            torch.cat([rnn.weight_hh, context_weight], dim=1),
            attention.query_layer.linear_layer.weight,
            location_weight,
            attention.v.linear_layer.weight[0],
        )
        rnn = decoder.decoder_rnn
        outputs = _DecoderLSTM.apply(
            graphs,
            operand_dtype,
            dropout_masks.decoder_hidden,
            decoder.p_decoder_dropout,
            states,
            rnn.weight_ih,
            rnn.bias_ih + rnn.bias_hh,
            rnn.weight_hh,
            memory.shape[2],
        )
    frames, gates = decoder.linear_projection(outputs), decoder.gate_layer(outputs)
    return decoder.to_frames(frames), gates.squeeze(2).T, alignments.transpose(0, 1)


def limit_caches() -> None:
    """Let a process that trains on a CPU keep fewer programs for shapes that do not come back.

    oneDNN and what torch puts around it each keep those of the last 1,024 shapes, half a gigabyte.
    Call it before the first product, which reads the limits; those that the user set stay.
    """
    for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
        os.environ.setdefault(cache, "64")


def describe(device: torch.device) -> str:
    """How the loops over steps run on this device with parameters of float32, in a phrase."""
    if device.type == "cpu":
        if _onednn_multiplies("cpu", torch.float32):
            return "oneDNN's packed products"
        return "plain operations, at about half the speed: this torch has no oneDNN that we know"
    problem = decoder_graphs.problem(device, torch.float32)
    if problem is None:
        return "Triton kernels in CUDA graphs"
    return f"plain operations, several times slower than its kernels: {problem}"


def _graphs_for(decoder, memory, operand_dtype, dropout_masks) -> decoder_graphs.Graphs | None:
    """The kernels' graphs, or None: then the loops are made of plain operations."""
    graphs = decoder_graphs.graphs_for(decoder, memory, operand_dtype, dropout_masks)
    if not isinstance(graphs, str):
        return graphs
    if memory.is_cuda:
        _warn_once(graphs)
    return None


@functools.cache
def _warn_once(problem: str) -> None:
    warnings.warn(
        "the fast decoder runs in plain operations, with the same results, but several times "
        f"slower than its Triton kernels: {problem}",
        stacklevel=2,
    )


# ---------------------------------------------------------------------------- matrix products


@functools.cache
def _onednn_multiplies(device: str, dtype: torch.dtype) -> bool:
    """Whether the products that torch.compile makes by oneDNN are at hand here, and right.

    They are private operators of torch, so their results are checked once. MKL, which torch calls
    otherwise, packs the weight anew for every small product and knows AMD's processors badly:
    16 x 1536 by 1536 x 4096 took 2.0 ms on two cores of an EPYC, and takes 0.5 ms so.
    """
    if device != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    x = torch.arange(-6, 6, dtype=dtype).view(6, 2).T
    weight = torch.arange(-20, 22, dtype=dtype).view(6, 7).T
    bias = torch.arange(7, dtype=dtype)
    try:
        multiply = torch.ops.mkldnn._linear_pointwise
        results = [multiply(x, weight, bias, "none", [], "")]
        for matrix in (weight, weight.contiguous()):
            packed = torch.ops.mkldnn._reorder_linear_weight(matrix, 2)
            results.append(multiply(x.contiguous(), packed, bias, "none", [], ""))
            results.append(multiply(x.contiguous(), bias.repeat(2, 1), packed, None, "add"))
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = (x.float() @ weight.float().T + bias.float()).to(dtype)
    return all(torch.allclose(result, expected, rtol=1e-2) for result in results)


def _product(
    x: torch.Tensor,  # [rows, in]
    weight: torch.Tensor,  # [out, in]
    dtype: torch.dtype,
    bias: torch.Tensor | None = None,  # [out]
) -> torch.Tensor:
    """F.linear for large x, with operands in `dtype`; the result [rows, out] is in x's."""
    a, b, c = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if x.numel() and _onednn_multiplies(x.device.type, dtype):  # it knows no empty matrix
        a, b = _dense(a), _dense(b)  # of part of a matrix the product takes 200 times as long
        return torch.ops.mkldnn._linear_pointwise(a, b, c, "none", [], "").to(x.dtype)
    return F.linear(a, b, c).to(x.dtype)


def _weight_gradient(
    doutputs: torch.Tensor,  # [rows, out]
    inputs: torch.Tensor,  # [rows, in]
    dtype: torch.dtype,
) -> torch.Tensor:  # [out, in]
    """doutputs.T @ inputs, the other way round: oneDNN copies the left matrix of a product if it
    is a transpose, and of the two the inputs are the smaller."""
    return _product(inputs.T, doutputs.T, dtype).T


def _dense(x: torch.Tensor) -> torch.Tensor:
    """The matrix itself if it or its transpose has no gaps in memory, else a copy."""
    return x if x.T.is_contiguous() else x.contiguous()


def _product_by(weight: torch.Tensor, rows: int, dtype: torch.dtype) -> Callable:
    """(x [rows, in], total [rows, out]) -> total + x @ weight.T, for many x and one weight."""
    operand = weight.to(dtype)
    if _onednn_multiplies(weight.device.type, dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(_dense(operand), rows)
        multiply = torch.ops.mkldnn._linear_pointwise
        if dtype == weight.dtype:
            return lambda x, total: multiply(x, total.contiguous(), packed, None, "add")
        return lambda x, total: total + multiply(x.to(dtype), packed, None, "none", [], "")
    operand = operand.T
    if dtype == weight.dtype:
        return lambda x, total: torch.addmm(total, x, operand)
    return lambda x, total: total + torch.mm(x.to(dtype), operand)


def _flat(x: torch.Tensor) -> torch.Tensor:
    """[T, B, dim] -> [T * B, dim]"""
    return x.flatten(0, 1)


_empty = torch.empty  # every buffer whose values are still to come; tests fill them with NaN


# ---------------------------------------------------------------------------- the LSTM cell


def _cell_forward(
    gates: torch.Tensor,  # [B, 4 * H], before activation, in the order i, f, g, o
    previous_cell: torch.Tensor,  # [B, H]
    activated: torch.Tensor,  # [B, 4 * H], written; may be `gates`
    cell: torch.Tensor,  # [B, H], written
    hidden: torch.Tensor,  # [B, H], written
    scale: torch.Tensor | None,  # [B, H], 0 where dropped, else 1 / (1 - p)
) -> None:
    """cell = f * previous_cell + i * g; hidden = scale * o * tanh(cell)."""
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
    """The steps of an LSTM backwards: its activated gates become the loss's gradient by them.

    Writing d for the loss's derivative, dcell being what later steps contribute to it at first:

        dcell += dhidden * scale * o * (1 - tanh(cell)^2)
        di = dcell * g * i * (1 - i)                         by i before its sigmoid, and so on
        df = dcell * previous_cell * f * (1 - f)
        dg = dcell * i * (1 - g^2)
        do = dhidden * scale * tanh(cell) * o * (1 - o)
        dcell of the step before = dcell * f

    All factors but dcell and dhidden are known beforehand: `prepare` makes them for many steps.
    """

    def __init__(
        self,
        gates: torch.Tensor,  # [T, B, 4 * H], activated; overwritten
        cells: torch.Tensor,  # [T, B, H]
        keep: torch.Tensor | None,  # [T, B, H]
        p_dropout: float,
    ):
        self.gates, self.cells, self.keep, self.p_dropout = gates, cells, keep, p_dropout
        _, batch_size, size = cells.shape
        self.gate_slopes = _empty(
            CHUNK, batch_size, 4, size, dtype=cells.dtype, device=cells.device
        )
        self.cell_slopes = _empty(CHUNK, batch_size, size, dtype=cells.dtype, device=cells.device)
        self.dcell = cells.new_zeros(batch_size, size)

    def prepare(self, start: int, stop: int) -> None:
        """Call it before the steps `stop` - 1 down to `start`, at most CHUNK of them."""
        self.start, count = start, stop - start
        cells, previous = self.cells[start:stop], self.cells[max(start, 1) - 1 : stop - 1]
        if start == 0:
            previous = F.pad(previous, (0, 0, 0, 0, 1, 0))
        i, f, g, o = self.gates[start:stop].chunk(4, dim=2)
        tanh_cells = torch.tanh(cells)
        by_hidden, by_output = o, tanh_cells
        if self.keep is not None:
            scale = _scale(self.keep[start:stop], self.p_dropout, cells.dtype)
            by_hidden, by_output = o * scale, tanh_cells * scale
        slopes = self.gate_slopes[:count]
        for_sigmoid = torch.ops.aten.sigmoid_backward.grad_input  # a, y -> a * y * (1 - y)
        for_tanh = torch.ops.aten.tanh_backward.grad_input  # a, y -> a * (1 - y^2)
        for_tanh(by_hidden, tanh_cells, grad_input=self.cell_slopes[:count])
        for_sigmoid(g, i, grad_input=slopes[:, :, 0])
        for_sigmoid(previous, f, grad_input=slopes[:, :, 1])
        for_tanh(i, g, grad_input=slopes[:, :, 2])
        for_sigmoid(by_output, o, grad_input=slopes[:, :, 3])

    def step(self, t: int, dhidden: torch.Tensor) -> None:
        """`dhidden` [B, H] is the gradient by step t's hidden state, after dropout."""
        slopes, gates = self.gate_slopes[t - self.start], self.gates[t].unflatten(1, (4, -1))
        dcell = self.dcell.addcmul_(dhidden, self.cell_slopes[t - self.start])
        self.dcell = dcell * gates[:, 1]  # before f makes way for df
        torch.mul(dcell.unsqueeze(1), slopes[:, :3], out=gates[:, :3])
        torch.mul(dhidden, slopes[:, 3], out=gates[:, 3])


def _scale(keep: torch.Tensor, p_dropout: float, dtype: torch.dtype) -> torch.Tensor:
    """What dropout multiplies by: 0 where dropped, else 1 / (1 - p)."""
    return keep.to(dtype).div_(1 - p_dropout)


def _once(backward: Callable) -> Callable:
    """A backward pass that refuses to run twice or to be differentiated, and knows no autocast."""

    @functools.wraps(backward)
    def guarded(ctx, *gradients):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the fast decoder has no second derivative (create_graph=True): "
                "use decoder=reference"
            )
        if getattr(ctx, "spent", False):
            raise RuntimeError(
                "the fast decoder's backward pass overwrites what its forward pass saved, so it "
                "runs once (retain_graph=True does not help): use decoder=reference"
            )
        ctx.spent = True
        device = next(gradient.device for gradient in gradients if gradient is not None)
        with torch.autocast(device.type, enabled=False):
            return backward(ctx, *gradients)

    return guarded


# ---------------------------------------------------------------------------- the decoder LSTM


class _DecoderLSTM(Function):
    """An LSTM over attention's states, with dropout on the hidden state, which its next step sees.

    Its outputs are [hidden, context], as the projections want them.
    """

    @staticmethod
    def forward(
        ctx,
        graphs: decoder_graphs.Graphs | None,
        dtype: torch.dtype,  # of the products' operands
        keep: torch.Tensor | None,  # [T, B, H] bool
        p_dropout: float,
        states: torch.Tensor,  # [T, B, A + E], of which the last E are the context
        input_weight: torch.Tensor,  # [4 * H, A + E]
        bias: torch.Tensor,  # [4 * H]
        hidden_weight: torch.Tensor,  # [4 * H, H]
        context_size: int,  # E
    ) -> torch.Tensor:  # [T, B, H + E], hidden after dropout
        num_steps, batch_size, _ = states.shape
        size = hidden_weight.shape[1]
        options = {"dtype": states.dtype, "device": states.device}
        gates = _product(_flat(states), input_weight, dtype, bias).view(num_steps, batch_size, -1)
        cells = _empty(num_steps, batch_size, size, **options)
        outputs = _empty(num_steps, batch_size, size + context_size, **options)
        outputs[:, :, size:] = states[:, :, -context_size:]
        if graphs is None:
            _decoder_steps(dtype, p_dropout, keep, hidden_weight, gates, cells, outputs)
        else:
            graphs.decoder_forward(keep, hidden_weight, gates, cells, outputs)
        ctx.save_for_backward(states, input_weight, hidden_weight, gates, cells, outputs, keep)
        ctx.graphs, ctx.dtype, ctx.p_dropout = graphs, dtype, p_dropout
        return outputs

    @staticmethod
    @_once
    def backward(ctx, grad_outputs: torch.Tensor):
        states, input_weight, hidden_weight, gates, cells, outputs, keep = ctx.saved_tensors
        size = cells.shape[2]
        buffers = (keep, hidden_weight, gates, cells, grad_outputs)
        if ctx.graphs is None:
            _decoder_steps_backwards(ctx.dtype, ctx.p_dropout, *buffers)
        else:
            ctx.graphs.decoder_backward(*buffers)
        dgates = _flat(gates)
        dstates = _product(dgates, input_weight.T, ctx.dtype).view_as(states)
        dcontexts = grad_outputs[:, :, size:]
        dstates[:, :, -dcontexts.shape[2] :] += dcontexts
        return (
            None,
            None,
            None,
            None,
            dstates,
            _weight_gradient(dgates, _flat(states), ctx.dtype),
            dgates.sum(dim=0),
            _weight_gradient(_flat(gates[1:]), _flat(outputs[:-1, :, :size]), ctx.dtype),
            None,
        )


def _decoder_steps(dtype, p_dropout, keep, hidden_weight, gates, cells, outputs) -> None:
    """`decoder_graphs.Graphs.decoder_forward` in plain operations."""
    num_steps, batch_size, size = cells.shape
    scale = [None] * num_steps if keep is None else _scale(keep, p_dropout, cells.dtype)
    multiply = _product_by(hidden_weight, batch_size, dtype)
    hidden, cell = torch.empty_like(cells[0]), torch.zeros_like(cells[0])
    for t in range(num_steps):
        total = gates[t] if t == 0 else multiply(hidden, gates[t])
        _cell_forward(total, cell, gates[t], cells[t], hidden, scale[t])
        cell = cells[t]
        outputs[t, :, :size] = hidden


def _decoder_steps_backwards(
    dtype, p_dropout, keep, hidden_weight, gates, cells, grad_outputs
) -> None:
    """`decoder_graphs.Graphs.decoder_backward` in plain operations."""
    num_steps, batch_size, size = cells.shape
    cell = _CellBackward(gates, cells, keep, p_dropout)
    multiply = _product_by(hidden_weight.T, batch_size, dtype)
    for stop in range(num_steps, 0, -CHUNK):
        start = max(stop - CHUNK, 0)
        cell.prepare(start, stop)
        for t in reversed(range(start, stop)):
            dhidden = grad_outputs[t, :, :size]
            if t + 1 < num_steps:
                dhidden = multiply(gates[t + 1], dhidden)
            cell.step(t, dhidden)


# ---------------------------------------------------------------------------- attention


class _AttentionRecurrence(Function):
    """The attention LSTM and the location-sensitive attention, over all steps.

    A step's state is [hidden, context], which its successor's gates and the decoder LSTM see:

        gates_t = input_weight x_t + bias + state_weight state_(t-1)
        pre_tn = processed_memory_n + query_weight hidden_t + location_weight window_tn
        alignment_t = softmax over n of v . tanh(pre_tn)
        context_t = sum over n of alignment_tn memory_n

    where window_tn holds the K values around n of the previous and of the cumulative alignment.
    Backwards, with slope_tn = v * (1 - tanh(pre_tn)^2) and denergy the softmax's backward pass,

        dalignment_t = dcontext_t . memory_n + what the windows of later steps give
        dhidden_t = dstate_t + query_weight^T sum over n of denergy_tn slope_tn
        dwindow_tn = denergy_tn location_weight^T slope_tn

    The slopes depend on nothing that comes backwards. So they are worked out for CHUNK steps at
    once, and with them the band matrix that takes denergy_t to the gradients of the two
    alignments that the windows of step t look at: two small products a step are left.
    """

    @staticmethod
    def forward(
        ctx,
        graphs: decoder_graphs.Graphs | None,
        dtype: torch.dtype,  # of the LSTM's products' operands
        keep: torch.Tensor | None,  # [T, B, A] bool
        p_dropout: float,
        mask: torch.Tensor,  # [B, N] bool, True at padding
        inputs: torch.Tensor,  # [T, B, P]
        memory: torch.Tensor,  # [B, N, E]
        processed_memory: torch.Tensor,  # [B, N, D]
        input_weight: torch.Tensor,  # [4 * A, P]
        bias: torch.Tensor,  # [4 * A]
        state_weight: torch.Tensor,  # [4 * A, A + E]
        query_weight: torch.Tensor,  # [D, A]
        location_weight: torch.Tensor,  # [D, 2 * K]
        v: torch.Tensor,  # [D]
    ) -> tuple[torch.Tensor, torch.Tensor]:  # states [T, B, A + E], alignments [T, B, N]
        num_steps, batch_size, _ = inputs.shape
        num_symbols, size = memory.shape[1], query_weight.shape[1]
        options = {"dtype": inputs.dtype, "device": inputs.device}
        gates = _product(_flat(inputs), input_weight, dtype, bias).view(num_steps, batch_size, -1)
        cells = _empty(num_steps, batch_size, size, **options)
        states = _empty(num_steps, batch_size, state_weight.shape[1], **options)
        alignments = _empty(num_steps, batch_size, num_symbols, **options)
        half = location_weight.shape[1] // 4
        # What each step looks back at, with the convolution's zeros at either end.
        past = torch.zeros(num_steps, batch_size, 2, num_symbols + 2 * half, **options)
        buffers = (keep, mask, memory, processed_memory)
        buffers += (state_weight, query_weight, location_weight, v)
        buffers += (gates, cells, states, alignments, past)
        if graphs is None:
            _attention_steps(dtype, p_dropout, *buffers)
        else:
            graphs.attention_forward(*buffers)
        ctx.save_for_backward(
            *(inputs, memory, processed_memory, input_weight, state_weight, query_weight),
            *(location_weight, v, gates, cells, states, alignments, past, keep),
        )
        ctx.graphs, ctx.dtype, ctx.p_dropout = graphs, dtype, p_dropout
        ctx.set_materialize_grads(False)
        return states, alignments

    @staticmethod
    @_once
    def backward(ctx, grad_states: torch.Tensor | None, grad_alignments: torch.Tensor | None):
        inputs, memory, processed_memory, input_weight, state_weight, query_weight = (
            ctx.saved_tensors[:6]
        )
        location_weight, v, gates, cells, states, alignments, past, keep = ctx.saved_tensors[6:]
        num_steps, batch_size, _ = alignments.shape
        size, options = query_weight.shape[1], {"dtype": inputs.dtype, "device": inputs.device}
        if grad_states is None:
            grad_states = torch.zeros_like(states)
        dcontexts = _empty(num_steps, batch_size, memory.shape[2], **options)
        dqueries = _empty(num_steps, batch_size, len(v), **options)
        buffers = (keep, memory, processed_memory, state_weight, query_weight, location_weight, v)
        buffers += (gates, cells, states, alignments, past)
        buffers += (grad_states, grad_alignments, dcontexts, dqueries)
        if ctx.graphs is None:
            sums = _attention_steps_backwards(ctx.dtype, ctx.p_dropout, *buffers)
        else:
            sums = ctx.graphs.attention_backward(*buffers)
        dprocessed_memory, dlocation_weight, dv = sums
        dgates = _flat(gates)
        return (
            None,
            None,
            None,
            None,
            None,
            _product(dgates, input_weight.T, ctx.dtype).view_as(inputs),
            torch.bmm(alignments.permute(1, 2, 0), dcontexts.transpose(0, 1)),
            dprocessed_memory,
            _weight_gradient(dgates, _flat(inputs), ctx.dtype),
            dgates.sum(dim=0),
            _weight_gradient(_flat(gates[1:]), _flat(states[:-1]), ctx.dtype),
            _flat(dqueries).T @ _flat(states[:, :, :size]),
            dlocation_weight,
            dv,
        )


def _attention_steps(
    dtype,
    p_dropout,
    keep,
    mask,
    memory,
    processed_memory,
    state_weight,
    query_weight,
    location_weight,
    v,
    gates,
    cells,
    states,
    alignments,
    past,
) -> None:
    """`decoder_graphs.Graphs.attention_forward` in plain operations."""
    num_steps, batch_size, size = cells.shape
    num_symbols, half = memory.shape[1], location_weight.shape[1] // 4
    middle = slice(half, half + num_symbols)
    keys = processed_memory.reshape(-1, len(v))
    windows = _empty(
        *(batch_size, num_symbols, 2, 2 * half + 1), dtype=memory.dtype, device=memory.device
    )
    scale = [None] * num_steps if keep is None else _scale(keep, p_dropout, cells.dtype)
    multiply = _product_by(state_weight, batch_size, dtype)
    locate = _product_by(location_weight, len(keys), memory.dtype)
    cell = torch.zeros_like(cells[0])
    for t in range(num_steps):
        total = gates[t] if t == 0 else multiply(states[t - 1], gates[t])
        hidden, context = states[t, :, :size], states[t, :, size:]
        _cell_forward(total, cell, gates[t], cells[t], hidden, scale[t])
        cell = cells[t]
        windows.copy_(_windows(past[t], half))
        pre = locate(windows.view(len(keys), -1), keys).view_as(processed_memory)
        pre.add_(F.linear(hidden, query_weight).unsqueeze(1)).tanh_()
        energies = torch.mv(pre.view_as(keys), v).view_as(mask).masked_fill_(mask, -torch.inf)
        alignment = torch.softmax(energies, dim=1, out=alignments[t])
        torch.bmm(alignment.unsqueeze(1), memory, out=context.unsqueeze(1))
        if t + 1 < num_steps:
            past[t + 1, :, 0, middle] = alignment
            torch.add(past[t, :, 1, middle], alignment, out=past[t + 1, :, 1, middle])


def _attention_steps_backwards(
    dtype,
    p_dropout,
    keep,
    memory,
    processed_memory,
    state_weight,
    query_weight,
    location_weight,
    v,
    gates,
    cells,
    states,
    alignments,
    past,
    grad_states,
    grad_alignments,
    dcontexts,
    dqueries,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`decoder_graphs.Graphs.attention_backward` in plain operations."""
    (num_steps, batch_size, num_symbols), size = alignments.shape, cells.shape[2]
    half = location_weight.shape[1] // 4
    middle = slice(half, half + num_symbols)
    sums = [torch.zeros_like(x) for x in (processed_memory, location_weight, v)]
    denergies = _empty(CHUNK, batch_size, num_symbols, dtype=memory.dtype, device=memory.device)
    dcumulative, dalignment = torch.zeros_like(alignments[0]), torch.zeros_like(alignments[0])
    attention = _AttentionSlopes(processed_memory, query_weight, location_weight, v)
    cell = _CellBackward(gates, cells, keep, p_dropout)
    multiply = _product_by(state_weight.T, batch_size, dtype)
    for stop in range(num_steps, 0, -CHUNK):
        start = max(stop - CHUNK, 0)
        cell.prepare(start, stop)
        slopes, band = attention.prepare(states[start:stop, :, :size], past[start:stop])
        for t in reversed(range(start, stop)):
            dstate = grad_states[t]
            if t + 1 < num_steps:
                dstate = multiply(gates[t + 1], dstate)
            dcontext = dcontexts[t].copy_(dstate[:, size:])
            if grad_alignments is not None:
                dalignment = dalignment + grad_alignments[t]
            # memory times a column would take MKL twelve times as long
            by_context = torch.bmm(dcontext.unsqueeze(1), memory.transpose(1, 2)).squeeze(1)
            dalignment = by_context.add_(dalignment)
            denergy = torch.ops.aten._softmax_backward_data(
                dalignment, alignments[t], 1, memory.dtype
            ).unsqueeze(1)
            denergies[t - start] = denergy.squeeze(1)
            dquery = torch.bmm(denergy, slopes[t - start], out=dqueries[t].unsqueeze(1))
            cell.step(t, torch.addmm(dstate[:, :size], dquery.squeeze(1), query_weight))
            dpast = torch.bmm(denergy, band[t - start]).view_as(past[t])[:, :, middle]
            dcumulative += dpast[:, 1]
            dalignment = dpast[:, 0] + dcumulative
        attention.finish(denergies[: stop - start], *sums)
    return tuple(sums)


def _windows(past: torch.Tensor, half: int) -> torch.Tensor:
    """[..., 2, N + 2 * half] -> a view [..., N, 2, K] of the K = 2 * half + 1 around each."""
    return past.unfold(-1, 2 * half + 1, 1).transpose(-3, -2)


class _AttentionSlopes:
    """What attention's backward steps multiply by, for several steps at once."""

    def __init__(
        self,
        processed_memory: torch.Tensor,  # [B, N, D]
        query_weight: torch.Tensor,  # [D, A]
        location_weight: torch.Tensor,  # [D, 2 * K]
        v: torch.Tensor,  # [D]
    ):
        self.processed_memory, self.query_weight = processed_memory, query_weight
        self.location_weight, self.v = location_weight, v
        batch_size, num_symbols, _ = processed_memory.shape
        self.half = location_weight.shape[1] // 4
        width = num_symbols + 2 * self.half
        # band[n, source, n + k] = (location_weight^T slope_n)[source, k], and zero elsewhere
        self.band = v.new_zeros(CHUNK, batch_size, num_symbols, 2 * width)
        self.diagonals = self.band.as_strided(
            (CHUNK, batch_size, num_symbols, 2, 2 * self.half + 1),
            (*self.band.stride()[:2], 2 * width + 1, width, 1),
        )

    def prepare(
        self, hidden: torch.Tensor, past: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """[C, B, A] and [C, B, 2, N + 2 * half] -> slopes [C, B, N, D] and the band matrices."""
        windows = _windows(past, self.half)
        self.windows = windows.reshape(-1, self.location_weight.shape[1])
        pre = _product(self.windows, self.location_weight, self.v.dtype)
        pre = pre.view(*windows.shape[:3], -1).add_(self.processed_memory)
        self.tanh = pre.add_((hidden @ self.query_weight.T).unsqueeze(2)).tanh_()
        self.slopes = torch.ops.aten.tanh_backward(self.v.expand_as(pre), self.tanh)
        filters = _product(self.slopes.flatten(0, 2), self.location_weight.T, self.v.dtype)
        self.diagonals[: len(hidden)] = filters.view_as(windows)
        return self.slopes, self.band

    def finish(
        self,
        denergies: torch.Tensor,  # [C, B, N], of the steps last prepared
        dprocessed_memory: torch.Tensor,  # their share is added to these three
        dlocation_weight: torch.Tensor,
        dv: torch.Tensor,
    ) -> None:
        # By clip and step first: one long sum of terms that cancel would lose two digits.
        dv += torch.bmm(denergies.flatten(0, 1).unsqueeze(1), self.tanh.flatten(0, 1)).sum((0, 1))
        dpre = self.slopes.mul_(denergies.unsqueeze(3))
        dprocessed_memory += dpre.sum(dim=0)
        dlocation_weight += _weight_gradient(dpre.flatten(0, 2), self.windows, self.v.dtype)
