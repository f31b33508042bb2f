"""Compare outputs and gradients of several implementations of the decoder or the encoder LSTM.

problem = Problem.random(decoder, symbols=(40, 23), steps=35, seed=0)
errors = relative_errors(problem.run(fast), problem.run(exact))
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import fast_decoder
from model import Decoder, DropoutMasks

EQUAL = (1.0, 1.0, 1.0)  # weights of mel, stop-token logits and alignments in the loss


@dataclass
class Problem:
    """A decoder and its inputs for one batch."""

    decoder: Decoder
    memory: Tensor  # [B, N, E]
    mask: Tensor  # [B, N] bool, True at padding
    mel: Tensor  # [B, n_mels, T_out]
    dropout_masks: DropoutMasks
    seed: int  # seed for the random weights in the loss, one per output value

    @classmethod
    def random(cls, decoder: Decoder, symbols: tuple[int, ...], steps: int, seed: int) -> "Problem":
        """Return a problem with random float32 clips that have the given numbers of symbols and
        decoder steps.

        The same seed always gives the same clips.
        """
        generator = torch.Generator().manual_seed(seed)
        longest = max(symbols)
        size = decoder.decoder_rnn.input_size - decoder.attention_rnn.hidden_size
        shape = len(symbols), decoder.n_mel_channels, steps * decoder.n_frames_per_step
        return cls(
            decoder,
            torch.randn(len(symbols), longest, size, generator=generator),
            torch.arange(longest) >= torch.tensor(symbols)[:, None],
            torch.randn(shape, generator=generator),
            decoder.draw_masks(steps, len(symbols), generator),
            seed,
        )

    def to(self, dtype: torch.dtype | None = None, device: torch.device | None = None) -> "Problem":
        """Convert the inputs and the decoder to another dtype or device."""
        memory, mel = (x.to(dtype=dtype, device=device) for x in (self.memory, self.mel))
        masks = tree_map_only(Tensor, lambda keep: keep.to(device=device), self.dropout_masks)
        decoder = self.decoder.to(dtype=dtype, device=device)
        return Problem(decoder, memory, self.mask.to(device=device), mel, masks, self.seed)

    def outputs(self, function: Callable = fast_decoder.teacher_forced) -> tuple[Tensor, ...]:
        """Return mel, stop-token logits and alignments."""
        return function(self.decoder, self.memory, self.mask, self.mel, self.dropout_masks)

    def loss(self, outputs: tuple[Tensor, ...], weights: tuple[float, ...] = EQUAL) -> Tensor:
        """Return a sum of all output values, with random weights that depend on `self.seed`."""
        generator = torch.Generator().manual_seed(self.seed)
        loss = torch.zeros(())
        for output, weight in zip(outputs, weights, strict=True):
            noise = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            if weight:
                loss = loss + weight * (output.to(self.memory.dtype) * noise.to(self.memory)).sum()
        return loss

    def run(
        self,
        function: Callable,
        weights: tuple[float, ...] = EQUAL,
        precision: torch.dtype | None = None,
    ) -> dict[str, Tensor]:
        """Return the outputs and all gradients of the loss as {name: tensor}.

        If PyTorch computes no gradient for a tensor, the gradient is zero.

        Args:
            precision: dtype of autocast; None: no autocast.
        """
        case = replace(
            self, memory=self.memory.clone().requires_grad_(), mel=self.mel.clone().requires_grad_()
        )
        self.decoder.zero_grad()
        with torch.autocast(self.memory.device.type, precision, enabled=precision is not None):
            outputs = case.outputs(function)
        self.loss(outputs, weights).backward()
        results = dict(zip(("mel", "gate", "alignments"), outputs, strict=True))
        inputs = ("memory", case.memory), ("input mel", case.mel)
        for name, x in (*inputs, *self.decoder.named_parameters()):
            results[f"grad {name}"] = torch.zeros_like(x) if x.grad is None else x.grad
        return {name: x.detach().clone() for name, x in results.items()}


@dataclass
class EncoderProblem:
    """The encoder LSTM and its inputs for one batch."""

    lstm: torch.nn.LSTM
    inputs: Tensor  # [B, N, in]
    lengths: Tensor  # [B]
    seed: int  # seed for the random weights in the loss, one per output value

    @classmethod
    def random(cls, lstm: torch.nn.LSTM, symbols: tuple[int, ...], seed: int) -> "EncoderProblem":
        """Return a problem with random float32 inputs, for texts with the given numbers of symbols.

        The same seed always gives the same inputs.
        """
        generator = torch.Generator().manual_seed(seed)
        shape = len(symbols), max(symbols), lstm.input_size
        return cls(lstm, torch.randn(shape, generator=generator), torch.tensor(symbols), seed)

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> "EncoderProblem":
        """Convert the inputs and the LSTM to another dtype or device."""
        lstm = self.lstm.to(dtype=dtype, device=device)
        inputs = self.inputs.to(dtype=dtype, device=device)
        return EncoderProblem(lstm, inputs, self.lengths, self.seed)

    def run(self, function: Callable, precision: torch.dtype | None = None) -> dict[str, Tensor]:
        """Return {name: tensor} with the outputs, and with the gradients of a randomly weighted sum
        of the outputs.

        Args:
            precision: dtype of autocast; None: no autocast.
        """
        inputs = self.inputs.clone().requires_grad_()
        self.lstm.zero_grad()
        with torch.autocast(inputs.device.type, precision, enabled=precision is not None):
            outputs = function(self.lstm, inputs, self.lengths)
        generator = torch.Generator().manual_seed(self.seed)
        weights = torch.randn(outputs.shape, generator=generator, dtype=torch.float64)
        (outputs.to(inputs.dtype) * weights.to(inputs)).sum().backward()
        gradients = {f"grad encoder {name}": x.grad for name, x in self.lstm.named_parameters()}
        gradients["grad encoder inputs"] = inputs.grad
        results = {"encoder outputs": outputs} | gradients
        return {name: x.detach().clone() for name, x in results.items()}


def relative_errors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, float]:
    """Return {name: max|a - b| / max|b|} for every tensor b in `expected`.

    The error is infinite if the shapes differ or a value is not finite.
    """
    errors = dict.fromkeys(expected, float("inf"))
    for name, wanted in expected.items():
        value = actual[name].double()
        if value.shape == wanted.shape and value.isfinite().all():
            difference = (value - wanted).abs().max()
            errors[name] = difference.item() / (wanted.abs().max().item() or 1.0)
    return errors
