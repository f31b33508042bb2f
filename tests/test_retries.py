"""Test retries of failed chunks, and the choice of the best attempt."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_checkpoint_synthesizer import diagonal

from audio import mel_filters
from hparams import create_hparams
from tacotron2_voice.speech_statistics import LJSPEECH
from tacotron2_voice.synthesizer import DecoderSteps, Synthesizer, TrainingFacts
from tacotron2_voice.text import ENGLISH, sequence_to_text, text_to_sequence

H = create_hparams("n_frames_per_step=2,n_mel_channels=4")
TEXT = text_to_sequence("One two three.", ["basic_cleaners"])
LETTERS = len(TEXT)


def through(steps: int = 60, skip: range = range(0), stops: bool = True):
    """Return an alignment and stop probabilities, with attention that skips the symbols in
    `skip`."""
    alignment = diagonal(steps, LETTERS)
    for step in np.flatnonzero(np.isin(alignment.argmax(axis=1), skip)):
        alignment[step] = np.eye(LETTERS)[skip[0] - 1]
    gates = np.full(steps, 0.1)
    gates[-1] = 0.9 if stops else 0.1
    return alignment, gates


GOOD, SKIPS, REPEATS = through(), through(skip=range(4, 7)), through()
REPEATS = np.concatenate([REPEATS[0][:40], REPEATS[0]]), np.concatenate([REPEATS[1][:40], GOOD[1]])
BLURRED = np.full((60, LETTERS), 1 / LETTERS), GOOD[1]
ENDLESS = through(stops=False)


class Scripted(Synthesizer):
    """A model that returns a prepared result for any text. The seed selects the result."""

    def __init__(self, *readings, settings=H):
        filters = mel_filters(settings).numpy()
        super().__init__(settings, filters, TrainingFacts(statistics=LJSPEECH, epochs=1))
        self.readings = readings
        self.seeds = list[int]()
        self.steps_made = 0

    def set_statistics(self, statistics):
        self.training = replace(self.training, statistics=statistics)

    def decode(self, ids, seed, max_steps, speaker=None):
        self.seeds.append(seed)
        alignment, gates = self.readings[seed % len(self.readings)]
        for step in range(max_steps):
            self.steps_made += 1
            place = min(step, len(alignment) - 1)
            frames = np.full((1, 2, 4), -8.0 if gates[place] > 0.5 else seed % 7, np.float32)
            yield DecoderSteps(frames, gates[place : place + 1], alignment[place : place + 1])

    def refine(self, mel):
        return mel


def mel_of(seed: int) -> np.float32:
    return np.float32(seed % 7)


def test_first_attempt_is_kept_when_it_has_no_failure():
    speaker = Scripted(GOOD, SKIPS)
    speech = speaker.synthesize(TEXT)
    assert speech.warnings == speech.notes == speech.failures == []
    assert speaker.seeds == [0]


def test_next_seed_is_tried_when_an_attempt_fails():
    speaker = Scripted(SKIPS, REPEATS, GOOD)
    speech = speaker.synthesize(TEXT)
    assert speaker.seeds == [0, 1, 2]
    assert speech.warnings == []
    assert speech.mel[0, 0] == mel_of(2)
    assert (
        "3 times (skipped, repeated, slow); the best attempt (seed 2) has no failure"
        in speech.notes[0]
    )
    assert [chunk.attempts for chunk in speech.report.chunks] == [3]


def test_best_attempt_is_kept_when_all_attempts_fail():
    speaker = Scripted(REPEATS, SKIPS, REPEATS)
    speech = speaker.synthesize(TEXT, retries=2)
    assert speech.mel[0, 0] == mel_of(1)
    assert [failure.kind for failure in speech.failures] == ["skipped"]
    assert "'two'" in speech.warnings[0]
    assert "(seed 1) still has a failure" in speech.notes[0]


def test_first_attempt_is_kept_when_retries_are_0():
    speaker = Scripted(SKIPS, GOOD)
    assert speaker.synthesize(TEXT, retries=0).mel[0, 0] == mel_of(0)
    assert speaker.seeds == [0]


def test_chunk_is_not_retried_when_the_model_is_untrained():
    speaker = Scripted(BLURRED, GOOD)
    assert speaker.synthesize(TEXT).failures[0].kind == "blurred"
    assert speaker.seeds == [0]


def test_next_seed_is_0_after_the_largest_seed():
    speaker = Scripted(SKIPS)
    speaker.synthesize(TEXT, seed=2**64 - 1, retries=1)
    assert speaker.seeds == [2**64 - 1, 0]


@pytest.mark.parametrize("retries", [0, 1])
def test_frames_are_yielded_early_only_when_retries_are_0(retries):
    """Frames that a stream has yielded cannot be replaced."""
    speaker = Scripted(SKIPS, GOOD)
    next(speaker.stream_mels(TEXT, retries=retries))
    assert speaker.steps_made < 30 if retries == 0 else speaker.steps_made == 2 * 60


@pytest.mark.parametrize("retries", [0, 3])
def test_joined_pieces_of_a_stream_equal_the_whole_log_mel(retries):
    whole = Scripted(GOOD).synthesize(TEXT, retries=retries).mel
    pieces = np.concatenate([*Scripted(GOOD).stream_mels(TEXT, retries=retries)], axis=1)
    assert pieces.tobytes() == whole.tobytes()
    assert whole.shape == (4, 120)


LENGTHS = st.integers(LETTERS, 90)
GATES = st.lists(st.sampled_from([0.1, 0.9]), min_size=90, max_size=90)


@given(LENGTHS, GATES, st.booleans())
def test_log_mel_of_any_attempt_contains_only_whole_decoder_steps(steps, gates, loud):
    """In some attempts, the last decoder step is yielded before the end of speech is detected."""
    alignment = diagonal(steps, LETTERS)
    speaker = Scripted((alignment, np.array(gates)[:steps]))
    if loud:  # the audio never becomes quiet
        speaker.decode = lambda *given: (
            step._replace(frames=np.zeros((1, 2, 4), np.float32))
            for step in Scripted.decode(speaker, *given)
        )
    stream = speaker.stream_mels(TEXT, retries=0)
    mel = np.concatenate([*stream], axis=1)
    assert mel.shape == (4, 2 * len(stream.chunks[0].alignment))


def test_limit_of_decoder_steps_depends_on_the_length_of_the_text():
    """In LJSpeech, 14 symbols take at most 2.0 s. The attention may stay on the same symbol for
    another 0.8 s."""
    speaker = Scripted(ENDLESS, settings=create_hparams("n_frames_per_step=2,n_mel_channels=4"))
    step = 2 * 256 / 22050
    longest = LJSPEECH.longest_time(LETTERS) + 0.8
    assert speaker.max_steps(LETTERS) == pytest.approx(longest / step, abs=1)
    assert speaker.max_steps(2 * LETTERS) < 2 * speaker.max_steps(LETTERS)
    speaker.settings = create_hparams("max_decoder_steps=5,n_frames_per_step=2,n_mel_channels=4")
    assert speaker.max_steps(LETTERS) == 5
    speaker.set_statistics(None)
    assert speaker.max_steps(LETTERS) == 5


@pytest.mark.parametrize(
    ("text", "ended"),
    [("one", "one."), ("one.", "one."), ("one?", "one?"), ("(one)", "(one)."), ("one,", "one,")],
)
def test_end_punctuation_is_added_when_the_text_has_none(text, ended):
    found = Scripted(GOOD).with_end_punctuation(text_to_sequence(text, ["basic_cleaners"]))
    assert sequence_to_text(found, ENGLISH) == ended


def test_end_punctuation_is_not_added_when_the_corpus_statistics_contain_no_valid_end_mark():
    speaker = Scripted(GOOD)
    unknown = [replace(LJSPEECH, final_mark=mark) for mark in ("", "é")]
    for statistics in (None, *unknown):
        speaker.set_statistics(statistics)
        assert speaker.with_end_punctuation(TEXT[:3]) == TEXT[:3]


def test_chunk_never_lasts_longer_than_two_minutes():
    """No setting or corpus statistic changes the limit of two minutes."""
    settings = create_hparams("n_frames_per_step=2,n_mel_channels=4,max_decoder_steps=100000")
    speaker = Scripted(GOOD, settings=settings)
    most = 120 * settings.sampling_rate / (2 * settings.hop_length)
    speaker.set_statistics(None)
    assert speaker.max_steps(LETTERS) == pytest.approx(most, abs=1)
    speaker.set_statistics(replace(LJSPEECH, seconds_per_symbol=1e9))
    assert speaker.max_steps(LETTERS) == pytest.approx(most, abs=1)
