"""Speaks with an exported voice, a folder that needs no PyTorch. scripts/export_voice.py makes one
of a checkpoint.

    voice = Voice("voice/")
    samples = voice.speak("It was a quiet evening.")  # float32 [N] in [-1, 1]
    for samples in voice.stream(text): ...            # the first before the text is finished
    samples = voice.speak(text, speaker="anna")       # where voice.hparams.speakers names several

It holds `voice.json` (`About`), ONNX graphs of encoder, decoder step and postnet, which may be
packed by LZMA, and the mel filters. Everything is checked before it is used: a folder from
elsewhere can do no more than speak badly, or slowly, within the bounds of memory and time of
bounds.py. What is needed is requirements/onnx.txt and the text rules.
"""

import hashlib
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from hparams import (
    WINDOW_BACK,
    HParams,
    check_text_settings,
    hparams_from_dict,
    limits,
)
from tacotron2_voice.onnx_graph import MAX_GRAPH_BYTES, Graph, refuse_operators
from tacotron2_voice.speakers import problem_of_names
from tacotron2_voice.speech_statistics import SpeakerStatistics, SpeechStatistics
from tacotron2_voice.synthesis_settings import SIZES, speaking_hparams
from tacotron2_voice.synthesizer import DecoderSteps, Synthesizer
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_as, read_bytes

SETTINGS, FILTERS = "voice.json", "mel_filters.f32"  # the latter [n_mels, filter_length / 2 + 1]
MEMORY, STATE = ["memory", "processed_memory"], ["frames", "state", "alignments"]
GRAPHS = {  # inputs and outputs, in order; `inputs_of` has the encoder's of several speakers
    "encoder": (["symbols"], MEMORY),
    "decoder": (
        [*MEMORY, "outside", "keep", *STATE],
        ["gate", *(f"next_{name}" for name in STATE)],
    ),
    "postnet": (["mel"], ["refined"]),
}
FILES = {FILTERS, *(f"{name}.onnx" for name in GRAPHS)}
PACKED = ".xz"  # added to the names of the graphs of a packed voice
MAX_UNPACKING_BYTES = 2**27  # of memory; what scripts/export_voice.py packs needs 9 MB
# What the graphs of scripts/export_voice.py consist of: none runs others, loops, or knows files.
OPERATORS = set(
    "Add Cast Concat Constant ConstantOfShape Conv DequantizeLinear DynamicQuantizeLinear Gather "
    "Gemm LSTM MatMul MatMulInteger Mul Relu Reshape Shape Sigmoid Slice Softmax Split Squeeze "
    "Tanh Transpose Unsqueeze Where".split()
)


def inputs_of(graph: str, h: HParams) -> list[str]:
    """The names of a graph's inputs, in order."""
    return [*GRAPHS[graph][0], *(h.labels if graph == "encoder" else [])]


def shape_of(name: str, h: HParams) -> list[int | None]:
    """Of a graph's input or output, for one text; None: as many as there are symbols, or frames.
    All are float32, but the symbols' ids int64."""
    rnns = 2 * h.attention_rnn_dim + 2 * h.decoder_rnn_dim
    sizes: dict[str, list[int | None]] = {
        "symbols": [1, None],
        # 1 at the speaker's index, else 0: so the graph says how many speakers it knows.
        "speaker": [1, len(h.speakers)],
        "memory": [1, None, h.memory_dim],
        "processed_memory": [1, None, h.attention_dim],
        "outside": [1, None],  # of the attention's window: 1 where it may not be
        "keep": [2, h.prenet_dim],  # of the prenet's two layers: 0, or 1 / (1 - p)
        "frames": [1, h.n_mel_channels * h.n_frames_per_step],
        "state": [1, rnns + h.memory_dim],  # of the LSTMs, and the attention's context
        "alignments": [2, None],  # of the last step, and of all together
        "gate": [1],  # the probability that the step is the last
        "mel": [1, h.n_mel_channels, None],
        "refined": [1, h.n_mel_channels, None],
    }
    return sizes[name.removeprefix("next_")]


