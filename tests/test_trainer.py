"""The training step: precision's switches, the decoder chosen, and what a step returns."""

import math
import os
import re

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny
from test_model import MELS, tiny_batch

from hparams import create_hparams
from model import packed_lstm, teacher_forced
from training.trainer import (
    PRECISIONS,
    LossWeights,
    MicroBatch,
    StepValues,
    Trainer,
    choose_decoder,
    guided_attention_weight_at,
    what_precision_means,
)

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("tf32_as_before")


def small(**settings):
    return create_hparams(tiny(**settings))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_only_tf32_rounds_products(precision, before):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before
    trainer = Trainer(small(precision=precision), CPU)
    assert torch.backends.cuda.matmul.allow_tf32 == (precision == "tf32")
    assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")
    with trainer.autocast():
        product = torch.ones(2, 2) @ torch.ones(2, 2)
    expected = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)
    assert product.dtype == expected
    assert trainer.scaler.is_enabled() == (precision == "fp16")


@pytest.mark.parametrize(
    ("precision", "capability", "meaning"),
    [
        ("fp32", None, ""),
        ("tf32", None, "precision=tf32 has no effect on a CPU.*; use precision=fp32"),
        ("bf16", None, "precision=bf16 .* only where .*; use precision=fp32"),
        ("fp16", None, "precision=fp16 is for GPUs: .*; use precision=fp32"),
        ("tf32", (7, 5), "precision=tf32 has no effect on this GPU; use precision=fp32"),
        ("bf16", (7, 5), "precision=bf16 is emulated on this GPU.*; use precision=fp16"),
        ("fp16", (7, 5), ""),
        ("bf16", (8, 0), ""),
    ],
)
def test_what_a_precision_loses_is_said(precision, capability, meaning, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    printed = what_precision_means(precision, capability)
    assert re.match(meaning or "$", printed), printed


@pytest.mark.parametrize("instructions", ["avx512_bf16", "amx_bf16"])
def test_cpus_that_multiply_in_bfloat16_lose_nothing(instructions, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {instructions: True}, raising=False)
    assert what_precision_means("bf16", None) == ""
    assert "has no effect" in what_precision_means("tf32", None)


def test_setting_decides_which_decoder_trains():
    pytest.importorskip("fast_decoder.graphs", reason="the fast decoder was taken out")
    import fast_decoder

    reference = choose_decoder("reference", CPU)
    assert reference == (teacher_forced, packed_lstm, "reference, step by step")
    decoder, encoder_lstm, description = choose_decoder("fast", CPU)
    assert decoder is fast_decoder.teacher_forced
    assert description.startswith("fast (")
    trainer = Trainer(small(decoder="reference"), CPU)
    assert trainer.model.training_decoder is teacher_forced
    assert trainer.model.encoder.run_lstm is packed_lstm
    trainer.use_decoder("fast")
    assert trainer.model.training_decoder is fast_decoder.teacher_forced
    assert trainer.model.encoder.run_lstm is encoder_lstm is not packed_lstm
    assert trainer.decoder_description == description


@pytest.mark.parametrize("precision", PRECISIONS)
def test_step_returns_losses_and_gradient_norm(precision):
    settings = {"precision": precision, "guided_attention_weight": 0}
    trainer, batch = Trainer(small(n_mel_channels=MELS, **settings), CPU), tiny_batch()
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    losses = trainer.step([MicroBatch(batch)], learning_rate=0.25)
    made = StepValues.of(losses.values.tolist())
    assert (made.stop_requests, made.failures) == (0, 0)
    assert losses.copied is None
    assert 0 < made.terms.loss < made.terms.loss_unpadded
    assert math.isnan(made.terms.guided_attention)  # its weight is 0
    assert made.gradient_norm > 0 or made.skipped  # fp16's first scale may overflow
    assert all(map(torch.equal, before, trainer.model.parameters())) == bool(made.skipped)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize("decoder", ["reference", "fast"])
@pytest.mark.parametrize("loss", ["padded", "unpadded"])
def test_guided_attention_adds_its_weighted_gradient(decoder, loss):
    gradients, guided = {}, None
    for weight in (0.0, 1.0, 5.0):
        settings = {"decoder": decoder, "loss": loss, "p_prenet_dropout": 0.0}
        settings |= {"p_attention_dropout": 0.0, "p_decoder_dropout": 0.0}
        trainer = Trainer(
            small(guided_attention_weight=weight, n_mel_channels=MELS, **settings), CPU
        )
        found = trainer.compute_gradients(tiny_batch()).guided_attention
        gradients[weight] = torch.cat(
            [p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None]
        )
        if weight:
            assert guided is None or torch.equal(found, guided)
            guided = found
        else:
            assert math.isnan(found)
    share = gradients[1.0] - gradients[0.0]
    assert share.norm() > 1e-4
    # Differences of gradients in float32. Seen: a quarter of 1e-3 of a value and 1e-5.
    torch.testing.assert_close(gradients[5.0] - gradients[0.0], 5 * share, rtol=3e-3, atol=3e-5)


def test_each_loss_has_its_own_weight():
    trainer = Trainer(small(n_mel_channels=MELS, guided_attention_weight=2), CPU)
    found = []
    for weights in (LossWeights(), LossWeights(padded_frames=2, frames=3, steps=5)):
        torch.manual_seed(0)
        trained, terms = trainer.losses_of(trainer.model, tiny_batch(), weights)
        assert trained.item() == pytest.approx(float(terms.loss + 2 * terms.guided_attention))
        found.append(torch.stack([terms.loss, terms.guided_attention]))
    torch.testing.assert_close(found[1] / found[0], torch.tensor([2.0, 5.0]))


def test_unpadded_loss_gives_its_own_gradient():
    """Against autograd on the loss written out."""
    settings = {"loss": "unpadded", "guided_attention_weight": 0, "gate_positive_weight": 3}
    trainer, batch = Trainer(small(n_mel_channels=MELS, **settings), CPU), tiny_batch()
    torch.manual_seed(0)
    trainer.compute_gradients(batch)
    torch.manual_seed(0)
    outputs, frames, loss = trainer.model(batch), int(batch.mel_lengths.sum()), 0.0
    for b, length in enumerate(batch.mel_lengths.tolist()):
        for mel in (outputs.mel, outputs.mel_postnet):
            error = (mel[b, :, :length] - batch.mel[b, :, :length]) ** 2
            loss = loss + error.sum() / (frames * MELS)
        gate = F.binary_cross_entropy_with_logits(
            outputs.gate[b, :length],
            batch.gate[b, :length],
            reduction="sum",
            pos_weight=torch.tensor(3.0),
        )
        loss = loss + gate / frames
    parameters = list(trainer.model.parameters())
    for parameter, expected in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        scale = float(expected.abs().max())
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-4, atol=1e-4 * scale + 1e-6)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("threshold", [0.01, 1e6])
def test_gradients_are_clipped_by_hand(threshold, precision):
    """Adam's first moment after one step is a tenth of the gradient it was given."""
    settings = {"grad_clip_thresh": threshold, "weight_decay": 0.001, "precision": precision}
    trainer, batch = Trainer(small(n_mel_channels=MELS, **settings), CPU), tiny_batch()
    trainer.scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16", init_scale=256.0)
    torch.manual_seed(0)
    trainer.compute_gradients(batch)
    scale, parameters = trainer.scaler.get_scale(), list(trainer.model.parameters())
    given = [parameter.grad.double() / scale for parameter in parameters]
    decay = [0.001 * parameter.detach().clone() for parameter in parameters]
    losses = trainer.step([MicroBatch(batch, seed=0)])
    norm = math.sqrt(sum(float(gradient.square().sum()) for gradient in given))
    assert 0.01 < norm < 1e6  # the one threshold clips, the other does not
    made = StepValues.of(losses.values.tolist())
    assert made.gradient_norm == pytest.approx(norm, rel=1e-5)
    for parameter, gradient, decayed in zip(parameters, given, decay, strict=True):
        expected = gradient * min(1, threshold / norm) + decayed
        moment = trainer.optimizer.state[parameter]["exp_avg"]
        least = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(10 * moment.double(), expected, rtol=1e-4, atol=least)


