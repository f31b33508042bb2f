"""Reads checkpoint files, this recipe's and NVIDIA's, without running code from them.

    saved = read_checkpoint("runs/ljspeech/best.pt")
    load_weights(model, saved, "runs/ljspeech/best.pt")

A checkpoint has the keys of NVIDIA's recipe (`iteration`, `state_dict`, `optimizer`,
`learning_rate`); this recipe's has the settings too (`hparams`), and the state of its run, which
training/checkpoint.py writes and reads. Here the parts are checked that speaking takes from it.
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

from hparams import HAS_PYDANTIC, HParams, hparams_from_dict, limits
from machine import is_out_of_memory
from tacotron2_voice.speakers import problem_of_names
from tacotron2_voice.speech_statistics import SpeakerStatistics, SpeechStatistics
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, open_file
from tacotron2_voice.version import __version__

if HAS_PYDANTIC:
    from pydantic import TypeAdapter, ValidationError

MAX_BYTES = 2**32  # the full-size model's has 0.3 GB
MAX_COUNT = 2**53  # larger counts are not exact as floats
MAX_NAMED = 10  # problems in a message
ZIP_BEGINS = b"PK\x03\x04"
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64)

CountFrom1 = Annotated[int, limits(strict=True, ge=1, le=MAX_COUNT)]


class DamagedCheckpoint(UserError):
    """A checkpoint whose bytes are not those that were written. One before it may be good."""


@dataclass
class Progress:
    """What speaking takes from the state of the training loop."""

    epoch: CountFrom1


# The settings that say how large a model is, each by a tensor and a dimension of its shape.
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
SPEAKER_EMBEDDING = "speaker_embedding.weight"  # missing in a model of one voice
FRAMES = "decoder.linear_projection.linear_layer.weight"  # rows: bands of the frames of a step

# What speaking takes from a checkpoint besides weights and settings, where they are there.
KINDS: dict[str, Any] = {
    "loop": Progress,
    "longest_text": CountFrom1,  # of the training clips, in symbols
    "speech_statistics": SpeechStatistics,  # missing in checkpoints of 0.3.0
    "speaker_statistics": list[SpeakerStatistics],  # missing in those of one voice
}


# ---------------------------------------------------------------------------- read


def read_checkpoint(
    path: str | Path, find_problems: Callable[[dict[str, Any]], list[str]] | None = None
) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU. Its parts are checked by `find_problems`, by default
    `problems_of`. Errors as `read_saved`, and UserError if it is no checkpoint, or a part of it is
    not what it has to be."""
    state = read_saved(path)
    if not isinstance(state, dict) or "state_dict" not in state:
        raise UserError(f"{path}: holds no state_dict, so it is not a Tacotron 2 checkpoint")
    if problems := (find_problems or problems_of)(state):
        raise refused(path, problems)
    return state


def read_saved(path: str | Path) -> object:
    """What torch.save wrote, on the CPU. Its bytes are compared with the CRC-32 that the zip holds
    of them.

    Raises:
        DamagedCheckpoint: if the file is there and can be read, but is not what was written.
        UserError: if it cannot be read (missing, no permission, a failing disk, too little
            memory).
    """
    try:
        with naming(path), open_file(path, "no such checkpoint; name one that is there") as file:
            size, begins_well = os.fstat(file.fileno()).st_size, file.peek()[:1] in (b"P", b"\x80")
            if size > MAX_BYTES or not begins_well:
                raise DamagedCheckpoint("damaged, or no checkpoint, by its first byte or its size")
            return _unpack(file.read(size))  # read whole: what fails after that is not the disk
    except (OSError, MemoryError) as error:
        reason = "too little memory" if isinstance(error, MemoryError) else error.strerror
        raise UserError(
            f"{path}: cannot be read ({reason}). That does not mean that it is damaged: nothing "
            "was touched; make it readable and try again"
        ) from None


