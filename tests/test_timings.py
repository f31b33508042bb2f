"""Test the times of words and symbols, and the files with times (tacotron2_voice/timings.py)."""

import json

import numpy as np
import pysubs2
import pytest
import soundfile
from corpora import refusal

from tacotron2_voice import __main__ as program
from tacotron2_voice.outputs import AudioFileOutput
from tacotron2_voice.speech_end import StopReason
from tacotron2_voice.synthesizer import SpokenChunk
from tacotron2_voice.text import text_to_sequence
from tacotron2_voice.timings import Timing, Timings, best_path, timings_of
from tacotron2_voice.voice import Voice

CLEANERS = ("english_cleaners_corrected",)
STEP = 0.1  # seconds per decoder step


@pytest.fixture(scope="module")
def voice(voices):
    return Voice(voices.int8[0])


def chunk_of(text, steps_per_symbol=2, start=0.0):
    """Return a chunk in which attention stays on every symbol for the same number of decoder
    steps."""
    ids = text_to_sequence(text, CLEANERS)
    alignment = np.repeat(np.eye(len(ids), dtype=np.float32), steps_per_symbol, axis=0)
    seconds = len(alignment) * STEP
    return SpokenChunk(ids, 0, alignment, StopReason.GATE, [], True, [], start, seconds)


def test_words_have_the_times_of_their_symbols(voice):
    timings = timings_of([chunk_of("A dog sat.", start=1.0)], "A dog sat.", voice.settings)
    assert [symbol.text for symbol in timings.symbols] == list("a dog sat.")
    assert timings.symbols[0] == ("a", 1.0, 1.2)
    assert timings.words == [("A", 1.0, 1.2), ("dog", 1.4, 2.0), ("sat.", 2.2, 2.8)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Dr. Smith paid $3.50 today.", ["Dr.", "Smith", "paid", "$3.50", "today."]),
        ('He said: "No!" -- and left.', ["He", "said:", '"No!" --', "and", "left."]),
        ("-- No. [pause 1] Yes.", ["-- No.", "Yes."]),
        ("In 1999 it rained 12 times.", ["In", "1999", "it", "rained", "12", "times."]),
    ],
)
def test_word_timings_have_the_spelling_of_the_text(text, words, voice):
    chunk = chunk_of(text.replace("[pause 1] ", ""))
    timings = timings_of([chunk], text, voice.settings)
    assert [word.text for word in timings.words] == words
    times = [time for word in timings.words for time in word[1:]]
    assert times == sorted(times)
    assert timings.words[-1].end <= chunk.seconds


def test_words_are_joined_when_their_boundary_is_unknown(voice):
    timings = timings_of([chunk_of("one two three four")], "one 2 x y z four", voice.settings)
    assert [word.text for word in timings.words] == ["one", "2", "x y z", "four"]


def test_word_has_a_time_when_attention_skips_its_only_symbol(voice):
    chunk = chunk_of("It was a dog.")
    hidden = 7  # position of the article "a" in the text
    chunk.alignment[2 * hidden : 2 * hidden + 2] = np.eye(len(chunk.ids))[hidden - 1]
    timings = timings_of([chunk], "It was a dog.", voice.settings)
    assert timings.words[2].text == "a"
    assert timings.words[2].end > timings.words[2].start


def test_alignment_path_never_moves_backward_when_attention_briefly_moves_backward():
    alignment = np.array([[9, 1, 0], [2, 8, 0], [9, 1, 0], [0, 9, 1], [0, 1, 9]]) / 10
    assert best_path(alignment).tolist() == [0, 0, 0, 1, 2]
    rng = np.random.default_rng(0)
    for _ in range(50):
        weights = rng.dirichlet(np.ones(3), 4)
        path = best_path(weights)
        scores = {}
        for places in np.ndindex(3, 3, 3, 3):
            if list(places) == sorted(places):
                scores[places] = np.log(weights[range(4), places]).sum()
        assert tuple(path) == max(scores, key=scores.get)


@pytest.mark.parametrize("speed", [1.0, 0.7, 1.3])
def test_word_times_end_with_the_audio_when_a_text_has_several_chunks(speed, voice):
    text = "A dog came. [pause 0.5] It sat down, and it ate. Nobody knew where it was."
    speech = voice.synthesize(text, speed=speed)
    assert len(speech.chunks) > 2
    timings = timings_of(speech.chunks, text, voice.settings)
    assert len(timings.words) == 14
    last = speech.chunks[-1]
    assert last.start + last.seconds == pytest.approx(speech.seconds, abs=0.02)
    first = speech.chunks[0]
    pause = voice.settings.hop_length / voice.settings.sampling_rate
    assert speech.chunks[1].start == pytest.approx(first.start + first.seconds + 0.5, abs=pause)


def test_subtitles_can_be_read_by_a_subtitle_parser():
    words = [
        Timing("Dr.", 0, 0.4),
        Timing("<Smith>", 0.4, 1),
        Timing("&", 1, 1.1),
        Timing("co.", 1.1, 1.5),
        *(Timing("Yes.", i, i + 0.5) for i in range(2, 4)),
        *(Timing("pneumonia", i, i + 1) for i in range(3600, 3620)),
    ]
    timings = Timings(words)
    for name in ("srt", "vtt"):
        content = timings.as_format(name)
        events = pysubs2.SSAFile.from_string(content, format_=name).events
        assert (events[0].start, events[0].end) == (0, 1500)
        assert [event.plaintext for event in events[1:3]] == ["Yes.", "Yes."]
        assert events[3].start == 3_600_000
        assert max(len(event.plaintext) for event in events) <= 84
    assert "Dr. &lt;Smith&gt; &amp; co." in timings.as_vtt()
    assert timings.as_vtt().startswith("WEBVTT\n\n")


