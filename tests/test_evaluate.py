"""Test scripts/evaluate.py and evaluation/: word error rates, nearest recordings and speakers."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
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
from evaluation import evaluate as module
from evaluation.evaluate import (
    EvaluationOptions,
    Evaluators,
    evaluate,
    measure_reference,
    word_error_rate,
)
from evaluation.nearest_recording import mel_cepstra, warped_distance
from evaluation.recognizers import make_recognizer, words_of
from evaluation.recordings import read_recordings
from evaluation.results import Intelligibility, Measures, Reference, Transcript, read_result
from hparams import HParams, create_hparams
from scripts import evaluate as program
from tacotron2_voice.synthesizer import TrainingFacts
from tacotron2_voice.text.spoken_numbers import WORDS, in_words
from tacotron2_voice.utils.audio_files import write_wav
from tacotron2_voice.utils.errors import UserError

HPARAMS = create_hparams("n_frames_per_step=4")
TEXTS = ["Seven.", "Seven hundred.", "Two."]
WORDS_ONLY = EvaluationOptions(words_only=True)
WITH_SPEAKERS = EvaluationOptions(words_only=True, right_speaker=True)


def of_texts(*texts):
    return make_recognizer("pocketsphinx", "", "en-us", texts)


@pytest.mark.parametrize("rate", [22050, 16000])
def test_pocketsphinx_transcribes_most_spoken_numbers(rate):
    recognizer, voice, transcripts = of_texts("One."), EspeakVoice(), []
    for number in (17, 340, 4072, 65_125, 960_000, 31_018):
        samples = resample_poly(voice.speak(in_words(number), 160) / 32768, rate // 50, 22050 // 50)
        transcripts.append(Transcript(in_words(number), recognizer.transcribe(samples, rate)))
    # The limit is higher than the measured word error rate in docs/start/demo.md.
    assert word_error_rate(transcripts) < 0.25
    assert recognizer.transcribe(np.zeros(rate), rate) == ""


@pytest.mark.parametrize(
    ("words", "last", "expected"),
    [
        ("one two three", "four", 0),
        ("one five three", "four", 1 / 4),  # one substitution in four words
        ("one three", "four", 1 / 4),  # one deletion in four words
        ("one two three", "four five", 1 / 4),  # one insertion in four words
        ("", "", 1),
    ],
)
def test_word_error_rate_counts_substitutions_deletions_and_insertions(words, last, expected):
    pairs = [Transcript("one two three", words), Transcript("four", last)]
    assert word_error_rate(pairs) == expected


def test_pocketsphinx_uses_a_grammar_when_all_texts_are_numbers():
    """The grammar contains none of the words in the transcribed LJSpeech clip."""
    samples, rate = soundfile.read(LJSPEECH_CLIPS / "LJ001-0008.wav")
    text = "has never been surpassed."
    assert of_texts(text).transcribe(samples, rate) == text[:-1]
    assert {*of_texts("Two.", "Forty two.").transcribe(samples, rate).split()} <= WORDS


def test_words_of_a_text_contain_spelled_out_numbers_but_no_punctuation():
    assert words_of("Mr. O'Neil's 42 cats -- sat!") == "mister o'neil's forty two cats sat"
    assert words_of("Seven hundred.") == "seven hundred"
    assert words_of("Er kam 1921, um 3,50 Uhr: »Ja«!", "de") == (
        "er kam eintausendneunhunderteinundzwanzig um 3 50 uhr ja"
    )


class StandInRecognizer:
    """A recognizer that transcribes all loud audio as "seven"."""

    name, used = "pocketsphinx", 0

    def transcribe(self, samples, sampling_rate):
        assert (samples.ndim, sampling_rate) == (1, HPARAMS.sampling_rate)
        StandInRecognizer.used += 1
        return "seven" if np.abs(samples).max() > 0.1 else ""


@dataclass
class StandIn:
    """A synthesizer whose samples for a text come from the function `say`."""

    say: Callable[[str], np.ndarray]
    settings: HParams
    training: TrainingFacts = field(default_factory=lambda: TrainingFacts(epochs=2))
    vocoder: Callable[[np.ndarray], np.ndarray] | None = None

    def synthesize(self, text, speaker=None):
        samples = self.say(text if speaker is None else f"{speaker}: {text}")
        return SimpleNamespace(audio=samples, sampling_rate=self.settings.sampling_rate)

    def audio_of(self, mel):
        """Return silence as the audio of a recording's log-mel."""
        return np.zeros(100, np.float32)


