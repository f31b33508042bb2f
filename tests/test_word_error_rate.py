"""evaluation/word_error_rate.py and scripts/evaluate.py: word error rates of speech and recordings, and
which recording the speech is nearest to."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from corpora import make_corpus, refusal
from helpers import LJSPEECH_CLIPS
from scipy.signal import resample_poly

from corpus.demo_corpus import EspeakVoice
from corpus.demo_corpus import make_corpus as spoken_corpus
from evaluation import word_error_rate as transcription
from evaluation.recognizers import make_recognizer, words_of
from evaluation.word_error_rate import (
    Hearing,
    Intelligibility,
    Listener,
    Measures,
    Reference,
    Transcript,
    evaluate,
    measure_reference,
    mel_cepstra,
    rates_of_speakers,
    read_findings,
    read_recordings,
    warped_distance,
    word_error_rate,
)
from hparams import HParams, create_hparams
from scripts import evaluate as program
from tacotron2_voice.text.spoken_numbers import WORDS, in_words
from tacotron2_voice.utils.audio_files import write_wav

HPARAMS = create_hparams("n_frames_per_step=4")
TEXTS = ["Seven.", "Seven hundred.", "Two."]
WORDS_ONLY = Hearing(words_only=True)
WITH_SPEAKERS = Hearing(words_only=True, right_speaker=True)


def of_texts(*texts):
    return make_recognizer("pocketsphinx", "", "en-us", texts)


@pytest.mark.parametrize("rate", [22050, 16000])
def test_spoken_numbers_are_mostly_understood(rate):
    recognizer, voice, transcripts = of_texts("One."), EspeakVoice(), []
    for number in (17, 340, 4072, 65_125, 960_000, 31_018):
        samples = resample_poly(voice.speak(in_words(number), 160) / 32768, rate // 50, 22050 // 50)
        transcripts.append(Transcript(in_words(number), recognizer.hear(samples, rate)))
    assert word_error_rate(transcripts) < 0.25  # of a corpus: docs/training.md
    assert recognizer.hear(np.zeros(rate), rate) == ""


@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [
        ("one two three", "four", 0),
        ("one five three", "four", 1 / 4),  # a substitution
        ("one three", "four", 1 / 4),  # a deletion
        ("one two three", "four five", 1 / 4),  # an insertion
        ("", "", 1),
    ],
)
def test_rate_counts_substitutions_deletions_insertions(words, last, expected):
    pairs = [Transcript("one two three", words), Transcript("four", last)]
    assert word_error_rate(pairs) == expected


def test_free_english_has_its_own_language_model():
    """On a clip of LJSpeech; numbers alone would be heard as other words."""
    samples, rate = soundfile.read(LJSPEECH_CLIPS / "LJ001-0008.wav")
    text = "has never been surpassed."
    assert of_texts(text).hear(samples, rate) == text[:-1]
    assert {*of_texts("Two.", "Forty two.").hear(samples, rate).split()} <= WORDS


def test_texts_are_compared_as_words():
    assert words_of("Mr. O'Neil's 42 cats -- sat!") == "mister o'neil's forty two cats sat"
    assert words_of("Seven hundred.") == "seven hundred"
    assert words_of("Er kam 1921, um 3,50 Uhr: »Ja«!", "de") == (
        "er kam eintausendneunhunderteinundzwanzig um 3 50 uhr ja"
    )


class StandInRecognizer:
    """Hears "seven" in all that is loud."""

    name, used = "pocketsphinx", 0

    def hear(self, samples, sampling_rate):
        assert (samples.ndim, sampling_rate) == (1, HPARAMS.sampling_rate)
        StandInRecognizer.used += 1
        return "seven" if np.abs(samples).max() > 0.1 else ""


@dataclass
class StandIn:
    """For a speaker: `say` makes the samples of a text."""

    say: Callable[[str], np.ndarray]
    hparams: HParams
    epochs: int = 2
    vocoder: Callable[[np.ndarray], np.ndarray] | None = None

    def speak_text(self, text, speaker=None):
        return SimpleNamespace(mel=text if speaker is None else f"{speaker}: {text}")

    def sound(self, mels):
        """Of the stand-in's texts, and silence of recordings' mels."""
        silence = np.zeros(100, np.float32)
        return (self.say(mel) if isinstance(mel, list | str) else silence for mel in mels)

    def write_speech(self, base, speech):
        write_wav(base.with_suffix(".wav"), self.say(speech.mel), self.hparams.sampling_rate)


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """Three tones of 4,000 and more samples."""
    monkeypatch.setattr(transcription, "make_recognizer", lambda *_: StandInRecognizer())
    folder = make_corpus(tmp_path / "unseen", 3)
    lines = "".join(f"c{i:02}|{i}|{text}\n" for i, text in enumerate(TEXTS))
    (folder / "metadata.csv").write_text(lines)
    return folder


def reference_of(recordings, hparams=HPARAMS, vocoder="Griffin-Lim", judge=None):
    listener = Listener(StandInRecognizer(), judge, "en-us")
    return measure_reference(recordings, StandIn(lambda _: None, hparams), vocoder, listener)


def test_the_reference_is_measured_once(recordings):
    """For each mel, vocoder, recognizer and judge."""
    reference = reference_of(recordings)
    assert reference.recordings == Measures(2 / 4, None)  # "hundred" left out, "two" wrong
    assert reference.vocoded == Measures(1, None)
    used = StandInRecognizer.used
    assert reference_of(recordings) == reference
    assert StandInRecognizer.used == used
    judge = SimpleNamespace(score=lambda samples, _: len(samples))
    for options in (
        {"hparams": create_hparams("hop_length=300")},
        {},
        {"vocoder": "hifigan.onnx"},
        {},
        {"judge": judge},
    ):
        reference = reference_of(recordings, **options)
        assert StandInRecognizer.used == (used := used + 6)
    assert reference.vocoded == Measures(1, 100)


def test_a_checkpoint_is_evaluated_beside_its_recordings(recordings, tmp_path, monkeypatch, capsys):
    """The stand-in for a model makes a tone of each text but the last, which stays silent."""

    def sound(text):
        return np.full(4000, 0.0 if text == TEXTS[-1] else 0.5, np.float32)

    speaker = StandIn(sound, create_hparams("n_frames_per_step=4"))
    monkeypatch.setattr(transcription, "load_synthesizer", lambda _: speaker)
    monkeypatch.setattr(transcription, "sequence_to_speak", lambda text, _: text)
    checkpoint, speech = tmp_path / "checkpoint_60.pt", tmp_path / "speech"
    out = tmp_path / "intelligibility.json"
    arguments = ["--checkpoint", checkpoint, "--recordings", recordings, "-o", out]
    program.main([*map(str, arguments), "--speech", str(speech)])
    found = read_findings(out, Intelligibility)
    assert (found.word_error_rate, found.recordings) == (2 / 4, 2 / 4)
    assert (found.recordings_after_griffin_lim, found.texts, found.epochs) == (1, 3, 2)
    assert found.checkpoint == "checkpoint_60.pt"
    assert [transcript.heard for transcript in found.transcripts] == ["seven", "seven", ""]
    lines = (speech / "index.csv").read_text().splitlines()
    assert lines == ["wav,text", *(f"000{i}.wav,{text}" for i, text in enumerate(TEXTS, 1))]
    *printed, wrote = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["texts", "0.500", "1.000", "0.500", f"{found.identification_rate:.3f}"]
    assert wrote == str(out)
    assert evaluate(checkpoint, recordings) == found  # and keeps no sounds
    program.main([*map(str, arguments), "--words-only"])
    fewer = read_findings(out, Intelligibility)
    assert (fewer.word_error_rate, fewer.identification_rate) == (2 / 4, None)


def test_a_vocoder_speaks_and_is_named(recordings, tmp_path, monkeypatch):
    """With its content, by which the reference is kept."""
    speaker, vocoder = StandIn(lambda _: np.full(4000, 0.5), HPARAMS), tmp_path / "hifigan.onnx"
    vocoder.write_bytes(b"1")
    monkeypatch.setattr(transcription, "load_synthesizer", lambda _: speaker)
    monkeypatch.setattr(transcription, "sequence_to_speak", lambda text, _: text)
    monkeypatch.setattr(transcription, "load_vocoder", lambda path, _: path)
    heard = evaluate(tmp_path / "checkpoint_1.pt", recordings, WORDS_ONLY, vocoder=vocoder)
    assert speaker.vocoder == vocoder
    assert heard.vocoder == "hifigan.onnx (6b86b273)"
    assert re.search(r"^after mel and hifigan.onnx \(6b86b273\) +1.000$", heard.summary(), re.M)


def test_listen_hands_its_options_on(monkeypatch, tmp_path):
    asked = {}

    def noted(checkpoint, recordings, hearing, **options):
        asked.update(asdict(hearing) | options)
        return Intelligibility(None, None, None, 0, "", 0, [])

    monkeypatch.setattr(program, "evaluate", noted)
    options = "--recognizer whisper --whisper-model small --vocoder v.onnx --words-only --quality "
    options += "--right-speaker --speaker anna --speaker-column 2 --language de --speech s"
    paths = ["--checkpoint", "a.pt", "--recordings", "b", "-o", str(tmp_path / "c.json")]
    program.main([*paths, *options.split()])
    assert asked == {
        "language": "de",
        "recognizer": "whisper",
        "whisper_model": "small",
        "vocoder": Path("v.onnx"),
        "words_only": True,
        "quality": True,
        "right_speaker": True,
        "voice_of": "anna",
        "speaker_column": "2",
        "speech": Path("s"),
    }


def test_a_filelist_names_recordings(recordings, tmp_path):
    """The reference is kept beside it."""
    clips, filelist = read_recordings(recordings), tmp_path / "val.txt"
    filelist.write_text("".join(f"{clip.path}|{clip.text}|0.5\n" for clip in clips))
    assert read_recordings(filelist) == clips
    (tmp_path / "val_mel.txt").write_text("a.npy|One.|0.5\n")
    message = refusal(read_recordings, tmp_path / "val_mel.txt")
    assert "val_mel.txt:1: a cached mel; name the list of sounds, as val.txt" in message
    reference, kept = reference_of(filelist), tmp_path / "val.txt.reference_measures.json"
    assert reference == reference_of(recordings)
    assert read_findings(kept, transcription.Reference) == reference


@pytest.fixture
def with_speakers(recordings, tmp_path, monkeypatch):
    """A list of four recordings of two speakers, and a stand-in that says what is bert's only."""
    tones = [clip.path for clip in read_recordings(recordings)]
    lines = zip(
        [*tones, tones[0]], [*TEXTS, TEXTS[0]], ("anna", "bert", "bert", "anna"), strict=True
    )
    filelist = tmp_path / "speakers.txt"
    filelist.write_text("".join(f"{tone}|{text}||{name}\n" for tone, text, name in lines))
    hparams = replace(HPARAMS, speaker_embedding_dim=4, speakers=("anna", "bert", "carl"))
    sound = lambda text: np.full(4000, 0.5 if text.startswith("bert: ") else 0.0, np.float32)  # noqa: E731
    monkeypatch.setattr(transcription, "load_synthesizer", lambda _: StandIn(sound, hparams))
    monkeypatch.setattr(transcription, "sequence_to_speak", lambda text, _: text)
    return filelist


