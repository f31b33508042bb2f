"""A voice: a folder that speaks without PyTorch. scripts/export_voice.py makes one of a checkpoint.

    voice = Voice("voice/")
    samples = voice.speak("It was a quiet evening.")  # float32 [N] in [-1, 1]
    for samples in voice.stream(text): ...            # the first before the text is finished

It holds `voice.json` (the run's settings, symbols, checksums, what it was trained on), ONNX graphs
of encoder, decoder step and postnet, and the mel filters. Everything is checked before it is used:
a folder from elsewhere can do no more than speak badly, or slowly. What is needed is onnxruntime,
numpy, scipy and the text rules.
"""

import hashlib
import io
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from errors import UserError
from files import naming, read_bytes, read_json
from hparams import HParams, create_hparams, hparams_from_dict
from reading import PAUSE, alignment_warnings, parts_to_speak, sequence_to_speak
from text.symbols import symbols
from waveform import SILENCE, GriffinLim, windowed

FORMAT = 1  # of voice.json
SETTINGS, FILTERS = "voice.json", "mel_filters.npy"
LARGEST_GRAPH = 2**30  # bytes; the full-size model's decoder step has 72 MB
FIRST_PIECE, LARGEST_PIECE = 16, 128  # frames; each piece is twice as long as the one before
VOCODER_CONTEXT = 32  # frames on either side that a vocoder's sample may depend on
TRIAL_FRAMES = 16
# "location" as a key in a protobuf message, whatever way its length is written: of a tensor that
# lies in another file.
EXTERNAL_DATA = re.compile(rb"(?:\x08|\x88\x80*\x00)location")

Shape = list[int | None]  # None: as many as there are symbols, or frames
Vocoder = Callable[[np.ndarray], np.ndarray]


def state_shapes(h: HParams) -> dict[str, Shape]:
    """Of a decoder step's state, as model.DecoderState has it, for one text."""
    attention: Shape = [1, h.attention_rnn_dim]
    decoder: Shape = [1, h.decoder_rnn_dim]
    return {
        "attention_hidden": attention,
        "attention_cell": attention,
        "decoder_hidden": decoder,
        "decoder_cell": decoder,
        "alignment": [1, None],
        "cumulative_alignment": [1, None],
        "attention_context": [1, h.encoder_embedding_dim],
    }


def graph_shapes(h: HParams) -> dict[str, tuple[dict[str, Shape], dict[str, Shape]]]:
    """Inputs and outputs of each graph, in order; all float32, but the symbols' ids int64. `keep`
    holds the prenet's dropout of its two layers: 0, or 1 / (1 - p)."""
    memory: dict[str, Shape] = {
        "memory": [1, None, h.encoder_embedding_dim],
        "processed_memory": [1, None, h.attention_dim],
    }
    frames: dict[str, Shape] = {"frames": [1, h.n_mel_channels * h.n_frames_per_step]}
    keep: dict[str, Shape] = {"keep": [2, h.prenet_dim]}
    mel: Shape = [1, h.n_mel_channels, None]
    state = state_shapes(h)
    after: dict[str, Shape] = {"gate": [1]}
    after |= {f"next_{name}": shape for name, shape in (frames | state).items()}
    return {
        "encoder": ({"symbols": [1, None]}, memory),
        "decoder": (frames | keep | memory | state, after),
        "postnet": ({"mel": mel}, {"refined": mel}),
    }


def open_graph(content: bytes, threads: int | None = None) -> Any:
    """The onnxruntime.InferenceSession of an ONNX file, which reads no others; UserError if there
    is none."""
    import onnxruntime

    if EXTERNAL_DATA.search(content):
        raise UserError("a graph that reads other files; put its weights into the graph")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or min(2, len(os.sched_getaffinity(0)))
    options.inter_op_num_threads = 1
    options.use_deterministic_compute = True
    options.log_severity_level = 4  # errors are raised
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # of many kinds
        raise UserError(f"no ONNX graph that runs here ({_brief(error)})") from None