def write_audio(base, speech, table):
    """Write the speech without drawing a plot."""
    write_wav(base.with_suffix(".wav"), speech.audio, speech.sampling_rate)


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """Return a folder with three tones of at least 4,000 samples."""
    monkeypatch.setattr(module, "make_recognizer", lambda *_: StandInRecognizer())
    monkeypatch.setattr(module, "write_speech", write_audio)
    folder = make_corpus(tmp_path / "unseen", 3)
    lines = "".join(f"c{i:02}|{i}|{text}\n" for i, text in enumerate(TEXTS))
    (folder / "metadata.csv").write_text(lines)
    return folder


def reference_of(recordings, hparams=HPARAMS, vocoder="Griffin-Lim", quality_model=None):
    evaluators = Evaluators(StandInRecognizer(), quality_model, "en-us")
    synthesizer = StandIn(lambda _: None, hparams)
    read = read_recordings(recordings)
    return measure_reference(recordings, read, synthesizer, vocoder, evaluators)


def test_evaluated_recordings_are_measured_again_only_when_settings_change(recordings):
    """The settings that matter are the log-mel settings, the vocoder, the recognizer and the
    quality model."""
    reference = reference_of(recordings)
    # The recognizer omits "hundred" and substitutes "two".
    assert reference.recordings == Measures(2 / 4, None)
    assert reference.vocoded == Measures(1, None)
    used = StandInRecognizer.used
    assert reference_of(recordings) == reference
    assert StandInRecognizer.used == used
    quality_model = SimpleNamespace(score=lambda samples, _: len(samples))
    for options in (
        {"hparams": create_hparams("hop_length=300")},
        {},
        {"vocoder": "hifigan.onnx"},
        {},
        {"quality_model": quality_model},
    ):
        reference = reference_of(recordings, **options)
        assert StandInRecognizer.used == (used := used + 6)
    assert reference.vocoded == Measures(1, 100)


def test_evaluate_measures_a_checkpoint_and_the_recordings(
    recordings, tmp_path, monkeypatch, capsys
):
    """The stand-in synthesizer returns silence for the last text, and a tone for all other
    texts."""

    def sound(text):
        return np.full(4000, 0.0 if text == TEXTS[-1] else 0.5, np.float32)

    speaker = StandIn(sound, create_hparams("n_frames_per_step=4"))
    monkeypatch.setattr(module, "load_synthesizer", lambda _: speaker)
    monkeypatch.setattr(module, "text_to_ids", lambda text, _: text)
    checkpoint, speech = tmp_path / "checkpoint_60.pt", tmp_path / "speech"
    out = tmp_path / "intelligibility.json"
    arguments = ["--checkpoint", checkpoint, "--recordings", recordings, "-o", out]
    program.main([*map(str, arguments), "--output", str(speech)])
    found = read_result(out, Intelligibility)
    assert (found.word_error_rate, found.recordings) == (2 / 4, 2 / 4)
    assert (found.recordings_after_griffin_lim, found.texts, found.epochs) == (1, 3, 2)
    assert found.checkpoint == "checkpoint_60.pt"
    assert [transcript.heard for transcript in found.transcripts] == ["seven", "seven", ""]
    lines = (speech / "index.csv").read_text().splitlines()
    assert lines == ["wav,text", *(f"000{i}.wav,{text}" for i, text in enumerate(TEXTS, 1))]
    *printed, wrote = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert printed == ["texts", "0.500", "1.000", "0.500", f"{found.identification_rate:.3f}"]
    assert wrote == str(out)
    # The second call returns the same results and writes no audio.
    assert evaluate(checkpoint, recordings) == found
    program.main([*map(str, arguments), "--words-only"])
    fewer = read_result(out, Intelligibility)
    assert (fewer.word_error_rate, fewer.identification_rate) == (2 / 4, None)


