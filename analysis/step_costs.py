"""What a training step costs, in seconds and bytes, for a batch of any shape.

    costs = read_costs("costs.json")  # benchmarks/step_cost.py measures and writes it
    costs.seconds(clips, frames, symbols).sum()  # of an epoch, from the shapes of its batches

The form, for B clips padded to T frames and N symbols, with S = ceil(T / n_frames_per_step)
decoder steps, is a sum of seven terms, each with a coefficient of at least 0:

    1           what every batch costs: Adam's update, the fixed part of whatever is called once
    N           the encoder's LSTM goes through the symbols one by one
    S           the decoder goes through its steps one by one, forward and back; a GPU mostly waits
                to be told the next operation, a CPU reads and updates weights, whatever B is
    S if B > 1  matrix times vector is another routine than matrix times matrix, and on a CPU a
                cheaper one: a batch of one clip stands off the line through all others
    B N         the encoder's arithmetic and its stored outputs
    B S         that of prenet, LSTMs, projections, postnet and loss
    B S N       that of attention, where every step of a clip looks at every symbol

Coefficients come from non-negative least squares on the *relative* error, so the many small
batches of an epoch count as much as the few large ones. The same terms serve bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from analysis.checked_json import parse_json
from errors import UserError
from files import write_atomically

FORMAT = "training step costs, version 1"
TERMS = (
    "per batch",
    "per symbol",
    "per decoder step",
    "per decoder step of several clips",
    "per clip and symbol",
    "per clip and decoder step",
    "per clip, decoder step and symbol",
)
# The settings that a step's cost depends on, beside the batch's shape.
COST_SETTINGS = (
    "precision",
    "decoder",
    "mask_padding",
    "n_mel_channels",
    "n_symbols",
    "symbols_embedding_dim",
    "encoder_kernel_size",
    "encoder_n_convolutions",
    "encoder_embedding_dim",
    "n_frames_per_step",
    "decoder_rnn_dim",
    "prenet_dim",
    "attention_rnn_dim",
    "attention_dim",
    "attention_location_n_filters",
    "attention_location_kernel_size",
    "attention_location_gradient",
    "postnet_embedding_dim",
    "postnet_kernel_size",
    "postnet_n_convolutions",
)

CHECKED = {"extra": "forbid", "allow_inf_nan": False}  # what pydantic refuses in a file


@dataclass(frozen=True)
class MeasuredStep:
    """One training step on a batch of this shape."""

    clips: int
    frames: int  # padded
    symbols: int  # padded
    seconds: float  # median of the repeats
    bytes: int | None  # peak memory; None where it cannot be measured
    repeats: int  # 0: timed only in the step that memory was measured in
    held_out: bool = False  # not fitted, but predicted to see how wrong the model is

    __pydantic_config__ = CHECKED

    def __post_init__(self):
        if not min(self.clips, self.frames, self.symbols, self.seconds) > 0:
            raise ValueError(f"{self}, expected positive clips, frames, symbols and seconds")


@dataclass(frozen=True)
class StepCosts:
    """A fitted cost model with what it was measured on. See the top of this file for its form."""

    description: str  # device, precision, versions, date, in a line for people
    machine: dict  # device, processor, threads, versions
    hparams: dict  # the settings it was measured with
    seconds_per_term: dict[str, float]
    bytes_per_term: dict[str, float] | None  # None where memory was not measured
    held_out_errors: dict  # points, and median and largest relative error of seconds and bytes
    measurements: list[MeasuredStep]

    __pydantic_config__ = CHECKED

    def __post_init__(self):
        for name in ("seconds_per_term", "bytes_per_term"):
            per_term = getattr(self, name)
            if per_term is not None and per_term.keys() != set(TERMS):
                raise ValueError(f"{name}: expected a number for each of: {'; '.join(TERMS)}")
            for term, value in (per_term or {}).items():
                if value < 0:
                    raise ValueError(f"{name}.{term}={value}, expected a number of at least 0")
        r = self.hparams.get("n_frames_per_step")
        if not (isinstance(r, int) and r >= 1):
            raise ValueError(f"hparams.n_frames_per_step={r!r}, expected a whole number from 1")

    def seconds(self, batch_sizes, frames, symbols) -> np.ndarray:
        """Seconds of a training step, one per batch.

        Args: arrays (or numbers) that broadcast: clips, padded mel frames, padded text symbols.
        """
        return self._predict(self.seconds_per_term, batch_sizes, frames, symbols)

    def bytes(self, batch_sizes, frames, symbols) -> np.ndarray:
        """Peak bytes in a training step, one per batch: of the GPU's memory, or on a CPU of the
        whole process. UserError where memory was not measured (`bytes_per_term` is None)."""
        if self.bytes_per_term is None:
            raise UserError(
                "memory was not measured: measure the costs on a GPU, or on a system with /proc"
            )
        return self._predict(self.bytes_per_term, batch_sizes, frames, symbols)

    def _predict(self, per_term: dict[str, float], batch_sizes, frames, symbols) -> np.ndarray:
        amounts = term_amounts(batch_sizes, frames, symbols, self.hparams["n_frames_per_step"])
        return amounts @ np.array([per_term[name] for name in TERMS])

    def differing(self, hparams: Mapping) -> list[str]:
        """Where `hparams` ask for other training steps than those measured, a line each."""
        return [
            f"{name}={hparams[name]}, measured with {self.hparams[name]}"
            for name in COST_SETTINGS
            if name in hparams and name in self.hparams and hparams[name] != self.hparams[name]
        ]

    def formula(self) -> str:
        """The fitted coefficients in words, a line per term."""
        lines = ["time of a training step =", *_in_words(self.seconds_per_term, 1e6, "µs")]
        if self.bytes_per_term is not None:
            lines += ["peak memory =", *_in_words(self.bytes_per_term, 1e-3, "kB")]
        return "\n".join(lines)


def _in_words(per_term: dict[str, float], factor: float, unit: str) -> list[str]:
    width = max(len(f"{factor * value:,.3f}") for value in per_term.values())
    return [f"  + {factor * value:{width},.3f} {unit} {name}" for name, value in per_term.items()]


def term_amounts(batch_sizes, frames, symbols, frames_per_step: int) -> np.ndarray:
    """[batches, 7]: how much of each of TERMS a batch has. Arguments as in `StepCosts.seconds`."""
    clips, frames, symbols = np.broadcast_arrays(batch_sizes, frames, symbols)
    clips, symbols = clips.astype(np.float64), symbols.astype(np.float64)
    steps = np.ceil(frames / frames_per_step)
    per_batch, several = np.ones_like(clips), clips > 1
    each = clips * steps
    terms = [per_batch, symbols, steps, steps * several, clips * symbols, each, each * symbols]
    return np.stack(terms, axis=-1)


# ---------------------------------------------------------------------------- fitting


def fit(
    measurements: Sequence[MeasuredStep], hparams: Mapping, machine: Mapping, description: str
) -> StepCosts:
    """The cost model of these measurements; those `held_out` only tell its error.

    Raises:
        UserError: if the fitted points are too few or too alike to tell the terms apart.
    """
    shapes = np.array([(m.clips, m.frames, m.symbols) for m in measurements]).reshape(-1, 3)
    held_out = np.array([m.held_out for m in measurements], dtype=bool)
    check_shapes(*shapes[~held_out].T, hparams["n_frames_per_step"])
    amounts = term_amounts(*shapes.T, hparams["n_frames_per_step"])
    seconds = np.array([m.seconds for m in measurements])
    seconds_per_term = fit_relative(amounts[~held_out], seconds[~held_out])
    errors = {
        "points": int(held_out.sum()),
        "seconds": _errors(amounts[held_out] @ seconds_per_term, seconds[held_out]),
        "bytes": None,
    }
    bytes_per_term = None
    if all(m.bytes is not None for m in measurements):
        memory = np.array([m.bytes for m in measurements], dtype=np.float64)
        bytes_per_term = fit_relative(amounts[~held_out], memory[~held_out])
        errors["bytes"] = _errors(amounts[held_out] @ bytes_per_term, memory[held_out])
        bytes_per_term = dict(zip(TERMS, bytes_per_term.tolist(), strict=True))
    return StepCosts(
        description=description,
        machine=dict(machine),
        hparams=dict(hparams),
        seconds_per_term=dict(zip(TERMS, seconds_per_term.tolist(), strict=True)),
        bytes_per_term=bytes_per_term,
        held_out_errors=errors,
        measurements=list(measurements),
    )


def check_shapes(clips, frames, symbols, frames_per_step: int) -> None:
    """UserError if steps on batches of these shapes cannot tell the terms of the model apart."""
    amounts = term_amounts(clips, frames, symbols, frames_per_step)
    norms = np.linalg.norm(amounts, axis=0)
    if not norms.all() or np.linalg.matrix_rank(amounts / norms) < len(TERMS):
        raise UserError(
            f"{len(amounts)} batch shapes cannot tell the {len(TERMS)} terms of the cost model "
            "apart: measure batches of one clip and of at least two sizes more, with at least two "
            "lengths in frames and two in symbols for each"
        )


def fit_relative(amounts: np.ndarray, measured: np.ndarray) -> np.ndarray:
    """Non-negative coefficients with the least sum of squared *relative* errors."""
    rows = amounts / measured[:, None]
    scale = np.linalg.norm(rows, axis=0)  # the terms differ by many orders of magnitude
    return nnls(rows / scale, np.ones(len(rows)))[0] / scale


def _errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float] | None:
    if not len(measured):
        return None
    relative = np.abs(predicted / measured - 1)
    return {"median": float(np.median(relative)), "largest": float(relative.max())}


# ---------------------------------------------------------------------------- the file


def write_costs(costs: StepCosts, path: str | Path) -> None:
    """`costs` as readable JSON, atomically."""
    values = {"format": FORMAT} | asdict(costs)
    measurements = ",\n    ".join(json.dumps(m) for m in values.pop("measurements"))
    text = json.dumps(values, indent=2, ensure_ascii=False)
    text = text.removesuffix("\n}") + f',\n  "measurements": [\n    {measurements}\n  ]\n}}\n'
    write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def read_costs(path: str | Path) -> StepCosts:
    """What `write_costs` wrote. UserError, in one message, for a file that is anything else."""
    try:
        values = parse_json(Path(path).read_text(encoding="utf-8"), dict)
        found = values.pop("format", None)
        if found != FORMAT:
            raise ValueError(f"format={found!r}, expected {FORMAT!r}")
        return parse_json(json.dumps(values), StepCosts)
    except FileNotFoundError:
        problem = "no such file"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except ValueError as error:  # not UTF-8, not JSON, or other values
        problem = f"not a file of step costs: {error}"
    how = "measure the costs with python benchmarks/step_cost.py -o COSTS.json"
    raise UserError(f"{path}: {problem}; {how}")