@dataclass(frozen=True)
class About:
    """What voice.json says. `hparams` are the run's: sampling rate, mel settings, cleaners,
    language and eSpeak's version, frames a step, gate threshold, the lists it was trained on, the
    names of the speakers."""

    format: Literal[2]
    weights: Literal["int8", "fp32", "packed"]
    checkpoint: str  # the file's name
    epochs: int  # that it was trained, 0 where it is not known
    longest_text: Annotated[int, limits(ge=1)] | None  # of the training, in symbols
    statistics: SpeechStatistics | None  # of its clips
    symbols: list[str]  # in the order of their ids
    hparams: dict[str, Any]
    recipe: str  # its version
    versions: dict[str, str]
    files: dict[str, str]  # their SHA-256
    # Of each of the speakers; none of one voice, or where they are not known.
    speaker_statistics: list[SpeakerStatistics] = field(default_factory=list)


def open_graph(path: Path, content: bytes, h: HParams, threads: int) -> Graph:
    """The graph in GRAPHS that has the name of a file; UserError for another, before it runs."""
    refuse_operators(content, OPERATORS, "no voice needs", "export the voice again")
    graph, outputs = Graph(path, content, threads), GRAPHS[path.stem][1]
    shapes = {x.name: [n if type(n) is int else None for n in x.shape] for x in graph.inputs}
    expected = {x: shape_of(x, h) for x in inputs_of(path.stem, h)}
    if shapes != expected or [x.name for x in graph.outputs] != outputs:
        names = ", ".join(x.name for x in graph.outputs)
        known = f"expected {expected} to {', '.join(outputs)}; export the voice again"
        raise UserError(f"a graph from {shapes!s:.400} to {names!r:.200}, {known}")
    return graph


def unpacked(content: bytes) -> bytes:
    """The bytes that a file packed by LZMA holds; UserError if it holds none or too many."""
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, MAX_UNPACKING_BYTES)
    try:
        content = unpacker.decompress(content, MAX_GRAPH_BYTES)
    except lzma.LZMAError as error:
        raise UserError(f"cannot be unpacked ({error}); copy the voice again") from None
    if not unpacker.eof:
        raise UserError("not whole, or unpacks to over 1 GiB; copy the voice again")
    return content


