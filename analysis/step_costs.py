"""Seconds and memory of a training step, estimated from steps timed by benchmarks/epoch.py."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from errors import UserError
from files import read_json
from hparams import HParams

# What a training step costs depends on these settings, beside the shape of its batch.
MODEL = ("n_", "symbols_", "encoder_", "attention_", "decoder", "prenet_", "postnet_")
COST_SETTINGS = tuple(
    field.name
    for field in fields(HParams)
    if field.name.startswith(MODEL) or field.name in ("precision", "mask_padding")
)
HOW_TO_MEASURE = "measure it with: python benchmarks/epoch.py LENGTHS --json COSTS.json"


@dataclass(frozen=True)
class StepCosts:
    """For B clips padded to T frames, in S decoder steps: seconds = a + b S + c B S and
    bytes = d + e B T, by non-negative least squares on the relative errors of measured steps."""

    description: str
    seconds_per_term: np.ndarray  # a, b, c
    bytes_per_term: np.ndarray  # d, e; not-a-number where memory was not measured
    hparams: Mapping  # measured with these
    largest_frames: int  # padded frames of the largest batch that was measured

    def seconds(self, clips: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """[batches] of batches of so many clips, padded to so many frames."""
        steps = np.ceil(frames / self.hparams["n_frames_per_step"])
        a, b, c = self.seconds_per_term
        return a + b * steps + c * clips * steps

    def bytes(self, clips: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """[batches] peak memory: of the GPU, or on a CPU of the whole process."""
        d, e = self.bytes_per_term
        return d + e * clips * frames

    def frames_within(self, most_bytes: float) -> float:
        """Padded frames of the largest batch that fits, a hair less for rounding."""
        d, e = self.bytes_per_term
        return (1 - 1e-9) * (most_bytes - d) / e if e > 0 else math.inf

    def differing(self, hparams: HParams) -> list[str]:
        """The settings in which other training steps were measured than those of `hparams`."""
        return [
            f"{name}={value}, measured with {self.hparams[name]}"
            for name, value in asdict(hparams).items()
            if name in COST_SETTINGS and value != self.hparams.get(name, value)
        ]


def _fit(measured: np.ndarray, *terms: np.ndarray) -> np.ndarray:
    """The factors, at least 0, of 1 and of `terms`, whose sum is `measured`."""
    rows = np.stack([np.ones(len(measured)), *terms], axis=1) / measured[:, None]
    scale = np.linalg.norm(rows, axis=0)  # the terms differ by many orders of magnitude
    return nnls(rows / scale, np.ones(len(rows)))[0] / scale


def read_costs(path: Path, hparams: HParams) -> StepCosts:
    """From the JSON of benchmarks/epoch.py, the steps in the precision and with the decoder of
    `hparams`, or else its first ones.

    Raises:
        UserError: for a file that is anything else.
    """
    found = read_json(path)
    try:
        if found["processes"] != 1:
            raise ValueError(f"measured in {found['processes']} processes, expected 1")
        measured = [row for row in found["rows"] if row["status"] == "measured"]
        kinds = [(row["precision"], row["decoder"]) for row in measured]
        wanted = (hparams.precision, hparams.decoder)
        used = wanted if wanted in kinds else kinds[0]
        rows = [row for row, kind in zip(measured, kinds, strict=True) if kind == used]
        steps = np.array([step for row in rows for step in row["steps"]], dtype=float)
        memory = np.array([step for row in rows for step in row["memory"]], dtype=float)
        if not (np.isfinite(steps).all() and (steps > 0).all()):
            raise ValueError("expected positive numbers in every step")
        clips, frames, _, seconds = steps.T
        settings = found["hparams"] | {"precision": used[0], "decoder": used[1]}
        decoder_steps = np.ceil(frames / settings["n_frames_per_step"])
        terms = _fit(seconds, decoder_steps, clips * decoder_steps)
        memory_terms = np.full(2, np.nan)
        if len(memory):
            memory_terms = _fit(memory[:, 3], memory[:, 0] * memory[:, 1])
        costs = StepCosts("", terms, memory_terms, settings, int((clips * frames).max()))
    except (ValueError, KeyError, TypeError, IndexError) as error:
        problem = f"not what benchmarks/epoch.py --json writes ({error!r})"
        raise UserError(f"{path}: {problem}; {HOW_TO_MEASURE}") from None
    typical = np.median(np.abs(costs.seconds(clips, frames) / seconds - 1))
    measured_as = f"{found['device']}, {', '.join(used)} decoder, {found['date']}"
    fit = f"least squares on {len(steps)} steps, median error {typical:.1%}"
    return replace(costs, description=f"{measured_as}: {fit}")
