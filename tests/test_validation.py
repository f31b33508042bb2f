"""Compare validation with values computed by hand, and test its warnings about the alignment."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import (
    HOP,
    LONG,
    SAMPLING_RATE,
    TINY,
    Child,
    assert_same,
    curves,
    flags,
    load,
    metrics,
    newest,
)
from same_run import without_times
from test_train import poison_mel
from training_runs import act_at_patched, copied_corpus, kill_at, refused, run

import train
from batch import collate
from corpus.filelist import read_filelist
from data_utils import TextMelDataset
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from hparams import hparams_from_dict
from length_batching import plan_epoch
from loss import Tacotron2Loss
from model import Tacotron2
from scripts.table2 import report
from training import tensorboard, validation
from training.alignment import NOTICED, alignment_sums

pytestmark = pytest.mark.usefixtures("clean_process")


def recorded_validation(monkeypatch) -> list[tuple]:
    """Record (clips, prenet masks) of every later validation batch."""
    forward, seen = Tacotron2.forward, list[tuple]()

    def spy(self, batch, dropout_masks=None):
        if not self.training and (batch.clip_indices.tolist() not in [x[0] for x in seen[-1:]]):
            seen.append((batch.clip_indices.tolist(), dropout_masks.prenet))
            assert dropout_masks.attention_hidden is dropout_masks.decoder_hidden is None
        return forward(self, batch, dropout_masks)

    monkeypatch.setattr(Tacotron2, "forward", spy)
    return seen


def test_validation_uses_the_same_batches_and_masks_in_every_run(corpus, tmp_path, monkeypatch):
    # The memory check also runs validation batches.
    monkeypatch.setattr(train, "check_memory", lambda *_: 0)
    seen = recorded_validation(monkeypatch)
    run(tmp_path / "one", corpus, epochs=2, epochs_per_validation=1)
    other = {"seed": 5, "batching_strategy": "random", "dynamic_batch_size": False}
    other |= {"batch_size": 4, "num_workers": 1}
    run(tmp_path / "two", corpus, epochs=1, epochs_per_validation=1, **other)
    assert len(seen) == 6  # each of the three validations has two batches
    for later in (seen[2:4], seen[4:6]):
        for (clips, masks), (later_clips, later_masks) in zip(seen[:2], later, strict=True):
            assert clips == later_clips
            assert all(torch.equal(*pair) for pair in zip(masks, later_masks, strict=True))
    assert sorted(seen[0][0] + seen[1][0]) == [0, 1, 2, 3, 4]
    assert [len(clips) for clips, _ in seen[:2]] == [3, 2]
    # Validation shuffles the clips, because the filelist is sorted by length.
    assert seen[0][0] + seen[1][0] != [0, 1, 2, 3, 4]
    assert 0.4 < seen[0][1][0].float().mean() < 0.6


def test_validation_results_equal_values_computed_by_hand(corpus, tmp_path):
    """The test checks how much a batch of 3 clips and a batch of 2 clips contribute to the means
    over all clips. test_model.py and test_alignment.py check the values of single batches."""
    out, r = tmp_path / "out", 2
    settings = {"p_prenet_dropout": 0, "n_frames_per_step": r}
    run(out, corpus, epochs=1, epochs_per_validation=1, **settings)
    saved = load(out / "best.pt")
    hparams = hparams_from_dict(saved["hparams"])
    trained = Tacotron2(hparams).eval()
    trained.load_state_dict(saved["state_dict"])
    clips = read_filelist(corpus.val, hparams)
    data, rows = TextMelDataset(clips, hparams), []
    for numbers in plan_epoch([clip.num_frames for clip in clips], 3, "random", seed=0):
        batch = collate([data[i] for i in numbers], r)
        lengths = [clips[i].num_frames for i in numbers]
        steps = [-(-length // r) for length in lengths]
        with torch.no_grad():
            outputs = trained(batch)
        losses = Tacotron2Loss()(outputs, batch)
        sums = alignment_sums(outputs.alignments, torch.tensor(steps), batch.text_lengths)
        weights = [len(numbers), sum(lengths), sum(steps), int(batch.text_lengths.sum())]
        rows.append([*weights, float(losses.total), float(losses.total_unpadded), *sums.tolist()])
        if len(rows) == 1:
            generator = torch.Generator().manual_seed(validation.VALIDATION_SEED)
            items = [data[i] for i in numbers]
            mixed = [text[torch.randperm(len(text), generator=generator)] for text, *_ in items]
            shuffled = [(text, mel) for text, (_, mel, *_) in zip(mixed, items, strict=True)]
            with torch.no_grad():
                worse = Tacotron2Loss()(trained(collate(shuffled, r)), batch).total_unpadded
            effect = float(worse / losses.total_unpadded) - 1
    size, frames, steps, symbols, padded, unpadded, sharp, diagonal, covered = np.array(rows).T
    expected = {
        "validation_loss": padded @ size / 5,
        "validation_loss_unpadded": unpadded @ frames / frames.sum(),
        "alignment_sharpness": sharp.sum() / steps.sum(),
        "alignment_coverage": covered.sum() / symbols.sum(),
        "alignment_diagonality": diagonal.sum() / steps.sum(),
        "iteration": saved["iteration"],
        "text_effect": effect,
    }
    [record] = metrics(out, "validation")
    assert {name: record[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.thorough
def test_validation_warns_once_when_the_alignment_has_not_formed(
    corpus, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(validation, "STEPS_TO_ALIGN", 9)  # an epoch has 4 or 5 optimizer steps
    out, settings = tmp_path / "out", {"epochs_per_validation": 1}
    run(out, corpus, **settings, epochs=1)
    with monkeypatch.context() as patch:
        patch.setattr(validation, "FORMED", 0.0)
        run(out, corpus, "--resume", **settings, epochs=2)
    assert "no alignment has formed" not in capsys.readouterr().out
    run(out, corpus, "--resume", **settings, epochs=3)
    printed = capsys.readouterr().out
    sharpness = metrics(out, "validation")[-1]["alignment_sharpness"]
    assert printed.count("warning: no alignment has formed after") == 1
    assert f"focus rate {sharpness:.2f}, expected at least 0.3" in printed
    assert "docs/guides/troubleshooting.md" in printed
    run(out, corpus, "--resume", **settings, epochs=4)
    assert "no alignment has formed" not in capsys.readouterr().out


@pytest.mark.thorough
def test_validation_warns_once_when_attention_ignores_the_text(
    corpus, tmp_path, monkeypatch, capsys
):
    """With the thresholds in this test, the validation of an untrained model prints the warning."""
    monkeypatch.setattr(validation, "SHARP", 0.0)
    monkeypatch.setattr(validation, "TEXT_EFFECT", 1.0)
    monkeypatch.setattr(validation, "STEPS_TO_READ", 9)  # an epoch has 4 or 5 optimizer steps
    out, settings = tmp_path / "out", {"epochs_per_validation": 1}
    run(out, corpus, **settings, epochs=1)
    assert "ignores the text" not in capsys.readouterr().out
    run(out, corpus, "--resume", **settings, epochs=3)
    printed = capsys.readouterr().out
    effect = max(0, metrics(out, "validation")[-1]["text_effect"])
    assert printed.count("warning: attention is focused") == 1
    assert f"raises the loss by only {effect:.0%}" in printed
    assert "--resume --hparams guided_attention_weight=1,guided_attention_sigma=0.4" in printed
    run(out, corpus, "--resume", **settings, epochs=4)
    assert "ignores the text" not in capsys.readouterr().out


@pytest.mark.thorough
def test_run_trains_and_resumes_without_validation_clips(corpus, tmp_path, capsys):
    """The test interrupts the run, resumes the run, and creates its report. The final weights equal
    the weights of a run with validation."""
    with_list, out = tmp_path / "with", tmp_path / "out"
    settings = {"epochs": 3, "epochs_per_validation": 1, "iters_per_checkpoint": 3}
    run(with_list, corpus, **settings)
    capsys.readouterr()
    settings["validation_files"] = "none"
    assert (
        Child(flags(out, corpus.hparams(**settings)), kill_at, "in the middle of an epoch")
        .end()
        .code
        == -9
    )
    train.main(flags(out, "", "--resume"))
    printed = capsys.readouterr().out
    assert "note: no validation" in printed
    assert f"The newest {TINY['keep_checkpoints']} checkpoints are kept" in printed
    last = newest(out)
    assert f"--checkpoint {last} --text" in printed
    assert len(list(out.glob("*.pt"))) == TINY["keep_checkpoints"]
    assert_same(load(last)["state_dict"], load(newest(with_list))["state_dict"])
    assert metrics(out, "validation") == []
    assert metrics(out, "run")[-1]["corpus"]["validation_clips"] == 0
    report.main([str(out), "-o", str(tmp_path / "report")])
    assert "validation clips: 0" in (tmp_path / "report" / "report.md").read_text()
    assert "no such checkpoint" in refused(flags(out, "", "--resume-from", "best"), capsys)


@pytest.mark.thorough
def test_validation_does_not_change_training(corpus, tmp_path):
    """Validation includes free-running inference of an example."""
    for name, every in (("often", 1), ("never", 1000)):
        run(tmp_path / name, corpus, epochs=3, epochs_per_validation=every)
    often, never = (load(newest(tmp_path / name)) for name in ("often", "never"))
    for part in ("state_dict", "optimizer"):
        assert_same(often[part], never[part])
    assert without_times(metrics(tmp_path / "often", "epoch")) == without_times(
        metrics(tmp_path / "never", "epoch")
    )


def test_loader_workers_stay_alive_after_validation(corpus, tmp_path, monkeypatch):
    """Validation must not stop its loader workers, because this would delete their DataLoader. On
    Python 3.12, a deleted DataLoader closes file descriptors of other DataLoaders."""
    workers, validate = [], validation.validate

    def recorded(run, stop):
        found = validate(run, stop)
        workers.append([worker.pid for worker in run.validation_loader._iterator._workers])
        return found

    monkeypatch.setattr(train, "validate", recorded)
    run(tmp_path / "run", corpus, epochs=2, epochs_per_validation=1, num_workers=1)
    first, second = workers
    assert first == second
    assert len(first) == 1


@pytest.mark.parametrize("settings", [{}, {"gate_threshold": 2, "attention_rest_time": 0}])
def test_free_running_results_of_validation_equal_synthesis_results_of_the_checkpoint(
    settings, corpus, tmp_path, monkeypatch, capsys
):
    """The plots, metrics and printed line equal the results of synthesis with the saved model, even
    if the speech does not end."""
    out, takes, speak = tmp_path / "out", [], validation.speak
    keep = lambda *given: takes.append(speak(*given)) or takes[-1]  # noqa: E731
    monkeypatch.setattr(validation, "speak", keep)
    run(out, corpus, epochs=1, epochs_per_validation=1, **settings)
    printed = capsys.readouterr().out
    speaker = load_checkpoint_synthesizer(out / "best.pt", device=torch.device("cpu"))
    clips = read_filelist(corpus.val, speaker.settings)
    clip = clips[plan_epoch(clips.num_frames, 3, "random", seed=0)[0][0]]
    speech = speaker.synthesize(clip.symbols, seed=0, retries=0)
    mel = speech.mel
    [attempt] = speech.report.chunks
    [take] = takes
    assert np.array_equal(take.mel, mel)
    assert np.array_equal(take.alignment, attempt.alignment)
    assert take.symbols == [speaker.settings.table.symbols[i] for i in attempt.ids]
    decoded = speaker.decode(attempt.ids, 0, speaker.max_steps(len(attempt.ids)))
    gates = [steps.gate for steps in decoded]  # decoding continues after the end of speech
    assert np.array_equal(take.gate, np.concatenate(gates)[: len(take.gate)])
    assert len(take.gate) >= len(take.alignment)
    [record] = metrics(out, "validation")
    assert record["spoken_stopped"] == attempt.stop_reason.is_found == (not settings)
    assert record["spoken_seconds_ratio"] == mel.shape[1] / clip.num_frames
    coverage = np.mean(attempt.alignment.max(axis=0) >= NOTICED)
    assert record["spoken_coverage"] == coverage
    seconds, recorded = (frames * HOP / SAMPLING_RATE for frames in (mel.shape[1], clip.num_frames))
    end = f"cut ({attempt.stop_reason.value})" if settings else "ended"
    expected = f"{end} after {seconds:.1f} s (recording: {recorded:.1f} s), coverage"
    assert f"  free-running: {expected} {coverage:.2f}\n" in printed
    assert {f"validation/{name}" for name in record if "spoken" in name} <= curves(out).keys()


def test_free_running_inference_works_in_half_precision(corpus, tmp_path, capsys):
    run(tmp_path / "out", corpus, epochs=1, epochs_per_validation=1, precision="bf16")
    printed = capsys.readouterr().out
    assert "  free-running: " in printed
    assert "training continues" not in printed


def fail(*_, **__) -> None:
    raise ValueError("Audio buffer is not finite everywhere")


FAILURES = ["loss", "clip", "alignment_sums", "speak", "draw_mels"]


@pytest.mark.thorough
@pytest.mark.parametrize("what", FAILURES)
def test_training_continues_when_validation_fails(what, corpus, tmp_path, monkeypatch, capsys):
    """If validation fails, the warning states the cause."""
    out, message, validations = tmp_path / "out", "training continues: ValueError: Audio buffer", 1
    if what == "loss":
        poison_mel(monkeypatch, "val02.wav")
        message, validations = f"  {corpus.val}:3: ", 0
    elif what == "clip":
        clips = copied_corpus(corpus, tmp_path / "clips", "val")
        clip, corpus = tmp_path / "clips" / "val02.wav", replace(corpus, val=clips)
        act_at_patched(monkeypatch, train, "validate", clip.unlink, 1)
        message, validations = f"training continues: {clips}:3: {clip}: no such file", 0
    else:
        monkeypatch.setattr(tensorboard if what == "draw_mels" else validation, what, fail)
        validations = 0 if what == "alignment_sums" else 1
    run(out, corpus, epochs=2, num_workers=int(what == "clip"))
    printed = capsys.readouterr().out
    assert message in printed
    assert printed.count("training continues") == 1
    assert load(newest(out))["loop"]["epoch"] == 3
    records = metrics(out, "validation")
    assert len(records) == validations
    has_spoken = ["spoken_stopped" in record for record in records]
    assert has_spoken == [what != "speak"] * validations
    drawn = {"alignment", "spoken/alignment"} & curves(out).keys()
    assert drawn == {"draw_mels": set(), "speak": {"alignment"}}.get(what, drawn)


def test_validation_omits_only_the_audio_when_synthesis_of_audio_fails(
    corpus, whole, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    monkeypatch.setattr(validation.GriffinLim, "samples", lambda *_: torch.empty(2**50))
    run(out, corpus, **LONG)
    warning = (
        "warning: creating audio for a validation clip failed, but training continues: Runtime"
    )
    assert capsys.readouterr().out.count(warning) == 2
    a, b = load(newest(out)), load(newest(whole))
    assert_same(a["state_dict"], b["state_dict"])
    assert without_times(metrics(out)) == without_times(metrics(whole))
    left, heard = curves(out), curves(whole)
    assert heard.keys() - left.keys() == {"predicted", "spoken", "recording"}
    assert len(heard["recording"]) == 1  # the recording is logged only once
    assert all(left[tag] == heard[tag] for tag in left)
