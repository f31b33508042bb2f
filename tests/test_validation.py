"""Validation: its numbers by hand, the same in every run, and what it says of the alignment."""

import sys

import numpy as np
import pytest
import torch
from helpers import LONG, assert_same, curves, flags, load, metrics, newest
from runs import refused, run
from test_train import poison_mel

from analysis.same_run import without_times
from batching import plan_epoch
from data_utils import TextMelCollate, TextMelDataset, read_filelist
from hparams import create_hparams, hparams_from_dict
from model import Tacotron2
from training import validation

pytestmark = pytest.mark.usefixtures("clean_process")


def recorded_validation(monkeypatch) -> list[tuple]:
    """(clips, prenet masks) of every validation batch from here on."""
    forward, seen = Tacotron2.forward, []

    def spy(self, batch, dropout_masks=None):
        if not self.training:
            seen.append((batch.clip_indices.tolist(), dropout_masks.prenet))
            assert dropout_masks.attention_hidden is dropout_masks.decoder_hidden is None
        return forward(self, batch, dropout_masks)

    monkeypatch.setattr(Tacotron2, "forward", spy)
    return seen


def test_every_run_has_the_same_validation(corpus, tmp_path, monkeypatch):
    seen = recorded_validation(monkeypatch)
    run(tmp_path / "one", corpus, epochs=2, epochs_per_validation=1)
    run(
        tmp_path / "two",
        corpus,
        epochs=1,
        epochs_per_validation=1,
        seed=5,
        batching_strategy="random",
        dynamic_batch_size=False,
        batch_size=4,
        num_workers=1,
    )
    assert len(seen) == 6  # three validations of 5 clips, 3 and 2 at a time
    for later in (seen[2:4], seen[4:6]):
        for (clips, masks), (later_clips, later_masks) in zip(seen[:2], later, strict=True):
            assert clips == later_clips
            assert all(torch.equal(*pair) for pair in zip(masks, later_masks, strict=True))
    assert sorted(seen[0][0] + seen[1][0]) == [0, 1, 2, 3, 4]
    assert [len(clips) for clips, _ in seen[:2]] == [3, 2]
    assert seen[0][0] + seen[1][0] != [0, 1, 2, 3, 4]  # the list is sorted by length: it is mixed
    assert 0.4 < seen[0][1][0].float().mean() < 0.6


