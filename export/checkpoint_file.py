"""Read checkpoint files, of this recipe and NVIDIA's, without running code from them.

    saved = read_checkpoint("runs/ljspeech/best.pt")
    load_weights(model, saved, "runs/ljspeech/best.pt")

A checkpoint has the keys of NVIDIA's recipe (`iteration`, `state_dict`, `optimizer`,
`learning_rate`). A checkpoint of this recipe also has the settings (`hparams`) and the state of its
run, which training/checkpoint.py writes and reads. This module checks the parts that synthesis
needs.
"""

import io
import math
import os
import pickle
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch

from hparams import HParams, hparams_from_dict
from machine import is_out_of_memory
from tacotron2_voice.settings import HAS_PYDANTIC, limits
from tacotron2_voice.speakers import problem_of_names
from tacotron2_voice.speech_statistics import SpeakerStatistics, SpeechStatistics
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, open_file
from tacotron2_voice.version import __version__

if HAS_PYDANTIC:
    from pydantic import TypeAdapter, ValidationError

MAX_BYTES = 2**32  # a checkpoint of the full-size model has 0.3 GB
MAX_COUNT = 2**53  # larger counts are not exact as floats
MAX_SHOWN = 10  # problems in a message
ZIP_START = b"PK\x03\x04"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)

CountFrom1 = Annotated[int, limits(strict=True, ge=1, le=MAX_COUNT)]


class DamagedCheckpoint(UserError):
    """Report a checkpoint whose bytes are not those that were written."""


@dataclass
class Progress:
    """Contain what synthesis needs of the training loop's state."""

    epoch: CountFrom1


# The settings of a model's size, each with a tensor and the dimension that shows it.
SIZES = {
    "symbols_embedding_dim": ("embedding.weight", 1),
    "encoder_embedding_dim": ("encoder.convolutions.0.0.conv.weight", 0),
    "encoder_kernel_size": ("encoder.convolutions.0.0.conv.weight", 2),
    "prenet_dim": ("decoder.prenet.layers.0.linear_layer.weight", 0),
    "attention_rnn_dim": ("decoder.attention_rnn.weight_hh", 1),
    "attention_dim": ("decoder.attention_layer.query_layer.linear_layer.weight", 0),
    "attention_location_n_filters": (
        "decoder.attention_layer.location_layer.location_conv.conv.weight",
        0,
    ),
    "attention_location_kernel_size": (
        "decoder.attention_layer.location_layer.location_conv.conv.weight",
        2,
    ),
    "decoder_rnn_dim": ("decoder.decoder_rnn.weight_hh", 1),
    "n_mel_channels": ("postnet.convolutions.0.0.conv.weight", 1),
    "postnet_embedding_dim": ("postnet.convolutions.0.0.conv.weight", 0),
    "postnet_kernel_size": ("postnet.convolutions.0.0.conv.weight", 2),
}
SPEAKER_EMBEDDING = "speaker_embedding.weight"  # missing in a model of one speaker
FRAMES = "decoder.linear_projection.linear_layer.weight"  # its rows are the frames of a step

# The types of the parts that synthesis needs besides weights and settings. All are optional.
KINDS: dict[str, Any] = {
    "loop": Progress,
    "longest_text": CountFrom1,  # of the training clips, in symbols
    "speech_statistics": SpeechStatistics,  # missing in checkpoints of 0.3.0
    "speaker_statistics": list[SpeakerStatistics],  # missing for one speaker
    "text_rules": str,  # missing in checkpoints of 0.4.0
}


# ---------------------------------------------------------------------------- read


def read_checkpoint(
    path: str | Path, find_problems: Callable[[dict[str, Any]], list[str]] | None = None
) -> dict[str, Any]:
    """Return the content of a checkpoint, on the CPU.

    Args:
        find_problems: returns the problems of the parts, by default `problems_of`.

    Raises:
        DamagedCheckpoint: as `read_saved`.
        UserError: if the file cannot be read, or is not a valid checkpoint.
    """
    state = read_saved(path)
    if not isinstance(state, dict) or "state_dict" not in state:
        raise UserError(f"{path}: no state_dict in it (expected a Tacotron 2 checkpoint)")
    if problems := (find_problems or problems_of)(state):
        raise checkpoint_error(path, problems)
    return state


def read_saved(path: str | Path) -> object:
    """Return what torch.save wrote, on the CPU, after a check of the CRC-32 in the file.

    Raises:
        DamagedCheckpoint: if the file can be read, but its content is damaged.
        UserError: if the file cannot be read (missing, no permission, failing disk, no memory).
    """
    try:
        with naming(path), open_file(path, "no such checkpoint") as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES or file.peek()[:1] not in (b"P", b"\x80"):
                raise DamagedCheckpoint("damaged, or not a checkpoint (wrong first byte or size)")
            content = file.read(size)  # all of it, so that later errors are not the disk's
            return _unpack(content)
    except (OSError, MemoryError) as error:
        reason = "too little memory" if isinstance(error, MemoryError) else error.strerror
        raise UserError(f"{path}: cannot be read ({reason}), but may be intact") from None


