"""Test the search for failures in alignments, and the choice of the best attempt."""

from dataclasses import replace

import numpy as np
import pytest
from test_checkpoint_synthesizer import TEXTS, TWENTY, diagonal, spoken, symbols_of

from hparams import create_hparams
from tacotron2_voice.alignment_failures import Failure, find_failures, severity
from tacotron2_voice.speech_end import StopReason
from tacotron2_voice.speech_statistics import LJSPEECH

H = create_hparams()


def failures_of(alignment, sequence, end=StopReason.GATE, statistics=None) -> list[Failure]:
    return find_failures(alignment, sequence, end, H, statistics)


def test_no_failure_is_found_when_attention_passes_each_symbol_once():
    for text in TEXTS:
        sequence = symbols_of(text)
        for seed in range(20):
            assert failures_of(spoken(sequence, len(sequence), seed), sequence) == []


def test_word_is_reported_as_skipped_when_attention_never_reaches_the_word():
    alignment = diagonal(60, 20)  # the text is "she was the last one"
    alignment[:, 8:11] = 0
    alignment[24:33, 7] = 1
    (failure,) = failures_of(alignment, TWENTY)
    assert (failure.kind, failure.count) == ("skipped", 1)
    assert "'the'" in failure.message


def test_one_letter_word_counts_as_spoken_when_attention_is_on_adjacent_spaces():
    sequence = symbols_of("it was a dog.")
    alignment = diagonal(3 * len(sequence), len(sequence))
    alignment[21:24] = 0  # decoder steps with attention on the "a"
    alignment[21:24, 6] = 0.4
    alignment[21:24, 7:9] = 0.3
    assert failures_of(alignment, sequence) == []
    alignment[18:27] = 0  # decoder steps with attention on the "a" or the spaces around it
    alignment[18:27, 5] = 1
    (failure,) = failures_of(alignment, sequence)
    assert (failure.kind, failure.count) == ("skipped", 1)
    assert "'a'" in failure.message


def test_reported_failure_states_how_many_words_were_repeated():
    again = np.concatenate([diagonal(60, 20), diagonal(60, 20)[12:]])
    (failure,) = failures_of(again, TWENTY)
    assert (failure.kind, failure.count) == ("repeated", 4)


@pytest.mark.parametrize(
    ("end", "kind"),
    [(StopReason.LIMIT, "no stop"), (StopReason.STUCK, "stuck"), (StopReason.REST, None)],
)
def test_failure_is_reported_when_speech_does_not_stop(end, kind):
    kinds = [failure.kind for failure in failures_of(diagonal(60, 20), TWENTY, end)]
    assert kinds == ([kind] if kind else [])


@pytest.mark.parametrize(("steps", "kind"), [(60, "fast"), (120, None), (260, "slow")])
def test_failure_is_reported_when_speaking_rate_differs_from_the_rate_of_the_corpus(steps, kind):
    """In LJSpeech, 20 symbols take 1.4 s on average, which is 122 decoder steps. Durations between
    half and twice the average duration are accepted."""
    failures = failures_of(diagonal(steps, 20), TWENTY, statistics=LJSPEECH)
    assert [failure.kind for failure in failures] == ([kind] if kind else [])


def test_failure_message_names_max_decoder_steps_when_the_user_has_set_this_limit():
    hparams = replace(H, max_decoder_steps=20)
    (failure,) = find_failures(diagonal(20, 20), TWENTY, StopReason.LIMIT, hparams, LJSPEECH)
    assert all(fact in failure.message for fact in ("0.2 s", "max_decoder_steps=20"))


def test_advice_for_a_failure_never_suggests_a_larger_limit_of_decoder_steps():
    """A larger limit of decoder steps would only add noise at the end of the speech."""
    blurred = np.full((400, 20), 0.05, np.float32)
    for end in StopReason:
        for alignment in (blurred, diagonal(30, 20)[:20], diagonal(500, 20)):
            for failure in failures_of(alignment, TWENTY, end, LJSPEECH):
                assert "max_decoder_steps" not in failure.message
                assert "Train longer" in failure.message


def test_synthesis_attempts_are_ranked_by_the_severity_of_their_failures():
    def of(*failures):
        return severity([Failure(kind, count, "") for kind, count in failures])

    ranked = [
        of(),
        of(("slow", 1)),
        of(("skipped", 1)),
        of(("missing", 1), ("repeated", 2)),
        of(("no stop", 1)),
        of(("stuck", 1), ("missing", 1)),
    ]
    assert ranked == sorted(ranked)
    assert len(set(ranked)) == len(ranked)