def test_lists_name_each_texts_speaker(with_speakers, tmp_path, capsys):
    """And each speaker's rates are in the file, beside those of its recordings."""
    out, speech = tmp_path / "heard.json", tmp_path / "speech"
    arguments = ["--checkpoint", "best.pt", "--recordings", with_speakers, "--speech", speech]
    program.main([*map(str, arguments), "-o", str(out)])
    found = read_findings(out, Intelligibility)
    assert [t.heard for t in found.transcripts] == ["", "seven", "seven", ""]
    assert [t.speaker for t in found.transcripts] == ["anna", "bert", "bert", "anna"]
    anna, bert = found.speakers["anna"], found.speakers["bert"]
    assert (anna.texts, anna.word_error_rate, anna.recordings) == (2, 1, 0)
    assert (bert.texts, bert.word_error_rate, bert.recordings) == (2, 2 / 3, 2 / 3)
    # Of anna's two equal recordings the first is the nearest, and none of bert's is.
    assert [t.nearest for t in found.transcripts][::3] == ["seven", "seven"]
    assert anna.identification_rate == 1 / 2
    rates = (anna.identification_rate + bert.identification_rate) / 2
    assert found.identification_rate == rates
    index = (speech / "index.csv").read_text().splitlines()
    assert index[:3] == ["wav,text,speaker", "0001.wav,Seven.,anna", "0002.wav,Seven hundred.,bert"]
    printed = capsys.readouterr().out
    row = rf"anna +\| +2 \| +0\.000 \| +1\.000 \| +{anna.identification_rate:.3f}"
    assert re.search(row, printed)


