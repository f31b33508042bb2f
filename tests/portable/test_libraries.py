"""Test that the two installed libraries can be imported, plan batches and synthesize speech.

CI runs this file on macOS and Windows with only the two libraries and pytest.
"""

import sys
from pathlib import Path

import numpy as np

import length_batching
import tacotron2_voice

VOICE = Path(__file__).resolve().parents[2] / "voices" / "english"


def test_length_batching_plans_every_clip_once():
    lengths = np.random.default_rng(0).integers(50, 900, 500)
    plan = length_batching.plan_epoch(lengths, 16, "semi_sorted", dynamic_batch_size=True)
    assert sorted(np.concatenate(list(plan)).tolist()) == list(range(500))


def test_voice_speaks_without_torch():
    voice = tacotron2_voice.Voice(VOICE)
    speech = voice.synthesize("Good morning.", speaker="linda")
    assert 0.5 < speech.seconds < 3
    assert 0.05 < np.abs(speech.audio).max() <= 1
    # In the repository, helpers.py has already imported torch.
    if "pytest" in sys.modules and "helpers" not in sys.modules:
        assert "torch" not in sys.modules
