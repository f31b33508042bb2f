"""Test evaluation/teacher_forcing.py: teacher-forced log-mels for fine-tuning a vocoder."""

import numpy as np
import pytest
import torch
from corpora import make_corpus
from helpers import SMALL_MODEL, save_small_model

import synthesize
from batch import collate
from corpus.filelist import read_filelist
from corpus.prepare import Preparation, prepare
from data_utils import TextMelDataset
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import create_hparams


@pytest.fixture(params=["", "_mel"])
def filelist(request, tmp_path, no_plots):
    """Return a filelist of audio files or cached log-mels."""
    prepare(
        Preparation(make_corpus(tmp_path / "corpus"), tmp_path / "lists", mels=tmp_path / "mels")
    )
    return tmp_path / "lists" / f"train{request.param}.txt"


@pytest.mark.thorough
def test_teacher_forced_mels_depend_on_the_recordings_and_have_the_same_lengths(
    filelist, tmp_path, capsys
):
    hparams = create_hparams(f"{SMALL_MODEL},n_frames_per_step=2")
    checkpoint = save_small_model(tmp_path / "best.pt", hparams)
    out = tmp_path / "forced"
    arguments = ["--checkpoint", checkpoint, "--teacher-forced", filelist, "-o", out]
    synthesize.main([*map(str, arguments)])
    loaded = hparams if filelist.name == "train.txt" else create_hparams("load_mel_from_disk=True")
    clips = read_filelist(filelist, loaded)
    assert {path.stem for path in out.glob("*.npy")} == {*clips.ids()}
    model = load_checkpoint_synthesizer(checkpoint).model
    for i, name in enumerate(clips.ids()):
        mel = np.load(out / f"{name}.npy")
        assert mel.dtype == np.float32
        assert mel.shape == (80, clips.num_frames[i] - 1)  # as in HiFi-GAN's own mels
        item = TextMelDataset(clips, loaded)[i]
        batch = collate([item], 2)
        masks = model.decoder.draw_masks(
            batch.mel.shape[2] // 2, 1, torch.Generator().manual_seed(0)
        )
        with torch.no_grad():
            expected = model(batch, masks).mel_postnet[0, :, : mel.shape[1]]
        np.testing.assert_allclose(mel, expected, atol=1e-5)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.npy")}
    synthesize.main([*map(str, arguments)])  # the second call keeps existing files
    assert {path: path.stat().st_mtime_ns for path in out.glob("*.npy")} == before
