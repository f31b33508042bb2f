"""Read checkpoint files from this project and from NVIDIA's project, without executing code in the
files.

    saved = read_checkpoint("runs/ljspeech/best.pt")
    load_weights(model, saved, "runs/ljspeech/best.pt", hparams)

All checkpoints have the keys of NVIDIA's checkpoints (`iteration`, `state_dict`, `optimizer`,
`learning_rate`). Checkpoints from this project also contain the settings (`hparams`) and the state
of the run, which training/checkpoint.py writes and reads. The module checkpoint_file checks the
parts of a checkpoint that synthesis needs.
"""

import io
import os
import pickle
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import torch

from export.checkpoint_paths import list_others
from hparams import HParams, hparams_from_dict
from machine import is_out_of_memory
from tacotron2_voice.settings import HAS_PYDANTIC, limits
from tacotron2_voice.speech_statistics import SpeakerStatistics, SpeechStatistics
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes
from tacotron2_voice.version import __version__

if HAS_PYDANTIC:
    from pydantic import TypeAdapter, ValidationError

MAX_BYTES = 2**32  # maximum size of a checkpoint in bytes (full-size model: 0.3 GB)
# Maximum value of a counter. A float can represent all integers up to MAX_COUNT exactly.
MAX_COUNT = 2**53
MAX_SHOWN = 10  # maximum number of problems to list in a message
IS_FOLDER = 0x10  # MS-DOS attribute of a folder in a zip file
ZIP_START = b"PK\x03\x04"
# First byte of a pickle. NVIDIA's oldest checkpoints are pickles instead of zip files.
PICKLE_START = b"\x80"
# Settings that determine the shapes of the model's weights.
SIZES = (
    "n_mel_channels",
    "n_frames_per_step",
    "symbols_embedding_dim",
    "encoder_n_convolutions",
    "encoder_kernel_size",
    "encoder_embedding_dim",
    "speaker_embedding_dim",
    "prenet_dim",
    "attention_rnn_dim",
    "decoder_rnn_dim",
    "attention_dim",
    "attention_location_n_filters",
    "attention_location_kernel_size",
    "postnet_n_convolutions",
    "postnet_kernel_size",
    "postnet_embedding_dim",
)

CountFrom1 = Annotated[int, limits(strict=True, ge=1, le=MAX_COUNT)]


class DamagedCheckpoint(UserError):
    """Raised if a checkpoint file is damaged."""


@dataclass
class Progress:
    """The part of the training loop's state that synthesis uses."""

    epoch: CountFrom1


# Types of the optional checkpoint entries that synthesis uses.
KINDS: dict[str, Any] = {
    "loop": Progress,
    "longest_text": CountFrom1,  # length of the longest training text, in symbols
    "speech_statistics": SpeechStatistics,  # version 0.3.0 saved no speech statistics
    "speaker_statistics": list[SpeakerStatistics],  # models with one speaker lack this entry
    "text_rules": str,  # version 0.4.0 did not save the version of the text rules
    "trained_phones": list[str],  # version 0.4.0 did not save the trained phones
}
# Prefixes that DistributedDataParallel (also in NVIDIA's checkpoints), torch.compile and Lightning
# add to the names of weights.
WRAPPERS = ("module.", "_orig_mod.", "model.")

# ---------------------------------------------------------------------------- read


def read_checkpoint(path: str | Path, kinds: Mapping[str, Any] = KINDS) -> dict[str, Any]:
    """Return the content of a checkpoint with all tensors on the CPU.

    Args:
        kinds: {name of an entry: type of the entry} for the optional entries to check.

    Raises:
        DamagedCheckpoint: if the content of the file is damaged.
        UserError: if the file cannot be read or is not a valid checkpoint.
    """
    state = read_saved(path)
    if not isinstance(state, dict) or "state_dict" not in state:
        raise UserError(f"{path}: contains no state_dict (expected a Tacotron 2 checkpoint)")
    if problems := problems_of(state, kinds):
        raise checkpoint_error(path, problems)
    state["state_dict"] = without_wrappers(state["state_dict"])
    return state


