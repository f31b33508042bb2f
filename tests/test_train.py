"""Test what a run trains, logs and prints, and which failures stop it."""

import copy
import functools
import itertools
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import (
    HOP,
    SAMPLING_RATE,
    assert_same,
    curves,
    flags,
    load,
    make_corpus,
    metrics,
    newest,
)
from same_run import without_times
from torch.utils._python_dispatch import TorchDispatchMode
from training_runs import refused, run, stop_here, watch_steps

import model as model_module
import train
from data_utils import TextMelDataset
from hparams import create_hparams
from length_batching import LengthBatchSampler
from loss import Tacotron2Loss
from training import epoch, memory_check
from training.checkpoint import LoopState
from training.optimizer import learning_rate_at
from training.trainer import StepLosses, Trainer

pytestmark = pytest.mark.usefixtures("clean_process")


def without_memory_check(monkeypatch) -> None:
    """Skip the memory check, because it computes batches before the first optimizer step."""
    monkeypatch.setattr(train, "check_memory", lambda *_: 0)


class Steps:
    """Record the arguments and results of every optimizer step."""

    def __init__(self, monkeypatch):
        self.clips, self.lengths, self.losses, self.norms, self.rates = [], [], [], [], []
        losses_of, compute = Trainer.losses_of, Trainer._accumulate_gradients

        def record_losses(trainer, *args):
            trained, terms = losses_of(trainer, *args)
            self.losses.append((float(terms.loss), float(terms.loss_unpadded)))
            return trained, terms

        def record_norm(trainer, *args):
            losses = compute(trainer, *args)
            squares = [float(p.grad.double().square().sum()) for p in trainer.model.parameters()]
            self.norms.append(math.sqrt(sum(squares)))
            return losses

        def record(trainer, batch, make_step):
            losses = make_step()
            self.clips.append(batch.clip_indices.tolist())
            self.lengths.append(batch.mel_lengths.tolist())
            self.rates.append(trainer.optimizer.param_groups[0]["lr"])
            return losses

        without_memory_check(monkeypatch)
        monkeypatch.setattr(Trainer, "losses_of", record_losses)
        monkeypatch.setattr(Trainer, "_accumulate_gradients", record_norm)
        watch_steps(monkeypatch, record)


def test_epoch_record_matches_the_batches_used_in_training(corpus, tmp_path, monkeypatch):
    steps, out = Steps(monkeypatch), tmp_path / "out"
    run(out, corpus, epochs=1)
    [record] = metrics(out, "epoch")
    sizes = np.array([len(lengths) for lengths in steps.lengths])
    longest = np.array([max(lengths) for lengths in steps.lengths])
    frames = np.array([sum(lengths) for lengths in steps.lengths])
    losses = np.array(steps.losses)
    zero_padding = [1 - n / (b * t) for n, b, t in zip(frames, sizes, longest, strict=True)]
    assert sorted(itertools.chain(*steps.clips)) == list(range(14))
    expected = {
        "epoch": 1,
        "iteration": len(sizes),
        "num_batches": len(sizes),
        "skipped_updates": 0,
        "train_loss": losses[:, 0] @ sizes / 14,
        "train_loss_unpadded": losses[:, 1] @ frames / frames.sum(),
        "gradient_norm": np.mean(steps.norms),
        "learning_rate": 1e-3,
        "zero_padding_rate": np.average(zero_padding, weights=sizes),
        "average_batch_length": np.average(longest, weights=sizes),
        "decoder_steps": longest.sum(),
        "padded_to_original_rate": (sizes * longest - frames).sum() / frames.sum(),
        "padded_fraction": 1 - frames.sum() / (sizes * longest).sum(),
        "largest_batch_size": sizes.max(),
        "largest_batch_frames": (sizes * longest).max(),
    }
    assert {name: record[name] for name in expected} == pytest.approx(expected, rel=1e-5)
    seconds = record["minutes"] * 60
    assert record["frames_per_second"] * seconds == pytest.approx(frames.sum())
    assert record["padded_frames_per_second"] * seconds == pytest.approx((sizes * longest).sum())
    assert record["clips_per_second"] * seconds == pytest.approx(14)
    assert 0 < record["prepare_seconds"] < seconds
    assert 0 < record["data_wait_seconds"] < seconds
    assert record["peak_memory_bytes"] > 1e8  # PyTorch alone needs more than 100 MB


