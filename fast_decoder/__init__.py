"""Run the decoder with teacher forcing, faster than model.py and with the same results.

    mel, gate, alignments = fast_decoder.teacher_forced(decoder, memory, mask, mel, dropout_masks)

With teacher forcing, the attention LSTM does not depend on the decoder LSTM. Therefore one loop
runs the attention LSTM and the attention, and a second loop runs the decoder LSTM. All other
operations are matrix products over all decoder steps at once: the prenet, the contribution of the
inputs to the LSTM gates, and the projections. The backward passes of both loops are implemented by
hand, without autograd. The gradient of each weight is a single matrix product over all decoder
steps.

- recurrences.py: formulas, buffers and the names of dimensions
- plain.py: the decoder loops, implemented with ordinary PyTorch operations
- graphs.py, kernels.py: the decoder loops on a GPU
- encoder.py: the encoder LSTM on a GPU
- self_check.py, compare_kernels.py: the check of the kernels on this GPU
- captured_steps.py: synthesis on a GPU

If the folder fast_decoder/ is missing, training uses the reference decoder.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F

from fast_decoder import graphs
from fast_decoder.operations import onednn_multiplies
from fast_decoder.plain import PlainLoops
from fast_decoder.recurrences import AttentionRecurrence, LSTMRecurrence


def teacher_forced(
    decoder,  # model.Decoder
    memory: torch.Tensor,  # [B, N, E]
    mask: torch.Tensor,  # [B, N] bool, True at padding
    mel: torch.Tensor,  # [B, n_mels, T_out], the target frames
    dropout_masks,  # model.DropoutMasks
    loops_for: Callable | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Compute the outputs of `model.teacher_forced` for `LocationSensitiveAttention`.

    Return mel [B, n_mels, T_out], stop-token logits [B, T] and alignments [B, T, N]. Under
    autocast, the prenet, the projections and the matrix products of the LSTMs use the precision of
    autocast. All sums and all other operations use the precision of the parameters.

    Args:
        loops_for: a function that returns the decoder loops for a batch, such as `plain_loops`.
            Default: a function that returns Triton kernels if this machine supports them, otherwise
            plain PyTorch operations.

    Raises:
        RuntimeError: if you compute a second derivative, or run a second backward pass through the
            same graph (retain_graph).
    """
    attention = decoder.attention_layer
    device = memory.device.type
    previous = F.pad(decoder.to_steps(mel)[:-1], (0, 0, 0, 0, 1, 0))  # [T, B, n_mels * r]
    prenet_outputs = decoder.prenet(previous, dropout_masks.prenet)
    processed_memory = attention.memory_layer(memory)
    rnn = decoder.attention_rnn
    dtype = operand_dtype = rnn.weight_hh.dtype
    if torch.is_autocast_enabled(device):
        operand_dtype = torch.get_autocast_dtype(device)
    loops = (loops_for or _loops_for)(decoder, memory, operand_dtype, dropout_masks)
    with torch.autocast(device, enabled=False):
        # Combine the location layer's convolution and dense layer into one linear map.
        location = attention.location_layer
        location_weight = location.location_dense.linear_layer.weight @ (
            location.location_conv.conv.weight.flatten(1)
        )  # [D, 2 * K]
        input_weight, context_weight = rnn.weight_ih.split(
            [prenet_outputs.shape[2], memory.shape[2]], dim=1
        )
        states, alignments = AttentionRecurrence.apply(
            loops,
            dropout_masks.attention_hidden,
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
        outputs = LSTMRecurrence.apply(
            loops,
            dropout_masks.decoder_hidden,
            states,
            rnn.weight_ih,
            rnn.bias_ih + rnn.bias_hh,
            rnn.weight_hh,
            memory.shape[2],
        )
    frames = decoder.linear_projection(outputs)
    gates = decoder.gate_layer(outputs)
    return decoder.to_frames(frames), gates.squeeze(2).T, alignments.transpose(0, 1)


def describe(device: torch.device) -> str:
    """Return a phrase that describes how the decoder loops run on this device with float32
    parameters."""
    if device.type == "cpu":
        if onednn_multiplies("cpu", torch.float32):
            return "oneDNN matrix products with prepacked weights"
        return (
            "plain operations, at about half the speed, because oneDNN is not available in this "
            "PyTorch"
        )
    problem = graphs.problem(device, torch.float32)
    if problem is None:
        return "Triton kernels in CUDA graphs"
    return f"plain operations, several times slower than the kernels: {problem}"


def _loops_for(decoder, memory, operand_dtype, dropout_masks) -> graphs.Graphs | PlainLoops:
    """Return `Graphs` if this machine supports the kernels, otherwise `PlainLoops`."""
    loops = graphs.graphs_for(decoder, memory, operand_dtype, dropout_masks)
    if not isinstance(loops, str):
        return loops
    if memory.is_cuda:
        warnings.warn(  # Python prints identical warnings only once
            "the fast decoder uses plain operations instead of its Triton kernels. The results are "
            f"the same, but training is several times slower: {loops}",
            stacklevel=2,
        )
    return plain_loops(decoder, memory, operand_dtype, dropout_masks)


def plain_loops(decoder, memory, operand_dtype, dropout_masks) -> PlainLoops:
    """Return an object that runs the decoder loops with ordinary PyTorch operations. `memory` and
    `dropout_masks` are not used."""
    return PlainLoops(
        operand_dtype,
        decoder.p_attention_dropout,
        decoder.p_decoder_dropout,
        decoder.attention_layer.location_gradient,
    )