def speak(voices, *options):
    program.main(["speak", str(voices.int8[0]), *map(str, options)])


def test_word_times_of_a_wav_are_the_same_when_synthesis_was_stopped_and_resumed(
    voices, tmp_path, monkeypatch
):
    texts = tmp_path / "book.txt"
    texts.write_text("A dog came.\nIt sat down.\nNobody knew.\n")
    options = ["--text-file", texts, "--lines", "--timings", "json", "-o"]
    speak(voices, *options, tmp_path / "whole.wav")
    whole = json.loads((tmp_path / "whole.json").read_text())
    words = whole["words"]
    assert [word["text"] for word in words] == "A dog came. It sat down. Nobody knew.".split()
    samples, rate = soundfile.read(tmp_path / "whole.wav")
    assert words[-1]["end"] <= len(samples) / rate + 0.001
    assert words[3]["start"] >= words[2]["end"] + 0.3

    original = AudioFileOutput.write

    def stopped(self, text, stream):
        if text.name == "0003":
            raise KeyboardInterrupt
        return original(self, text, stream)

    with monkeypatch.context() as patch:
        patch.setattr(AudioFileOutput, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            speak(voices, *options, tmp_path / "again.wav")
    assert not (tmp_path / "again.json").exists()
    speak(voices, *options, tmp_path / "again.wav")
    assert json.loads((tmp_path / "again.json").read_text()) == whole


@pytest.mark.parametrize("options", [["--lines"], []])
def test_word_times_include_the_pause_between_texts(options, voices, tmp_path):
    """The pause between paragraphs is longer than the pause between lines."""
    texts = tmp_path / "book.txt"
    separator = "\n" if options else "\n\n"
    texts.write_text(f"A dog came.{separator}It sat down.\n")
    common = ["--timings", "json", *options, "-o", tmp_path / "both.wav"]
    speak(voices, "--text-file", texts, *common)
    speak(voices, "--text", "It sat down.", "-o", tmp_path / "second.wav")
    both = soundfile.info(tmp_path / "both.wav").duration
    second = soundfile.info(tmp_path / "second.wav").duration
    symbols = json.loads((tmp_path / "both.json").read_text())["symbols"]
    assert symbols[len("a dog came.")]["start"] == pytest.approx(both - second, abs=0.001)


def test_word_times_are_written_to_a_folder_for_each_text(voices, tmp_path):
    speak(voices, "--text", "A dog came.", "--timings", "srt", "-o", tmp_path / "out")
    content = (tmp_path / "out" / "0001.srt").read_text()
    assert pysubs2.SSAFile.from_string(content)[0].plaintext == "A dog came."


def test_old_timing_files_are_removed_when_the_folder_is_used_for_a_new_text(
    voices, tmp_path, capsys
):
    texts = tmp_path / "book.txt"
    out = tmp_path / "out"
    texts.write_text("A dog came.\nIt sat down.\n")
    speak(voices, "--text-file", texts, "--lines", "--timings", "srt", "-o", out)
    (out / "0001.vtt").write_text("a file of the user")
    (out / "0002.txt").write_text("a file of the user")
    capsys.readouterr()
    speak(voices, "--text", "A dog came. It sat down.", "-o", out)
    names = {path.name for path in out.iterdir()}
    assert "0001.srt" not in names
    assert {"0001.vtt", "0002.txt", "0002.wav", "0002.png", "0002.srt"} <= names
    [note] = [line for line in capsys.readouterr().err.splitlines() if "0002.srt" in line]
    assert note.startswith("note: ")
    assert "0002.txt" not in note


def test_timing_files_edited_by_the_user_are_kept_when_the_folder_is_used_for_a_new_text(
    voices, tmp_path
):
    speak(voices, "--text", "A dog came.", "--timings", "srt", "-o", tmp_path)
    (tmp_path / "0001.srt").write_text("corrected by the user")
    speak(voices, "--text", "It sat down.", "-o", tmp_path)
    assert (tmp_path / "0001.srt").read_text() == "corrected by the user"


def test_note_lists_old_files_with_word_times_when_a_wav_is_replaced(voices, tmp_path, capsys):
    wav = tmp_path / "a.wav"
    for options in (["--timings", "srt"], ["--timings", "srt"], [], ["--timings", "vtt"]):
        capsys.readouterr()
        speak(voices, "--text", "A dog came.", "-o", wav, *options)
        lines = capsys.readouterr().err.splitlines()
        notes = [line for line in lines if line.endswith(f": {wav.with_suffix('.srt')}")]
        assert len(notes) == ("srt" not in options)
        assert all(note.startswith("note: ") for note in notes)


def test_timings_are_rejected_when_the_audio_is_streamed(voices):
    message = refusal(
        program.main,
        ["speak", str(voices.int8[0]), "--text", "a", "--timings", "srt", "--stream", "wav"],
    )
    assert message.startswith("--timings: ")