def _unpack(content: bytes) -> object:
    try:
        if content.startswith(ZIP_BEGINS):  # the reference's oldest files are no zip
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                for record in archive.infolist():
                    # Of a folder torch reads nothing; what is compressed may fill the memory.
                    if record.external_attr & 0x10 or record.compress_type:
                        raise zipfile.BadZipFile(f"{record.filename} is a folder or compressed")
                    archive.read(record)  # compares it with its CRC-32
        with warnings.catch_warnings(action="ignore"):  # of old pickles, with lines of torch
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # zipfile and torch raise many kinds for a damaged file
        if is_out_of_memory(error):
            raise MemoryError from None
        reason = f"{type(error).__name__}: {first_line(error)[:120]}"
        if isinstance(error, pickle.UnpicklingError):  # of which torch says how to run its code
            reason = "it holds more than tensors and plain values"
        raise DamagedCheckpoint(f"damaged, or no checkpoint ({reason})") from None


def first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]  # torch adds a stack; some errors say nothing


def load_weights(
    model: torch.nn.Module,
    state: dict[str, Any],
    path: str | Path,
    ignore_layers: Sequence[str] = (),
) -> None:
    """Copy a checkpoint's weights into `model`, all but the tensors named in `ignore_layers`.

    Raises:
        UserError: listing the settings of another size; if there is none, the tensors that are
            missing, unknown or of another shape.
    """
    model.load_state_dict(refuse_misfit(model.state_dict(), state, path, ignore_layers))


def refuse_misfit(
    own: dict[str, torch.Tensor],
    state: dict[str, Any],
    path: str | Path,
    ignore_layers: Sequence[str] = (),
) -> dict[str, torch.Tensor]:
    """The weights that a model whose own are `own`, on any device, takes from a checkpoint; errors
    as `load_weights`."""
    # Of a model that was wrapped for several GPUs, as NVIDIA's recipe saves it.
    weights = {name.removeprefix("module."): x for name, x in state["state_dict"].items()}
    theirs, ours = sizes_of(weights), sizes_of(own)
    for name in ignore_layers:
        if name not in own:
            raise UserError(f"ignore_layers: the model has no tensor {name!r}")
        weights[name] = own[name]
    problems = [f"lacks {name}" for name in own if name not in weights]
    problems += [f"has {name}, which this model lacks" for name in weights if name not in own]
    for name in (name for name in own if name in weights):
        loaded, kept = weights[name], own[name]
        if loaded.shape != kept.shape:
            problems.append(f"{name} is {list(loaded.shape)}, the model's is {list(kept.shape)}")
        elif loaded.is_floating_point() != kept.is_floating_point():
            problems.append(f"{name} is {loaded.dtype}, the model's is {kept.dtype}")
    if problems:
        differing = {x: theirs[x] for x in ours if theirs.get(x, ours[x]) != ours[x]}
        advice = ",".join(f"{name}={value}" for name, value in differing.items())
        sizes = [f"{name}={value} there, {ours[name]} here" for name, value in differing.items()]
        error = refused(path, sizes or problems, " does not fit the model of these settings")
        if sizes:
            error.args = (f"{error}\n  To take the checkpoint's sizes: --hparams {advice}",)
        if differing.get("speaker_embedding_dim") and not ours["speaker_embedding_dim"]:
            fix = "prepare.py --speaker NAME, where all clips are one speaker's"
            error.args = (f"{error}, with lists that name speakers: {fix}",)
        raise error
    return weights


def sizes_of(weights: Mapping[str, torch.Tensor]) -> dict[str, int]:
    """The settings of a model's size that its tensors' shapes tell, by name. Those whose tensor is
    missing, or has too few dimensions, are left out."""
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
    """The symbols' embedding [symbols, dim], if there is one."""
    embedding = weights.get("embedding.weight", weights.get("module.embedding.weight"))
    return embedding if embedding is not None and embedding.dim() == 2 else None


# ---------------------------------------------------------------------------- checks


def problems_of(state: dict[str, Any], kinds: Mapping[str, Any] = KINDS) -> list[str]:
    """What is wrong with weights, settings, and the parts named in `kinds` that are there, a line
    each that begins with the part's name. Of a checkpoint of another recipe, which has neither
    settings nor a loop, the weights alone are looked at."""
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
    return "hparams" in state or "loop" in state


