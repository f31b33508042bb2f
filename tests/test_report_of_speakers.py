"""Test tables, warnings and plots for several speakers (corpus/report.py, corpus/plots.py)."""

from dataclasses import replace

import numpy as np
import pytest
import soundfile
from corpora import RATE, prepare_with
from helpers import LJSPEECH_CLIPS
from matplotlib.backends.backend_agg import FigureCanvasAgg

from corpus.audio_quality import Quality
from corpus.checks import measure, speech_level
from corpus.clips import Clip, Measurements
from corpus.plots import corpus_figure
from corpus.report import (
    MAX_ROWS,
    facts_of,
    speaker_table,
    speaker_warnings,
)
from corpus.speaker_names import SpeakerSource
from corpus.warnings import clip_findings, comparable_rates
from hparams import create_hparams

HPARAMS = create_hparams()
REAL = sorted(LJSPEECH_CLIPS.glob("*.wav"))


def clips_of(name, count, pace=0.06, level=-20.0, seconds=5.0, silence=0.1):
    """Return equal clips of a speaker.

    Each clip contains `seconds` of speech, with silence at both ends.
    """
    symbols = tuple(1 + i % 30 for i in range(round(seconds / pace)))
    samples = [round(x * RATE) for x in (seconds + 2 * silence, silence, silence)]
    return [
        Clip(
            f"{name}{i}.wav",
            "Text.",
            symbols,
            where=f"metadata.csv:{name}{i}",
            measured=Measurements(*samples, quality=Quality(level=level), checksum=hash((name, i))),
            speaker=name,
        )
        for i in range(count)
    ]


def facts(*speakers):
    return facts_of({"train": [clip for clips in speakers for clip in clips]}, HPARAMS)


# ---------------------------------------------------------------------------- table, warnings


def test_speaker_table_has_a_row_for_each_speaker():
    anna, bert = clips_of("anna", 30), clips_of("bert|b", 60, 0.08, -26, silence=0.2)
    table = speaker_table(facts_of({"train": anna[5:] + bert, "val": anna[:5]}, HPARAMS))
    rows = [
        row.replace(" ", "").replace("\\|", "/").strip("|").split("|") for row in table.split("\n")
    ]
    assert rows[0] == (
        "speaker clips validationclips minutes mspersymbol silenceperclip(s) speechlevel(dBFS)".split()
    )
    assert rows[2] == ["bert/b", "60", "0", "5.4", "81", "0.40", "-26.0"]  # sorted by minutes
    assert rows[3] == ["anna", "30", "5", "2.6", "60", "0.20", "-20.0"]


