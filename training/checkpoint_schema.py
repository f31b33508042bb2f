"""What a checkpoint may hold: name, type, shape and range of every part.

Everything is checked before anything is used: an optimizer state of other shapes, for one, makes
fused Adam write outside its memory.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any

import torch

from errors import UserError
from hparams import RETIRED, HParams, hparams_from_dict
from training.loop_state import LoopState

LARGEST = 2**53  # of a count; larger ones are not exact as floats
LARGEST_NUMBER = 1e300  # sums stay finite with some more added
MOST_SHOWN = 5  # problems of a part
CUDA_STATE_BYTES = 16
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8)
NO_PART = object()


def holds_a_run(state: Mapping) -> bool:
    """Whether this recipe wrote it. Of any other checkpoint only the `state_dict` counts."""
    return "hparams" in state or "loop" in state


def missing_parts(state: Mapping) -> list[str]:
    """The parts that going on with a run needs and this checkpoint lacks."""
    loop = state.get("loop", {})
    # Dropout draws on from it in an epoch that an earlier version left half-way, and nowhere else.
    draws_on = loop.get("batches_trained", 0) > 0 and not loop.get("seeded_by_batch", 0)
    optional = OPTIONAL if draws_on else OPTIONAL | {"rng"}
    return [part for part in PARTS if part not in state and part not in optional]


def problems_of(state: Mapping) -> list[str]:
    """What is wrong with the parts that are there, a line each that begins with the part's name.

    Of a checkpoint of another recipe, the weights alone are looked at.
    """
    if not holds_a_run(state):
        return _named("state_dict", _weights(state["state_dict"]))
    problems = []
    for part, check in PARTS.items():
        if part in state:
            problems += _named(part, check(state[part]))
        elif part == "hparams":  # never the defaults instead
            problems += _named(part, ["missing, so the model's settings are unknown"])
    problems += [
        f"{part!s}: a part that this version does not know; use the version that wrote it"
        for part in state
        if part not in PARTS
    ]
    return problems or _contradictions(state)


def _named(part: str, found: Iterator[str] | list[str]) -> list[str]:
    problems = list(found)
    more = [f"{part}: ... and {len(problems) - MOST_SHOWN} more"]
    shown = [f"{part}: {problem}" for problem in problems[:MOST_SHOWN]]
    return shown + (more if len(problems) > MOST_SHOWN else [])


def _contradictions(state: Mapping) -> list[str]:
    """Between parts that are each well formed."""
    loop, sampler = state.get("loop"), state.get("sampler", NO_PART)
    if loop is None:
        return []
    problems = []
    if loop["iteration"] != state.get("iteration", loop["iteration"]):
        problems.append(f"loop: iteration {loop['iteration']}, but iteration {state['iteration']}")
    trained = loop["batches_trained"]
    if sampler is None and trained:
        problems.append(f"sampler: none, but loop has trained {trained} batches of an epoch")
    elif isinstance(sampler, dict) and sampler["batches_trained"] != trained:
        problems.append(
            f"sampler: {sampler['batches_trained']} batches trained, loop has {trained}"
        )
    return problems


# ---------------------------------------------------------------------------- values


def _is_whole(value: Any, low: int = 0) -> bool:
    return type(value) is int and low <= value <= LARGEST


def _is_number(value: Any) -> bool:
    """Finite and not negative."""
    return type(value) in (int, float) and 0 <= value <= LARGEST_NUMBER


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a {value.dtype} tensor of shape {list(value.shape)}"
    text = repr(value) if isinstance(value, (int, float, str, type(None))) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."


def _fields(value: Any, checks: Mapping[str, Callable], optional=()) -> Iterator[str]:
    """Problems of a dictionary with exactly these names; `optional` ones may be missing."""
    if not isinstance(value, dict):
        yield f"{_shown(value)}, expected a dictionary"
        return
    for name in value:
        if name not in checks:
            yield f"unknown {_shown(name)}"
    for name, is_good in checks.items():
        if name not in value:
            if name not in optional:
                yield f"{name} is missing"
        elif not is_good(value[name]):
            yield f"{name} is {_shown(value[name])}"


def _tensor_problem(value: Any) -> str | None:
    """Why a value is no tensor of plain numbers, all of them finite, in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return f"{_shown(value)}, expected a tensor"
    if value.dtype not in DTYPES:
        return f"{value.dtype}, expected numbers that a model is made of"
    if value.layout != torch.strided or value.is_nested or value.device.type != "cpu":
        return "a sparse, nested or empty tensor, expected a plain one"
    if not value.is_contiguous():
        return "not contiguous in memory"
    # A finite sum has finite terms; adding up takes a fraction of looking at each.
    if not math.isfinite(value.sum()) and not value.isfinite().all():
        return "NaN or infinite values"
    return None


