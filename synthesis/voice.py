"""A voice: a folder that speaks without PyTorch. scripts/export_voice.py makes one of a checkpoint.

    voice = Voice("voice/")
    samples = voice.speak("It was a quiet evening.")  # float32 [N] in [-1, 1]
    for samples in voice.stream(text): ...            # the first before the text is finished

It holds `voice.json` (`About`), ONNX graphs of encoder, decoder step and postnet, and the mel
filters. Everything is checked before it is used: a folder from elsewhere can do no more than speak
badly, or slowly. What is needed is requirements/onnx.txt and the text rules.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from common.errors import UserError
from common.files import naming, read_as, read_bytes
from hparams import (
    WINDOW_BACK,
    HParams,
    check_text_settings,
    create_hparams,
    hparams_from_dict,
    limits,
)
from synthesis.griffin_lim import SILENCE
from synthesis.speaker import DecoderSteps, Speaker, Utterance, Vocoder, utterance_of
from synthesis.speech_statistics import SpeechStatistics

SETTINGS, FILTERS = "voice.json", "mel_filters.f32"  # the latter [n_mels, filter_length / 2 + 1]
MEMORY, STATE = ["memory", "processed_memory"], ["frames", "state", "alignments"]
GRAPHS = {  # inputs and outputs, in order
    "encoder": (["symbols"], MEMORY),
    "decoder": (
        [*MEMORY, "outside", "keep", *STATE],
        ["gate", *(f"next_{name}" for name in STATE)],
    ),
    "postnet": (["mel"], ["refined"]),
}
FILES = {FILTERS, *(f"{name}.onnx" for name in GRAPHS)}
# What the graphs of scripts/export_voice.py consist of: none runs others, loops, or knows files.
OPERATORS = set(
    "Add Cast Concat Constant ConstantOfShape Conv DynamicQuantizeLinear Gather Gemm LSTM "
    "MatMul MatMulInteger Mul Relu Reshape Shape Sigmoid Slice Softmax Split Squeeze Tanh "
    "Transpose Unsqueeze Where".split()
)
LARGEST_GRAPH = 2**30  # bytes; the full-size model's decoder step has 72 MB
TRIAL_FRAMES = 16


def shape_of(name: str, h: HParams) -> list[int | None]:
    """Of a graph's input or output, for one text; None: as many as there are symbols, or frames.
    All are float32, but the symbols' ids int64."""
    rnns = 2 * h.attention_rnn_dim + 2 * h.decoder_rnn_dim
    sizes: dict[str, list[int | None]] = {
        "symbols": [1, None],
        "memory": [1, None, h.encoder_embedding_dim],
        "processed_memory": [1, None, h.attention_dim],
        "outside": [1, None],  # of the attention's window: 1 where it may not be
        "keep": [2, h.prenet_dim],  # of the prenet's two layers: 0, or 1 / (1 - p)
        "frames": [1, h.n_mel_channels * h.n_frames_per_step],
        "state": [1, rnns + h.encoder_embedding_dim],  # of the LSTMs, and the attention's context
        "alignments": [2, None],  # of the last step, and of all together
        "gate": [1],  # the probability that the step is the last
        "mel": [1, h.n_mel_channels, None],
        "refined": [1, h.n_mel_channels, None],
    }
    return sizes[name.removeprefix("next_")]


@dataclass(frozen=True)
class About:
    """What voice.json says. `hparams` are the run's: sampling rate, mel settings, cleaners,
    language and eSpeak's version, frames a step, gate threshold, the lists it was trained on."""

    format: Literal[2]
    weights: Literal["int8", "fp32"]
    checkpoint: str  # the file's name
    epochs: int  # that it was trained, 0 where it is not known
    longest_text: Annotated[int, limits(ge=1)] | None  # of the training, in symbols
    statistics: SpeechStatistics | None  # of its clips
    symbols: list[str]  # in the order of their ids
    hparams: dict[str, Any]
    recipe: str  # its version
    versions: dict[str, str]
    files: dict[str, str]  # their SHA-256


