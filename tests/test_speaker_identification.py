"""Test the search for the nearest speaker (evaluation/speaker_identification.py).

test_recognizers.py tests the encoder. test_evaluate.py tests scripts/evaluate.py.
"""

from pathlib import Path

import numpy as np
import pytest
from corpora import refusal

from evaluation.speaker_identification import (
    centroids_of,
    check_enough_speakers,
    mean_vector,
    nearest_speaker,
    nearest_without_own,
)

KNOWN = ("anna", "bert", "carl")
SILENCE = np.zeros(2)


def unit(degrees):
    """Return the 2D unit vector with this angle in degrees."""
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def test_nearest_speaker_has_the_largest_cosine_similarity():
    """A centroid is the mean over the recordings of a speaker. Silence has no nearest speaker."""
    centroids = centroids_of([unit(0), unit(90), unit(20)], ["anna", "bert", "anna"])
    np.testing.assert_allclose(centroids["anna"], unit(10))
    assert [nearest_speaker(unit(x), centroids) for x in (-60, 45, 55)] == ["anna", "anna", "bert"]
    assert nearest_speaker(SILENCE, centroids) == ""


def test_recording_is_excluded_from_its_own_centroid():
    """Anna's recordings are at 0 and 60 degrees. A centroid of both recordings would be at 30
    degrees, and would be the nearest centroid to the recording at 60 degrees."""
    recorded, names = [unit(0), unit(60), unit(100), unit(104)], ["anna", "anna", "bert", "bert"]
    assert nearest_speaker(unit(60), centroids_of(recorded, names)) == "anna"
    assert nearest_without_own(recorded, recorded, names) == ["anna", "bert", "bert", "bert"]
    copies = [unit(70), unit(55), SILENCE, unit(100)]
    assert nearest_without_own(copies, recorded, names) == ["anna", "bert", "", "bert"]


def test_speaker_with_only_silence_is_never_the_nearest_speaker():
    assert mean_vector([SILENCE, SILENCE]).tolist() == [0, 0]
    centroids = centroids_of([SILENCE, unit(0)], ["anna", "bert"])
    assert nearest_speaker(unit(60), centroids) == "bert"


@pytest.mark.parametrize(
    ("names", "known", "expected"),
    [
        (["", ""], (), "best.pt has only one speaker"),
        (["anna", "anna"], ("anna",), "best.pt has only one speaker"),
        (["", ""], KNOWN, "--speaker-column"),
        (["anna", "anna"], KNOWN, "1 speakers"),
        (["anna", "anna", "bert", "carl"], KNOWN, "'bert'"),
    ],
)
def test_speaker_accuracy_cannot_be_measured_when_speakers_are_missing(
    names, known, expected, tmp_path
):
    message = refusal(check_enough_speakers, names, known, tmp_path, Path("best.pt"))
    assert message.startswith("--speaker-accuracy: ")
    assert expected in message
    check_enough_speakers(["anna", "bert"] * 2, KNOWN, tmp_path, Path("best.pt"))