# ---------------------------------------------------------------------------- parts


def _weights(value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        yield f"{_shown(value)}, expected tensors by name"
        return
    for name, tensor in value.items():
        if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
            tensor = tensor.detach().contiguous()  # it is only read
        if problem := _tensor_problem(tensor):
            yield f"{name}: {problem}"


def _optimizer(value: Any) -> Iterator[str]:
    """Alone; `optimizer_problems` compares it with the model's."""
    checks = {"state": lambda v: isinstance(v, dict), "param_groups": _is_one_group}
    yield from _fields(value, checks)
    if not isinstance(value, dict) or not isinstance(value.get("state"), dict):
        return
    for number, entry in value["state"].items():
        if not isinstance(entry, dict):
            yield f"state of parameter {_shown(number)}: {_shown(entry)}, expected a dictionary"
            continue
        for name, tensor in entry.items():
            problem = _tensor_problem(tensor)
            if not problem and name in ("step", "exp_avg_sq") and _has_negatives(tensor):
                problem = "negative values"
            if problem:
                yield f"{_shown(name)} of parameter {_shown(number)}: {problem}"


def _has_negatives(tensor: torch.Tensor) -> bool:
    return tensor.numel() > 0 and bool(tensor.min() < 0)


def _is_one_group(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 1 and isinstance(value[0], dict)


def optimizer_problems(saved: dict, optimizer: torch.optim.Adam) -> list[str]:
    """How a checked optimizer part differs from what the model's parameters need."""
    [group], [own] = saved["param_groups"], optimizer.param_groups
    parameters = own["params"]
    problems = []
    if group.get("params") != list(range(len(parameters))):
        problems.append(f"parameters other than the model's {len(parameters)}")
    if not _is_number(group.get("lr")):
        problems.append(f"lr is {_shown(group.get('lr'))}, expected a number")
    for name in ("betas", "eps", "amsgrad", "maximize"):
        if name in group and _as_tuple(group[name]) != _as_tuple(own[name]):
            problems.append(f"{name} is {_shown(group[name])}, expected {own[name]}")
    state = saved["state"]
    if state and state.keys() != set(range(len(parameters))):
        problems.append(f"state of {len(state)} parameters, the model has {len(parameters)}")
    for number, entry in state.items():
        if not problems and entry.keys() != {"step", "exp_avg", "exp_avg_sq"}:
            problems.append(f"parameter {number} has {', '.join(map(str, entry))}")
        for name, tensor in entry.items() if not problems else ():
            shape = [] if name == "step" else list(parameters[number].shape)
            if list(tensor.shape) != shape or tensor.dtype != torch.float32:
                problems.append(
                    f"{name} of parameter {number} is {_shown(tensor)}, expected shape {shape} "
                    "of torch.float32"
                )
    return _named("optimizer", problems)


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _scaler(value: Any) -> Iterator[str]:
    if value == {}:  # every precision but fp16
        return
    checks = {
        "scale": lambda v: _is_number(v) and v > 0,
        "growth_factor": lambda v: _is_number(v) and v > 1,
        "backoff_factor": lambda v: _is_number(v) and 0 < v < 1,
        "growth_interval": lambda v: _is_whole(v, 1),
        "_growth_tracker": _is_whole,
    }
    yield from _fields(value, checks)


def _hparams(value: Any) -> Iterator[str]:
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        yield f"{_shown(value)}, expected values by name"
        return
    known = {field.name for field in fields(HParams)} | RETIRED.keys()
    unknown = [name for name in value if name not in known]
    if unknown:
        yield f"{', '.join(unknown)}: unknown to this version; use the version that wrote it"
    try:
        hparams_from_dict(value)
    except UserError as error:
        yield "; ".join(line.strip() for line in str(error).splitlines()[1:])


def _loop(value: Any) -> Iterator[str]:
    checks = {
        field.name: _is_whole if field.type is int else _is_number for field in fields(LoopState)
    }
    checks["epoch"] = lambda v: _is_whole(v, 1)
    checks["best_iteration"] = lambda v: _is_whole(v, -1)
    checks["best_validation_loss"] = lambda v: v == math.inf or _is_number(v)
    checks["skipped_clips"] = _is_sizes
    return _fields(value, checks, optional=NEWER_IN_LOOP)


# than the first release
NEWER_IN_LOOP = (
    "skipped_clips",
    "guided_attention_sum",
    "guided_attention_frames",
    "alignment_warned",
    "seeded_by_batch",
    "skipped_updates",
    "process_wait_seconds",
    "imbalance_sum",
)


def _is_sizes(value: Any) -> bool:
    """Whether it is a dictionary of names and counts."""
    named = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    return named and all(map(_is_whole, value.values()))


def _sampler(value: Any) -> Iterator[str]:
    if value is None:  # between epochs
        return
    names = ("epoch", "batches_trained", "num_batches", "plan_checksum")
    problems = list(_fields(value, dict.fromkeys(names, _is_whole)))
    if not problems and value["batches_trained"] > value["num_batches"]:
        problems.append(f"{value['batches_trained']} of {value['num_batches']} batches trained")
    yield from problems


def _random_states(value: Any) -> Iterator[str]:
    size = len(torch.get_rng_state())
    checks = {
        "cpu": lambda v: _is_bytes(v, size) and _is_generator_state(v),
        "cuda": lambda v: _is_bytes(v, CUDA_STATE_BYTES),
    }
    return _fields(value, checks, optional=("cuda",))


def _is_bytes(value: Any, size: int) -> bool:
    return not _tensor_problem(value) and value.dtype == torch.uint8 and value.shape == (size,)


def _is_generator_state(value: torch.Tensor) -> bool:
    try:
        torch.Generator().set_state(value)
    except RuntimeError:
        return False
    return True


def _logs(value: Any) -> Iterator[str]:
    if not _is_sizes(value):
        yield f"{_shown(value)}, expected sizes in bytes by file name"
        return
    for name in value:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            yield f"{name!r} is no path inside the run's folder"


def _when(is_good: Callable[[Any], bool], expected: str) -> Callable[[Any], list[str]]:
    return lambda value: [] if is_good(value) else [f"{_shown(value)}, expected {expected}"]


PARTS: dict[str, Callable[[Any], Iterator[str] | list[str]]] = {
    "iteration": _when(_is_whole, "a whole number from 0"),
    "state_dict": _weights,
    "optimizer": _optimizer,
    "learning_rate": _when(_is_number, "a number"),
    "scaler": _scaler,
    "hparams": _hparams,
    "loop": _loop,
    "sampler": _sampler,
    "corpus": _when(lambda value: isinstance(value, str), "a text"),
    "longest_text": _when(lambda value: _is_whole(value, 1), "a whole number from 1"),
    "rng": _random_states,
    "logs": _logs,
    "metrics_checksum": _when(_is_whole, "a whole number from 0"),
}
# All but the first are newer than the first release.
OPTIONAL = {"learning_rate", "longest_text", "metrics_checksum"}
