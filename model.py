"""Define Tacotron 2 (Shen et al. 2018) with the structure and parameter names of NVIDIA's code.

    outputs = model(batch)                        # train: teacher forcing
    outputs = model.eval().infer(text, lengths)   # synthesize: free-running inference

This file contains the reference decoder, which is readable but not fast. To replace the functions
`teacher_forced`, `free_running` and `packed_lstm` with faster functions of the same signature, set
the attributes `Tacotron2.training_decoder`, `Tacotron2.speaking_decoder` and `Encoder.run_lstm`.

To use a different attention, return it from `layers.make_attention`.

Dimensions: B clips, T_in symbols, T decoder steps, r frames per decoder step, T_out = T * r frames.
memory_dim is the width of the encoder output plus the width of the speaker embedding.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import PackedSequence

import layers
from batch import Batch
from hparams import HParams
from layers import BatchNorm, Conv1d, Gain, Linear, Prenet
from tacotron2_voice.settings import WINDOW_BACK

# Dropout probability in training, after each convolution of the encoder and of the postnet.
P_CONVOLUTION_DROPOUT = 0.5
# Stop-token logit beyond the end of a clip. With this logit, the stop probability is 1 and the loss
# is 0.
PADDED_GATE = 1e3
NO_LABELS: Mapping[str, torch.Tensor] = {}  # labels for a single-speaker model


class Outputs(NamedTuple):
    mel: torch.Tensor  # [B, n_mels, T_out], before the postnet
    mel_postnet: torch.Tensor  # [B, n_mels, T_out]
    # [B, T], stop-token logits. A high logit means that the clip ends at this decoder step.
    gate: torch.Tensor
    alignments: torch.Tensor  # [B, T, T_in]
    mel_lengths: torch.Tensor | None = None  # [B] number of frames, on the CPU; set only by `infer`


class DropoutMasks(NamedTuple):
    """The decoder's dropout masks for one batch, from `Decoder.draw_masks`.

    Dropout keeps the values where a mask is True. If a mask is None, dropout keeps all values.
    """

    # One mask [T, B, prenet_dim] for each prenet layer.
    prenet: tuple[torch.Tensor | None, torch.Tensor | None]
    attention_hidden: torch.Tensor | None  # [T, B, attention_rnn_dim]
    decoder_hidden: torch.Tensor | None  # [T, B, decoder_rnn_dim]

    def at(self, t: int) -> "DropoutMasks":
        """Return the dropout masks for decoder step `t`, without the dimension T."""
        masks = (*self.prenet, self.attention_hidden, self.decoder_hidden)
        first, second, *others = (None if mask is None else mask[t] for mask in masks)
        return DropoutMasks((first, second), *others)


def _convolution(in_dim: int, dim: int, kernel_size: int, gain: Gain) -> nn.Sequential:
    return nn.Sequential(Conv1d(in_dim, dim, kernel_size, gain=gain), BatchNorm(dim))


class Encoder(nn.Module):
    """Encode symbols with convolutions and a bidirectional LSTM (Shen et al. 2018, section 2.2)."""

    def __init__(self, hparams: HParams):
        super().__init__()
        dim = hparams.encoder_embedding_dim
        kernel_size = hparams.encoder_kernel_size
        in_dims = [hparams.symbols_embedding_dim] + [dim] * (hparams.encoder_n_convolutions - 1)
        self.convolutions = nn.ModuleList(
            _convolution(in_dim, dim, kernel_size, "relu") for in_dim in in_dims
        )
        self.lstm = nn.LSTM(dim, dim // 2, batch_first=True, bidirectional=True)
        self.run_lstm: Callable = packed_lstm

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:  # [B, symbols_embedding_dim, T_in] -> [B, T_in, encoder_embedding_dim]
        """Encode texts.

        Args:
            mask: tensor [B, T_in] that is True at padding. With a mask, the convolutions read zeros
                at padding, so that the result for a text does not depend on the other texts in the
                batch. Without a mask, the convolutions read the values at padding, as in NVIDIA's
                training.
        """
        for convolution in self.convolutions:
            x = _without_padding(x, mask)
            x = layers.dropout(F.relu(convolution(x)), P_CONVOLUTION_DROPOUT, self.training)
        return self.run_lstm(self.lstm, x.transpose(1, 2), lengths)


def packed_lstm(lstm: nn.LSTM, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Run an LSTM over each text of a padded batch x [B, T_in, in], without the padding.

    The outputs [B, T_in, out] are 0 at padding.

    Raises:
        ValueError: if a length is less than 1 or greater than T_in.
    """
    # Do not use PyTorch's function for packing. That function synchronizes with the GPU. It also
    # launches one copy per length, and in the backward pass one copy per symbol.
    places, batch_sizes = layers.packing(lengths.cpu(), x.shape[1])
    places = layers.without_waiting(places, x.device)
    packed = PackedSequence(x.flatten(0, 1).index_select(0, places), batch_sizes)
    outputs = lstm(packed)[0].data
    padded = outputs.new_zeros(x.shape[0] * x.shape[1], outputs.shape[1])
    return padded.index_copy(0, places, outputs).unflatten(0, x.shape[:2])