def _unpack(content: bytes) -> object:
    try:
        if content.startswith(ZIP_START):  # NVIDIA's oldest files are not in the zip format
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for record in archive.infolist():
                    # Torch ignores folders, and compressed content may exhaust the memory.
                    if record.external_attr & 0x10 or record.compress_type:
                        raise zipfile.BadZipFile(f"{record.filename} is a folder or compressed")
                    archive.read(record)  # compares the CRC-32
        with warnings.catch_warnings(action="ignore"):  # about old pickles
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch raise many types for a damaged file
        if is_out_of_memory(error):
            raise MemoryError from None
        reason = f"{type(error).__name__}: {first_line(error)[:120]}"
        if isinstance(error, pickle.UnpicklingError):  # torch's own message tells how to run code
            reason = "it contains more than tensors and plain values"
        raise DamagedCheckpoint(f"damaged, or not a checkpoint ({reason})") from None


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, because torch adds a stack to its messages."""
    lines = str(error).splitlines()
    return lines[0] if lines else ""


def load_weights(
    model: torch.nn.Module,
    state: dict[str, Any],
    path: str | Path,
    ignore_layers: Sequence[str] = (),
) -> None:
    """Copy a checkpoint's weights into `model`, except the tensors in `ignore_layers`.

    Raises:
        UserError: as `check_weights`.
    """
    model.load_state_dict(check_weights(model.state_dict(), state, path, ignore_layers))


def check_weights(
    own: dict[str, torch.Tensor],
    state: dict[str, Any],
    path: str | Path,
    ignore_layers: Sequence[str] = (),
) -> dict[str, torch.Tensor]:
    """Return the weights that a model with the weights `own`, on any device, gets from a checkpoint.

    Raises:
        UserError: listing the settings with another size or, if there are none, the tensors that
            are missing, unknown or of another shape.
    """
    # NVIDIA's recipe saves the wrapper of a model on several GPUs.
    weights = {name.removeprefix("module."): x for name, x in state["state_dict"].items()}
    saved_sizes = sizes_of(weights)
    own_sizes = sizes_of(own)
    for name in ignore_layers:
        if name not in own:
            raise UserError(f"ignore_layers: the model has no tensor {name!r}")
        weights[name] = own[name]
    problems = [f"{name} is missing" for name in own if name not in weights]
    problems += [f"{name} is unknown to this model" for name in weights if name not in own]
    for name, expected in own.items():
        if name not in weights:
            continue
        loaded = weights[name]
        if loaded.shape != expected.shape:
            problems.append(f"{name} is {list(loaded.shape)} (expected {list(expected.shape)})")
        elif loaded.is_floating_point() != expected.is_floating_point():
            problems.append(f"{name} is {loaded.dtype} (expected {expected.dtype})")
    if problems:
        raise _misfit(path, problems, saved_sizes, own_sizes)
    return weights


def _misfit(
    path: str | Path, problems: list[str], saved_sizes: dict[str, int], own_sizes: dict[str, int]
) -> UserError:
    """Return the error about a checkpoint that does not fit a model."""
    different = {}
    for name, own in own_sizes.items():
        if saved_sizes.get(name, own) != own:
            different[name] = saved_sizes[name]
    sizes = [f"{name}={value} (expected {own_sizes[name]})" for name, value in different.items()]
    error = checkpoint_error(path, sizes or problems, " does not fit the model of these settings")
    if not sizes:
        return error
    settings = ",".join(f"{name}={value}" for name, value in different.items())
    return UserError(f"{error}\n  The checkpoint needs --hparams {settings}")


def sizes_of(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """Return the settings of a model's size that the shapes of its tensors show, by name.

    A setting whose tensor is missing, or has too few dimensions, is left out.
    """
    sizes = {
        setting: weights[name].shape[dimension]
        for setting, (name, dimension) in SIZES.items()
        if name in weights and weights[name].dim() > dimension
    }
    speakers = weights.get(SPEAKER_EMBEDDING)
    if speakers is None or speakers.dim() == 2:
        sizes["speaker_embedding_dim"] = 0 if speakers is None else speakers.shape[1]
    for part in ("encoder", "postnet"):
        numbers = {
            name.split(".")[2] for name in weights if name.startswith(f"{part}.convolutions.")
        }
        if numbers:
            sizes[f"{part}_n_convolutions"] = len(numbers)
    if FRAMES in weights and sizes.get("n_mel_channels"):
        sizes["n_frames_per_step"] = weights[FRAMES].shape[0] // sizes["n_mel_channels"]
    return sizes


def embedding_of(weights: dict[str, torch.Tensor]) -> torch.Tensor | None:
    """Return the symbol embedding [symbols, dim], or None if it is missing."""
    embedding = weights.get("embedding.weight", weights.get("module.embedding.weight"))
    return embedding if embedding is not None and embedding.dim() == 2 else None


# ---------------------------------------------------------------------------- checks


def problems_of(state: dict[str, Any], kinds: Mapping[str, Any] = KINDS) -> list[str]:
    """Return what is wrong with weights, settings, and the parts in `kinds`, one line each that
    begins with the part's name.

    A checkpoint of another recipe has no settings, so only its weights are checked.
    """
    problems = weight_problems(state["state_dict"], "state_dict")
    if not is_of_this_recipe(state):
        return problems
    problems += _settings_problems(state.get("hparams"))
    if HAS_PYDANTIC:
        for part, kind in kinds.items():
            if part in state:
                problems += _plain_problems(part, kind, state[part])
    return problems or _symbol_problems(state) or _speaker_problems(state)


def is_of_this_recipe(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is of this recipe, which saves settings."""
    return "hparams" in state or "loop" in state