def test_evaluate_uses_the_chosen_vocoder_and_reports_its_name(recordings, tmp_path, monkeypatch):
    """The name of the vocoder in the report contains a hash of its file."""
    speaker, vocoder = StandIn(lambda _: np.full(4000, 0.5), HPARAMS), tmp_path / "hifigan.onnx"
    vocoder.write_bytes(b"1")
    monkeypatch.setattr(module, "load_synthesizer", lambda _: speaker)
    monkeypatch.setattr(module, "text_to_ids", lambda text, _: text)
    monkeypatch.setattr(module, "load_vocoder", lambda path, _: path)
    heard = evaluate(tmp_path / "checkpoint_1.pt", recordings, WORDS_ONLY, vocoder=vocoder)
    assert speaker.vocoder == vocoder
    assert heard.vocoder == "hifigan.onnx (6b86b273)"
    vocoded = r"^the recordings resynthesized with hifigan.onnx \(6b86b273\) +1.000$"
    assert re.search(vocoded, heard.summary(), re.M)


def test_evaluation_program_passes_its_options_to_evaluate(monkeypatch, tmp_path):
    asked = {}

    def noted(checkpoint, recordings, given, **options):
        asked.update(asdict(given) | options)
        return Intelligibility(None, None, None, 0, "", 0, [])

    monkeypatch.setattr(program, "evaluate", noted)
    options = "--recognizer whisper --whisper-model small --vocoder v.onnx --words-only --quality "
    options += "--speaker-accuracy --speaker anna --speaker-column 2 --language de --output s"
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
        "speaker": "anna",
        "speaker_column": "2",
        "output": Path("s"),
    }


def test_evaluated_recordings_can_be_listed_in_a_filelist(recordings, tmp_path):
    """The measurements of the recordings are saved next to the filelist."""
    clips, filelist = read_recordings(recordings), tmp_path / "val.txt"
    filelist.write_text("".join(f"{clip.path}|{clip.text}|0.5\n" for clip in clips))
    assert read_recordings(filelist) == clips
    (tmp_path / "val_mel.txt").write_text("a.npy|One.|0.5\n")
    message = refusal(read_recordings, tmp_path / "val_mel.txt")
    assert "val_mel.txt:1: this is a cached mel" in message
    reference, kept = reference_of(filelist), tmp_path / "val.txt.reference_measures.json"
    assert reference == reference_of(recordings)
    assert read_result(kept, Reference) == reference


@pytest.fixture
def with_speakers(recordings, tmp_path, monkeypatch):
    """Return a filelist with two speakers.

    The stand-in synthesizer returns silence for all texts except the texts of the speaker bert.
    """
    tones = [clip.path for clip in read_recordings(recordings)]
    lines = zip(
        [*tones, tones[0]], [*TEXTS, TEXTS[0]], ("anna", "bert", "bert", "anna"), strict=True
    )
    filelist = tmp_path / "speakers.txt"
    filelist.write_text("".join(f"{tone}|{text}||{name}\n" for tone, text, name in lines))
    hparams = replace(HPARAMS, speaker_embedding_dim=4, speakers=("anna", "bert", "carl"))
    sound = lambda text: np.full(4000, 0.5 if text.startswith("bert: ") else 0.0, np.float32)  # noqa: E731
    monkeypatch.setattr(module, "load_synthesizer", lambda _: StandIn(sound, hparams))
    monkeypatch.setattr(module, "text_to_ids", lambda text, _: text)
    return filelist