class Postnet(nn.Module):
    """Compute a correction of the mel with convolutions. The model adds the correction to the
    decoder's mel."""

    def __init__(self, hparams: HParams):
        super().__init__()
        h = hparams
        count = hparams.postnet_n_convolutions
        dims = [h.n_mel_channels] + [h.postnet_embedding_dim] * (count - 1) + [h.n_mel_channels]
        self.convolutions = nn.ModuleList(
            _convolution(in_dim, dim, h.postnet_kernel_size, "tanh" if n < count else "linear")
            for n, (in_dim, dim) in enumerate(itertools.pairwise(dims), start=1)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Map a mel [B, n_mels, T_out] to a correction of the same shape.

        With a mask [B, T_out], True at padding, the convolutions read zeros at padding.
        """
        for i, convolution in enumerate(self.convolutions):
            x = convolution(_without_padding(x, mask))
            if i < len(self.convolutions) - 1:
                x = torch.tanh(x)
            x = layers.dropout(x, P_CONVOLUTION_DROPOUT, self.training)
        return x


def _without_padding(x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    return x if mask is None else x.masked_fill(mask.unsqueeze(1), 0.0)


def _embedding_of(names: Sequence[str], dim: int) -> nn.Embedding | None:
    """Return an embedding with one row per name, or None if `dim` is 0.

    Raises:
        ValueError: if `dim` is not 0 but there are no names.
    """
    if not dim:
        return None
    if not names:
        raise ValueError(
            f"speaker embedding of width {dim}: no speakers (expected one name per speaker)"
        )
    embedding = nn.Embedding(len(names), dim)
    nn.init.xavier_uniform_(embedding.weight)
    return embedding


class DecoderState(NamedTuple):
    """The state that a decoder step passes to the next decoder step. The initial state consists of
    zeros."""

    attention_hidden: torch.Tensor  # [B, attention_rnn_dim], after dropout
    attention_cell: torch.Tensor  # [B, attention_rnn_dim]
    decoder_hidden: torch.Tensor  # [B, decoder_rnn_dim], after dropout
    decoder_cell: torch.Tensor  # [B, decoder_rnn_dim]
    alignment: torch.Tensor  # [B, T_in], attention weights of the previous decoder step
    # [B, T_in], sum of the attention weights over all decoder steps so far.
    cumulative_alignment: torch.Tensor
    attention_context: torch.Tensor  # [B, memory_dim]


class Decoder(nn.Module):
    """The parameters of the decoder, and the computation of one decoder step (`step`)."""

    def __init__(self, hparams: HParams):
        super().__init__()
        h = hparams
        memory_dim = hparams.memory_dim
        self.n_mel_channels = h.n_mel_channels
        self.n_frames_per_step = h.n_frames_per_step
        self.frame_dim = h.n_mel_channels * h.n_frames_per_step
        self.p_attention_dropout = h.p_attention_dropout
        self.p_decoder_dropout = h.p_decoder_dropout
        self.prenet = Prenet(self.frame_dim, h.prenet_dim, h.p_prenet_dropout)
        self.attention_rnn = nn.LSTMCell(h.prenet_dim + memory_dim, h.attention_rnn_dim)
        self.attention_layer = layers.make_attention(h)
        self.decoder_rnn = nn.LSTMCell(h.attention_rnn_dim + memory_dim, h.decoder_rnn_dim)
        out_dim = h.decoder_rnn_dim + memory_dim
        self.linear_projection = Linear(out_dim, self.frame_dim)
        self.gate_layer = Linear(out_dim, 1, gain="sigmoid")

    def draw_masks(
        self, num_steps: int, batch_size: int, generator: torch.Generator | None = None
    ) -> DropoutMasks:
        """Draw random dropout masks for `num_steps` decoder steps.

        The result always contains masks for the prenet, but contains masks for the LSTMs only in
        training.
        """
        device = self.linear_projection.linear_layer.weight.device

        def mask(dim: int, p: float) -> torch.Tensor | None:
            return layers.draw_keep_mask((num_steps, batch_size, dim), p, device, generator)

        prenet = self.prenet
        training = self.training
        return DropoutMasks(
            (mask(prenet.dim, prenet.p_dropout), mask(prenet.dim, prenet.p_dropout)),
            mask(self.attention_rnn.hidden_size, self.p_attention_dropout) if training else None,
            mask(self.decoder_rnn.hidden_size, self.p_decoder_dropout) if training else None,
        )

    def initial_state(self, memory: torch.Tensor) -> DecoderState:
        """Return the state before the first decoder step."""
        batch_size, num_symbols, memory_dim = memory.shape
        attention_dim = self.attention_rnn.hidden_size
        decoder_dim = self.decoder_rnn.hidden_size
        dims = [attention_dim] * 2 + [decoder_dim] * 2 + [num_symbols] * 2 + [memory_dim]
        return DecoderState(*(memory.new_zeros(batch_size, dim) for dim in dims))

    def step(
        self,
        # [B, prenet_dim], computed from the frames of the previous decoder step.
        prenet_output: torch.Tensor,
        state: DecoderState,
        memory: torch.Tensor,  # [B, T_in, memory_dim]
        processed_memory: torch.Tensor,  # [B, T_in, attention_dim]
        mask: torch.Tensor,  # [B, T_in] bool, True where attention is not allowed
        keep: DropoutMasks,  # dropout masks of this decoder step
    ) -> tuple[torch.Tensor, torch.Tensor, DecoderState]:
        """Return the frames [B, n_mels * r], the stop-token logits [B] and the next state."""
        attention_hidden, attention_cell = self.attention_rnn(
            torch.cat([prenet_output, state.attention_context], dim=1),
            (state.attention_hidden, state.attention_cell),
        )
        attention_hidden = layers.drop(
            attention_hidden, keep.attention_hidden, self.p_attention_dropout
        )
        attention_context, alignment = self.attention_layer(
            attention_hidden,
            memory,
            processed_memory,
            torch.stack([state.alignment, state.cumulative_alignment], dim=1),
            mask,
        )
        decoder_hidden, decoder_cell = self.decoder_rnn(
            torch.cat([attention_hidden, attention_context], dim=1),
            (state.decoder_hidden, state.decoder_cell),
        )
        decoder_hidden = layers.drop(decoder_hidden, keep.decoder_hidden, self.p_decoder_dropout)
        output = torch.cat([decoder_hidden, attention_context], dim=1)
        next_state = DecoderState(
            attention_hidden,
            attention_cell,
            decoder_hidden,
            decoder_cell,
            alignment,
            state.cumulative_alignment + alignment,
            attention_context,
        )
        return self.linear_projection(output), self.gate_layer(output).squeeze(1), next_state

    def to_frames(self, steps: torch.Tensor) -> torch.Tensor:
        """Rearrange the outputs of decoder steps [T, B, n_mels * r] into a mel [B, n_mels, T_out].

        The r frames of a decoder step are consecutive in the mel.
        """
        frames = steps.transpose(0, 1).unflatten(2, (self.n_frames_per_step, self.n_mel_channels))
        return frames.flatten(1, 2).transpose(1, 2)

    def to_steps(self, mel: torch.Tensor) -> torch.Tensor:
        """Rearrange a mel [B, n_mels, T_out] into decoder steps [T, B, n_mels * r].

        The method `to_steps` is the inverse of `to_frames`.

        Raises:
            ValueError: if T_out is not a multiple of r.
        """
        if mel.shape[2] % self.n_frames_per_step:
            raise ValueError(
                f"the mel has {mel.shape[2]} frames, expected a multiple of "
                f"{self.n_frames_per_step}"
            )
        return mel.transpose(1, 2).reshape(len(mel), -1, self.frame_dim).transpose(0, 1)


def teacher_forced(
    decoder: Decoder,
    memory: torch.Tensor,  # [B, T_in, memory_dim]
    mask: torch.Tensor,  # [B, T_in] bool, True at padding
    mel: torch.Tensor,  # [B, n_mels, T_out], the target frames
    dropout_masks: DropoutMasks,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Run the decoder with teacher forcing: each decoder step reads the previous real frames.

    The first decoder step reads zeros. Return mel [B, n_mels, T_out], stop-token logits [B, T] and
    alignments [B, T, T_in].
    """
    previous = F.pad(decoder.to_steps(mel)[:-1], (0, 0, 0, 0, 1, 0))  # [T, B, n_mels * r]
    prenet_outputs = decoder.prenet(previous, dropout_masks.prenet)
    processed_memory = decoder.attention_layer.memory_layer(memory)
    state = decoder.initial_state(memory)
    outputs = []
    for t, prenet_output in enumerate(prenet_outputs):
        frame, gate, state = decoder.step(
            prenet_output, state, memory, processed_memory, mask, dropout_masks.at(t)
        )
        outputs.append((frame, gate, state.alignment))
    frames, gates, alignments = zip(*outputs, strict=True)
    return (
        decoder.to_frames(torch.stack(frames)),
        torch.stack(gates, dim=1),
        torch.stack(alignments, dim=1),
    )


class SpokenSteps(NamedTuple):
    """The outputs of one or more decoder steps during synthesis."""

    frames: torch.Tensor  # [steps, B, n_mels * r]
    gate: torch.Tensor  # [steps, B], stop-token logits
    alignments: torch.Tensor  # [steps, B, T_in]


def outside_window(mask: torch.Tensor, furthest: torch.Tensor, ahead: int) -> torch.Tensor:
    """Return a copy of `mask` [B, T_in] that is also True outside the attention window.

    The attention window starts WINDOW_BACK symbols before the symbol `furthest`, and ends `ahead`
    symbols after this symbol. The attention window only moves forward, so it prevents repeated
    words and long skips.

    Args:
        furthest: index of the furthest symbol that attention has reached so far [B, 1].
    """
    positions = torch.arange(mask.shape[1], device=mask.device)
    return mask | (positions > furthest + ahead) | (positions < furthest - WINDOW_BACK)


def free_running(
    decoder: Decoder,
    memory: torch.Tensor,  # [B, T_in, memory_dim]
    mask: torch.Tensor,  # [B, T_in] bool, True at padding
    dropout_masks: DropoutMasks,
    max_steps: int,
    window: int = 0,
) -> Iterator[SpokenSteps]:
    """Run free-running inference: each decoder step reads the decoder's own previous frames.

    The first decoder step reads zeros. The generator computes up to `max_steps` decoder steps on
    demand.

    Args:
        window: maximum number of symbols that attention may advance per decoder step (see
            `outside_window`); 0: no limit.
    """
    processed_memory = decoder.attention_layer.memory_layer(memory)
    state = decoder.initial_state(memory)
    frames = memory.new_zeros(len(memory), decoder.frame_dim)
    furthest = torch.zeros_like(mask[:, :1], dtype=torch.int64)
    allowed = mask
    for t in range(max_steps):
        keep = dropout_masks.at(t)
        prenet_output = decoder.prenet(frames, keep.prenet)
        if window:
            allowed = outside_window(mask, furthest, window)
        frames, gate, state = decoder.step(
            prenet_output, state, memory, processed_memory, allowed, keep
        )
        if window:
            furthest = torch.maximum(furthest, state.alignment.argmax(dim=1, keepdim=True))
        yield SpokenSteps(frames[None], gate[None], state.alignment[None])


class Tacotron2(nn.Module):
    """The complete text-to-mel model.

    Use `forward` in training, and `infer` or `speak` in synthesis.

    If `speaker_embedding_dim` is set, a learned speaker embedding is appended to the encoder output
    at every symbol, as in Jia et al. (2018), section 2.2.

    Raises:
        ValueError: if `speaker_embedding_dim` is set but `speakers` is empty.
    """

    def __init__(
        self,
        hparams: HParams,
        training_decoder: Callable = teacher_forced,
        speaking_decoder: Callable = free_running,
    ):
        super().__init__()
        self.mask_padding = hparams.mask_padding
        self.n_frames_per_step = hparams.n_frames_per_step
        self.max_decoder_steps = hparams.max_decoder_steps
        self.gate_threshold = hparams.gate_threshold
        self.training_decoder = training_decoder
        self.speaking_decoder = speaking_decoder
        self.embedding = nn.Embedding(hparams.n_symbols, hparams.symbols_embedding_dim)
        nn.init.xavier_uniform_(self.embedding.weight)
        self.encoder = Encoder(hparams)
        self.speaker_embedding = _embedding_of(hparams.speakers, hparams.speaker_embedding_dim)
        self.decoder = Decoder(hparams)
        self.postnet = Postnet(hparams)

    def forward(self, batch: Batch, dropout_masks: DropoutMasks | None = None) -> Outputs:
        """Compute the outputs with teacher forcing. If `dropout_masks` is None, draw new masks.

        As in NVIDIA's implementation, the padding in a batch affects the encoder convolutions, the
        postnet and batch norm. If `mask_padding` is set, mel is 0 and gate is 1e3 beyond the end of
        each clip.
        """
        text_mask = layers.padding_mask(batch.text_lengths, batch.text.shape[1], batch.text.device)
        memory = self.encode(batch.text, batch.text_lengths, batch.labels)
        if dropout_masks is None:
            num_steps = batch.mel.shape[2] // self.n_frames_per_step
            dropout_masks = self.decoder.draw_masks(num_steps, len(batch.text))
        mel, gate, alignments = self.training_decoder(
            self.decoder, memory, text_mask, batch.mel, dropout_masks
        )
        outputs = Outputs(mel, mel + self.postnet(mel), gate, alignments)
        return self._mask(outputs, batch.mel_lengths) if self.mask_padding else outputs

    def encode(
        self,
        text: torch.Tensor,
        text_lengths: torch.Tensor,
        labels: Mapping[str, torch.Tensor],
        mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Encode texts [B, T_in] to the memory [B, T_in, memory_dim] that the decoder attends to.

        Args:
            labels: the speaker and other labels of each text, in the same format as `Batch.labels`.
            mask: tensor [B, T_in] that is True at padding. With a mask, the encoder's convolutions
                read zeros at padding.

        Raises:
            ValueError: if the keys of `labels` are not the labels that the model was built with.
        """
        known = {"speaker": self.speaker_embedding}
        embeddings = {label: x for label, x in known.items() if x is not None}
        if labels.keys() != embeddings.keys():
            raise ValueError(f"the labels are {[*labels]}, expected {[*embeddings]}")
        memory = self.encoder(self.embedding(text).transpose(1, 2), text_lengths, mask)
        # Attention weights sum to 1, so the label embeddings reach every context vector unchanged.
        for label, embedding in embeddings.items():
            vectors = embedding(labels[label])[:, None].expand(-1, memory.shape[1], -1)
            memory = torch.cat([memory, vectors.to(memory.dtype)], dim=2)
        return memory

    def _mask(self, outputs: Outputs, mel_lengths: torch.Tensor) -> Outputs:
        mel, mel_postnet, gate = outputs[:3]
        frames = layers.padding_mask(mel_lengths, mel.shape[2], mel.device)
        # A decoder step is padding if its first frame is beyond the end of the clip.
        steps = frames[:, :: self.n_frames_per_step]
        return outputs._replace(
            mel=mel.masked_fill(frames.unsqueeze(1), 0.0),
            mel_postnet=mel_postnet.masked_fill(frames.unsqueeze(1), 0.0),
            gate=gate.masked_fill(steps, PADDED_GATE),
        )

    @torch.no_grad()
    def speak(
        self,
        text: torch.Tensor,
        text_lengths: torch.Tensor,
        dropout_masks: DropoutMasks,
        max_steps: int,
        window: int = 0,
        labels: Mapping[str, torch.Tensor] = NO_LABELS,
    ) -> Iterator[SpokenSteps]:
        """Yield the decoder steps of texts on demand. The caller must detect the end of the speech
        for each text.

        The docstring of `infer` describes the arguments and errors. The docstring of `free_running`
        describes `window`.
        """
        if self.training:
            raise RuntimeError("the model is in training mode. Call model.eval() first")
        text_mask = layers.padding_mask(text_lengths, text.shape[1], text.device)
        memory = self.encode(text, text_lengths, labels, text_mask)
        decode = self.speaking_decoder
        yield from decode(self.decoder, memory, text_mask, dropout_masks, max_steps, window)

    @torch.no_grad()
    def infer(
        self,
        text: torch.Tensor,
        text_lengths: torch.Tensor,
        dropout_masks: DropoutMasks | None = None,
        labels: Mapping[str, torch.Tensor] = NO_LABELS,
    ) -> Outputs:
        """Synthesize texts with free-running inference.

        The speech for a text ends at the first decoder step whose stop probability exceeds
        `gate_threshold`, or after `max_decoder_steps`. After the end of the speech, mel is 0 and
        gate is 1e3. The result for a text depends on the prenet's dropout masks for this text.
        Except for rounding errors, the result does not depend on the other texts in the batch.

        Args:
            text: int64 [B, T_in]; padding may have any value.
            text_lengths: int64 [B].
            dropout_masks: masks for `max_decoder_steps` decoder steps (default: new masks).
            labels: speakers and other labels in the same format as `Batch.labels`.

        Raises:
            RuntimeError: in training mode, because batch norm would mix the texts.
            ValueError: if the keys of `labels` are not the labels that the model was built with.
        """
        if dropout_masks is None:
            dropout_masks = self.decoder.draw_masks(self.max_decoder_steps, len(text))
        spoken = []
        stops = []
        ended = torch.zeros(len(text), dtype=torch.bool, device=text.device)
        limit = self.max_decoder_steps
        for steps in self.speak(text, text_lengths, dropout_masks, limit, labels=labels):
            spoken.append(steps)
            stops.append(torch.sigmoid(steps.gate) > self.gate_threshold)
            ended |= stops[-1].any(dim=0)
            if bool(ended.all()):
                break
        not_yet = torch.cat(stops).cpu().cumsum(dim=0) == 0  # [computed decoder steps, B]
        num_steps = (not_yet.sum(dim=0) + 1).clamp(max=self.max_decoder_steps)
        # Cut off extra decoder steps, because the decoder may have computed more decoder steps than
        # the longest text needs.
        frames, gate, alignments = (
            torch.cat(parts)[: int(num_steps.max())] for parts in zip(*spoken, strict=True)
        )
        mel = self.decoder.to_frames(frames)
        mel_lengths = num_steps * self.n_frames_per_step
        beyond = layers.padding_mask(mel_lengths, mel.shape[2], mel.device)
        mel_postnet = mel + self.postnet(mel, beyond)
        outputs = Outputs(mel, mel_postnet, gate.T, alignments.transpose(0, 1), mel_lengths)
        return self._mask(outputs, mel_lengths)