def test_loss_not_finite_changes_no_weight(monkeypatch):
    """A square may overflow where its gradient does not."""
    trainer = Trainer(small(n_mel_channels=MELS), CPU)
    losses_of = trainer.losses_of

    def overflowing(*args):
        trained, terms = losses_of(*args)
        return trained, terms._replace(loss=terms.loss + math.inf)

    monkeypatch.setattr(trainer, "losses_of", overflowing)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    made = StepValues.of(trainer.step([MicroBatch(tiny_batch())], 0.25).values.tolist())
    assert (made.terms.loss, made.skipped) == (math.inf, 1)
    assert math.isfinite(made.gradient_norm)
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_running_statistics_are_means_over_batches():
    """Of what each batch of an update alone would make of those from before it."""
    batches = [tiny_batch(), tiny_batch(((4, 30), (9, 21)))]
    made = []
    for numbers in ([0], [1], [0, 1]):
        trainer = Trainer(small(n_mel_channels=MELS), CPU)
        given = [MicroBatch(batches[number], seed=number) for number in numbers]
        trainer.step(given, num_batches=len(given))
        made.append(dict(trainer.model.named_buffers()))
    for name, found in made[2].items():
        torch.testing.assert_close(found.double(), (made[0][name].double() + made[1][name]) / 2)


def test_guided_attention_weight_falls_to_0():
    hparams = small(guided_attention_weight=5, guided_attention_steps=100)
    weights = [guided_attention_weight_at(i, hparams) for i in (0, 1, 50, 99, 100, 10**6)]
    assert weights == pytest.approx([5, 4.95, 2.5, 0.05, 0, 0])
    assert guided_attention_weight_at(0, small(guided_attention_weight=0)) == 0


@pytest.mark.parametrize(("by_user", "expected"), [(None, "64"), ("7", "7")])
@pytest.mark.parametrize("decoder", ["fast", "reference"])
def test_onednn_keeps_few_programs_by_default(decoder, by_user, expected, monkeypatch):
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, by_user or "")  # for monkeypatch to put back
        if by_user is None:
            monkeypatch.delenv(name)
    Trainer(small(decoder=decoder), CPU)
    assert [os.environ[name] for name in names] == [expected, expected]
