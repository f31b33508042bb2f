"""Synthesize speech with an exported voice, which needs ONNX Runtime instead of PyTorch.

    voice = Voice("voices/english")
    voice.settings.speakers                                # names of the speakers
    speech = voice.synthesize("It was a quiet evening.", speaker="linda")
    for audio in voice.stream(text, speaker="linda"): ...  # pieces, as soon as they are computed

An exported voice is a folder that contains `voice.json` (`VoiceDescription`), the mel filters, and
ONNX graphs of the encoder, the decoder step and the postnet. The graphs may be compressed with
LZMA. Before a graph is used, this module checks the graph's checksum, operators and shapes. A graph
that reads other files is rejected.
"""

import hashlib
import lzma
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from tacotron2_voice.onnx_graph import MAX_GRAPH_BYTES, OnnxGraph, check_operators
from tacotron2_voice.settings import (
    GRAPH_SETTINGS,
    WINDOW_BACK,
    VoiceSettings,
    change_speaking_settings,
    check_text_settings,
    limits,
    settings_from_dict,
)
from tacotron2_voice.speakers import problem_of_names
from tacotron2_voice.speech_statistics import SpeakerStatistics, SpeechStatistics
from tacotron2_voice.synthesizer import DecoderSteps, Synthesizer, TrainingFacts
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_as, read_bytes

DESCRIPTION_FILE = "voice.json"
FILTERS_FILE = "mel_filters.f32"  # mel filters, float32 [n_mels, filter_length / 2 + 1]
MEMORY = ["memory", "processed_memory"]
STATE = ["frames", "state", "alignments"]
# Names of the inputs and outputs of each graph, in order. `inputs_of` adds the input `speaker`.
GRAPHS = {
    "encoder": (["symbols"], MEMORY),
    "decoder": (
        [*MEMORY, "outside", "keep", *STATE],
        ["gate", *(f"next_{name}" for name in STATE)],
    ),
    "postnet": (["mel"], ["refined"]),
}
FILES = {FILTERS_FILE, *(f"{name}.onnx" for name in GRAPHS)}
COMPRESSED_SUFFIX = ".xz"  # suffix of compressed graphs
# Memory limit for decompression. The files that scripts/export_voice.py writes need 9 MB.
MAX_LZMA_BYTES = 2**27
# Operators that scripts/export_voice.py uses in graphs. Loops and nested graphs are not included.
OPERATORS = set(
    "Add Cast Concat Constant ConstantOfShape Conv DequantizeLinear DynamicQuantizeLinear Gather "
    "Gemm LSTM MatMul MatMulInteger Mul Relu Reshape Shape Sigmoid Slice Softmax Split Squeeze "
    "Tanh Transpose Unsqueeze Where".split()
)
EXPORT_AGAIN = "Export the voice again."
COPY_AGAIN = "Copy the voice again."


@dataclass(frozen=True)
class VoiceDescription:
    """The contents of voice.json."""

    format: Literal[2]
    # Format of the weights. packed: int8 weights in compressed graphs.
    weights: Literal["int8", "fp32", "packed"]
    checkpoint: str  # file name of the checkpoint from which the voice was exported
    epochs: int  # number of training epochs; 0: unknown
    # Number of symbols in the longest training text. None: unknown.
    longest_text: Annotated[int, limits(ge=1)] | None
    statistics: SpeechStatistics | None  # statistics of the training clips
    symbols: list[str]  # all symbols, in the order of their ids
    hparams: dict[str, Any]  # all settings of the training run
    recipe: str  # version of this project that exported the voice
    versions: dict[str, str]  # versions of the Python packages that exported the voice
    files: dict[str, str]  # SHA-256 checksum of each file, by name
    speaker_statistics: list[SpeakerStatistics] = field(default_factory=list)
    # Version of the rules that converted the training texts to symbols. "": unknown.
    text_rules: str = ""
    # ARPAbet phones in the training texts; None: unknown.
    trained_phones: list[str] | None = None