def test_evaluate_uses_the_speaker_of_each_line_in_a_filelist(with_speakers, tmp_path, capsys):
    """Word error rates are reported for each speaker, for synthesis and for recordings."""
    out, speech = tmp_path / "heard.json", tmp_path / "speech"
    arguments = ["--checkpoint", "best.pt", "--recordings", with_speakers, "--output", speech]
    program.main([*map(str, arguments), "-o", str(out)])
    found = read_result(out, Intelligibility)
    assert [t.heard for t in found.transcripts] == ["", "seven", "seven", ""]
    assert [t.speaker for t in found.transcripts] == ["anna", "bert", "bert", "anna"]
    anna, bert = found.speakers["anna"], found.speakers["bert"]
    assert (anna.texts, anna.word_error_rate, anna.recordings) == (2, 1, 0)
    assert (bert.texts, bert.word_error_rate, bert.recordings) == (2, 2 / 3, 2 / 3)
    # Anna's two recordings are identical, so both are equally similar to any synthesized speech. In
    # this case, the first recording counts as the nearest recording.
    assert [t.nearest for t in found.transcripts][::3] == ["seven", "seven"]
    assert anna.identification_rate == 1 / 2
    rates = (anna.identification_rate + bert.identification_rate) / 2
    assert found.identification_rate == rates
    index = (speech / "index.csv").read_text().splitlines()
    assert index[:3] == ["wav,text,speaker", "0001.wav,Seven.,anna", "0002.wav,Seven hundred.,bert"]
    printed = capsys.readouterr().out
    row = rf"anna +\| +2 \| +0\.000 \| +1\.000 \| +{anna.identification_rate:.3f}"
    assert re.search(row, printed)


def test_evaluate_uses_the_speaker_column_of_metadata(with_speakers, recordings, tmp_path):
    """For a filelist, --speaker-column is rejected, because filelists have a field for speakers."""
    lines = zip(range(3), ("anna", "bert", "bert"), TEXTS, strict=True)
    metadata = "".join(f"c{i:02}|{name}|{text}\n" for i, name, text in lines)
    (recordings / "metadata.csv").write_text(metadata)
    found = evaluate(tmp_path / "best.pt", recordings, WORDS_ONLY, speaker_column="2")
    assert [t.speaker for t in found.transcripts] == ["anna", "bert", "bert"]
    assert {name: x.recordings for name, x in found.speakers.items()} == {"anna": 0, "bert": 2 / 3}
    message = refusal(read_recordings, with_speakers, "2")
    assert "--speaker-column 2: " in message


def test_evaluate_uses_the_chosen_speaker_when_recordings_have_no_speakers(
    with_speakers, recordings, checkpoint_path
):
    heard = evaluate(checkpoint_path, recordings, WORDS_ONLY, speaker="bert")
    assert heard.word_error_rate == 2 / 4
    assert heard.speakers == {}
    for options, message in (
        ({}, "has 3 speakers (expected one of"),
        ({"speaker": "Bert"}, "did you mean 'bert'?"),
    ):
        assert message in refusal(evaluate, checkpoint_path, recordings, **options)


def test_evaluate_rejects_speakers_that_are_not_in_the_model(with_speakers, checkpoint_path):
    message = refusal(evaluate, checkpoint_path, with_speakers, speaker="anna")
    assert message.startswith(f"--speaker anna: {with_speakers} ")
    with_speakers.write_text(with_speakers.read_text().replace("|bert", "|bret"))
    message = refusal(evaluate, checkpoint_path, with_speakers)
    assert message.startswith(f"{with_speakers}: ")
    assert "'bret'" in message
    assert "did you mean 'bert'?" in message


def test_evaluated_recordings_are_measured_for_each_speaker(with_speakers):
    """If the speakers of the recordings change, the recordings are measured again."""
    reference = reference_of(with_speakers)
    used = StandInRecognizer.used
    assert reference_of(with_speakers) == reference
    assert StandInRecognizer.used == used
    assert reference.speakers == {"anna": Measures(0, None), "bert": Measures(2 / 3, None)}
    with_speakers.write_text(with_speakers.read_text().replace("bert", "carl"))
    assert [*reference_of(with_speakers).speakers] == ["anna", "carl"]