def weight_problems(weights: Any, part: str) -> list[str]:
    """Return what is wrong with the tensors by name in a `part` of a file, one line each."""
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        return [f"{part}: {brief(weights)} (expected tensors by name)"]
    problems = {name: tensor_problem(tensor) for name, tensor in weights.items()}
    return [f"{part}: {name}: {problem}" for name, problem in problems.items() if problem]


def _settings_problems(saved: Any) -> list[str]:
    if not isinstance(saved, dict):
        return ["hparams: missing, or not values by name"]  # the defaults would be wrong
    if unknown := saved.keys() - {field.name for field in fields(HParams)}:
        return [
            f"hparams: {', '.join(map(str, unknown))}: unknown to version {__version__} of this recipe"
        ]
    try:
        hparams_from_dict(saved)
    except UserError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return ["hparams: " + "; ".join(lines[1:] or lines)]
    return []


def _symbol_problems(state: dict[str, Any]) -> list[str]:
    """Return the contradictions between the symbol table and the embedding."""
    symbols = state["hparams"].get("symbols")
    table = state["hparams"].get("symbol_table")
    embedding = embedding_of(state["state_dict"])
    if not table and symbols in (None, "english"):
        return []
    if not table:
        return [f"hparams: symbols={symbols}, but symbol_table is missing"]
    if embedding is not None and len(embedding) != len(table):
        rows = f"embedding.weight has {len(embedding)} rows"
        return [f"hparams: symbol_table: {len(table)} symbols, but {rows}"]
    return []


def _speaker_problems(state: dict[str, Any]) -> list[str]:
    """Return the contradictions between the names of speakers, their embedding and statistics."""
    embedding = state["state_dict"].get(SPEAKER_EMBEDDING)
    names = tuple(state["hparams"].get("speakers") or ())
    problem = problem_of_names(names)
    if problem:
        return [f"hparams: {problem}"]
    has_embedding = embedding is not None or state["hparams"].get("speaker_embedding_dim")
    if names and not has_embedding:
        return [f"hparams: speakers: {len(names)} names, but no {SPEAKER_EMBEDDING}"]
    rows = len(embedding) if embedding is not None and embedding.dim() == 2 else 0
    if rows != len(names):
        return [f"hparams: speakers: {len(names)} names, but {SPEAKER_EMBEDDING} has {rows} rows"]
    statistics = state.get("speaker_statistics")
    if statistics is not None and [one["name"] for one in statistics] != [*names]:
        return ["speaker_statistics: other names than hparams has in speakers"]
    return []


def _plain_problems(part: str, kind: Any, value: Any) -> list[str]:
    """Return what is wrong with a part that contains no tensors, one line each."""
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    else:
        return []
    problems = []
    for problem in found:
        place = ": ".join(map(str, (part, *problem["loc"])))
        problems.append(f"{place}: {problem['msg']}, not {brief(problem['input'])}")
    return problems


def tensor_problem(value: Any) -> str | None:
    """Return what is wrong with a tensor of finite numbers, or None."""
    if not isinstance(value, torch.Tensor):
        return f"{brief(value)} (expected a tensor)"
    if value.dtype not in DTYPES:
        return f"{value.dtype} (expected a type of weights)"
    if value.layout != torch.strided or value.is_nested or value.device.type != "cpu":
        return "a sparse, nested or meta tensor (expected a dense tensor)"
    # With a stride of 0, a small file describes a huge tensor.
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():
        return f"{value.numel():,} values, more than the file contains"
    # If the sum is finite, so are its terms, and a sum is faster than a check of each value.
    if not math.isfinite(value.sum()) and not value.isfinite().all():
        return "NaN or infinite values"
    return None


def brief(value: Any) -> str:
    """Return a short description of a value for messages."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    is_small_int = type(value) is int and abs(value) < MAX_COUNT
    if isinstance(value, (float, str, type(None))) or is_small_int:
        return repr(value)[:60]
    return f"a value of type {type(value).__name__}"


def checkpoint_error(path: str | Path, problems: list[str], title: str = "") -> UserError:
    """Return the error about a checkpoint's problems."""
    if len(problems) == 1 and not title:
        return UserError(f"{path}: {problems[0]}")
    shown = problems[:MAX_SHOWN]
    if len(problems) > MAX_SHOWN:
        shown.append(f"... and {len(problems) - MAX_SHOWN} more")
    title = title or f": {len(problems)} problems"
    return UserError("\n  ".join([f"{path}{title}:", *shown]))
