"""Identify which of several speakers is speaking in an audio file.

    encoder = Resemblyzer()
    recorded = [encoder.embed(samples, 22050) for samples in recordings]
    centroids = centroids_of(recorded, names)  # names: the speaker of each recording
    nearest_speaker(encoder.embed(spoken, 22050), centroids)

The embeddings come from the speaker encoder of the package resemblyzer (Wan et al. 2018,
"Generalized end-to-end loss for speaker verification").
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from evaluation.recognizers import resampled
from tacotron2_voice.utils.errors import UserError

EMBEDDING_DIM = 256
# Level in dBFS to which all audio is scaled. The speaker encoder was trained on audio of at least
# this level.
LEVEL = -30.0


class Resemblyzer:
    """The speaker encoder from the package resemblyzer.

    Raises:
        UserError: if the packages in requirements/resemblyzer.txt are not installed.
    """

    def __init__(self) -> None:
        try:
            from resemblyzer import VoiceEncoder, normalize_volume, trim_long_silences
        except ImportError as error:
            fix = "pip install --no-deps -r requirements/resemblyzer.txt"
            raise UserError(f"--speaker-accuracy: {error}; {fix}") from None
        self._set_level = normalize_volume
        self._cut_pauses = trim_long_silences
        # Always run the encoder on the CPU, so that the results are the same on all machines.
        self._model = VoiceEncoder("cpu", verbose=False)

    def embed(self, samples: np.ndarray, sampling_rate: int) -> np.ndarray:
        """Return the embedding [256] of float samples [N] in [-1, 1].

        The embedding is a unit vector, or zeros if the audio contains no speech.

        All audio is scaled to the same level, because the embedding depends on the level, and
        resemblyzer itself amplifies only quiet audio. Long pauses are removed, as in the training
        of the speaker encoder.
        """
        if not samples.any():
            return np.zeros(EMBEDDING_DIM)
        leveled = self._set_level(resampled(samples, sampling_rate), LEVEL)
        speech = self._cut_pauses(leveled)
        if not len(speech):
            return np.zeros(EMBEDDING_DIM)
        return self._model.embed_utterance(speech)


def mean_vector(embeddings: Sequence[np.ndarray]) -> np.ndarray:
    """Return the mean of embeddings [D], scaled to a unit vector. If all embeddings are zero,
    return zeros."""
    mean = np.asarray(np.mean(embeddings, axis=0, dtype=np.float64))
    return mean / max(float(np.linalg.norm(mean)), np.finfo(np.float64).tiny)


def centroids_of(embeddings: Sequence[np.ndarray], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return {speaker: mean embedding of the speaker}. `names` contains the speaker of each
    embedding."""
    return {
        name: mean_vector([x for x, own in zip(embeddings, names, strict=True) if own == name])
        for name in sorted(set(names))
    }


def nearest_speaker(embedding: np.ndarray, centroids: Mapping[str, np.ndarray]) -> str:
    """Return the speaker whose centroid has the largest cosine similarity to an embedding [D].

    If the embedding is zero, because the audio contains no speech, return "".
    """
    if not embedding.any():
        return ""
    return max(centroids, key=lambda name: float(embedding @ centroids[name]))


def nearest_without_own(
    embeddings: Sequence[np.ndarray], recorded: Sequence[np.ndarray], names: Sequence[str]
) -> list[str]:
    """Return the nearest speaker for the embedding of each recording, using centroids that are
    computed without this recording.

    Args:
        embeddings: embeddings of the recordings, or of processed copies of the recordings in the
            same order.
        recorded: embeddings of the original recordings. Embedding i is compared with centroids that
            are computed without recording i.
        names: the speaker of each recording. Every speaker must have at least two recordings.
    """
    centroids = centroids_of(recorded, names)
    nearest: list[str] = []
    for index, (embedding, name) in enumerate(zip(embeddings, names, strict=True)):
        others = [x for i, x in enumerate(recorded) if names[i] == name and i != index]
        nearest.append(nearest_speaker(embedding, {**centroids, name: mean_vector(others)}))
    return nearest


def check_enough_speakers(
    names: Sequence[str], known: Sequence[str], path: Path, checkpoint: Path
) -> None:
    """Check that there are enough speakers and recordings to measure the speaker identification
    accuracy.

    Args:
        names: the speaker of each recording; "" if a recording has no speaker.
        known: the speakers of the model.
        path, checkpoint: paths for error messages.

    Raises:
        UserError: if the model or the recordings have fewer than two speakers, or if a speaker has
            fewer than two recordings.
    """
    option = "--speaker-accuracy"
    counts = Counter(name for name in names if name)
    if len(known) < 2:
        raise UserError(f"{option}: {checkpoint} has only one speaker (expected several)")
    if len(counts) < 2:
        expected = "expected several: use the fourth field of a filelist, or --speaker-column"
        raise UserError(f"{option}: {path} lists {len(counts)} speakers ({expected})")
    single = [name for name, count in counts.items() if count < 2]
    if single:
        problem = f"only one recording of {single[0]!r} (expected at least two per speaker)"
        raise UserError(f"{option}: {path}: {problem}")
