"""evaluation/speaker_identification.py: the nearest speaker to a vector, and what is too little to tell.
test_judges.py has the encoder, test_transcription.py what evaluate.py makes of it."""

from pathlib import Path

import numpy as np
import pytest
from corpora import refusal

from evaluation.speaker_identification import (
    centroids_of,
    mean_vector,
    nearest_speaker,
    nearest_without_own,
    refuse_too_few,
)

KNOWN = ("anna", "bert", "carl")
SILENCE = np.zeros(2)


def unit(degrees):
    """A vector [2] in that direction."""
    return np.array([np.cos(np.radians(degrees)), np.sin(np.radians(degrees))])


def test_the_nearest_speaker_has_the_largest_cosine():
    """To the mean of each one's recordings. Silence has no speaker."""
    centroids = centroids_of([unit(0), unit(90), unit(20)], ["anna", "bert", "anna"])
    np.testing.assert_allclose(centroids["anna"], unit(10))
    assert [nearest_speaker(unit(x), centroids) for x in (-60, 45, 55)] == ["anna", "anna", "bert"]
    assert nearest_speaker(SILENCE, centroids) == ""


def test_a_recording_is_left_out_of_its_speaker():
    """With it, the recording at 60 degrees would be nearest to anna's mean, at 30."""
    recorded, names = [unit(0), unit(60), unit(100), unit(104)], ["anna", "anna", "bert", "bert"]
    assert nearest_speaker(unit(60), centroids_of(recorded, names)) == "anna"
    assert nearest_without_own(recorded, recorded, names) == ["anna", "bert", "bert", "bert"]
    copies = [unit(70), unit(55), SILENCE, unit(100)]
    assert nearest_without_own(copies, recorded, names) == ["anna", "bert", "", "bert"]


def test_a_speaker_of_silence_is_never_nearest():
    assert mean_vector([SILENCE, SILENCE]).tolist() == [0, 0]
    centroids = centroids_of([SILENCE, unit(0)], ["anna", "bert"])
    assert nearest_speaker(unit(60), centroids) == "bert"


@pytest.mark.parametrize(
    ("names", "known", "message"),
    [
        (["", ""], (), "best.pt has one voice, expected several speakers; leave it out"),
        (["anna", "anna"], ("anna",), "best.pt has one voice, "),
        (["", ""], KNOWN, "{where} names no speakers; add --speaker-column, "),
        (["anna", "anna"], KNOWN, "{where} has recordings of 'anna' alone; add those of another"),
        (["anna", "anna", "bert", "carl"], KNOWN, "2 of 3 speakers have one recording, such as "),
    ],
)
def test_too_few_speakers_or_recordings_are_refused(names, known, message, tmp_path):
    refused = refusal(refuse_too_few, names, known, tmp_path, Path("best.pt"))
    assert refused.startswith("--right-speaker: ")
    assert message.format(where=tmp_path) in refused
    refuse_too_few(["anna", "bert"] * 2, KNOWN, tmp_path, Path("best.pt"))


def test_lists_without_names_need_a_fourth_field(tmp_path):
    filelist = tmp_path / "val.txt"
    filelist.touch()
    refused = refusal(refuse_too_few, ["", ""], KNOWN, filelist, Path("best.pt"))
    assert f"{filelist} names no speakers; add their names as the fourth field" in refused