def without_wrappers(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights without the prefixes that wrappers add to all names."""
    # Repeat the loop, because wrappers, such as torch.compile, can be nested in any order.
    for prefix in WRAPPERS * len(WRAPPERS):
        if weights and all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): x for name, x in weights.items()}
    return weights


def read_saved(path: str | Path) -> object:
    """Load a file written by torch.save into CPU memory, after checking its CRC-32.

    Raises:
        DamagedCheckpoint: if the content of the file is damaged.
        UserError: if the file cannot be read (missing, no permission, failing disk, no memory).
    """
    if not os.path.lexists(path):
        raise UserError(f"{path}: no such checkpoint{list_others(path)}")
    content = read_bytes(path, MAX_BYTES)
    if not content.startswith((ZIP_START, PICKLE_START)):
        raise DamagedCheckpoint(f"{path}: damaged or not a PyTorch checkpoint")
    try:
        if content.startswith(ZIP_START):
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                damaged = archive.testzip()  # check the CRC-32 checksums, because PyTorch does not
                # If an entry of the zip file is marked as a folder, PyTorch leaves the tensor of
                # this entry uninitialized.
                folders = [x.filename for x in archive.infolist() if x.external_attr & IS_FOLDER]
                damaged = damaged or next(iter(folders), None)
            if damaged:
                raise zipfile.BadZipFile(damaged)
        with warnings.catch_warnings(action="ignore"):  # hide PyTorch's warnings about old pickles
            return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    # zipfile and PyTorch raise many types of exceptions for damaged files
    except Exception as error:
        if is_out_of_memory(error):
            raise UserError(f"{path}: not enough memory to read this file") from None
        reason = f"{type(error).__name__}: {first_line(error)[:120]}"
        # Do not show PyTorch's message, which suggests executing code from the file.
        if isinstance(error, pickle.UnpicklingError):
            reason = "it contains objects other than tensors and plain values"
        raise DamagedCheckpoint(f"{path}: damaged or not a checkpoint ({reason})") from None


def first_line(error: Exception) -> str:
    """Return the first line of an error message, without PyTorch's stack trace."""
    lines = str(error).splitlines()
    return lines[0] if lines else ""


def attention_class(model: torch.nn.Module) -> str:
    """Return the name of the class of a model's attention, such as LocationSensitiveAttention."""
    return type(model.get_submodule("decoder.attention_layer")).__name__


def load_weights(
    model: torch.nn.Module,
    state: dict[str, Any],
    path: str | Path,
    hparams: HParams,
    ignore_layers: Sequence[str] = (),
) -> None:
    """Copy a checkpoint's weights into `model`, except the tensors in `ignore_layers`.

    Raises:
        UserError: if the checkpoint is of a model with a different attention class, or if tensors
            are missing, unknown, or of the wrong shape. The error message lists the settings that
            differ between model and checkpoint or, if all settings are equal, the tensors.
    """
    # Two attention classes can have tensors of the same names and shapes. Checkpoints from version
    # 0.4.0 and from other projects do not contain the name of the class.
    attention = state.get("attention_class", attention_class(model))
    keeps_own = any(name.startswith("decoder.attention_layer.") for name in ignore_layers)
    if attention != attention_class(model) and not keeps_own:
        raise UserError(
            f"{path}: attention: {attention}, expected {attention_class(model)}. To train without the "
            "attention weights of the checkpoint, use --warm_start with their names in ignore_layers"
        )
    own = model.state_dict()
    weights = dict(state["state_dict"])
    for name in ignore_layers:
        if name not in own:
            raise UserError(f"ignore_layers: the model has no tensor named {name!r}")
        weights[name] = own[name]
    theirs = state.get("hparams", {})
    different = [
        f"{name}={getattr(hparams, name)}: expected {theirs[name]} as in the checkpoint"
        for name in SIZES
        if theirs.get(name, getattr(hparams, name)) != getattr(hparams, name)
    ]
    load_state(model, weights, path, "the model with these settings", different)


def load_state(
    model: torch.nn.Module,
    weights: dict[str, torch.Tensor],
    path: str | Path,
    kind: str,
    reasons: Sequence[str] = (),
) -> None:
    """Copy weights into `model`. If the weights do not fit the model, raise a UserError that lists
    the `reasons` or, without reasons, PyTorch's error messages. In the error message, the model is
    called `kind`."""
    try:
        model.load_state_dict(weights)
    # Skip the first line of PyTorch's message, which contains only the name of the model's class.
    except RuntimeError as error:
        problems = list(reasons) or [line.strip() for line in str(error).splitlines()[1:]]
        raise checkpoint_error(f"{path} does not fit {kind}", problems) from None


# ---------------------------------------------------------------------------- checks


def problems_of(state: dict[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """Check the weights and the settings of a checkpoint, and the entries that `kinds` describes.
    Return one line for each problem.

    Each line begins with the name of the entry that has the problem. Checkpoints from other
    projects contain no settings, so only the weights of these checkpoints are checked.
    """
    problems = weight_problems(state["state_dict"], "state_dict")
    if not is_of_this_recipe(state):
        return problems
    problems += _settings_problems(state.get("hparams"))
    if HAS_PYDANTIC:
        for part, kind in kinds.items():
            if part in state:
                problems += _plain_problems(part, kind, state[part])
    return problems


def is_of_this_recipe(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is from this project. Only checkpoints from this project contain
    settings."""
    return "hparams" in state or "loop" in state


def weight_problems(weights: Any, part: str) -> list[str]:
    """Return one line for each problem of a dictionary of tensors. `part` is the name of the
    dictionary."""
    if not isinstance(weights, dict):
        return [f"{part}: {brief(weights)} (expected a dictionary of tensors)"]
    problems = []
    for name, tensor in weights.items():
        if not isinstance(tensor, torch.Tensor):
            problems.append(f"{part}: {name}: {brief(tensor)} (expected a tensor)")
        elif not tensor.isfinite().all():
            problems.append(f"{part}: {name}: contains NaN or infinity")
    return problems


def _settings_problems(saved: Any) -> list[str]:
    if not isinstance(saved, dict):
        # Reject missing settings, because the default values could differ from the values in the
        # run.
        return ["hparams: missing, or not a dictionary of settings"]
    unknown = saved.keys() - {field.name for field in fields(HParams)}
    if unknown:
        names = ", ".join(map(str, unknown))
        return [f"hparams: {names}: version {__version__} of this project has no such settings"]
    try:
        hparams_from_dict(saved)
    except UserError as error:
        lines = [line.strip() for line in str(error).splitlines()]
        return ["hparams: " + "; ".join(lines[1:] or lines)]
    return []


def _plain_problems(part: str, kind: Any, value: Any) -> list[str]:
    try:
        TypeAdapter(kind).validate_python(value)
        return []
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
    problems = []
    for problem in found:
        place = ": ".join(map(str, (part, *problem["loc"])))
        problems.append(f"{place}: {problem['msg']}, not {brief(problem['input'])}")
    return problems


def brief(value: Any) -> str:
    """Return a short description of a value for messages."""
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    return f"{value!r:.60}"


def checkpoint_error(title: str | Path, problems: list[str]) -> UserError:
    """Return an error that lists the problems of a file. `title` starts with the file's path."""
    if len(problems) == 1:
        return UserError(f"{title}: {problems[0]}")
    shown = problems[:MAX_SHOWN]
    if len(problems) > MAX_SHOWN:
        shown.append(f"... and {len(problems) - MAX_SHOWN} more")
    return UserError("\n  ".join([f"{title}: {len(problems)} problems:", *shown]))
