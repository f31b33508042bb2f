"""Whose voice a sound has, among several speakers, by the encoder of speakers that Resemblyzer
carries (Wan et al. 2018, "Generalized end-to-end loss for speaker verification"). It is small, runs
offline, and was not trained here.

    encoder = Resemblyzer()
    recorded = [encoder.embed(samples, 22050) for samples in recordings]
    centroids = centroids_of(recorded, names)     # of the speaker of each recording
    nearest_speaker(encoder.embed(spoken, 22050), centroids)
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evaluation.recognizers import resampled
from tacotron2_voice.utils.errors import UserError

EMBEDDING_DIM = 256
LEVEL = -30.0  # dB of full scale, to which sounds were raised in the encoder's training


class Resemblyzer:
    """UserError if the packages of requirements/resemblyzer.txt are not installed."""

    def __init__(self) -> None:
        try:
            from resemblyzer import VoiceEncoder, normalize_volume, trim_long_silences
        except ImportError as error:
            fix = "pip install --no-deps -r requirements/resemblyzer.txt"
            fix += ", or leave out --right-speaker"
            raise UserError(f"--right-speaker: {error}; {fix}") from None
        self._at_level, self._without_pauses = normalize_volume, trim_long_silences
        # It reads its weights by torch.load, which unpickles nothing else from version 2.6 on.
        self._model = VoiceEncoder("cpu", verbose=False)  # the same everywhere

    def embed(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """A unit vector [256] of float samples [N] in [-1, 1]; zeros if nobody speaks in them.

        Every sound is brought to the same level: the encoder hears how loud a sound is, and the
        package's own preparation only raises quiet ones. Long pauses are cut, as in its training.
        """
        if not samples.any():
            return np.zeros(EMBEDDING_DIM)
        sound = self._at_level(resampled(samples, sampling_rate), LEVEL)
        speech = self._without_pauses(sound)
        if not len(speech):
            return np.zeros(EMBEDDING_DIM)
        return self._model.embed_utterance(speech)


def mean_vector(embeddings: Sequence[np.ndarray]) -> np.ndarray:
    """The mean of embeddings [D], as a unit vector; zeros if all of them are."""
    mean = np.asarray(np.mean(embeddings, axis=0, dtype=np.float64))
    return mean / max(float(np.linalg.norm(mean)), np.finfo(np.float64).tiny)


def centroids_of(embeddings: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """The mean vector of each speaker's embeddings. `names` are those of each one's speaker."""
    return {
        name: mean_vector([x for x, own in zip(embeddings, names, strict=True) if own == name])
        for name in sorted(set(names))
    }


def nearest_speaker(embedding: np.ndarray, centroids: Mapping[str, np.ndarray]) -> str:
    """The name of the centroid with the largest cosine to an embedding [D]; empty where nobody
    speaks."""
    if not embedding.any():
        return ""
    return max(centroids, key=lambda name: float(embedding @ centroids[name]))


def nearest_without_own(
    embeddings: Sequence[np.ndarray], recorded: Sequence[np.ndarray], names: Sequence[str]
) -> list[str]:
    """The nearest speaker to each of `embeddings`, which are those of recordings or of copies of
    them. The recording of the same place in `recorded` is left out of its speaker's centroid, so
    each speaker must have two."""
    centroids, nearest = centroids_of(recorded, names), list[str]()
    for place, (embedding, name) in enumerate(zip(embeddings, names, strict=True)):
        others = [x for i, x in enumerate(recorded) if names[i] == name and i != place]
        nearest.append(nearest_speaker(embedding, {**centroids, name: mean_vector(others)}))
    return nearest


def refuse_too_few(names: Sequence[str], known: Sequence[str], where: Path, model: Path) -> None:
    """UserError if the right speaker cannot be told from others. `names` are those of the
    recordings in `where`, empty where there are none, and `known` the speakers of `model`."""
    option, counts = "--right-speaker", Counter(name for name in names if name)
    if len(known) < 2:
        raise UserError(f"{option}: {model} has one voice, expected several speakers; leave it out")
    if not counts:
        fix = "add --speaker-column, the field of its metadata.csv with their names"
        if where.is_file():
            fix = "add their names as the fourth field, path|text|seconds|speaker"
        raise UserError(f"{option}: {where} names no speakers; {fix}, or leave the option out")
    if len(counts) < 2:
        fix = "add those of another of the model's speakers, or leave the option out"
        raise UserError(f"{option}: {where} has recordings of {min(counts)!r} alone; {fix}")
    if single := [name for name, count in counts.items() if count < 2]:
        raise UserError(
            f"{option}: {where}: {len(single):,} of {len(counts):,} speakers have one recording, "
            f"such as {single[0]!r}; expected two or more of each, since each is compared with the "
            "speaker's others. Add some, or leave these speakers out"
        )