def test_folders_name_each_texts_speaker(with_speakers, recordings, tmp_path):
    """By a field of metadata.csv; a list has its own."""
    lines = zip(range(3), ("anna", "bert", "bert"), TEXTS, strict=True)
    metadata = "".join(f"c{i:02}|{name}|{text}\n" for i, name, text in lines)
    (recordings / "metadata.csv").write_text(metadata)
    found = evaluate(tmp_path / "best.pt", recordings, WORDS_ONLY, speaker_column="2")
    assert [t.speaker for t in found.transcripts] == ["anna", "bert", "bert"]
    assert {name: x.recordings for name, x in found.speakers.items()} == {"anna": 0, "bert": 2 / 3}
    message = refusal(read_recordings, with_speakers, "2")
    assert "--speaker-column 2: " in message
    assert "whose fourth field names the speakers; leave it out" in message


def test_rates_of_speakers_are_of_their_texts():
    listener = Listener(None, None, "en-us")
    for text in ("one", "two", "three"):
        listener.hear(text, np.zeros(100), 16000)
    is_identified, nothing = np.array([True, False, True]), Reference(Measures(), Measures(), {})
    rates = rates_of_speakers(["anna", "bert", "bert"], listener, nothing, is_identified)
    assert {name: (x.texts, x.identification_rate) for name, x in rates.items()} == {
        "anna": (1, 1.0),
        "bert": (2, 0.5),
    }


