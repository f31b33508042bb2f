"""Test the optimizer step: its precision, the selected decoder, and its results."""

import functools
import math
import os
import re

import pytest
import torch
import torch.nn.functional as F
from helpers import tiny
from test_model import MELS, tiny_batch

import layers
from hparams import create_hparams
from model import packed_lstm, teacher_forced
from training import optimizer
from training.decoders import choose_decoder
from training.optimizer import Schedule, guided_attention_weight_at
from training.precision import PRECISIONS, describe_precision
from training.trainer import LossWeights, MicroBatch, StepValues, Trainer

CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("tf32_as_before")


def small(**settings):
    return create_hparams(tiny(**settings))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_tf32_is_enabled_only_when_precision_is_tf32(precision):
    torch.backends.cuda.matmul.allow_tf32 = precision != "tf32"
    torch.backends.cudnn.allow_tf32 = precision != "tf32"
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
        ("bf16", None, "precision=bf16 .* only on .*; use precision=fp32"),
        ("fp16", None, "precision=fp16 is for GPUs: .*; use precision=fp32"),
        ("tf32", (7, 5), "precision=tf32 has no effect on this GPU; use precision=fp32"),
        ("bf16", (7, 5), "precision=bf16 is emulated on this GPU.*; use precision=fp16"),
        ("fp16", (7, 5), ""),
        ("bf16", (8, 0), ""),
    ],
)
def test_warning_states_the_reason_when_a_precision_is_not_recommended(
    precision, capability, meaning, monkeypatch
):
    monkeypatch.setattr(torch.cpu, "get_capabilities", dict, raising=False)
    printed = describe_precision(precision, capability)
    assert re.match(meaning or "$", printed), printed


def test_no_warning_is_issued_when_the_cpu_supports_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert describe_precision("bf16", None) == ""
    assert "has no effect" in describe_precision("tf32", None)


def test_decoder_setting_selects_the_decoder_for_training():
    pytest.importorskip("fast_decoder.graphs", reason="the folder fast_decoder is missing")
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
def test_optimizer_step_returns_losses_and_gradient_norm(precision):
    settings = {"precision": precision, "guided_attention_weight": 0}
    trainer, batch = Trainer(small(n_mel_channels=MELS, **settings), CPU), tiny_batch()
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    losses = trainer.step([MicroBatch(batch)], Schedule(0.25, 0))
    made = StepValues.of(losses.values.tolist())
    assert (made.stop_requests, made.failures) == (0, 0)
    assert losses.copied is None
    assert 0 < made.terms.loss < made.terms.loss_unpadded
    assert math.isnan(made.terms.guided_attention)  # NaN because the weight of this loss is 0
    # In fp16, gradients may overflow at the first loss scale.
    assert made.gradient_norm > 0 or made.skipped
    assert all(map(torch.equal, before, trainer.model.parameters())) == bool(made.skipped)
    assert trainer.optimizer.param_groups[0]["lr"] == 0.25


@pytest.mark.parametrize(("decoder", "loss"), [("reference", "padded"), ("fast", "unpadded")])
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
    # The largest observed differences between float32 gradients were a quarter of the tolerances in
    # this test.
    torch.testing.assert_close(gradients[5.0] - gradients[0.0], 5 * share, rtol=3e-3, atol=3e-5)


def test_each_loss_term_has_a_separate_weight():
    trainer = Trainer(small(n_mel_channels=MELS, guided_attention_weight=2), CPU)
    found = []
    for weights in (LossWeights(), LossWeights(padded_frames=2, frames=3, steps=5)):
        torch.manual_seed(0)
        trained, terms = trainer.losses_of(trainer.model, tiny_batch(), weights, 2)
        assert trained.item() == pytest.approx(float(terms.loss + 2 * terms.guided_attention))
        found.append(torch.stack([terms.loss, terms.guided_attention]))
    torch.testing.assert_close(found[1] / found[0], torch.tensor([2.0, 5.0]))