class Graph:
    """An ONNX graph that reads no files, to be run; UserError if there is none."""

    def __init__(self, content: bytes, threads: int):
        import onnxruntime

        # The key of a tensor that lies in another file, whatever way its length is written.
        if re.search(rb"(?:\x08|\x88\x80*\x00)location", content):
            raise UserError("a graph that reads other files; put its weights into the graph")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.use_deterministic_compute = True
        options.log_severity_level = 4  # errors are raised
        # Or ONNX Runtime would take its own format too, which `operators` cannot read.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        providers = ["CPUExecutionProvider"]
        try:
            self.session = onnxruntime.InferenceSession(content, options, providers)
        except Exception as error:  # of many kinds
            raise UserError(f"no ONNX graph that runs here ({_brief(error)})") from None
        self.inputs, self.outputs = self.session.get_inputs(), self.session.get_outputs()

    def run(self, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        try:
            return self.session.run(None, inputs)
        except Exception as error:  # of many kinds, also for too little memory
            raise UserError(f"the graph cannot be run ({_brief(error)})") from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


def operators(content: bytes) -> set[str]:
    """The names of an ONNX graph's operators, and "function" or "subgraph" if it has these;
    UserError if it is none. onnx would know them too, but voices do without it."""
    from google.protobuf.empty_pb2 import Empty  # a message of which all fields are unknown
    from google.protobuf.message import DecodeError
    from google.protobuf.unknown_fields import UnknownFieldSet

    def fields(messages: Sequence[bytes], number: int) -> list[bytes]:
        """The messages and texts of this number in onnx.proto."""
        found = [x for y in messages for x in UnknownFieldSet(Empty.FromString(y))]
        return [x.data for x in found if (x.field_number, x.wire_type) == (number, 2)]

    try:
        nodes = fields(fields([content], 7), 1)
        attributes = fields(nodes, 5)
        inner = ["subgraph" for _ in fields(attributes, 6) + fields(attributes, 11)]
        functions = ["function" for _ in fields([content], 25)]
        return {*inner, *functions, *(name.decode() for name in fields(nodes, 4))}
    except (DecodeError, UnicodeDecodeError):
        raise UserError("no ONNX graph; copy the voice again") from None


def open_graph(content: bytes, name: str, h: HParams, threads: int) -> Graph:
    """The graph of that name in GRAPHS; UserError for another, before it runs."""
    if unknown := operators(content) - OPERATORS:
        shown = ", ".join(sorted(unknown))
        raise UserError(f"operators that no voice needs: {shown:.200}; export the voice again")
    graph, (inputs, outputs) = Graph(content, threads), GRAPHS[name]
    found = {x.name: [n if type(n) is int else None for n in x.shape] for x in graph.inputs}
    expected = {x: shape_of(x, h) for x in inputs}
    if found != expected or [x.name for x in graph.outputs] != outputs:
        names = ", ".join(x.name for x in graph.outputs)
        known = f"expected {expected} to {', '.join(outputs)}; export the voice again"
        raise UserError(f"a graph from {found!s:.400} to {names!r:.200}, {known}")
    return graph


class Voice(Speaker):
    """Speaks with the graphs of a folder, one text at a time."""

    def __init__(self, folder: str | Path, overrides: str = "", threads: int = 1):
        """Load and check a folder. `overrides` are settings as in --hparams; each graph has
        `threads`, and one is the fastest for 8-bit weights on two cores. UserError for what is
        missing, damaged or not as voice.json says."""
        self.folder, path = Path(folder), Path(folder) / SETTINGS
        for link in filter(Path.is_symlink, (self.folder / x for x in (SETTINGS, *sorted(FILES)))):
            raise UserError(f"{link}: a link, expected a file of the voice; copy the voice again")
        self.about = read_as(path, About, "no voice here; scripts/export_voice.py makes one")
        with naming(path):
            if self.about.files.keys() != FILES:
                names, expected = ", ".join(self.about.files), ", ".join(sorted(FILES))
                raise UserError(f"files: {names!r:.200}, expected {expected}; export it again")
            h = create_hparams(overrides, hparams_from_dict(self.about.hparams))
            if self.about.symbols != list(h.table.symbols):
                raise UserError("symbols: not those of its hparams; export the voice again")
            h = check_text_settings(h)
        self.graphs = {}
        for name in GRAPHS:
            with naming(self.folder / f"{name}.onnx"):
                self.graphs[name] = open_graph(self._read(f"{name}.onnx"), name, h, threads)
        with naming(self.folder / FILTERS):
            content, bins = self._read(FILTERS), h.filter_length // 2 + 1
            filters = np.frombuffer(content[: len(content) // 4 * 4], "<f4")
            if len(content) != h.n_mel_channels * bins * 4 or not np.isfinite(filters).all():
                expected = f"{h.n_mel_channels} x {bins} finite float32"
                raise UserError(f"{len(content)} bytes, expected {expected}; export it again")
        filters = filters.reshape(h.n_mel_channels, bins)
        about = self.about
        super().__init__(h, filters, about.statistics, about.longest_text, about.epochs)

    def _read(self, name: str) -> bytes:
        """A file of the folder, if it is the one that voice.json describes."""
        content = read_bytes(self.folder / name, LARGEST_GRAPH, "missing; copy the voice again")
        if hashlib.sha256(content).hexdigest() != self.about.files[name]:
            raise UserError(f"not the file that {SETTINGS} describes; copy the voice again")
        return content

    def speak(self, text: str | Utterance | list[int], **options: Any) -> np.ndarray:
        """Samples of a text, float32 [N] in [-1, 1], those of `stream` with the same options."""
        return np.concatenate([*self.stream(text, **options)])

    def stream(self, text: str | Utterance | list[int], **options: Any) -> Iterator[np.ndarray]:
        """The same samples as soon as they are there, in pieces of up to a second or two, of a
        text, an utterance (speech.utterance_of) or ids of symbols. `options` are those of `mels`; a
        text with a seed is the same bytes each time. UserError if there is nothing to speak, or if
        a graph or its sound is broken."""
        spoken = utterance_of(text, self.hparams) if isinstance(text, str) else text
        for sound in self.sound(self.mels(spoken, **options)):
            if not np.isfinite(sound).all():
                raise UserError(f"{self.folder}: the sound holds nan or infinity; export it again")
            yield np.clip(sound, -1, 1)

    def _run(self, name: str, length: int, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """What a graph gives for so many symbols or frames, in the shapes that it should have."""
        with naming(self.folder / f"{name}.onnx"):
            found = self.graphs[name].run(inputs)
            for output, array in zip(GRAPHS[name][1], found, strict=True):
                expected = tuple(size or length for size in shape_of(output, self.hparams))
                if (array.shape, array.dtype) != (expected, np.float32):
                    shown = (
                        f"{output} is {array.shape}, {array.dtype}, expected {expected}, float32"
                    )
                    raise UserError(f"{shown}; export the voice again")
            if not np.isfinite(found[0]).all():
                raise UserError(f"{GRAPHS[name][1][0]} holds nan or infinity; export it again")
        return found

    def refine(self, mel: np.ndarray) -> np.ndarray:
        return self._run("postnet", mel.shape[1], {"mel": mel[None]})[0][0]

    def decode(self, words: Sequence[int], seed: int, max_steps: int) -> Iterator[DecoderSteps]:
        h, rng, length = self.hparams, np.random.default_rng(seed), len(words)
        p, shape = h.p_prenet_dropout, (1, h.n_frames_per_step, h.n_mel_channels)
        memory = self._run("encoder", length, {"symbols": np.array([words], np.int64)})
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
            gate, *state = self._run("decoder", length, inputs)
            furthest = max(furthest, int(state[2][0].argmax()))
            yield DecoderSteps(state[0].reshape(shape), gate, state[2][:1])


def load_vocoder(path: str | Path, h: HParams, threads: int = 1) -> Vocoder:
    """A vocoder in an ONNX file, from log-mel [1, n_mels, T] to sound [1, 1, T * hop_length];
    UserError as `checked_vocoder`. Its metadata may have a `sampling_rate`."""
    with naming(path):
        graph = Graph(read_bytes(path, LARGEST_GRAPH), threads)
        rate = graph.session.get_modelmeta().custom_metadata_map.get("sampling_rate")
        if not graph.inputs:
            raise UserError("a graph without inputs, expected mel [1, n_mels, T]; take another")
    run = lambda mel: graph.run({graph.inputs[0].name: mel[None]})[0]  # noqa: E731
    return checked_vocoder(path, run, rate, h)


def checked_vocoder(path: str | Path, run: Vocoder, rate: Any, h: HParams) -> Vocoder:
    """`run`, from log-mel [n_mels, T] to sound [1, 1, T * hop_length], as a function to [T *
    hop_length]. It is tried first: UserError, also later, if its sound is of another shape or no
    floats, and if `rate`, where there is one, is not the model's."""
    if rate is not None and str(rate) != str(h.sampling_rate):
        shown = f"a vocoder of {str(rate)!r:.30} Hz, the model has {h.sampling_rate}"
        raise UserError(f"{path}: {shown}; take another")

    def checked(mel: np.ndarray) -> np.ndarray:
        with naming(path):
            sound, expected = run(mel), (1, 1, mel.shape[1] * h.hop_length)
        shape = getattr(sound, "shape", type(sound))  # some graphs give a list
        if shape != expected or sound.dtype.kind != "f":
            raise UserError(
                f"{path}: a vocoder that makes {shape} of {mel.shape[1]} frames, expected "
                f"{expected} of floats: its hop is not hop_length={h.hop_length}, or it is none"
            )
        if not np.isfinite(sound).all():
            raise UserError(f"{path}: a vocoder that gives nan or infinity; take another")
        return sound[0, 0]

    for frames in (TRIAL_FRAMES, TRIAL_FRAMES + 1):
        checked(np.full((h.n_mel_channels, frames), SILENCE, np.float32))
    return checked
