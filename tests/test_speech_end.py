"""Test how the stop token and attention at the end of the text determine the last decoder step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hparams import create_hparams
from tacotron2_voice.speech_end import EndDetector, StopReason
from tacotron2_voice.text import text_to_sequence

STEP = 0.05  # seconds per decoder step
SETTINGS = "sampling_rate=20000,hop_length=1000,attention_rest_time=400,mel_fmax=8000"
H = create_hparams(SETTINGS)
# The last word has the symbols 4 to 6. The period is symbol 7.
WORDS = text_to_sequence("One two.", ["basic_cleaners"])
# Log-mel values (natural logarithm). QUIET is 69 dB softer than LOUD.
LOUD, QUIET = np.full(80, 0.0, np.float32), np.full(80, -8.0, np.float32)
REST = 8  # attention that rests for this number of decoder steps ends the speech


def at(symbol: int, sharpness: float = 0.9) -> np.ndarray:
    weights = np.full(len(WORDS), (1 - sharpness) / (len(WORDS) - 1), np.float32)
    weights[symbol] = sharpness
    return weights


def softer(decibels: float) -> np.ndarray:
    """Return a frame that is `decibels` dB softer than LOUD."""
    return np.full(80, -decibels / (20 / np.log(10)), np.float32)


def run(steps, max_steps=100, settings=H) -> tuple[EndDetector, int]:
    """Pass decoder steps to an EndDetector until the detector finds the end of speech.

    Return the detector and the number of decoder steps that were passed.
    """
    finder, certain = EndDetector(WORDS, settings, max_steps), 0
    for number, (frame, gate, weights) in enumerate(steps, 1):
        ended = finder.add(frame, gate, weights)
        # Decoder steps that a stream has yielded must stay in the speech.
        assert certain <= finder.num_certain
        certain = finder.num_certain
        if ended:
            return finder, number
    raise AssertionError("no end")


def through(gates=(), frames=(), after=()) -> list:
    """Return decoder steps in which attention moves from symbol to symbol.

    Attention spends one decoder step on each symbol except the last symbol. On the last symbol,
    attention spends one decoder step for each stop probability in `gates`. The result ends with the
    decoder steps in `after`.
    """
    reading = [(LOUD, 0.01, at(symbol)) for symbol in range(len(WORDS) - 1)]
    rest = zip(frames or [LOUD] * len(gates), gates, strict=True)
    return reading + [(frame, gate, at(len(WORDS) - 1)) for frame, gate in rest] + list(after)


def test_speech_ends_at_the_stop_token_when_audio_is_quiet():
    finder, told = run(through([0.1, 0.6, 0.1], [LOUD, QUIET, QUIET]))
    assert (finder.reason, finder.num_steps, told) == (StopReason.GATE, 9, 9)
    assert finder.is_quiet


def test_speech_continues_after_the_stop_token_until_audio_is_quiet():
    finder, _ = run(through([0.6, 0.1, 0.1, 0.1], [LOUD, LOUD, QUIET, QUIET]))
    assert (finder.reason, finder.num_steps) == (StopReason.GATE, 10)


def test_speech_ends_at_the_stop_token_when_audio_stays_loud():
    finder, told = run(through([0.6] + [0.1] * 6))
    assert (finder.reason, finder.num_steps) == (StopReason.GATE, 8)
    assert told == 8 + 0.25 / STEP  # the detector waits 0.25 s for quiet audio


def test_stop_token_is_ignored_when_attention_is_inside_the_text():
    """A stop token would cut off words if attention is still inside the text. If attention is
    blurred, the position of attention is unknown, so the stop token ends the speech."""
    steps = [(QUIET, 0.9, at(2)), *through([0.1, 0.8], [LOUD, QUIET])]
    assert run(steps)[0].num_steps == 10
    assert run([(LOUD, 0.1, at(0)), (QUIET, 0.9, at(2, 0.2))] * 9)[0].num_steps == 2


# The following tests use values slightly below and slightly above each threshold.


def test_stop_token_counts_only_when_its_probability_exceeds_gate_threshold():
    settings = create_hparams(f"{SETTINGS},gate_threshold=0.8")
    finder, _ = run(through([0.1, 0.6, 0.85], [LOUD, QUIET, QUIET]), settings=settings)
    assert (finder.reason, finder.num_steps) == (StopReason.GATE, 10)


@pytest.mark.parametrize(("sharpness", "ends"), [(0.25, True), (0.35, False)])
def test_stop_token_ends_speech_inside_the_text_when_alignment_is_blurred(sharpness, ends):
    finder = EndDetector(WORDS, H, 100)
    finder.add(LOUD, 0.1, at(0))
    assert finder.add(QUIET, 0.9, at(2, sharpness)) is ends


@pytest.mark.parametrize(("decibels", "num_steps"), [(24, 8), (26, 9)])
def test_end_of_speech_counts_as_quiet_when_it_is_25_db_below_the_loud_frames(decibels, num_steps):
    finder, _ = run(through([0.6] + [0.1] * 6, [LOUD] + [softer(decibels)] * 6))
    assert (finder.reason, finder.num_steps) == (StopReason.GATE, num_steps)


def test_level_that_counts_as_quiet_depends_on_loud_frames_when_most_frames_are_soft():
    reading = [(LOUD if n < 3 else softer(20), 0.01, at(n)) for n in range(len(WORDS) - 1)]
    last = at(len(WORDS) - 1)
    finder, _ = run([*reading, (softer(20), 0.6, last), (softer(26), 0.1, last)])
    assert (finder.reason, finder.num_steps) == (StopReason.GATE, 9)


@pytest.mark.parametrize(("share", "reason"), [(0.45, StopReason.STUCK), (0.55, StopReason.REST)])
def test_attention_rests_when_half_of_its_weight_is_on_the_last_symbols(share, reason):
    weights = np.zeros(len(WORDS), np.float32)
    weights[7], weights[5] = share, 1 - share
    finder, _ = run([*through()[:6], *[(LOUD, 0.1, weights)] * 60])
    assert finder.reason is reason


def test_speech_ends_at_a_step_at_most_3_db_louder_than_the_quietest_step_when_attention_rests():
    gates = [0.45, 0.3, *[0.1] * 6]
    finder, _ = run(through(gates, [softer(5), softer(8), *[softer(10)] * 6]))
    assert (finder.reason, finder.num_steps) == (StopReason.REST, 9)


@pytest.mark.parametrize(("symbol", "ends"), [(2, False), (1, True)])
def test_speech_ends_when_attention_leaves_the_last_symbols_and_moves_back_by_more_than_4_symbols(
    symbol, ends
):
    finder = EndDetector(WORDS, H, 100)
    steps = through([0.1, 0.3, 0.1], after=[(LOUD, 0.1, at(symbol))])
    ended = [finder.add(*step) for step in steps]
    assert ended == [False] * (len(steps) - 1) + [ends]


def test_speech_ends_at_the_highest_stop_probability_when_attention_stays_on_the_last_symbols():
    gates = [0.1, 0.2, 0.45, 0.3, 0.2, 0.1, 0.1, 0.1]
    finder, told = run(through(gates, [LOUD] + [QUIET] * 7))
    assert (finder.reason, finder.num_steps) == (StopReason.REST, 7 + 3)
    assert told <= 7 + REST
    assert finder.is_quiet


def test_speech_ends_at_the_only_quiet_step_when_attention_stays_on_the_last_symbols():
    gates = [0.45, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]
    finder, _ = run(through(gates, [LOUD, LOUD, QUIET, *[LOUD] * 5]))
    assert (finder.reason, finder.num_steps) == (StopReason.REST, 10)


def test_speech_ends_when_attention_moves_back_from_the_end():
    finder, told = run(through([0.1, 0.3, 0.1], after=[(LOUD, 0.1, at(0))]))
    assert (finder.reason, finder.num_steps, told) == (StopReason.REST, 9, 11)


def test_only_the_stop_token_ends_speech_when_attention_rest_time_is_0():
    h = create_hparams("sampling_rate=20000,hop_length=1000,attention_rest_time=0,mel_fmax=8000")
    finder, told = run(through([0.1] * 30), max_steps=20, settings=h)
    assert (finder.reason, told) == (StopReason.LIMIT, 20)


def test_speech_ends_when_attention_makes_no_progress():
    finder, told = run([(LOUD, 0.1, at(2))] * 99)
    assert finder.reason is StopReason.STUCK
    assert not finder.reason.is_found
    assert told == pytest.approx(2 / STEP + 1, abs=1)  # attention has made no progress for 2 s


def test_speech_ends_at_the_limit_of_decoder_steps_when_the_text_has_no_words():
    finder = EndDetector([1], H, 3)
    assert [finder.add(LOUD, 0.0, np.zeros(1, np.float32)) for _ in range(3)][2]
    assert finder.reason is StopReason.LIMIT


FRAMES = st.sampled_from([LOUD, QUIET])
STEPS = st.tuples(FRAMES, st.floats(0, 1), st.integers(0, len(WORDS) - 1), st.floats(0.125, 1))


@given(st.lists(STEPS, min_size=60, max_size=60))
def test_speech_never_exceeds_the_limit_of_decoder_steps(steps):
    """`run` also checks that no yielded decoder step is removed."""
    told = [(frame, gate, at(symbol, share)) for frame, gate, symbol, share in steps]
    finder, number = run(told, max_steps=60)
    assert finder.reason is not None
    assert 1 <= finder.num_steps <= number <= 60