def test_training_minutes_exclude_validation_and_checkpoints(corpus, tmp_path, monkeypatch):
    """In this test, the clock advances only during chosen calls."""
    now = 0.0

    def takes(owner, name, seconds):
        original = getattr(owner, name)

        def slow(*args, **kwargs):
            nonlocal now
            now += seconds
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, name, slow)

    monkeypatch.setattr(train.time, "perf_counter", lambda: now)
    takes(LengthBatchSampler, "set_epoch", 0.001)
    takes(TextMelDataset, "__getitem__", 0.01)
    takes(Trainer, "step", 1)
    takes(epoch.Run, "save", 1000)
    takes(train, "validate", 1e6)
    run(tmp_path / "out", corpus, epochs=2, epochs_per_validation=1, iters_per_checkpoint=2)
    for record in metrics(tmp_path / "out", "epoch"):
        assert record["prepare_seconds"] == pytest.approx(0.001)
        assert record["data_wait_seconds"] == pytest.approx(0.14)
        assert record["minutes"] * 60 == pytest.approx(0.141 + record["num_batches"])


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ("learning_rate_warmup_steps=4", {0: 2.5e-4, 1: 5e-4, 3: 1e-3, 4: 1e-3, 10**6: 1e-3}),
        (
            "learning_rate_schedule=exponential,learning_rate_decay_start=10,"
            "learning_rate_half_life=5",
            {0: 1e-3, 10: 1e-3, 15: 5e-4, 20: 2.5e-4, 12: 1e-3 * 0.5**0.4, 10**6: 1e-5},
        ),
        (
            "learning_rate_schedule=exponential,learning_rate_decay_start=0,"
            "learning_rate_half_life=2,learning_rate_warmup_steps=4",
            {0: 2.5e-4, 2: 0.75 * 5e-4, 4: 2.5e-4},
        ),
        (
            "learning_rate=1e-6,learning_rate_schedule=exponential,learning_rate_decay_start=0",
            {0: 1e-6, 10**6: 1e-6},  # learning_rate_final must not raise a lower learning rate
        ),
    ],
)
def test_learning_rate_equals_values_computed_by_hand(settings, rates):
    hparams = create_hparams(settings)
    for iteration, rate in rates.items():
        assert learning_rate_at(iteration, hparams) == pytest.approx(rate)


def test_optimizer_uses_the_learning_rate_of_the_schedule(corpus, tmp_path, monkeypatch):
    steps = Steps(monkeypatch)
    run(tmp_path / "out", corpus, epochs=1, learning_rate_warmup_steps=4, log_interval=1)
    assert steps.rates[:4] == pytest.approx([2.5e-4, 5e-4, 7.5e-4, 1e-3])
    drawn = curves(tmp_path / "out")["training/learning_rate"]
    assert [step for step, _ in drawn] == list(range(1, len(steps.rates) + 1))
    assert [rate for _, rate in drawn] == pytest.approx(steps.rates)


def test_plan_and_dropout_of_each_epoch_follow_the_settings(corpus, tmp_path, monkeypatch):
    plans, masks = {}, []
    draw = model_module.Decoder.draw_masks

    def spy(self, *args):
        drawn = draw(self, *args)
        masks.append(drawn.prenet[0].flatten()[:200].tolist())
        return drawn

    monkeypatch.setattr(model_module.Decoder, "draw_masks", spy)
    for again, random in ((True, 0), (False, 1), (False, 0)):
        changed = {"prepare_trainset_per_epoch": again, "random_epochs": random}
        with monkeypatch.context() as patch:
            steps, out = Steps(patch), tmp_path / f"{again} {random}"
            run(out, corpus, epochs=3, epochs_per_validation=9, **changed)
        ends = [0, *(record["iteration"] for record in metrics(out, "epoch"))]
        plans[again, random] = [steps.clips[a:b] for a, b in itertools.pairwise(ends)]
    first, second, third = plans[True, 0]
    assert first != second != third != first != plans[False, 1][0]
    assert plans[False, 0] + plans[False, 1][1:] == [first] * 3 + [second] * 2
    assert len({tuple(mask) for mask in masks[-len(first) * 3 :]}) == len(first) * 3