class StandInEncoder:
    """A speaker encoder that distinguishes speakers by their spectrum."""

    used = 0

    def embed(self, samples, sampling_rate):
        StandInEncoder.used += 1
        bands = np.array_split(np.abs(np.fft.rfft(samples, sampling_rate)), 40)
        return unit_vector(np.array([band.sum() for band in bands]))


def unit_vector(values):
    return values / max(np.linalg.norm(values), 1e-9)


def voice(name, rate=HPARAMS.sampling_rate):
    """Return half a second of audio from a stand-in speaker."""
    hertz = {"anna": 440, "bert": 2200}[name]
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(rate // 2) / rate).astype(np.float32)


@pytest.fixture
def with_voices(with_speakers, tmp_path, monkeypatch):
    """Return a filelist with two recordings of anna and three recordings of bert.

    One recording is listed with the wrong speaker. The stand-in model synthesizes one of bert's
    texts with anna's voice.
    """
    lines = ""
    for text, name in zip("12345", ("anna", "anna", "bert", "bert", "bert"), strict=True):
        write_wav(tmp_path / f"{text}.wav", voice("anna" if text == "5" else name), 22050)
        lines += f"{tmp_path / text}.wav|{text}.||{name}\n"
    filelist = tmp_path / "voices.txt"
    filelist.write_text(lines)
    hparams = module.load_synthesizer(None).settings
    say = lambda spoken: voice("anna" if spoken == "bert: 3." else spoken.split(":")[0])  # noqa: E731
    monkeypatch.setattr(module, "load_synthesizer", lambda _: StandIn(say, hparams))
    monkeypatch.setattr(module, "Resemblyzer", StandInEncoder)
    return filelist


def test_speaker_accuracy_is_measured_for_each_speaker_and_for_all_speakers(
    with_voices, tmp_path, capsys
):
    """One recording is listed with the wrong speaker. The stand-in vocoder returns silence for
    recordings, and silence has no speaker."""
    out = tmp_path / "heard.json"
    paths = ["--checkpoint", "best.pt", "--recordings", with_voices, "-o", out]
    arguments = [*map(str, paths), "--words-only", "--speaker-accuracy"]
    program.main(arguments)
    heard = read_result(out, Intelligibility)
    assert (heard.right_speaker, heard.right_speaker_of_recordings) == (4 / 5, 4 / 5)
    assert heard.right_speaker_after_griffin_lim == 0
    anna, bert = heard.speakers["anna"], heard.speakers["bert"]
    assert (anna.right_speaker, anna.right_speaker_of_recordings) == (1, 1)
    assert (bert.right_speaker, bert.right_speaker_of_recordings) == (2 / 3, 2 / 3)
    assert [t.nearest_speaker for t in heard.transcripts] == ["anna"] * 3 + ["bert"] * 2
    printed = capsys.readouterr().out
    assert re.search(r"^speaker identification accuracy of the model +0\.800$", printed, re.M)
    vocoded = r"^speaker identification accuracy of the recordings resynthesized with Griffin-Lim +0\.000$"
    assert re.search(vocoded, printed, re.M)
    assert re.search(r"^\| bert +\| +3 \|.* 0\.667 \| +0\.667 \|$", printed, re.M)
    used = StandInEncoder.used
    program.main(arguments)
    assert read_result(out, Intelligibility) == heard
    assert StandInEncoder.used == used + 5  # the saved measurements of the recordings are reused


def test_speaker_accuracy_is_measured_only_when_requested(with_voices):
    """If the speakers of the recordings are removed, the recordings are measured again."""
    evaluate(Path("best.pt"), with_voices, WITH_SPEAKERS)
    used = StandInEncoder.used
    heard = evaluate(Path("best.pt"), with_voices, WORDS_ONLY)
    assert heard.right_speaker is heard.right_speaker_of_recordings is None
    assert heard.speakers["anna"].right_speaker is None
    assert {t.nearest_speaker for t in heard.transcripts} == {""}
    assert StandInEncoder.used == used


def test_speaker_accuracy_fails_before_synthesis_when_speakers_are_missing(
    with_voices, recordings, monkeypatch
):
    monkeypatch.setattr(module, "synthesize_texts", None)
    message = refusal(evaluate, Path("best.pt"), recordings, WITH_SPEAKERS)
    assert message.startswith(f"--speaker-accuracy: {recordings} ")
    with_voices.write_text(with_voices.read_text().replace("|bert", "|anna"))
    message = refusal(evaluate, Path("best.pt"), with_voices, WITH_SPEAKERS)
    assert "1 speakers" in message


def test_evaluate_pads_synthesized_speech_when_it_ends_immediately(
    recordings, tmp_path, monkeypatch
):
    speaker = StandIn(lambda _: np.zeros(50, np.float32), HPARAMS)
    monkeypatch.setattr(module, "load_synthesizer", lambda _: speaker)
    monkeypatch.setattr(module, "text_to_ids", lambda text, _: text)
    assert evaluate(tmp_path / "checkpoint_1.pt", recordings).word_error_rate == 1


def test_evaluate_skips_word_errors_when_the_language_has_no_recognizer(
    tmp_path, monkeypatch, capsys
):
    """The stand-in model synthesizes with eSpeak, and speaks text 1 instead of text 4."""
    folder, out = tmp_path / "unseen", tmp_path / "found.json"
    spoken_corpus(folder, clips=6, language="de")
    voice, texts = EspeakVoice("de"), [clip.text for clip in read_recordings(folder)]

    def sound(text):
        return voice.speak(texts[1] if text == texts[4] else text, 230) / 32768

    speaker = StandIn(sound, create_hparams())
    monkeypatch.setattr(module, "load_synthesizer", lambda *_: speaker)
    monkeypatch.setattr(module, "text_to_ids", lambda text, _: text)
    arguments = ["--checkpoint", "best.pt", "--recordings", folder, "-o", out, "--language", "de"]
    program.main(list(map(str, arguments)))
    found = read_result(out, Intelligibility)
    assert found.identification_rate == 5 / 6
    expected = [texts[i].rstrip(".") for i in (0, 1, 2, 3, 1, 5)]
    assert [(t.heard, t.nearest) for t in found.transcripts] == [("", text) for text in expected]
    assert found.word_error_rate is found.recordings is None
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "6 texts",
        "identification rate of the model              0.833",
        f"wrote {out}",
    ]


