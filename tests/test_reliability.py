"""Test that benchmarks/reliability.py counts the failures of each synthesis mode."""

import importlib
import json
import re
from dataclasses import replace

import numpy as np
import pytest
from test_retries import ENDLESS, GOOD, SKIPS, H, Scripted

from tacotron2_voice.utils.errors import UserError

reliability = importlib.import_module("benchmarks.reliability")
TEXTS = ["One two three."] * 4


@pytest.fixture
def scripted(monkeypatch):
    """Return synthesizers that skip a word with seed 0, and make no mistake with seed 1."""

    def load(path, settings):
        speaker = Scripted(SKIPS, GOOD)
        speaker.audio_of = lambda mel: np.zeros(256 * mel.shape[1] - 1)
        return speaker

    monkeypatch.setattr(reliability, "load_synthesizer", load)
    return load


def run(tmp_path, *arguments) -> dict:
    texts, out = tmp_path / "texts.txt", tmp_path / "out.json"
    texts.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    reliability.main(["voice", str(texts), "--json", str(out), *arguments])
    return json.loads(out.read_text())["ways"]


def test_reliability_benchmark_counts_failures_before_and_after_retries(scripted, tmp_path, capsys):
    ways = run(tmp_path)
    assert [ways[name]["failed"] for name in reliability.WAYS] == [4, 4, 0]
    assert ways["end found"]["failures"] == {"skipped": 4}
    assert [ways[name]["attempts"] for name in reliability.WAYS] == [4, 4, 8]
    assert ways["with retries"]["stop_reasons"] == {"GATE": 4}
    printed = capsys.readouterr().out
    assert "| words skipped" in printed
    assert "With retries, " in printed


def test_audio_is_synthesized_and_rated_only_for_chosen_texts(
    scripted, tmp_path, monkeypatch, capsys
):
    class HalfDeaf:
        heard = 0

        def transcribe(self, samples, rate):
            HalfDeaf.heard += len(samples) > 0
            return "one"

    class Judge:
        def score(self, samples, rate):
            return 3.0 + (len(samples) > 0)

    monkeypatch.setattr(reliability, "make_recognizer", lambda *_: HalfDeaf())
    monkeypatch.setattr(reliability, "DistillMos", Judge)
    ways = run(tmp_path, "--transcribe", "--quality", "--audio", "3")
    assert HalfDeaf.heard == 3 * len(ways)
    assert [way["half_wrong"] for way in ways.values()] == [3, 3, 3]
    assert [way["word_error_rate"] for way in ways.values()] == pytest.approx([2 / 3] * 3)
    assert [way["quality"] for way in ways.values()] == [4.0] * 3
    printed = capsys.readouterr().out
    assert re.search(r"word error rate, 3 texts +\| +0\.667 ", printed)
    assert re.search(r"DistillMOS, 3 texts +\| +4\.00 ", printed)


def test_every_synthesis_mode_uses_the_vocoder(monkeypatch, tmp_path, capsys):
    speakers = []

    def load(path, settings):
        speakers.append(Scripted(GOOD))
        speakers[-1].audio_of = lambda mel: np.zeros(256 * mel.shape[1])
        return speakers[-1]

    monkeypatch.setattr(reliability, "load_synthesizer", load)
    monkeypatch.setattr(reliability, "load_vocoder", lambda path, hparams: f"of {path}")
    ways = run(tmp_path, "--vocoder", "vocoder.onnx")
    assert [speaker.vocoder for speaker in speakers] == ["of vocoder.onnx"] * len(ways)
    assert "vocoder.onnx" in capsys.readouterr().out


def test_language_is_rejected_when_the_recognizer_does_not_support_it(scripted, tmp_path):
    with pytest.raises(UserError, match="--recognizer whisper"):
        run(tmp_path, "--transcribe", "--language", "de")


def test_reliability_benchmark_counts_a_failure_when_speech_does_not_end(monkeypatch, tmp_path):
    monkeypatch.setattr(reliability, "load_synthesizer", lambda *_: Scripted(ENDLESS))
    ways = run(tmp_path, "--audio", "1")
    # The speech ends because attention rests on the last symbols.
    assert ways["with retries"]["failures"] == {}
    assert ways["with retries"]["stop_reasons"] == {"REST": 4}


def test_reliability_benchmark_requires_a_speaker_name_when_the_model_has_several_speakers(
    tmp_path, monkeypatch, capsys
):
    made, several = [], replace(H, speakers=("anna", "bert"))

    def load(*_):
        made.append(Scripted(GOOD, settings=several))
        made[-1].decode = lambda *given: asked.append(given[3]) or Scripted.decode(made[0], *given)
        return made[-1]

    asked = []
    monkeypatch.setattr(reliability, "load_synthesizer", load)
    run(tmp_path, "--speaker", "bert", "--audio", "1")
    assert {*asked} == {1}
    assert "voice bert" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"2 speakers .*'anna', 'bert'"):
        run(tmp_path)


def test_number_range_is_rejected_when_it_is_invalid(capsys):
    parse = reliability.number_range
    assert parse("1-10000") == (1, 10000)
    for wrong in ("0-5", "5-1", "a-b", "7", "1-1000000"):
        with pytest.raises(Exception, match="expected FIRST-LAST"):
            parse(wrong)