@pytest.mark.parametrize("r", [1, 3])
def test_optimizer_step_weights_batches_by_frames(r, corpus, tmp_path, monkeypatch):
    """The optimizer steps have 2, 2 and 1 batches. The padded loss weights batches by padded
    frames. The masked loss weights the mel terms by real frames, and the stop-token term by real
    decoder steps."""
    forward, seen, out = Tacotron2Loss.forward, [], tmp_path / "out"

    def record(self, outputs, batch):
        losses = forward(self, outputs, batch)
        padded = batch.mel.shape[0] * batch.mel.shape[2]
        mel = (losses.mel_unpadded + losses.mel_postnet_unpadded).item()
        weights = (padded, int(batch.mel_lengths.sum()), int(batch.num_steps(r).sum()))
        seen.append(((losses.total.item(), mel, losses.gate_unpadded.item()), weights))
        return losses

    without_memory_check(monkeypatch)
    monkeypatch.setattr(Tacotron2Loss, "forward", record)
    settings = {"batches_per_update": 2, "dynamic_batch_size": False, "log_interval": 1}
    run(out, corpus, epochs=1, epochs_per_validation=9, n_frames_per_step=r, **settings)
    updates = [zip(*seen[i : i + 2], strict=True) for i in (0, 2, 4)]
    means = [np.average(losses, axis=0, weights=weights) for losses, weights in updates]
    expected = {
        "loss": [padded for padded, _, _ in means],
        "masked_loss": [mel + gate for _, mel, gate in means],
    }
    for name, values in expected.items():
        drawn = [value for _, value in curves(out)[f"training/{name}"]]
        assert drawn == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16"},
        # This batch size is larger than the number of clips.
        {"n_frames_per_step": 2, "mask_padding": False, "batch_size": 64},
    ],
)
def test_loss_decreases_in_training_with_each_setting(settings, corpus, tmp_path):
    out = tmp_path / "out"
    options = {"learning_rate": 0.01, "epochs": 4, "epochs_per_validation": 4}
    run(out, corpus, **options | settings)
    losses = [record["train_loss_unpadded"] for record in metrics(out, "epoch")]
    assert losses[-1] < 0.97 * losses[0]
    assert all(t.dtype != torch.bfloat16 for t in load(newest(out))["state_dict"].values())


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_capacity": 7},  # the longest clip alone fills this frame budget
        {"batch_size": 1, "dynamic_batch_size": False, "n_frames_per_step": 2, "decoder": "fast"},
    ],
)
def test_training_accepts_batches_with_one_short_clip(settings, tmp_path):
    """By chance, a batch can contain a single clip, which must not stop the run."""
    one_frame = (HOP - 1) / SAMPLING_RATE
    corpus = make_corpus(
        tmp_path, {"train": (0.25, one_frame, one_frame, 0.2), "val": (one_frame,)}
    )
    for path in (corpus.train, corpus.val):
        path.write_text(path.read_text().replace("Ah.", "I").replace("A dog.", "O"))
    run(tmp_path / "out", corpus, **settings)
    for record in metrics(tmp_path / "out", "epoch"):
        assert record["num_batches"] >= 3
        assert math.isfinite(record["train_loss"])
    assert len((tmp_path / "out" / "lengths.csv").read_text().split()) == 5
    assert metrics(tmp_path / "out", "validation")


# ---------------------------------------------------------------------------- the device