def test_warped_distance_ignores_tempo_and_level():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((12, 30))
    assert warped_distance(a, a.repeat(3, axis=1)) == pytest.approx(0, abs=1e-6)
    # Time warping compares three pairs of frames: (0, 0), (1, 0) and (3, 3).
    steps = warped_distance(np.array([[0.0, 1, 3]]), np.array([[0.0, 3]]))
    assert steps == pytest.approx(1 / 3)
    sound = torch.from_numpy(rng.standard_normal(22050)).float() / 8
    cepstra = mel_cepstra(sound, HPARAMS)
    np.testing.assert_allclose(mel_cepstra(sound / 2, HPARAMS), cepstra, atol=1e-3)
    assert cepstra.shape == (12, 1 + 22050 // HPARAMS.hop_length)


def test_evaluate_rejects_damaged_results_and_recordings(recordings, checkpoint_path, tmp_path):
    out = tmp_path / "intelligibility.json"
    assert "Run scripts/evaluate.py" in refusal(read_result, out, Intelligibility)
    out.write_text(json.dumps({"word_error_rate": "low"}))
    assert f"{out}: word_error_rate='low': " in refusal(read_result, out, Intelligibility)
    assert "none" in refusal(evaluate, checkpoint_path, tmp_path / "none")


@pytest.mark.parametrize("text", ["Добрый день.", "Добрый день, 5 p.m."])
def test_evaluation_raises_when_a_text_has_no_words_in_the_language(text):
    """A text in another script contains no words in the language, so its word error rate would be
    meaningless."""
    evaluators = Evaluators(StandInRecognizer(), None, "en-us")
    with pytest.raises(UserError) as raised:
        evaluators.add(text, np.zeros(100, np.float32), 22050)
    assert text in str(raised.value)
    assert "--language" in str(raised.value)
