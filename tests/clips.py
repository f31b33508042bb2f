"""Define fixtures with audio files and cached mels."""

import json

import numpy as np
import pytest

from audio import mel_fingerprint
from hparams import HParams


def noise(num_samples, seed=0):
    return 0.3 * np.random.default_rng(seed).uniform(-1, 1, num_samples)


@pytest.fixture
def sounds(tmp_path):
    """Return a folder with a.wav (22,050 samples), b.flac (11,025) and c.wav (5,000)."""
    import soundfile  # imported here because GPU machines may lack soundfile

    for name, num_samples in (("a.wav", 22050), ("b.flac", 11025), ("c.wav", 5000)):
        soundfile.write(tmp_path / name, noise(num_samples), 22050)
    return tmp_path


@pytest.fixture
def cached_mels(tmp_path):
    """Return a folder with a log-mel file x.npy (40 frames) and its mel_settings.json."""
    folder = tmp_path / "mels"
    folder.mkdir()
    mel = np.random.default_rng(1).normal(size=(80, 40)).astype(np.float32)
    np.save(folder / "x.npy", mel)
    (folder / "mel_settings.json").write_text(json.dumps(mel_fingerprint(HParams())))
    return folder


def write_list(folder, *lines):
    path = folder / "list.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