def test_changed_recordings_are_measured_again(with_speakers):
    reference_of(with_speakers)
    used = StandInRecognizer.used
    lines = with_speakers.read_text().splitlines(keepends=True)
    with_speakers.write_text("".join(lines[:-1]))
    reference_of(with_speakers)
    assert StandInRecognizer.used > used


def test_one_speaker_says_what_has_none(with_speakers, recordings, checkpoint_path):
    heard = evaluate(checkpoint_path, recordings, WORDS_ONLY, voice_of="bert")
    assert heard.word_error_rate == 2 / 4
    assert heard.speakers == {}
    for options, message in (
        ({}, "knows 3 speakers, 'anna', 'bert', 'carl': choose one, by --speaker anna"),
        ({"voice_of": "Bert"}, "did you mean 'bert'?"),
    ):
        assert message in refusal(evaluate, checkpoint_path, recordings, **options)


def test_recordings_speakers_must_be_known(with_speakers, checkpoint_path):
    message = refusal(evaluate, checkpoint_path, with_speakers, voice_of="anna")
    named = f"{with_speakers} names the speaker of each text"
    assert message == f"--speaker anna: {named}; leave it out"
    with_speakers.write_text(with_speakers.read_text().replace("|bert", "|bret"))
    message = refusal(evaluate, checkpoint_path, with_speakers)
    assert message.startswith(f"{with_speakers}: 2 of 4 texts, the first of speaker 'bret': ")
    assert "did you mean 'bert'?" in message


