"""analysis/listening.py and scripts/listen.py: what a recogniser makes of a checkpoint's speech."""

import csv
import json
import multiprocessing
import time
from types import SimpleNamespace

import numpy as np
import pytest
from corpora import make_corpus, refusal

from analysis import listening
from analysis.intelligibility import Intelligibility, Transcript, read_intelligibility
from analysis.listening import (
    evaluate,
    measure_ceiling,
    most_decoder_steps,
    read_recordings,
)
from audio import write_wav
from hparams import create_hparams
from scripts import listen

HPARAMS = create_hparams("n_frames_per_step=4")
TEXTS = ["Seven.", "Seven hundred.", "Two."]


class Recogniser:
    """Hears "seven" in all that is loud."""

    heard = 0

    def take_down(self, samples, sampling_rate):
        assert (samples.ndim, sampling_rate) == (1, HPARAMS.sampling_rate)
        Recogniser.heard += 1
        return "seven" if np.abs(samples).max() > 0.1 else ""


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """Three tones of 4,000 and more samples; Griffin-Lim makes silence of them."""
    monkeypatch.setattr(listening, "NumberRecogniser", Recogniser)
    monkeypatch.setattr(listening, "griffin_lim", lambda mel, _: np.zeros(100, np.float32))
    Recogniser.heard = 0
    folder = make_corpus(tmp_path / "unseen", 3)
    lines = "".join(f"c{i:02}|{i}|{text}\n" for i, text in enumerate(TEXTS))
    (folder / "metadata.csv").write_text(lines)
    return folder


@pytest.fixture
def speaks(monkeypatch):
    """In the place of a model: a tone for each text but the last, which stays silent."""
    loaded = []

    def load(checkpoint, overrides):
        loaded.append((checkpoint, overrides))
        return overrides

    def griffin_lim(mel, _):
        return np.full(100, 0.0 if mel == TEXTS[-1] else 0.5, np.float32)

    def write_speech(base, speech, hparams):
        samples = griffin_lim(speech.mel, hparams)
        write_wav(base.with_suffix(".wav"), np.tile(samples, 40), hparams.sampling_rate)

    monkeypatch.setattr(listening, "load_speaker", load)
    monkeypatch.setattr(listening, "sequence_to_speak", lambda text, _: text)
    monkeypatch.setattr(listening, "speak_text", lambda _, text: SimpleNamespace(mel=text))
    monkeypatch.setattr(listening, "write_speech", write_speech)
    return loaded, lambda: monkeypatch.setattr(listening, "griffin_lim", griffin_lim)


def test_the_ceiling_is_measured_once_for_each_kind_of_mel(recordings):
    ceiling = measure_ceiling(recordings, HPARAMS)
    assert ceiling.recordings == 2 / 4  # "hundred" left out, "two" wrong
    assert ceiling.after_griffin_lim == 1
    assert ceiling.transcripts[1] == Transcript("seven hundred", "seven")
    heard = Recogniser.heard
    assert measure_ceiling(recordings, HPARAMS) == ceiling
    assert Recogniser.heard == heard
    measure_ceiling(recordings, create_hparams("hop_length=300"))
    assert Recogniser.heard == 2 * heard


def test_a_checkpoint_is_heard_beside_the_recordings(recordings, speaks, tmp_path):
    checkpoint, (loaded, speak_without_files) = tmp_path / "checkpoint_60.pt", speaks
    found = evaluate(checkpoint, 2, recordings, tmp_path / "speech", HPARAMS)
    assert (found.word_error_rate, found.recordings) == (2 / 4, 2 / 4)
    assert (found.recordings_after_griffin_lim, found.texts, found.epochs) == (1, 3, 2)
    assert found.checkpoint == "checkpoint_60.pt"
    assert [t.heard for t in found.transcripts] == ["seven", "seven", ""]
    assert loaded == [(checkpoint, "max_decoder_steps=6")]  # 1.3 times 17 frames, 4 a step
    with open(tmp_path / "speech" / "index.csv", newline="") as file:
        rows = list(csv.reader(file))
    assert rows == [["wav", "text"], *([f"000{i}.wav", t] for i, t in enumerate(TEXTS, 1))]
    speak_without_files()
    assert evaluate(checkpoint, 2, recordings, None, HPARAMS) == found


def test_ctrl_c_ends_the_listening_to_recordings_beside_it(recordings, speaks, monkeypatch):
    def pressed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(listening, "speak_text", pressed)
    monkeypatch.setattr(Recogniser, "take_down", lambda *_: time.sleep(60))
    with pytest.raises(KeyboardInterrupt):
        evaluate(recordings / "checkpoint_1.pt", 1, recordings, None, HPARAMS)
    assert multiprocessing.active_children() == []
    assert not (recordings / listening.CEILING_FILE).exists()


def test_speech_may_take_a_little_longer_than_the_longest_recording(recordings):
    frames = 1 + (4000 + 2 * 137) // HPARAMS.hop_length
    assert most_decoder_steps(read_recordings(recordings), HPARAMS) == np.ceil(1.3 * frames / 4)


def test_listen_writes_what_the_report_reads(recordings, tmp_path, monkeypatch, capsys):
    found = Intelligibility(0.25, 0.1, 0.125, 3, "checkpoint_6.pt", 4, [Transcript("one", "two")])
    given = {}

    def evaluated(*arguments):
        given["all"] = arguments
        return found

    monkeypatch.setattr(listen, "evaluate", evaluated)
    checkpoint = tmp_path / "checkpoint_6.pt"
    out, speech = tmp_path / "heard.json", tmp_path / "speech"
    arguments = ["--checkpoint", checkpoint, "--recordings", recordings, "-o", out]
    listen.main([*map(str, arguments), "--speech", str(speech)])
    assert read_intelligibility(out) == found
    assert given["all"][0] == checkpoint
    assert given["all"][2:4] == (recordings, speech)
    assert "of 3 texts: 0.250; recordings 0.100, after mel and Griffin-Lim 0.125" in (
        capsys.readouterr().out
    )
    broken = json.loads(out.read_text()) | {"word_error_rate": "low"}
    out.write_text(json.dumps(broken))
    assert "word_error_rate='low'" in refusal(read_intelligibility, out)
    monkeypatch.undo()
    with pytest.raises(SystemExit, match=r"listen\.py: .*unseen"):
        listen.main(
            [*map(str, arguments[:2]), "--recordings", str(tmp_path / "unseen2"), "-o", str(out)]
        )