class Voice(Synthesizer):
    """Synthesize speech with the exported voice in a folder.

        voice = Voice("voices/english")
        voice.settings.speakers             # ("hibari", "kathleen", "linda")
        speech = voice.synthesize("It was a quiet evening.", speaker="linda")

    A voice has all methods of `Synthesizer`.

    Args:
        folder: the folder of the voice, or its voice.json.
        overrides: changed settings, such as "gate_threshold=0.4,attention_window=6".
        threads: number of CPU threads per graph. On two cores, int8 voices are fastest with one
            thread.

    Raises:
        UserError: if a file is missing or damaged, or does not match voice.json.
    """

    def __init__(self, folder: str | Path, overrides: str = "", threads: int = 1):
        folder = Path(folder)
        self.folder = folder.parent if folder.name == DESCRIPTION_FILE else folder
        path = self.folder / DESCRIPTION_FILE
        if not self.folder.is_dir():
            raise UserError(f"{self.folder}: no such voice folder")
        missing = "no such file (expected the folder of an exported voice)"
        self.description = read_as(path, VoiceDescription, missing, EXPORT_AGAIN)
        with naming(path):
            trained = self._check_description()
        settings = change_speaking_settings(trained, overrides, GRAPH_SETTINGS)
        with naming(path):
            settings = check_text_settings(settings)
        self.graphs = {}
        for name in GRAPHS:
            with naming(self._path_of(f"{name}.onnx")):
                content = self._read(f"{name}.onnx")
                self.graphs[name] = load_graph(name, content, settings, threads)
        training = TrainingFacts(
            statistics=self.description.statistics,
            speaker_statistics=self.description.speaker_statistics,
            longest_text=self.description.longest_text,
            epochs=self.description.epochs,
            text_rules=self.description.text_rules,
            trained_phones=self.description.trained_phones,
        )
        filters = self._read_filters(settings)
        super().__init__(settings, filters, training, self.folder)

    def decode(
        self, ids: Sequence[int], seed: int, max_steps: int, speaker: int | None = None
    ) -> Iterator[DecoderSteps]:
        settings = self.settings
        rng = np.random.default_rng(seed)
        length = len(ids)
        p = settings.p_prenet_dropout
        frames_shape = (1, settings.n_frames_per_step, settings.n_mel_channels)
        text: dict[str, np.ndarray] = {"symbols": np.array([ids], np.int64)}
        if speaker is not None:
            text["speaker"] = np.zeros((1, len(settings.speakers)), np.float32)
            text["speaker"][0, speaker] = 1
        memory = self._run("encoder", text)
        state = []
        for name in STATE:
            shape = [size or length for size in shape_of(name, settings)]
            state.append(np.zeros(shape, np.float32))
        outside = np.zeros((1, length), np.float32)
        furthest = 0  # furthest symbol that attention has reached
        for _ in range(max_steps):
            kept = rng.random((2, settings.prenet_dim)) >= p
            keep = kept.astype(np.float32) / np.float32(1 - p)
            # Compute the same attention window as `outside_window` in model.py.
            if settings.attention_window:
                first = max(0, furthest - WINDOW_BACK)
                outside[:] = 1
                outside[:, first : furthest + settings.attention_window + 1] = 0
            arrays = [*memory, outside, keep, *state]
            inputs = dict(zip(GRAPHS["decoder"][0], arrays, strict=True))
            gate, *state = self._run("decoder", inputs)
            frames, _, alignments = state
            furthest = max(furthest, int(alignments[0].argmax()))
            yield DecoderSteps(frames.reshape(frames_shape), gate, alignments[:1])

    def refine(self, mel: np.ndarray) -> np.ndarray:
        return self._run("postnet", {"mel": mel[None]})[0][0]

    def _run(self, name: str, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        with naming(self.folder / f"{name}.onnx"):
            return self.graphs[name].run(inputs)

    def _check_description(self) -> VoiceSettings:
        """Return the settings in voice.json, or raise UserError if values contradict each other."""
        description = self.description
        settings = settings_from_dict(VoiceSettings, description.hparams)
        speakers = settings.speakers
        width = settings.speaker_embedding_dim
        names = [one.name for one in description.speaker_statistics]
        problem = problem_of_names(speakers)
        if description.files.keys() != FILES:
            found = ", ".join(description.files)
            problem = f"files: {found!r:.200} (expected {', '.join(sorted(FILES))})"
        elif description.symbols != list(settings.table.symbols):
            problem = "symbols: differ from the symbols in hparams"
        elif bool(speakers) != bool(width):
            problem = f"speakers: {len(speakers)} names, but speaker_embedding_dim={width}"
        elif names and names != list(speakers):
            problem = "speaker_statistics: the names differ from the speakers in hparams"
        if problem:
            raise UserError(f"{problem}. {EXPORT_AGAIN}")
        return settings

    def _path_of(self, name: str) -> Path:
        """Return the path of the file `name`, with an additional suffix if the voice is
        compressed."""
        if self.description.weights == "packed" and name != FILTERS_FILE:
            return self.folder / f"{name}{COMPRESSED_SUFFIX}"
        return self.folder / name

    def _read(self, name: str) -> bytes:
        """Return a file's content. Raise UserError if the checksum differs from the checksum in
        voice.json."""
        path = self._path_of(name)
        content = read_bytes(path, MAX_GRAPH_BYTES, f"no such file. {COPY_AGAIN}")
        if path.suffix == COMPRESSED_SUFFIX:
            try:
                content = lzma.decompress(content, lzma.FORMAT_XZ, MAX_LZMA_BYTES)
            except lzma.LZMAError as error:
                raise UserError(f"cannot be decompressed ({error}). {COPY_AGAIN}") from None
        if hashlib.sha256(content).hexdigest() != self.description.files[name]:
            raise UserError(
                f"the checksum differs from the checksum in {DESCRIPTION_FILE}. {COPY_AGAIN}"
            )
        return content

    def _read_filters(self, settings: VoiceSettings) -> np.ndarray:
        shape = (settings.n_mel_channels, settings.filter_length // 2 + 1)
        with naming(self.folder / FILTERS_FILE):
            content = self._read(FILTERS_FILE)
            expected = shape[0] * shape[1] * 4
            if len(content) != expected:
                sizes = f"{len(content):,} bytes (expected {expected:,})"
                raise UserError(f"wrong size, {sizes}. {EXPORT_AGAIN}")
            filters = np.frombuffer(content, "<f4").reshape(shape)
            if not np.isfinite(filters).all():
                raise UserError(f"contains NaN or infinity. {EXPORT_AGAIN}")
        return filters


def inputs_of(graph: str, settings: VoiceSettings) -> list[str]:
    """Return the names of a graph's inputs in order, including `speaker` if the graph has this
    input."""
    inputs = GRAPHS[graph][0]
    return [*inputs, *settings.labels] if graph == "encoder" else [*inputs]


def shape_of(name: str, settings: VoiceSettings) -> list[int | None]:
    """Return the shape of a graph's input or output for one text.

    In the shape, None stands for the number of symbols or frames. All inputs and outputs are
    float32, except the symbol ids, which are int64.
    """
    rnns = 2 * settings.attention_rnn_dim + 2 * settings.decoder_rnn_dim
    shapes: dict[str, list[int | None]] = {
        "symbols": [1, None],
        # The speaker is a one-hot vector, so the length of this input is the number of speakers.
        "speaker": [1, len(settings.speakers)],
        "memory": [1, None, settings.memory_dim],
        "processed_memory": [1, None, settings.attention_dim],
        "outside": [1, None],  # 1 for symbols outside the attention window
        # Dropout factors of the two prenet layers: 0 or 1 / (1 - p).
        "keep": [2, settings.prenet_dim],
        "frames": [1, settings.n_mel_channels * settings.n_frames_per_step],
        "state": [1, rnns + settings.memory_dim],  # LSTM states and attention context
        # Attention weights of the last decoder step, and the sum of the weights over all decoder
        # steps so far.
        "alignments": [2, None],
        "gate": [1],  # the stop probability
        "mel": [1, settings.n_mel_channels, None],
        "refined": [1, settings.n_mel_channels, None],
    }
    return shapes[name.removeprefix("next_")]


def load_graph(name: str, content: bytes, settings: VoiceSettings, threads: int) -> OnnxGraph:
    """Load and check a graph. `name` is a key of GRAPHS.

    Raises:
        UserError: if the graph has unexpected operators, inputs, outputs or shapes, or if it reads
            other files.
    """
    check_operators(content, OPERATORS, "a voice")
    graph = OnnxGraph(content, threads)
    shapes = {}
    for one in graph.inputs:
        shapes[one.name] = [size if type(size) is int else None for size in one.shape]
    outputs = [one.name for one in graph.outputs]
    expected_shapes = {one: shape_of(one, settings) for one in inputs_of(name, settings)}
    expected_outputs = GRAPHS[name][1]
    if shapes != expected_shapes or outputs != expected_outputs:
        problem = f"a graph from {shapes!s:.400} to {', '.join(outputs):.200}"
        expected = f"expected {expected_shapes} to {', '.join(expected_outputs)}"
        raise UserError(f"{problem} ({expected}). {EXPORT_AGAIN}")
    return graph