def test_speaker_table_is_truncated_when_there_are_many_speakers():
    """The table shows the speakers with the most and the least audio. Long names are truncated."""
    many = facts(*(clips_of(f"p{i:03}", 1 + i) for i in range(99)), clips_of("x" * 90, 200))
    rows = speaker_table(many).splitlines()[2:]
    assert len(rows) == MAX_ROWS + 1
    assert "x" * 29 + "… " in rows[0]
    assert [row.split()[1] for row in (rows[1], rows[-1])] == ["p098", "p000"]
    assert "... 80 more" in rows[MAX_ROWS // 2]


def test_report_warns_when_speech_levels_of_speakers_differ():
    near = facts(clips_of("anna", 30), clips_of("bert", 30, level=-25.9))
    assert speaker_warnings(near, is_converted=False) == []
    far = facts(
        clips_of("anna", 30), clips_of("carl", 30, level=-22), clips_of("bert", 30, level=-27)
    )
    [warning] = speaker_warnings(far, is_converted=False)
    assert "differ by 7.0 dB, from 'bert' (-27.0 dBFS) to 'anna' (-20.0 dBFS)" in warning
    assert "--convert DIR" in warning
    [warning] = speaker_warnings(far, is_converted=True)
    assert "--convert" not in warning


def test_report_warns_when_speakers_have_few_minutes_of_audio():
    few = facts(clips_of("anna", 30), *(clips_of(f"p{i}", 1 + i) for i in range(7)))
    [warning] = speaker_warnings(few, is_converted=False)
    assert (
        "7 of 8 speakers have less than 2 minutes of audio: 'p0' (0.1 minutes), 'p1' (0.2 minutes), "
        in warning
    )
    assert "'p4' (0.4 minutes) and 2 more. Add recordings" in warning


def test_clips_of_a_slow_speaker_are_not_reported_as_unusual():
    """Each clip is compared only with clips of the same speaker."""
    slow = clips_of("slow", 20, pace=0.2)
    slow[3] = replace(slow[3], symbols=slow[3].symbols * 3)
    clips = clips_of("fast", 100, pace=0.05) + slow
    rates = comparable_rates(clips, RATE)
    assert np.flatnonzero(np.abs(rates - 1) > 0.01).tolist() == [103]
    [finding] = [x for x in clip_findings(clips, HPARAMS) if "speaking rate" in x.problem]
    [(clip, value)] = finding.notes
    assert clip == slow[3]
    assert value.endswith("3.0")


# ---------------------------------------------------------------------------- reports of a corpus


@pytest.fixture
def corpus(tmp_path, no_plots):
    """Write real clips, with bert's clips at a third of their amplitude."""
    (tmp_path / "corpus" / "wavs").mkdir(parents=True)
    lines = []
    for path in REAL:
        samples, _ = soundfile.read(path)
        for name, gain in (("anna", 1), ("bert", 1 / 3)):
            soundfile.write(
                tmp_path / "corpus" / "wavs" / f"{name}-{path.name}", gain * samples, RATE
            )
            lines.append(f"{name}-{path.stem}|{name}|Some words of it, which {name} reads.\n")
    (tmp_path / "corpus" / "metadata.csv").write_text("".join(lines))
    return tmp_path / "corpus"


def test_report_and_conversion_compute_the_same_speech_level(corpus):
    for name, gain in (("anna", 1), ("bert", 1 / 3)):
        path = corpus / "wavs" / f"{name}-{REAL[0].name}"
        samples, _ = soundfile.read(REAL[0], dtype="float32")
        expected = 20 * np.log10(gain * speech_level(samples - samples.mean(), RATE))
        assert measure(path, HPARAMS).quality.level == pytest.approx(expected, abs=0.02)
        samples, _ = soundfile.read(path)
        soundfile.write(path, 0.05 + samples, RATE)  # the constant offset must not count as sound
        assert measure(path, HPARAMS).quality.level == pytest.approx(expected, abs=0.02)


@pytest.mark.thorough
def test_speech_levels_of_speakers_are_equal_after_the_suggested_conversion(
    corpus, tmp_path, capsys
):
    options = {"speakers": SpeakerSource("2")}
    prepare_with(corpus, tmp_path / "lists", **options)
    printed = capsys.readouterr().out
    assert "the speakers' levels differ by 9.5 dB" in printed
    prepare_with(corpus, tmp_path / "lists", convert=tmp_path / "new", **options)
    printed = capsys.readouterr().out
    assert "levels differ" not in printed
    rows = [line.split() for line in printed.splitlines() if line[:6] in ("| anna", "| bert")]
    assert [row[-2] for row in rows] == ["-20.0", "-20.0"]


# ---------------------------------------------------------------------------- plots


def drawn(*speakers):
    figure = corpus_figure([clip for clips in speakers for clip in clips], HPARAMS)
    FigureCanvasAgg(figure).draw()
    return figure.axes


def test_plotted_clips_have_the_color_of_their_speaker_when_there_are_few_speakers():
    rates, _ = drawn(clips_of("$a$", 9), clips_of("_b", 9, 0.09), clips_of("c", 9, 0.05))
    assert len({tuple(points.get_facecolor()[0]) for points in rates.collections[:3]}) == 3


def test_plotted_clips_have_one_color_when_there_are_many_speakers():
    rates, _ = drawn(*(clips_of(f"p{i:03}", 3, 0.04 + i / 5000) for i in range(59)))
    assert len(rates.collections) == 2  # one group of typical clips, and one group of unusual clips