class Reads(TorchDispatchMode):
    """Count the values that are read from float and bool tensors, which are on the device. Integer
    tensors contain lengths and indices, and stay on the CPU."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        reading = function in (
            torch.ops.aten._local_scalar_dense.default,
            torch.ops.aten.nonzero.default,
            torch.ops.aten.masked_select.default,
            torch.ops.aten.equal.default,
        )
        self.count += reading and args[0].dtype != torch.int64
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_optimizer_step_never_reads_values_from_the_device(
    precision, corpus, tmp_path, monkeypatch
):
    counts, tolists, tolist = [], [], torch.Tensor.tolist

    def watched(_trainer, _batch, make_step):
        with Reads() as reads:
            losses = make_step()
        counts.append(reads.count)
        return losses

    def spy(self):
        tolists.append(self.dtype != torch.int64)
        return tolist(self)

    watch_steps(monkeypatch, watched)
    monkeypatch.setattr(torch.Tensor, "tolist", spy)
    hparams = {"epochs": 1, "log_interval": 2, "epochs_per_validation": 9, "precision": precision}
    run(tmp_path / "out", corpus, **hparams, iters_per_checkpoint=1000)
    assert counts == [0] * metrics(tmp_path / "out", "epoch")[0]["iteration"]
    # Losses are read every log_interval optimizer steps and at the end.
    assert sum(tolists) == math.ceil(len(counts) / 2)
    with Reads() as reads:  # check that the counter counts each read of a tensor
        bool(torch.ones(1) > 0)
        torch.ones(1).item()
    assert reads.count == 2


@pytest.mark.thorough
def test_losses_of_an_optimizer_step_are_read_after_the_next_optimizer_step(
    corpus, tmp_path, monkeypatch, capsys
):
    """The test imitates a GPU. Before the program reads the losses of an optimizer step, it must
    wait until the GPU has computed this step. Inside an epoch, the program never waits for the
    newest optimizer step, so the GPU always has work."""
    read = train.read_pending
    waited, hidden, left = [], [], []

    def hiding(_trainer, _batch, make_step):
        losses = make_step()
        shown, number = torch.full_like(losses.values, math.nan), len(hidden) + 1

        def synchronize():
            waited.append(number)
            for known, values, real in hidden:
                if known <= number:
                    values.copy_(real)

        hidden.append((number, shown, losses.values))
        return StepLosses(shown, SimpleNamespace(synchronize=synchronize), None)

    def reading(run, leave=0):
        read(run, leave)
        left.append(len(run.pending))

    plain, out = tmp_path / "plain", tmp_path / "out"
    settings = {"epochs": 2, "batch_size": 1, "dynamic_batch_size": False, "log_interval": 4}
    settings |= {"epochs_per_validation": 9, "iters_per_checkpoint": 1000}
    run(plain, corpus, **settings)
    watch_steps(monkeypatch, hiding)
    monkeypatch.setattr(train, "read_pending", reading)
    run(out, corpus, **settings)
    # Each of the two epochs has 14 optimizer steps.
    # Losses of optimizer steps 1 to 4 are read after optimizer step 5, and so on. At the end of an
    # epoch, all losses are read.
    assert waited == [4, 8, 12, 14, 16, 20, 24, 28]
    # The first value of `left` was recorded in optimizer step 1, when no losses could be read yet.
    assert left == [1, 1, 1, 1, 0, 1, 1, 1, 0]
    assert without_times(metrics(out)) == without_times(metrics(plain))
    assert curves(out)["training/loss"] == curves(plain)["training/loss"]
    assert [number for number, _ in curves(out)["training/loss"]] == [4, 8, 12, 16, 20, 24, 28]


# ---------------------------------------------------------------------------- losses that are not finite


def poison_mel(monkeypatch, clip_name: str) -> None:
    read = TextMelDataset._mel

    def poisoned(self, path):
        mel = read(self, path)
        return mel.fill_(math.nan) if Path(path).name == clip_name else mel

    monkeypatch.setattr(TextMelDataset, "_mel", poisoned)


def test_error_lists_the_clips_when_the_loss_is_not_finite(copied, corpus, monkeypatch, capsys):
    poison_mel(monkeypatch, "train09.wav")
    steps = Steps(monkeypatch)
    message = refused(flags(copied, "epochs=9,log_interval=1000", "--resume"), capsys)
    [bad] = [batch for batch in steps.clips if 9 in batch]
    for i in bad:
        assert f"{corpus.train}:{i + 1}: {corpus.folder / f'train{i:02d}.wav'}" in message
    assert message.count(str(corpus.train)) == len(bad)
    step_number = metrics(copied, "epoch")[-1]["iteration"] + steps.clips.index(bad) + 1
    assert f"the loss became nan in optimizer step {step_number}," in message
    assert "--resume-from best" in message
    saved = load(newest(copied))
    assert saved["iteration"] < step_number
    assert all(torch.isfinite(tensor).all() for tensor in saved["state_dict"].values())


ONE_BATCH = {"batching_strategy": "random", "dynamic_batch_size": False, "batch_size": 14}


EVERY_STEP = {"iters_per_checkpoint": 1, "keep_checkpoints": 1}


@pytest.mark.parametrize("more", [EVERY_STEP, ONE_BATCH], ids=str)
def test_diverged_run_can_be_resumed_at_a_lower_learning_rate(more, corpus, tmp_path, capsys):
    """The diverged weights were saved either after an optimizer step or at the end of an epoch."""
    out, settings = tmp_path / "out", {"learning_rate": 30, "epochs_per_validation": 1} | more
    message = refused(flags(out, corpus.hparams(**settings)), capsys)
    assert "training diverged: the loss became" in message
    assert "in optimizer step 2, on these clips" in message
    assert f"The last good checkpoint is {out}/checkpoint_0.pt." in message
    assert f"train.py -o {out} --resume --hparams learning_rate=3\n" in message
    assert message.count("--resume") == 1
    assert "precision=fp32" not in message  # the precision is fp32 already
    assert "--resume-from best" not in message  # best.pt does not exist yet
    saved = [path.name for path in out.glob("*.pt*")]
    assert sorted(saved) == ["checkpoint_0.pt", "checkpoint_1.pt.superseded"]
    train.main(flags(out, "learning_rate=1e-3", "--resume"))
    assert load(newest(out))["loop"]["epoch"] == 3


def test_losses_below_one_never_count_as_diverged():
    state = LoopState(lowest_loss=1e-3)
    assert [state.diverges(loss) for loss in (0.9, 1.1, math.nan)] == [False, True, True]


def state_of(trainer) -> dict:
    weights = dict(trainer.model.named_parameters())
    return copy.deepcopy({"weights": weights, "adam": trainer.optimizer.state_dict()["state"]})


def poison_gradients(monkeypatch, steps) -> list[tuple[dict, dict]]:
    """Make one gradient value infinite in these optimizer steps.

    Return the weights and the optimizer state before and after each optimizer step.
    """
    compute = Trainer._accumulate_gradients
    states: list[tuple[dict, dict]] = []

    def poisoned(trainer, *args):
        losses = compute(trainer, *args)
        if len(states) in steps:
            trainer.model.embedding.weight.grad[-1, -1] = math.inf
        return losses

    def watched(trainer, _, make_step):
        before = state_of(trainer)
        losses = make_step()
        states.append((before, state_of(trainer)))
        return losses

    monkeypatch.setattr(Trainer, "_accumulate_gradients", poisoned)
    watch_steps(monkeypatch, watched)
    return states


def test_optimizer_step_is_skipped_when_a_gradient_is_not_finite(corpus, tmp_path, monkeypatch):
    states = poison_gradients(monkeypatch, {0, 3})
    run(tmp_path / "out", corpus, epochs=1, epochs_per_validation=9)
    assert float(states[0][1]["adam"][0]["step"]) == 0  # the first optimizer step was skipped
    assert not states[0][1]["adam"][0]["exp_avg"].any()
    assert_same(states[0][0]["weights"], states[0][1]["weights"])
    assert_same(*states[3])
    for before, after in (states[1], states[2]):
        made = before["adam"].get(0, {"step": 0})["step"]
        assert float(after["adam"][0]["step"]) == float(made) + 1
        weights = [state["weights"]["encoder.lstm.weight_hh_l0"] for state in (before, after)]
        assert not torch.equal(*weights)
    [record] = metrics(tmp_path / "out", "epoch")
    assert record["skipped_updates"] == 2
    assert math.isfinite(record["gradient_norm"])


@pytest.mark.thorough
def test_run_stops_after_20_skipped_optimizer_steps_in_a_row(corpus, tmp_path, monkeypatch, capsys):
    options = {"batch_size": 1, "dynamic_batch_size": False, "epochs_per_validation": 9}
    with monkeypatch.context() as patch:
        poison_gradients(patch, {*range(1, 20), *range(21, 26)})
        run(tmp_path / "fine", corpus, **options)
    assert sum(record["skipped_updates"] for record in metrics(tmp_path / "fine", "epoch")) == 24
    poison_gradients(monkeypatch, range(1, 21))
    message = refused(flags(tmp_path / "bad", corpus.hparams(**options)), capsys)
    assert "gradients were not finite in 20 consecutive optimizer steps, up to step 21" in message
    assert f"{corpus.train}:" in message


def test_loss_scale_decreases_when_fp16_overflows(corpus, tmp_path, monkeypatch):
    """With a loss scale of 256, only the infinite value overflows."""
    states = poison_gradients(monkeypatch, {1})
    scaler = functools.partial(torch.amp.GradScaler, init_scale=256.0)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    settings = {"precision": "fp16", "iters_per_checkpoint": 1, "keep_checkpoints": 9}
    run(tmp_path / "out", corpus, epochs=1, **settings)
    scales = [load(tmp_path / "out" / f"checkpoint_{n}.pt")["scaler"]["scale"] for n in (1, 2, 3)]
    assert scales == [256.0, 128.0, 128.0]
    assert_same(*states[1])
    assert not torch.equal(*(state["weights"]["embedding.weight"] for state in states[2]))
    run(tmp_path / "out", corpus, "--resume", epochs=2, **settings)
    # The resumed run continues with the loss scale in the checkpoint.
    assert load(newest(tmp_path / "out"))["scaler"]["scale"] == 128.0


def test_time_per_epoch_is_printed_once_after_the_first_optimizer_step_on_a_cpu(
    corpus, tmp_path, capsys
):
    run(tmp_path / "out", corpus, epochs=2)
    lines = [
        line for line in capsys.readouterr().out.splitlines() if "first optimizer step" in line
    ]
    assert len(lines) == 1
    assert "epoch" in lines[0]


def test_batches_are_rejected_before_training_when_they_exceed_the_memory_of_a_cpu(
    corpus, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(memory_check, "available_memory", lambda: 1000)
    monkeypatch.setattr(Trainer, "step", stop_here)
    assert "memory" in refused(flags(tmp_path / "out", corpus.hparams()), capsys)
    assert not list((tmp_path / "out").glob("checkpoint_*"))