def weight_problems(weights: Any, part: str) -> list[str]:
    """What is wrong with the tensors by name in a `part` of a file, a line each."""
    if not isinstance(weights, dict) or not all(isinstance(name, str) for name in weights):
        return [f"{part}: {brief(weights)}, expected tensors by name"]
    problems = {name: tensor_problem(tensor) for name, tensor in weights.items()}
    return [f"{part}: {name}: {problem}" for name, problem in problems.items() if problem]


def _settings_problems(saved: Any) -> list[str]:
    if not isinstance(saved, dict):
        return ["hparams: missing, or not values by name"]  # never the defaults instead
    if unknown := saved.keys() - {field.name for field in fields(HParams)}:
        return [f"hparams: {', '.join(map(str, unknown))}: unknown to version {__version__}"]
    try:
        hparams_from_dict(saved)
    except UserError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return ["hparams: " + "; ".join(lines[1:] or lines)]
    return []


def _symbol_problems(state: dict[str, Any]) -> list[str]:
    """Between the table of symbols, where there is one, and the embedding."""
    symbols, table = (state["hparams"].get(x) for x in ("symbols", "symbol_table"))
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
    """Between the names of speakers, their embedding and their statistics, none of which one voice
    has."""
    embedding = state["state_dict"].get(SPEAKER_EMBEDDING)
    names = tuple(state["hparams"].get("speakers") or ())
    if problem := problem_of_names(names):
        return [f"hparams: {problem}"]
    if embedding is None and not state["hparams"].get("speaker_embedding_dim"):
        if names:
            return [f"hparams: speakers: {len(names)} names, but no {SPEAKER_EMBEDDING}"]
    elif (rows := 0 if embedding is None or embedding.dim() != 2 else len(embedding)) != len(names):
        return [f"hparams: speakers: {len(names)} names, but {SPEAKER_EMBEDDING} has {rows} rows"]
    known = state.get("speaker_statistics")
    if known is not None and [x["name"] for x in known] != [*names]:
        return ["speaker_statistics: other names than hparams has in speakers"]
    return []


def _plain_problems(part: str, kind: Any, value: Any) -> list[str]:
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return [
            f"{': '.join(map(str, (part, *problem['loc'])))}: {problem['msg']}, "
            f"not {brief(problem['input'])}"
            for problem in error.errors(include_url=False, include_context=False)
        ]
    return []


def tensor_problem(value: Any) -> str | None:
    """Why a value is no tensor of plain numbers, all of them finite."""
    if not isinstance(value, torch.Tensor):
        return f"{brief(value)}, expected a tensor"
    if value.dtype not in DTYPES:
        return f"{value.dtype}, expected a dtype that weights have"
    if value.layout != torch.strided or value.is_nested or value.device.type != "cpu":
        return "a sparse, nested or empty tensor, expected a plain one"
    if value.numel() * value.itemsize > value.untyped_storage().nbytes():  # by a stride of 0
        return f"{value.numel():,} values, more than the file holds of them"
    # A finite sum has finite terms; adding up takes a fraction of looking at each.
    if not math.isfinite(value.sum()) and not value.isfinite().all():
        return "NaN or infinite values"
    return None


def brief(value: Any) -> str:
    """A value as messages show it."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    is_small_int = type(value) is int and abs(value) < MAX_COUNT
    if isinstance(value, (float, str, type(None))) or is_small_int:
        return repr(value)[:60]
    return f"a value of type {type(value).__name__}"


def refused(path: str | Path, problems: list[str], what: str = "") -> UserError:
    """One message about what is wrong with a checkpoint, a line if it is one problem."""
    if len(problems) == 1 and not what:
        return UserError(f"{path}: {problems[0]}")
    more = [f"... and {len(problems) - MAX_NAMED} more"] if len(problems) > MAX_NAMED else []
    what = what or f": {len(problems)} problems"
    return UserError("\n  ".join([f"{path}{what}:", *problems[:MAX_NAMED], *more]))
