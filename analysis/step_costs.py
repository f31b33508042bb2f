"""Seconds and memory of a training step, estimated from steps timed by benchmarks/epoch.py."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from errors import UserError
from hparams import HParams

# What a training step costs depends on these settings, beside the shape of its batch.
COST_SETTINGS = tuple(
    f.name
    for f in fields(HParams)
    if f.name in ("precision", "decoder", "mask_padding", "n_mel_channels", "n_symbols")
    or f.name in ("n_frames_per_step", "decoder_rnn_dim", "prenet_dim")
    or f.name.startswith(("symbols_", "encoder_", "attention_", "postnet_"))
)
HOW_TO_MEASURE = "measure it with: python benchmarks/epoch.py LENGTHS --json COSTS.json"


@dataclass(frozen=True)
class StepCosts:
    """For B clips padded to T frames, in S decoder steps: seconds = a + b S + c B S and
    bytes = d + e B T, by non-negative least squares on the relative errors of measured steps."""

    description: str
    seconds_per_term: np.ndarray  # a, b, c
    bytes_per_term: np.ndarray | None  # d, e; None where memory was not measured
    hparams: Mapping  # measured with these
    largest_frames: int  # padded frames of the largest batch that was measured

    def seconds(self, clips: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """[batches] of batches of so many clips, padded to so many frames."""
        return _time_terms(clips, frames, self.hparams["n_frames_per_step"]) @ self.seconds_per_term

    def bytes(self, clips: np.ndarray, frames: np.ndarray) -> np.ndarray:
        """[batches] peak memory: of the GPU, or on a CPU of the whole process."""
        return _memory_terms(clips, frames) @ self.bytes_per_term

    def differing(self, hparams: HParams) -> list[str]:
        """The settings in which other training steps were measured than those of `hparams`."""
        return [
            f"{name}={value}, measured with {self.hparams[name]}"
            for name, value in asdict(hparams).items()
            if name in COST_SETTINGS and value != self.hparams.get(name, value)
        ]


def _time_terms(clips, frames, frames_per_step: int) -> np.ndarray:
    steps = np.ceil(np.asarray(frames, dtype=float) / frames_per_step)
    return np.stack([np.ones_like(steps), steps, clips * steps], axis=-1)


def _memory_terms(clips, frames) -> np.ndarray:
    padded = np.asarray(clips, dtype=float) * frames
    return np.stack([np.ones_like(padded), padded], axis=-1)


def _fit(terms: np.ndarray, measured: np.ndarray) -> np.ndarray:
    rows = terms / measured[:, None]
    scale = np.linalg.norm(rows, axis=0)  # the terms differ by many orders of magnitude
    return nnls(rows / scale, np.ones(len(rows)))[0] / scale


def read_costs(path: Path, hparams: HParams) -> StepCosts:
    """From the JSON of benchmarks/epoch.py, the steps in the precision and with the decoder of
    `hparams`, or else its first ones.

    Raises:
        UserError: for a file that is anything else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        measured = [row for row in found["rows"] if row["status"] == "measured"]
        wanted = (hparams.precision, hparams.decoder)
        by_setting = {(row["precision"], row["decoder"]): row for row in measured[::-1]}
        used = wanted if wanted in by_setting else next(reversed(by_setting))
        rows = [row for row in measured if (row["precision"], row["decoder"]) == used]
        steps = np.array([step for row in rows for step in row["steps"]], dtype=float)
        memory = np.array([step for row in rows for step in row["memory"]], dtype=float)
        shown = f"{found['device']}, {', '.join(used)} decoder, {found['date']}"
        settings = found["hparams"] | dict(zip(("precision", "decoder"), used, strict=True))
        terms = _time_terms(steps[:, 0], steps[:, 1], settings["n_frames_per_step"])
        if found["processes"] != 1:
            raise ValueError(f"measured in {found['processes']} processes, expected 1")
        if not (np.isfinite(steps).all() and (steps > 0).all()):
            raise ValueError("expected positive numbers in every step")
        per_term = _fit(terms, steps[:, 3])
        error = np.median(np.abs(terms @ per_term / steps[:, 3] - 1))
        return StepCosts(
            f"{shown}: least squares on {len(steps)} steps, median error {error:.1%}",
            per_term,
            _fit(_memory_terms(*memory[:, :2].T), memory[:, 3]) if len(memory) else None,
            settings,
            int((steps[:, 0] * steps[:, 1]).max()),
        )
    except FileNotFoundError:
        problem = "no such file"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (ValueError, KeyError, TypeError, IndexError, StopIteration) as error:
        problem = f"not what benchmarks/epoch.py --json writes ({error!r})"
    raise UserError(f"{path}: {problem}; {HOW_TO_MEASURE}")