class VoiceGraph:
    """A graph with the inputs and outputs that it should have; UserError for another."""

    def __init__(self, session: Any, inputs: dict[str, Shape], outputs: dict[str, Shape]):
        for kind, given, expected in (
            ("input", session.get_inputs(), inputs),
            ("output", session.get_outputs(), outputs),
        ):
            found = {x.name: [d if type(d) is int else None for d in x.shape] for x in given}
            types = {x.type for x in given}
            for name in found.keys() | expected.keys():
                if found.get(name) != expected.get(name):
                    shown = f"{found.get(name, 'none')}, expected {expected.get(name, 'none')}"
                    raise UserError(f"{kind} {name[:60]!r}: {shown:.200}; export the voice again")
            if types != {"tensor(int64)" if "symbols" in expected else "tensor(float)"}:
                raise UserError(f"{kind}s of type {types}; export the voice again")
        self.session, self.names, self.outputs = session, list(outputs), list(outputs.values())

    def run(self, **inputs: np.ndarray) -> list[np.ndarray]:
        """The outputs in order; UserError if they are not of the shapes they should have."""
        found = run_graph(self.session, self.names, inputs)
        for array, shape in zip(found, self.outputs, strict=True):
            known = [size if expected else None for size, expected in zip(array.shape, shape)]  # noqa: B905
            if array.ndim != len(shape) or known != shape:
                raise UserError(f"the graph gives {array.shape}, expected {shape}")
        return found


def run_graph(session: Any, names: list[str], inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    try:
        return session.run(names, inputs)
    except Exception as error:  # of many kinds, also for too little memory
        raise UserError(f"the graph cannot be run ({_brief(error)})") from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:120]