def test_gradient_equals_the_gradient_of_the_masked_loss():
    """Autograd computes the expected gradient from an explicit formula of the loss."""
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
def test_clipped_gradients_equal_values_computed_by_hand(threshold, precision):
    """After one optimizer step, Adam's first moment is a tenth of the gradient."""
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
    assert 0.01 < norm < 1e6  # of the two thresholds, the gradient norm exceeds only 0.01
    made = StepValues.of(losses.values.tolist())
    assert made.gradient_norm == pytest.approx(norm, rel=1e-5)
    for parameter, gradient, decayed in zip(parameters, given, decay, strict=True):
        expected = gradient * min(1, threshold / norm) + decayed
        moment = trainer.optimizer.state[parameter]["exp_avg"]
        least = 1e-5 * float(expected.abs().max())
        torch.testing.assert_close(10 * moment.double(), expected, rtol=1e-4, atol=least)


def test_weights_do_not_change_when_the_loss_is_not_finite(monkeypatch):
    """The loss contains squares, which can overflow although the gradient is finite."""
    trainer = Trainer(small(n_mel_channels=MELS), CPU)
    losses_of = trainer.losses_of

    def overflowing(*args):
        trained, terms = losses_of(*args)
        return trained, terms._replace(loss=terms.loss + math.inf)

    monkeypatch.setattr(trainer, "losses_of", overflowing)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    made = StepValues.of(
        trainer.step([MicroBatch(tiny_batch())], Schedule(0.25, 0)).values.tolist()
    )
    assert (made.terms.loss, made.skipped) == (math.inf, 1)
    assert math.isfinite(made.gradient_norm)
    assert all(map(torch.equal, before, trainer.model.parameters()))


def test_running_statistics_of_batch_norm_are_means_over_the_batches_of_an_optimizer_step():
    batches = [tiny_batch(), tiny_batch(((4, 30), (9, 21)))]
    made = []
    for numbers in ([0], [1], [0, 1]):
        trainer = Trainer(small(n_mel_channels=MELS), CPU)
        given = [MicroBatch(batches[number], seed=number) for number in numbers]
        trainer.step(given, num_batches=len(given))
        made.append(dict(trainer.model.named_buffers()))
    for name, found in made[2].items():
        torch.testing.assert_close(found.double(), (made[0][name].double() + made[1][name]) / 2)


def test_guided_attention_weight_decreases_to_0():
    hparams = small(guided_attention_weight=5, guided_attention_steps=100)
    weights = [guided_attention_weight_at(i, hparams) for i in (0, 1, 50, 99, 100, 10**6)]
    assert weights == pytest.approx([5, 4.95, 2.5, 0.05, 0, 0])
    assert guided_attention_weight_at(0, small(guided_attention_weight=0)) == 0


@pytest.mark.parametrize(("by_user", "expected"), [(None, "64"), ("7", "7")])
def test_onednn_cache_is_small_unless_the_user_sets_its_size(by_user, expected, monkeypatch):
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    for name in names:
        monkeypatch.setenv(name, by_user or "")  # this call makes monkeypatch restore the variable
        if by_user is None:
            monkeypatch.delenv(name)
    Trainer(small(), CPU)
    assert [os.environ[name] for name in names] == [expected, expected]


# ---------------------------------------------------------------------------- custom optimizers


def use_optimizer(monkeypatch, make) -> None:
    """Replace the optimizer in the only function that creates it."""
    monkeypatch.setattr(
        optimizer,
        "make_optimizer",
        lambda parameters, hparams: make(parameters, lr=hparams.learning_rate),
    )