class Voice(Synthesizer):
    """Speaks with the graphs of a folder, one text at a time."""

    def __init__(self, folder: str | Path, overrides: str = "", threads: int = 1):
        """Load and check a folder. `overrides` are settings as in --hparams; each graph has
        `threads`, and one is the fastest for 8-bit weights on two cores. UserError for what is
        missing, damaged or not as voice.json says."""
        self.folder = self.source = Path(folder)
        path = self.folder / SETTINGS
        files = [SETTINGS, *sorted(FILES), *(f"{name}.onnx{PACKED}" for name in GRAPHS)]
        for link in filter(Path.is_symlink, (self.folder / x for x in files)):
            raise UserError(f"{link}: a link, expected a file of the voice; copy the voice again")
        missing = "no voice here; scripts/export_voice.py makes one"
        self.about = read_as(path, About, missing, "export or copy the voice again")
        with naming(path):
            if self.about.files.keys() != FILES:
                names, expected = ", ".join(self.about.files), ", ".join(sorted(FILES))
                raise UserError(f"files: {names!r:.200}, expected {expected}; export it again")
            kept = hparams_from_dict(self.about.hparams)
            if self.about.symbols != list(kept.table.symbols):
                raise UserError("symbols: not those of its hparams; export the voice again")
            if problem := self._problem_of_speakers(kept):
                raise UserError(f"{problem}; export the voice again")
        h = speaking_hparams(overrides, kept, SIZES)
        with naming(path):
            h = check_text_settings(h)
        self.graphs = {}
        for name in GRAPHS:
            path = self.folder / f"{name}.onnx"
            with naming(self._file(path.name)):
                self.graphs[name] = open_graph(path, self._read(path.name), h, threads)
        with naming(self.folder / FILTERS):
            content, bins = self._read(FILTERS), h.filter_length // 2 + 1
            filters = np.frombuffer(content[: len(content) // 4 * 4], "<f4")
            if len(content) != h.n_mel_channels * bins * 4 or not np.isfinite(filters).all():
                expected = f"{h.n_mel_channels} x {bins} finite float32"
                raise UserError(f"{len(content)} bytes, expected {expected}; export it again")
        filters = filters.reshape(h.n_mel_channels, bins)
        about = self.about
        known = about.statistics, about.longest_text, about.epochs, about.speaker_statistics
        super().__init__(h, filters, *known)

    def _problem_of_speakers(self, kept: HParams) -> str:
        """What is wrong with what voice.json says of speakers; "" if nothing is."""
        names, dim = list(kept.speakers), kept.speaker_embedding_dim
        if bool(names) != bool(dim):
            return f"speakers: {len(names)} names, but speaker_embedding_dim={dim}"
        statistics = self.about.speaker_statistics
        if statistics and [one.name for one in statistics] != names:
            return "speaker_statistics: other names than hparams has in speakers"
        return problem_of_names(names)

    def _file(self, name: str) -> Path:
        """Where the content of a file lies, packed or not."""
        is_packed = self.about.weights == "packed" and name != FILTERS
        return self.folder / (f"{name}{PACKED}" if is_packed else name)

    def _read(self, name: str) -> bytes:
        """A file of the folder, if it is the one that voice.json describes."""
        path = self._file(name)
        content = read_bytes(path, MAX_GRAPH_BYTES, "missing; copy the voice again")
        if path.suffix == PACKED:
            content = unpacked(content)
        if hashlib.sha256(content).hexdigest() != self.about.files[name]:
            raise UserError(f"not the file that {SETTINGS} describes; copy the voice again")
        return content

    def _run(
        self, name: str, length: int, inputs: Mapping[str, np.ndarray], frames: int
    ) -> list[np.ndarray]:
        """What a graph gives for so many symbols or frames, in the shapes that it should have, in
        the time that it may take for so many `frames`."""
        seconds = frames * self.hparams.hop_length / self.hparams.sampling_rate
        with naming(self.folder / f"{name}.onnx"):
            arrays = self.graphs[name].run(inputs, seconds)
            for output, array in zip(GRAPHS[name][1], arrays, strict=True):
                expected = tuple(size or length for size in shape_of(output, self.hparams))
                if (array.shape, array.dtype) != (expected, np.float32):
                    wrong = f"{output} is {array.shape}, {array.dtype}"
                    fix = "export the voice again"
                    raise UserError(f"{wrong}, expected {expected}, float32; {fix}")
            if not np.isfinite(arrays[0]).all():
                raise UserError(f"{GRAPHS[name][1][0]} holds nan or infinity; export it again")
        return arrays

    def refine(self, mel: np.ndarray) -> np.ndarray:
        return self._run("postnet", mel.shape[1], {"mel": mel[None]}, mel.shape[1])[0][0]

    def decode(
        self, words: Sequence[int], seed: int, max_steps: int, index: int | None = None
    ) -> Iterator[DecoderSteps]:
        h, rng, length = self.hparams, np.random.default_rng(seed), len(words)
        p, shape = h.p_prenet_dropout, (1, h.n_frames_per_step, h.n_mel_channels)
        text: dict[str, np.ndarray] = {"symbols": np.array([words], np.int64)}
        if index is not None:
            text["speaker"] = np.zeros((1, len(h.speakers)), np.float32)
            text["speaker"][0, index] = 1
        memory = self._run("encoder", length, text, length)  # a frame or more is made of each
        shapes = [[size or length for size in shape_of(name, h)] for name in STATE]
        state = [np.zeros(shape, np.float32) for shape in shapes]
        outside, furthest = np.zeros((1, length), np.float32), 0
        for _ in range(max_steps):
            keep = (rng.random((2, h.prenet_dim)) >= p).astype(np.float32) / np.float32(1 - p)
            if h.attention_window:  # as model.outside_window
                outside[:] = 1
                outside[:, max(0, furthest - WINDOW_BACK) : furthest + h.attention_window + 1] = 0
            given = [*memory, outside, keep, *state]
            inputs = dict(zip(GRAPHS["decoder"][0], given, strict=True))
            gate, *state = self._run("decoder", length, inputs, h.n_frames_per_step)
            furthest = max(furthest, int(state[2][0].argmax()))
            yield DecoderSteps(state[0].reshape(shape), gate, state[2][:1])