class Voice:
    """Speaks with the graphs of a folder. Texts are read by one thread at a time."""

    def __init__(
        self,
        folder: str | Path,
        overrides: str = "",
        threads: int | None = None,
        vocoder: str | Path | None = None,
    ):
        """Load and check a folder.

        Args:
            overrides: settings as `--hparams` has them, as "max_decoder_steps=2000".
            threads: of each graph; 2, if there are as many cores.
            vocoder: an ONNX file in place of Griffin-Lim, see `load_vocoder`.

        Raises:
            UserError: what is missing, damaged or not as `voice.json` says.
        """
        self.folder = Path(folder)
        path = self.folder / SETTINGS
        self.about = _check_about(
            path, read_json(path, "no voice here; scripts/export_voice.py makes one")
        )
        with naming(path):
            self.hparams = h = create_hparams(overrides, hparams_from_dict(self.about["hparams"]))
        self.longest_text: int | None = self.about["longest_text"]
        self.graphs = {}
        for name, shapes in graph_shapes(h).items():
            with naming(self.folder / f"{name}.onnx"):
                self.graphs[name] = VoiceGraph(
                    open_graph(self._read(f"{name}.onnx"), threads), *shapes
                )
        with naming(self.folder / FILTERS):
            self.griffin_lim = GriffinLim(h, self._filters())
        self.vocoder = load_vocoder(vocoder, h, threads) if vocoder else None
        # Of the text that was spoken last: what is wrong, and [steps, symbols] of each part.
        self.warnings: list[str] = []
        self.alignments: list[np.ndarray] = []

    def _read(self, name: str) -> bytes:
        """A file of the folder, if it is the one that voice.json describes."""
        path, said = self.folder / name, self.about["files"][name]
        if path.is_symlink():
            raise UserError("a link, expected a file of the voice; copy the voice again")
        content = read_bytes(path, LARGEST_GRAPH, "missing; copy the voice again")
        if [len(content), hashlib.sha256(content).hexdigest()] != [said["bytes"], said["sha256"]]:
            raise UserError(f"not the file that {SETTINGS} describes; copy the voice again")
        return content

    def _filters(self) -> np.ndarray:
        h, expected = self.hparams, "expected finite float32"
        shape = (h.n_mel_channels, h.filter_length // 2 + 1)
        try:
            filters = np.load(io.BytesIO(self._read(FILTERS)), allow_pickle=False)
        except (ValueError, EOFError, OSError, MemoryError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"no array ({_brief(error)}), {expected} {shape}") from None
        if (filters.shape, filters.dtype) != (shape, np.float32) or not np.isfinite(filters).all():
            raise UserError(f"{filters.dtype} {filters.shape}, {expected} {shape}")
        return filters

    def speak(self, text: str, **options: Any) -> np.ndarray:
        """Samples of a text, float32 [N] in [-1, 1], those of `stream` with the same options."""
        return np.concatenate([*self.stream(text, **options)])

    def stream(
        self,
        text: str | list[int],
        seed: int = 0,
        max_symbols: int | None = None,
        pause: float = PAUSE,
    ) -> Iterator[np.ndarray]:
        """The same samples as soon as they are there, in pieces of up to a second or two.

        Args:
            text: also as the ids of its symbols (reading.sequence_to_speak).
            seed: of the prenet's dropout; a text with a seed is the same bytes each time.
            max_symbols: of a part; by default the longest training text's, if known.
            pause: seconds after a sentence, less after other endings.

        Raises:
            UserError: if there is nothing to speak, or if a graph or its sound is broken.
        """
        sequence = sequence_to_speak(text, self.hparams) if isinstance(text, str) else text
        return self.sound(self.mels(sequence, seed, max_symbols, pause))

    def sound(self, mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Samples of log-mels [n_mels, frames] that follow one another."""
        if self.vocoder:
            sounds = windowed(mels, self.vocoder, VOCODER_CONTEXT, self.hparams.hop_length)
        else:
            sounds = self.griffin_lim.stream(mels)
        for sound in sounds:
            if not np.isfinite(sound).all():
                raise UserError(f"{self.folder}: the sound holds nan or infinity; export it again")
            yield np.clip(sound, -1, 1)

    def mels(
        self, sequence: list[int], seed: int, max_symbols: int | None = None, pause: float = PAUSE
    ) -> Iterator[np.ndarray]:
        """Log-mels [n_mels, frames] that follow one another, of ids of symbols."""
        h, self.warnings, self.alignments = self.hparams, [], []
        context = h.postnet_n_convolutions * (h.postnet_kernel_size // 2)
        refine = lambda mel: self.graphs["postnet"].run(mel=mel[None])[0][0]  # noqa: E731
        parts = parts_to_speak(sequence, max_symbols or self.longest_text or math.inf, pause, h)
        size = FIRST_PIECE
        for number, (words, silent_frames) in enumerate(parts, 1):
            yield from windowed(self._decode(words, seed, size), refine, context)
            found = alignment_warnings(self.alignments[-1], words)
            if not self._ended:
                steps = f"no stop within {h.max_decoder_steps} steps, cut there: raise"
                found.append(f"{steps} max_decoder_steps, lower --max-symbols, or train longer")
            where = f"part {number} of {len(parts)}: " if len(parts) > 1 else ""
            self.warnings += [where + warning for warning in found]
            if silent_frames:
                yield np.full((h.n_mel_channels, silent_frames), SILENCE, np.float32)
            size = LARGEST_PIECE

    def _decode(self, words: list[int], seed: int, size: int) -> Iterator[np.ndarray]:
        """Frames [n_mels, n], about `size` at first, of one part before the postnet; then
        `alignments` has its own, and `_ended` whether the gate stopped it."""
        h, rng, made = self.hparams, np.random.default_rng(seed), list[np.ndarray]()
        memory, processed = self.graphs["encoder"].run(symbols=np.array([words], np.int64))
        given = {"memory": memory, "processed_memory": processed}
        shapes = {"frames": graph_shapes(h)["decoder"][0]["frames"]} | state_shapes(h)
        state = {
            name: np.zeros([len(words) if size is None else size for size in shape], np.float32)
            for name, shape in shapes.items()
        }
        p, threshold = h.p_prenet_dropout, h.gate_threshold
        stop = math.log(threshold / (1 - threshold)) if threshold < 1 else math.inf
        run = self.graphs["decoder"].run
        attended: list[np.ndarray] = []
        for step in range(1, h.max_decoder_steps + 1):
            keep = (rng.random((2, h.prenet_dim)) >= p).astype(np.float32) / np.float32(1 - p)
            gate, *after = run(keep=keep, **given, **state)
            state = dict(zip(state, after, strict=True))
            made.append(state["frames"].reshape(h.n_frames_per_step, h.n_mel_channels))
            attended.append(state["alignment"][0])
            self._ended = bool(gate[0] > stop)
            last = self._ended or step == h.max_decoder_steps
            if last or len(made) * h.n_frames_per_step >= size:
                yield np.concatenate(made).T
                made, size = [], min(2 * size, LARGEST_PIECE)
            if last:
                break
        self.alignments.append(np.array(attended))


def _check_about(path: Path, about: Any) -> dict[str, Any]:
    """What voice.json says; UserError if it is not what `Voice` can rest on."""
    again = "; export the voice again"
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError(f"{path}: not a voice of format {FORMAT}{again}")
    expected = {FILTERS, *(f"{name}.onnx" for name in graph_shapes(HParams()))}
    files, longest = about.get("files"), about.get("longest_text")
    if not isinstance(files, dict) or files.keys() != expected:
        names = list(files) if isinstance(files, dict) else files
        raise UserError(
            f"{path}: files: {names!s:.200}, expected {', '.join(sorted(expected))}{again}"
        )
    for name, said in files.items():
        if not isinstance(said, dict) or said.keys() != {"bytes", "sha256"}:
            raise UserError(f"{path}: files: {name}: expected bytes and sha256{again}")
    if not isinstance(about.get("hparams"), dict):
        raise UserError(f"{path}: hparams: missing{again}")
    if about.get("symbols") != symbols:
        raise UserError(
            f"{path}: symbols: not those of text/symbols.py; use the recipe it was made with"
        )
    if longest is not None and not (type(longest) is int and longest > 0):
        raise UserError(f"{path}: longest_text: {longest!r:.60}, expected a number from 1{again}")
    return about


def load_vocoder(path: str | Path, h: HParams, threads: int | None = None) -> Vocoder:
    """A vocoder in an ONNX file, from log-mel [1, n_mels, T] to sound [1, 1, T * hop_length];
    UserError as `checked_vocoder`. Its metadata may have a `sampling_rate`."""
    with naming(path):
        session = open_graph(read_bytes(path, LARGEST_GRAPH), threads)
        inputs = [x.name for x in session.get_inputs()]
        outputs = [x.name for x in session.get_outputs()]
        if len(inputs) != 1 or len(outputs) != 1:
            raise UserError(f"a graph from {inputs} to {outputs}; expected from mel to sound")
        rate = session.get_modelmeta().custom_metadata_map.get("sampling_rate")
        run = lambda mel: run_graph(session, outputs, {inputs[0]: mel[None]})[0]  # noqa: E731
        return checked_vocoder(run, rate, h)


def checked_vocoder(run: Vocoder, rate: Any, h: HParams) -> Vocoder:
    """`run`, from log-mel [n_mels, T] to sound [1, 1, T * hop_length], as a function to [T *
    hop_length]. It is tried first: UserError, without its path, if its sound is of another shape or
    `rate`, if there is one, is not the model's."""
    if rate is not None and str(rate) != str(h.sampling_rate):
        raise UserError(f"a vocoder of {rate} Hz, the model has {h.sampling_rate}; take another")
    for frames in (TRIAL_FRAMES, TRIAL_FRAMES + 1):
        shape = run(np.full((h.n_mel_channels, frames), SILENCE, np.float32)).shape
        if shape != (expected := (1, 1, frames * h.hop_length)):
            raise UserError(
                f"a vocoder that makes {list(shape)} of {frames} frames, expected {list(expected)}:"
                f" its hop is not hop_length={h.hop_length}, or it is none"
            )
    return lambda mel: run(mel)[0, 0]