OPTIMIZERS = [torch.optim.RAdam, torch.optim.SGD]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_gradient_clipping_works_with_any_optimizer(make, monkeypatch):
    """In the first optimizer step, the gradients are divided by norm / threshold."""
    use_optimizer(monkeypatch, make)
    trainer = Trainer(small(n_mel_channels=MELS, grad_clip_thresh=0.01), CPU)
    given: list[torch.Tensor] = []
    step = trainer.optimizer.step
    monkeypatch.setattr(
        trainer.optimizer,
        "step",
        lambda: (given.extend(p.grad.clone() for p in trainer.model.parameters()), step()),
    )
    made = StepValues.of(trainer.step([MicroBatch(tiny_batch())]).values.tolist())
    assert made.gradient_norm > 0.1
    assert float(torch.nn.utils.get_total_norm(given)) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_skipped_optimizer_steps_do_not_change_weights_with_any_optimizer(make, monkeypatch):
    use_optimizer(monkeypatch, make)
    trainer = Trainer(small(n_mel_channels=MELS), CPU)
    losses_of = trainer.losses_of

    def not_finite(*args):
        trained, terms = losses_of(*args)
        return trained * math.nan, terms

    monkeypatch.setattr(trainer, "losses_of", not_finite)
    before = [parameter.detach().clone() for parameter in trainer.model.parameters()]
    made = StepValues.of(trainer.step([MicroBatch(tiny_batch())]).values.tolist())
    assert made.skipped == 1
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert not trainer.optimizer.state


def test_fused_and_plain_optimizers_compute_the_same_weights(monkeypatch):
    """With fused Adam, gradients are clipped and optimizer steps are skipped on the device. For all
    other optimizers, `apply_gradients` clips gradients and skips optimizer steps."""
    weights = []
    for fused in (True, False):
        use_optimizer(monkeypatch, functools.partial(torch.optim.Adam, fused=fused))
        trainer = Trainer(small(n_mel_channels=MELS, grad_clip_thresh=0.01), CPU)
        for i in range(3):
            trainer.step([MicroBatch(tiny_batch(), seed=i)])
        weights.append(torch.nn.utils.parameters_to_vector(trainer.model.parameters()))
    torch.testing.assert_close(*weights, rtol=0, atol=1e-4)


def test_list_of_optimizer_state_entries_matches_the_chosen_optimizer(monkeypatch):
    adam = {"step": False, "exp_avg": True, "exp_avg_sq": True}
    assert optimizer.state_entries(small()) == adam
    use_optimizer(monkeypatch, functools.partial(torch.optim.SGD, momentum=0.9))
    assert optimizer.state_entries(small()) == {"momentum_buffer": True}
    use_optimizer(monkeypatch, torch.optim.SGD)
    assert optimizer.state_entries(small()) == {}


# ---------------------------------------------------------------------------- custom attention


class ContentAttention(layers.Attention):
    """A dot-product attention without location features."""

    def __init__(self, hparams):
        super().__init__()
        self.query = layers.Linear(hparams.attention_rnn_dim, hparams.attention_dim)
        self.memory_layer = layers.Linear(hparams.memory_dim, hparams.attention_dim)

    def forward(self, query, memory, processed_memory, past, mask):
        energies = torch.bmm(processed_memory, self.query(query).unsqueeze(2)).squeeze(2)
        alignment = torch.softmax(energies.masked_fill(mask, -torch.inf), dim=1)
        return torch.bmm(alignment.unsqueeze(1), memory).squeeze(1), alignment


class ScaledAttention(layers.LocationSensitiveAttention):
    """A subclass of the built-in attention. The fast decoder does not support subclasses."""


@pytest.mark.thorough
@pytest.mark.parametrize("attention", [ContentAttention, ScaledAttention])
def test_model_with_a_custom_attention_trains_with_the_reference_decoder(attention, monkeypatch):
    pytest.importorskip("fast_decoder.graphs", reason="the folder fast_decoder is missing")
    monkeypatch.setattr(layers, "make_attention", attention)
    trainer = Trainer(small(n_mel_channels=MELS, decoder="fast"), CPU)
    assert trainer.model.training_decoder is teacher_forced
    assert attention.__name__ in trainer.decoder_description
    made = StepValues.of(trainer.step([MicroBatch(tiny_batch())]).values.tolist())
    assert math.isfinite(made.terms.loss)
    outputs = trainer.model.eval().infer(torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    assert outputs.alignments.shape[2] == 3