@pytest.mark.parametrize("r", [1, 2])
def test_validation_numbers_by_hand(r, corpus, tmp_path):
    """Clip by clip in float64, without the loss of model.py, for the batches of 3 and 2 clips."""
    out = tmp_path / "out"
    run(
        out,
        corpus,
        epochs=1,
        epochs_per_validation=1,
        p_prenet_dropout=0,
        n_frames_per_step=r,
    )
    saved = load(out / "best.pt")
    hparams = hparams_from_dict(saved["hparams"])
    trained = Tacotron2(hparams)
    trained.load_state_dict(saved["state_dict"])
    trained.eval()
    clips = read_filelist(corpus.val, hparams)
    data = TextMelDataset(clips, hparams)
    padded, unpadded, sharpness, frames, steps = 0.0, 0.0, 0.0, 0, 0
    covered, symbols, diagonal = 0, 0, 0.0
    plan = plan_epoch([clip.num_frames for clip in clips], 3, "random", seed=0)
    for rows in plan:
        batch = TextMelCollate(r)([data[i] for i in rows])
        with torch.no_grad():
            outputs = trained(batch)
        all_mel, real_mel, all_gate, real_gate = [], [], [], []
        for b, i in enumerate(rows):
            length, num_steps = clips[i].num_frames, -(-clips[i].num_frames // r)
            target = torch.zeros_like(batch.mel[b])
            target[:, :length] = data[i][1]
            for mel in (outputs.mel, outputs.mel_postnet):
                error = (mel[b] - target).double() ** 2
                all_mel.append(error)
                real_mel.append(error[:, :length].sum())
            stop = torch.zeros(len(outputs.gate[b]), dtype=torch.float64)
            stop[num_steps - 1 :] = 1
            p = torch.sigmoid(outputs.gate[b].double()).clamp(1e-300, 1)
            error = torch.where(stop == 1, -p.log(), -(1 - p).clamp(1e-300).log())
            all_gate.append(error)
            real_gate.append(error[:num_steps].sum())
            best = outputs.alignments[b, :num_steps, : batch.text_lengths[b]].max(dim=1).values
            sharpness += float(best.sum())
            aligned = outputs.alignments[b, :num_steps, : batch.text_lengths[b]].double()
            places = [torch.arange(count) / count for count in aligned.shape]
            distance = places[1] - places[0][:, None]
            diagonal += float((aligned * torch.exp(-12.5 * distance**2)).sum())  # 1 / (2 * 0.2^2)
            covered += int((aligned.max(dim=0).values >= 0.1).sum())
            symbols += aligned.shape[1]
        batch_frames = sum(clips[i].num_frames for i in rows)
        batch_steps = sum(-(-clips[i].num_frames // r) for i in rows)
        padded += len(rows) * float(2 * torch.stack(all_mel).mean() + torch.stack(all_gate).mean())
        unpadded += batch_frames * float(
            sum(real_mel) / (batch_frames * hparams.n_mel_channels) + sum(real_gate) / batch_steps
        )
        frames, steps = frames + batch_frames, steps + batch_steps
    [record] = metrics(out, "validation")
    assert record["validation_loss"] == pytest.approx(padded / 5, rel=1e-5)
    assert record["validation_loss_unpadded"] == pytest.approx(unpadded / frames, rel=1e-5)
    assert record["alignment_sharpness"] == pytest.approx(sharpness / steps, rel=1e-5)
    assert record["alignment_coverage"] == pytest.approx(covered / symbols, rel=1e-5)
    assert record["alignment_diagonality"] == pytest.approx(diagonal / steps, rel=1e-5)
    assert record["iteration"] == saved["iteration"]


def test_alignment_not_formed_is_said_once(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(validation, "STEPS_TO_ALIGN", 9)  # of 4 or 5 an epoch
    out, settings = tmp_path / "out", {"epochs_per_validation": 1}
    run(out, corpus, **settings, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(validation, "FORMED", 0.0)
        run(out, corpus, "--resume", **settings, epochs=2)
    assert "has not formed" not in capsys.readouterr().out
    run(out, corpus, "--resume", **settings, epochs=3)
    printed = capsys.readouterr().out
    sharpness = metrics(out, "validation")[-1]["alignment_sharpness"]
    assert printed.count("warning: the alignment has not formed after") == 1
    assert f"sharpness {sharpness:.2f} is below 0.3" in printed
    for setting in ("--trim-silence", "n_frames_per_step=2", "guided_attention_weight=5"):
        assert setting in printed
    run(out, corpus, "--resume", **settings, epochs=4)
    assert "has not formed" not in capsys.readouterr().out


def test_validation_leaves_no_trace(corpus, tmp_path):
    for name, every in (("often", 1), ("never", 1000)):
        run(tmp_path / name, corpus, epochs=3, epochs_per_validation=every)
    often, never = (load(newest(tmp_path / name)) for name in ("often", "never"))
    for part in ("state_dict", "optimizer"):
        assert_same(often[part], never[part])
    assert without_times(metrics(tmp_path / "often", "epoch")) == without_times(
        metrics(tmp_path / "never", "epoch")
    )


def test_validation_loss_not_finite_names_the_clips(corpus, tmp_path, monkeypatch, capsys):
    poison_mel(monkeypatch, "val02.wav")
    message = refused(flags(tmp_path / "out", corpus.hparams(epochs_per_validation=1)), capsys)
    assert "validation loss became nan" in message
    assert f"{corpus.val}:3: " in message


@pytest.mark.parametrize("allocate", [torch.empty, np.empty])
def test_too_little_memory_costs_the_sound_alone(
    allocate, corpus, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    monkeypatch.setattr(validation, "griffin_lim", lambda *_, **__: allocate(2**50))
    run(out, corpus, **LONG)
    assert capsys.readouterr().out.count("warning: too little memory to synthesize") == 2
    a, b = load(newest(out)), load(newest(whole))
    assert_same(a["state_dict"], b["state_dict"])
    assert without_times(metrics(out)) == without_times(metrics(whole))
    left, heard = curves(out), curves(whole)
    assert heard.keys() - left.keys() == {"predicted"}
    assert all(left[tag] == heard[tag] for tag in left)


def test_without_librosa_validation_has_no_sound(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "librosa", None)  # as if it were not installed
    assert validation.sound_of(torch.zeros(80, 5), create_hparams()) is None
    assert capsys.readouterr().out == (
        "warning: without librosa there is no sound of a validation clip: "
        "training continues without it\n"
    )
