"""Define the attention recurrence and the LSTM recurrence as autograd functions, with their buffers
and formulas.

`loops` is an object that runs the loops over decoder steps: a `plain.PlainLoops` or a
`graphs.Graphs`, which have the same methods.

Dimensions: T decoder steps, B clips, N symbols. P is prenet_dim, E is memory_dim, A is
attention_rnn_dim, D is attention_dim, H is decoder_rnn_dim, and K is
attention_location_kernel_size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd import Function

from fast_decoder.operations import flat, new, product, weight_gradient


@dataclass
class LSTMBuffers:
    """The buffers of a loop over an LSTM of size S. The buffer `rows` has W >= S columns."""

    keep: torch.Tensor | None  # [T, B, S] bool, True for values that dropout keeps
    # [4 * S, S], or [4 * S, W] if the context is also an input of the next step; in the dtype of
    # matrix products.
    weight: torch.Tensor
    # [T, B, 4 * S]. The buffer at first contains the contribution of the inputs, later the
    # activated gates, and finally the gradients of the gates.
    gates: torch.Tensor
    cells: torch.Tensor  # [T, B, S], written by the forward pass
    # [T, B, W], the hidden state after dropout (written by the forward pass) and the context.
    rows: torch.Tensor

    @property
    def hidden(self) -> torch.Tensor:
        return self.rows[:, :, : self.cells.shape[2]]


@dataclass
class AttentionBuffers(LSTMBuffers):
    """The buffers of the loop over the attention LSTM (S = A, W = A + E) and the attention."""

    mask: torch.Tensor  # [B, N] bool, True at padding
    memory: torch.Tensor  # [B, N, E]
    processed_memory: torch.Tensor  # [B, N, D]
    query_weight: torch.Tensor  # [D, A]
    location_weight: torch.Tensor  # [D, 2 * K]
    v: torch.Tensor  # [D]
    alignments: torch.Tensor  # [T, B, N], written by the forward pass
    # [T, B, 2, N + K - 1], the previous and the cumulative alignment that each step reads,
    # surrounded by zeros. The forward pass writes this tensor.
    past: torch.Tensor


@dataclass
class AttentionGradients:
    """The gradients that the backward loop of attention computes."""

    # [T, B, 4 * A]; kernels may return a copy of `AttentionBuffers.gates` in the dtype of matrix
    # products.
    gates: torch.Tensor
    contexts: torch.Tensor  # [T, B, E]
    queries: torch.Tensor  # [T, B, D]
    # [B, N, D]. The gradients `processed_memory`, `location_weight` and `v` are sums over all
    # decoder steps.
    processed_memory: torch.Tensor
    location_weight: torch.Tensor  # [D, 2 * K]
    v: torch.Tensor  # [D]


def _once(backward: Callable) -> Callable:
    """Disable autocast in a backward pass, and raise an error if the backward pass runs twice or if
    its result is differentiated.
    """

    def guarded(ctx, *gradients):
        if torch.is_grad_enabled() or getattr(ctx, "spent", False):
            raise RuntimeError(
                "the fast decoder supports only one backward pass per forward pass, and no second "
                "derivatives, because its backward pass overwrites values that its forward pass "
                "has saved. Use decoder=reference, or leave out retain_graph=True and "
                "create_graph=True"
            )
        ctx.spent = True
        device = next(gradient.device for gradient in gradients if gradient is not None)
        with torch.autocast(device.type, enabled=False):
            return backward(ctx, *gradients)

    return guarded


class AttentionRecurrence(Function):
    """Compute the attention LSTM and the location-sensitive attention over all decoder steps.

    The state of a decoder step is [hidden, context]. The state is used by the decoder LSTM and by
    the gates of the next decoder step:

        gates_t = input_weight x_t + bias + state_weight state_(t-1)
        pre_tn = processed_memory_n + query_weight hidden_t + location_weight window_tn
        alignment_t = softmax over n of v . tanh(pre_tn)
        context_t = sum over n of alignment_tn memory_n

    window_tn contains K values around symbol n from each of two alignments, the previous and the
    cumulative alignment. The backward pass uses slope_tn = v * (1 - tanh(pre_tn)^2), and the
    gradients of the energies (denergy), which the softmax backward pass computes:

        dalignment_t = dcontext_t . memory_n + gradients from the windows of later steps
        dhidden_t = dstate_t + query_weight^T sum over n of denergy_tn slope_tn
        dwindow_tn = denergy_tn location_weight^T slope_tn
    """

    @staticmethod
    def forward(
        ctx,
        loops,
        keep: torch.Tensor | None,  # [T, B, A] bool
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
        num_symbols = memory.shape[1]
        width = memory.shape[1] + location_weight.shape[1] // 2 - 1
        dtype = loops.operand_dtype
        # Convert the weights once for the forward and the backward pass.
        input_weight = input_weight.to(dtype)
        state_weight = state_weight.to(dtype)
        gates = product(flat(inputs), input_weight, dtype, bias)
        buffers = AttentionBuffers(
            keep=keep,
            weight=state_weight,
            gates=gates.view(num_steps, batch_size, -1),
            cells=new(inputs, num_steps, batch_size, query_weight.shape[1]),
            rows=new(inputs, num_steps, batch_size, state_weight.shape[1]),
            mask=mask,
            memory=memory,
            processed_memory=processed_memory,
            query_weight=query_weight,
            location_weight=location_weight,
            v=v,
            alignments=new(inputs, num_steps, batch_size, num_symbols),
            past=inputs.new_zeros(num_steps, batch_size, 2, width),
        )
        loops.attention_forward(buffers)
        ctx.save_for_backward(inputs, input_weight, *vars(buffers).values())
        ctx.loops = loops
        ctx.set_materialize_grads(False)
        return buffers.rows, buffers.alignments

    @staticmethod
    @_once
    def backward(ctx, grad_states: torch.Tensor | None, grad_alignments: torch.Tensor | None):
        inputs, input_weight, *saved = ctx.saved_tensors
        buffers = AttentionBuffers(*saved)
        dtype = ctx.loops.operand_dtype
        if grad_states is None:
            grad_states = torch.zeros_like(buffers.rows)
        gradients = ctx.loops.attention_backward(buffers, grad_states, grad_alignments)
        # Convert the gradient of the gates once, because three products use this gradient.
        dgates = gradients.gates.to(dtype)
        return (
            None,
            None,
            None,
            product(flat(dgates), input_weight.T, dtype).to(inputs.dtype).view_as(inputs),
            torch.bmm(buffers.alignments.permute(1, 2, 0), gradients.contexts.transpose(0, 1)),
            gradients.processed_memory,
            weight_gradient(flat(dgates), flat(inputs), dtype),
            buffers.gates.sum(dim=(0, 1)),
            weight_gradient(flat(dgates[1:]), flat(buffers.rows[:-1]), dtype),
            flat(gradients.queries).T @ flat(buffers.hidden),
            gradients.location_weight,
            gradients.v,
        )


class LSTMRecurrence(Function):
    """Compute an LSTM over all steps, with dropout on the hidden state.

    The inputs of the decoder LSTM are the states of the attention recurrence. The outputs of the
    decoder LSTM are [hidden, context], from which the model projects frames and stop-token logits.
    The encoder LSTM has no context (E = 0).
    """

    @staticmethod
    def forward(
        ctx,
        loops,
        keep: torch.Tensor | None,  # [T, B, H] bool
        inputs: torch.Tensor,  # [T, B, I]; the last E columns are the context
        input_weight: torch.Tensor,  # [4 * H, I]
        bias: torch.Tensor,  # [4 * H]
        hidden_weight: torch.Tensor,  # [4 * H, H]
        context_size: int,  # number of context columns, E
    ) -> torch.Tensor:  # [T, B, H + E], with the hidden state after dropout
        num_steps, batch_size, input_size = inputs.shape
        size = hidden_weight.shape[1]
        dtype = loops.operand_dtype
        input_weight = input_weight.to(dtype)
        hidden_weight = hidden_weight.to(dtype)
        gates = product(flat(inputs), input_weight, dtype, bias)
        buffers = LSTMBuffers(
            keep=keep,
            weight=hidden_weight,
            gates=gates.view(num_steps, batch_size, -1),
            cells=new(inputs, num_steps, batch_size, size),
            rows=new(inputs, num_steps, batch_size, size + context_size),
        )
        buffers.rows[:, :, size:] = inputs[:, :, input_size - context_size :]
        loops.lstm_forward(buffers)
        ctx.save_for_backward(inputs, input_weight, *vars(buffers).values())
        ctx.loops = loops
        return buffers.rows

    @staticmethod
    @_once
    def backward(ctx, grad_outputs: torch.Tensor):
        inputs, input_weight, *saved = ctx.saved_tensors
        buffers = LSTMBuffers(*saved)
        dtype = ctx.loops.operand_dtype
        # Convert the gradient of the gates once, because three products use this gradient.
        dgates = ctx.loops.lstm_backward(buffers, grad_outputs).to(dtype)
        dinputs = product(flat(dgates), input_weight.T, dtype).to(inputs.dtype).view_as(inputs)
        dcontexts = grad_outputs[:, :, buffers.cells.shape[2] :]
        dinputs[:, :, inputs.shape[2] - dcontexts.shape[2] :] += dcontexts
        return (
            None,
            None,
            dinputs,
            weight_gradient(flat(dgates), flat(inputs), dtype),
            buffers.gates.sum(dim=(0, 1)),
            weight_gradient(flat(dgates[1:]), flat(buffers.hidden[:-1]), dtype),
            None,
        )