def test_the_reference_of_speakers_is_kept(with_speakers):
    """A reference without them, as of another list, is measured again."""
    reference = reference_of(with_speakers)
    used = StandInRecognizer.used
    assert reference_of(with_speakers) == reference
    assert StandInRecognizer.used == used
    assert reference.speakers == {"anna": Measures(0, None), "bert": Measures(2 / 3, None)}
    with_speakers.write_text(with_speakers.read_text().replace("bert", "carl"))
    assert [*reference_of(with_speakers).speakers] == ["anna", "carl"]


class StandInEncoder:
    """Tells voices by the spectrum."""

    used = 0

    def embed(self, samples, sampling_rate):
        StandInEncoder.used += 1
        bands = np.array_split(np.abs(np.fft.rfft(samples, sampling_rate)), 40)
        return unit_vector(np.array([band.sum() for band in bands]))


def unit_vector(values):
    return values / max(np.linalg.norm(values), 1e-9)


def voice(name, rate=HPARAMS.sampling_rate):
    """Half a second of the voice of a stand-in's speaker."""
    hertz = {"anna": 440, "bert": 2200}[name]
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(rate // 2) / rate).astype(np.float32)


@pytest.fixture
def with_voices(with_speakers, tmp_path, monkeypatch):
    """A list of two recordings of anna and three of bert, one of them mislabeled, and a stand-in
    that says a text of bert's with anna's voice."""
    lines = ""
    for text, name in zip("12345", ("anna", "anna", "bert", "bert", "bert"), strict=True):
        write_wav(tmp_path / f"{text}.wav", voice("anna" if text == "5" else name), 22050)
        lines += f"{tmp_path / text}.wav|{text}.||{name}\n"
    filelist = tmp_path / "voices.txt"
    filelist.write_text(lines)
    hparams = transcription.load_synthesizer(None).hparams
    say = lambda spoken: voice("anna" if spoken == "bert: 3." else spoken.split(":")[0])  # noqa: E731
    monkeypatch.setattr(transcription, "load_synthesizer", lambda _: StandIn(say, hparams))
    monkeypatch.setattr(transcription, "Resemblyzer", StandInEncoder)
    return filelist


def test_speech_has_the_right_speakers_voice(with_voices, tmp_path, capsys):
    """Of each speaker and in all, beside the recordings, of which one is no voice of its speaker.
    The stand-in for a vocoder makes silence, which is nobody's."""
    out = tmp_path / "heard.json"
    paths = ["--checkpoint", "best.pt", "--recordings", with_voices, "-o", out]
    arguments = [*map(str, paths), "--words-only", "--right-speaker"]
    program.main(arguments)
    heard = read_findings(out, Intelligibility)
    assert (heard.right_speaker, heard.right_speaker_of_recordings) == (4 / 5, 4 / 5)
    assert heard.right_speaker_after_griffin_lim == 0
    anna, bert = heard.speakers["anna"], heard.speakers["bert"]
    assert (anna.right_speaker, anna.right_speaker_of_recordings) == (1, 1)
    assert (bert.right_speaker, bert.right_speaker_of_recordings) == (2 / 3, 2 / 3)
    assert [t.nearest_speaker for t in heard.transcripts] == ["anna"] * 3 + ["bert"] * 2
    printed = capsys.readouterr().out
    assert re.search(r"^right speaker of the model +0\.800$", printed, re.M)
    assert re.search(r"^right speaker after mel and Griffin-Lim +0\.000$", printed, re.M)
    assert re.search(r"^\| bert +\| +3 \|.* 0\.667 \| +0\.667 \|$", printed, re.M)
    used = StandInEncoder.used
    program.main(arguments)
    assert read_findings(out, Intelligibility) == heard
    assert StandInEncoder.used == used + 5  # what is kept of the recordings is not made again


def test_nearest_speakers_are_found_on_request_only(with_voices):
    """What was kept of the recordings with them is made anew without."""
    evaluate(Path("best.pt"), with_voices, WITH_SPEAKERS)
    used = StandInEncoder.used
    heard = evaluate(Path("best.pt"), with_voices, WORDS_ONLY)
    assert heard.right_speaker is heard.right_speaker_of_recordings is None
    assert heard.speakers["anna"].right_speaker is None
    assert {t.nearest_speaker for t in heard.transcripts} == {""}
    assert StandInEncoder.used == used


def test_the_right_speaker_is_refused_before_speaking(with_voices, recordings, monkeypatch):
    monkeypatch.setattr(transcription, "spoken_sounds", None)
    message = refusal(evaluate, Path("best.pt"), recordings, WITH_SPEAKERS)
    assert message.startswith(f"--right-speaker: {recordings} names no speakers; ")
    with_voices.write_text(with_voices.read_text().replace("|bert", "|anna"))
    message = refusal(evaluate, Path("best.pt"), with_voices, WITH_SPEAKERS)
    assert "has recordings of 'anna' alone" in message


def test_speech_that_stops_at_once_is_silence(recordings, tmp_path, monkeypatch):
    speaker = StandIn(lambda _: np.zeros(50, np.float32), HPARAMS)
    monkeypatch.setattr(transcription, "load_synthesizer", lambda _: speaker)
    monkeypatch.setattr(transcription, "sequence_to_speak", lambda text, _: text)
    assert evaluate(tmp_path / "checkpoint_1.pt", recordings).word_error_rate == 1


def test_another_language_is_identified_and_not_transcribed(tmp_path, monkeypatch, capsys):
    """The stand-in for a model says one number in eSpeak's voice, faster, instead of another."""
    folder, out = tmp_path / "unseen", tmp_path / "found.json"
    spoken_corpus(folder, clips=6, language="de")
    voice, texts = EspeakVoice("de"), [clip.text for clip in read_recordings(folder)]

    def sound(text):
        return voice.speak(texts[1] if text == texts[4] else text, 230) / 32768

    speaker = StandIn(sound, create_hparams())
    monkeypatch.setattr(transcription, "load_synthesizer", lambda *_: speaker)
    monkeypatch.setattr(transcription, "sequence_to_speak", lambda text, _: text)
    arguments = ["--checkpoint", "best.pt", "--recordings", folder, "-o", out, "--language", "de"]
    program.main(list(map(str, arguments)))
    found = read_findings(out, Intelligibility)
    assert found.identification_rate == 5 / 6
    expected = [texts[i].rstrip(".") for i in (0, 1, 2, 3, 1, 5)]
    assert [(t.heard, t.nearest) for t in found.transcripts] == [("", text) for text in expected]
    assert found.word_error_rate is found.recordings is None
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "6 texts",
        "identification rate of the model     0.833",
        f"wrote {out}",
    ]


def test_warped_distance_ignores_tempo_and_level():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((12, 30))
    assert warped_distance(a, a.repeat(3, axis=1)) == pytest.approx(0, abs=1e-6)
    steps = warped_distance(np.array([[0.0, 1, 3]]), np.array([[0.0, 3]]))
    assert steps == pytest.approx(1 / 3)  # 0 with 0, 1 with 0, 3 with 3
    sound = torch.from_numpy(rng.standard_normal(22050)).float() / 8
    cepstra = mel_cepstra(sound, HPARAMS)
    np.testing.assert_allclose(mel_cepstra(sound / 2, HPARAMS), cepstra, atol=1e-3)
    assert cepstra.shape == (12, 1 + 22050 // HPARAMS.hop_length)


def test_a_damaged_result_or_corpus_is_refused(recordings, checkpoint_path, tmp_path):
    out = tmp_path / "intelligibility.json"
    assert "evaluate.py writes it" in refusal(read_findings, out, Intelligibility)
    out.write_text(json.dumps({"word_error_rate": "low"}))
    assert f"{out}: word_error_rate='low', " in refusal(read_findings, out, Intelligibility)
    assert "none" in refusal(evaluate, checkpoint_path, tmp_path / "none")
