"""Compare Tacotron 2 with golden arrays, a numpy decoder and naive losses."""

import dataclasses
import itertools
import json
import math
import re

import numpy as np
import pytest
import torch
from helpers import GOLDEN

from batch import Batch, collate
from hparams import HParams
from loss import Tacotron2Loss
from model import DropoutMasks, Outputs, Tacotron2, teacher_forced

pytestmark = pytest.mark.usefixtures("one_thread")

MELS = 6
# These tolerances are for the comparison with NVIDIA's float32 arrays.
# The tests compute in float64, so the differences are the rounding errors in NVIDIA's arrays.
# The largest differences, in the order of the constants, are 1.8e-6, 1e-5, 7e-8, 6.7e-5 and 1.8e-5.
# The largest difference in free-running inference occurs after 60 decoder steps.
OUTPUTS, ALIGNMENTS, LOSS, GRADIENTS, INFERENCE = 2e-5, 1e-4, 1e-5, 1e-3, 1e-4
# In batched inference, the order of summation depends on matrix shapes.
# The largest observed difference was 1.9e-6.
BATCHED = 2e-5
TINY = HParams(
    n_symbols=20,
    symbols_embedding_dim=7,
    encoder_embedding_dim=8,
    encoder_kernel_size=3,
    encoder_n_convolutions=2,
    n_mel_channels=MELS,
    prenet_dim=5,
    attention_rnn_dim=9,
    decoder_rnn_dim=10,
    attention_dim=4,
    attention_location_n_filters=3,
    attention_location_kernel_size=5,
    postnet_embedding_dim=7,
    postnet_kernel_size=3,
    postnet_n_convolutions=3,
    max_decoder_steps=12,
)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def tiny_model(seed=0, training=False, training_decoder=teacher_forced, **changes):
    """Return a small model without zeros in its biases and running means, so every tensor has an
    effect."""
    torch.manual_seed(seed)
    model = Tacotron2(dataclasses.replace(TINY, **changes), training_decoder)
    generator = seeded(seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(0.5 + noise.abs())
            elif tensor.is_floating_point():
                tensor.add_(0.3 * noise)
    return model.train(training)


def tiny_batch(lengths=((7, 9), (3, 4), (5, 12)), r=1, seed=0, dtype=torch.float32):
    """Return a batch of random clips with these sizes (symbols, frames)."""
    generator = seeded(seed)
    items = [
        (
            torch.randint(1, 20, (symbols,), generator=generator),
            torch.randn(MELS, frames, generator=generator),
        )
        for symbols, frames in lengths
    ]
    batch = collate(items, r)
    return dataclasses.replace(batch, mel=batch.mel.to(dtype), gate=batch.gate.to(dtype))


def assert_close(actual, expected, tolerance, what=""):
    difference = (actual - torch.as_tensor(expected)).abs().max().item()
    assert difference <= tolerance, f"{what}: {difference:g} > {tolerance:g}"


# ---------------------------------------------------------------------------- golden arrays


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "model_dev.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    config = json.loads(str(arrays["meta/json"]))["config"]
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items() if v.dtype.kind in "fib"}
    return tensors | {"config": config}


@pytest.fixture
def golden_model(golden):
    model = Tacotron2(HParams(**golden["config"], p_prenet_dropout=0.0))
    weights = {k.removeprefix("state_dict/"): v for k, v in golden.items() if "state_dict/" in k}
    model.load_state_dict(weights)  # strict loading checks the names and shapes of all tensors
    return model.double().eval()


@pytest.fixture
def golden_batch(golden):
    names = ("text_padded", "input_lengths", "mel_padded", "gate_padded", "output_lengths")
    inputs = (golden[f"input/{name}"] for name in names)
    return Batch(*(x.double() if x.is_floating_point() else x for x in inputs))


def test_outputs_equal_the_recorded_nvidia_outputs(golden, golden_model, golden_batch):
    for run, masked in (("output", True), ("output_unmasked", False)):
        golden_model.mask_padding = masked
        outputs = golden_model(golden_batch)
        assert_close(outputs.mel, golden[f"{run}/mel_outputs"], OUTPUTS)
        assert_close(outputs.mel_postnet, golden[f"{run}/mel_outputs_postnet"], OUTPUTS)
        assert_close(outputs.gate, golden[f"{run}/gate_outputs"], OUTPUTS)
        assert_close(outputs.alignments, golden["output/alignments"], ALIGNMENTS)


def test_losses_and_gradients_equal_the_recorded_nvidia_values(golden, golden_model, golden_batch):
    losses = Tacotron2Loss()(golden_model(golden_batch), golden_batch)
    for name in ("total", "mel", "mel_postnet", "gate"):
        expected = golden[f"loss/{name}"].item()
        assert getattr(losses, name).item() == pytest.approx(expected, rel=LOSS), name
    losses.total.backward()
    parameters = dict(golden_model.named_parameters())
    assert len(parameters) == 60
    for name, parameter in parameters.items():
        # NVIDIA applies the mask outside autograd, so its gradient is incorrect here.
        behind = name == "postnet.convolutions.0.0.conv.weight"
        expected = golden[f"{'grad_functional_mask' if behind else 'grad'}/{name}"]
        assert_close(parameter.grad, expected, GRADIENTS * expected.abs().max().item(), name)


@pytest.mark.parametrize(
    ("run", "gate_threshold", "frames"), [("inference", 0.5, 21), ("inference_nostop", 2.0, 60)]
)
def test_inference_outputs_equal_the_recorded_nvidia_outputs(
    golden, golden_model, run, gate_threshold, frames
):
    golden_model.gate_threshold = gate_threshold
    text = golden[f"{run}/text_ids"]
    outputs = golden_model.infer(text, torch.tensor([text.shape[1]]))
    assert outputs.mel_lengths.tolist() == [frames]
    for output, name in zip(
        outputs, ("mel_outputs", "mel_outputs_postnet", "gate", "alignments"), strict=False
    ):
        reference = golden[f"{run}/{name}"]
        reference = reference.squeeze(2) if name == "gate" else reference
        assert output.shape == reference.shape
        assert_close(output, reference, INFERENCE, name)


# ---------------------------------------------------------------------------- the default model


def test_default_model_has_the_published_tensors(golden):
    with torch.device("meta"):
        model = Tacotron2(HParams())
    names = {k.removeprefix("state_dict/") for k in golden if k.startswith("state_dict/")}
    assert names == set(model.state_dict())
    assert len(names) == 84
    assert sum(p.numel() for p in model.parameters()) == 28_193_153
    norms = [m for m in model.modules() if isinstance(m, torch.nn.BatchNorm1d)]
    assert len(norms) == 8
    assert {(m.eps, m.momentum) for m in norms} == {(1e-5, 0.1)}


def test_initial_weights_have_the_distribution_of_the_nvidia_recipe():
    """Weights are Xavier-uniform with the limit gain * sqrt(6 / (fan in + fan out)). Biases and
    LSTMs start with PyTorch's defaults."""
    torch.manual_seed(0)
    model = Tacotron2(HParams(decoder_rnn_dim=256, attention_rnn_dim=256))
    weights = dict(model.named_parameters())
    tanh, relu = 5 / 3, math.sqrt(2)
    gains = {"query_layer": tanh, "memory_layer": tanh, "location_dense": tanh, "encoder": relu}
    # The gains of all other layers are 1.
    gains |= {f"postnet.convolutions.{i}": tanh for i in range(4)}
    checked = set()
    for name, weight in weights.items():
        values = weight.detach()
        if re.search(r"convolutions\.\d\.1\.", name):  # these parameters belong to batch norms
            assert (values == (1 if name.endswith("weight") else 0)).all(), name
            continue
        if "rnn." in name or "lstm." in name:
            bound = 1 / math.sqrt(256)
        elif name == "embedding.weight":
            bound = math.sqrt(3) * math.sqrt(2 / (148 + 512))
        elif name.endswith(".bias"):
            bound = 1 / math.sqrt(weights[name.replace(".bias", ".weight")][0].numel())
        else:
            gain = next((gains[part] for part in gains if part in name), 1)
            fans = (values.shape[0] + values.shape[1]) * values[0, 0].numel()
            bound = gain * math.sqrt(6 / fans)
        checked.add(name)
        largest = values.abs().max().item()
        assert (0.9 * bound if values.numel() > 100 else 0) < largest <= bound * 1.000001, name
        if values.numel() > 2000:  # the values of large tensors must have a uniform distribution
            assert values.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.05), name
    assert len(checked) == 60 - 16


# ---------------------------------------------------------------------------- shapes and order


@pytest.mark.parametrize("r", [1, 3])
def test_outputs_after_the_end_of_a_clip_are_masked(r):
    batch = tiny_batch(((7, 9), (3, 4), (5, 13)), r)
    masked = tiny_model(n_frames_per_step=r, p_prenet_dropout=0.0)(batch)
    free = tiny_model(n_frames_per_step=r, p_prenet_dropout=0.0, mask_padding=False)(batch)
    for row, frames in enumerate(batch.mel_lengths.tolist()):
        for name in ("mel", "mel_postnet"):
            mel, unmasked = getattr(masked, name)[row], getattr(free, name)[row]
            assert torch.equal(mel[:, :frames], unmasked[:, :frames])
            assert (mel[:, frames:] == 0).all()
            assert (unmasked[:, frames:] != 0).all()
        steps = math.ceil(frames / r)  # a decoder step is real if it contains a real frame
        assert torch.equal(masked.gate[row, :steps], free.gate[row, :steps])
        assert (masked.gate[row, steps:] == 1000).all()
    assert torch.equal(masked.alignments, free.alignments)


# ---------------------------------------------------------------------------- plain numpy


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_decoder(decoder, symbols, mel, masks, p):
    """Run teacher forcing for one clip, step by step, and return mel, gate and alignments.

    `masks` contains four arrays [T, dim]: two for the prenet, and one for the hidden state of each
    LSTM.
    """
    w = {n.replace(".linear_layer", ""): x.numpy() for n, x in decoder.state_dict().items()}
    w = {name.removeprefix("attention_layer."): x for name, x in w.items()}
    filters = w["location_layer.location_conv.conv.weight"]
    half = filters.shape[2] // 2

    def lstm(name, x, hidden, cell):
        gates = w[f"{name}.weight_ih"] @ x + w[f"{name}.bias_ih"]
        gates = gates + w[f"{name}.weight_hh"] @ hidden + w[f"{name}.bias_hh"]
        i, f, g, o = np.split(gates, 4)
        cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
        return sigmoid(o) * np.tanh(cell), cell

    attention_hidden = attention_cell = np.zeros(w["attention_rnn.weight_hh"].shape[1])
    decoder_hidden = decoder_cell = np.zeros(w["decoder_rnn.weight_hh"].shape[1])
    context, frames = np.zeros(symbols.shape[1]), np.zeros(len(w["linear_projection.bias"]))
    alignment = cumulative = np.zeros(len(symbols))
    mels, gates, alignments = [], [], []
    for first, second, attention_keep, decoder_keep in zip(*masks, strict=True):
        x = np.maximum(w["prenet.layers.0.weight"] @ frames, 0) * first / (1 - p["prenet"])
        x = np.maximum(w["prenet.layers.1.weight"] @ x, 0) * second / (1 - p["prenet"])
        attention_hidden, attention_cell = lstm(
            "attention_rnn", np.concatenate([x, context]), attention_hidden, attention_cell
        )
        attention_hidden = attention_hidden * attention_keep / (1 - p["attention"])
        past = np.pad(np.stack([alignment, cumulative]), ((0, 0), (half, half)))
        query = w["query_layer.weight"] @ attention_hidden
        energies = np.zeros(len(symbols))
        for i, symbol in enumerate(symbols):
            features = np.einsum("fck,ck->f", filters, past[:, i : i + 2 * half + 1])
            location = w["location_layer.location_dense.weight"] @ features
            hidden = np.tanh(query + w["memory_layer.weight"] @ symbol + location)
            energies[i] = (w["v.weight"] @ hidden).item()
        alignment = np.exp(energies) / np.exp(energies).sum()
        cumulative = cumulative + alignment
        context = alignment @ symbols
        decoder_hidden, decoder_cell = lstm(
            "decoder_rnn", np.concatenate([attention_hidden, context]), decoder_hidden, decoder_cell
        )
        decoder_hidden = decoder_hidden * decoder_keep / (1 - p["decoder"])
        out = np.concatenate([decoder_hidden, context])
        made = w["linear_projection.weight"] @ out + w["linear_projection.bias"]
        mels.append(made.reshape(-1, MELS).T)  # [n_mels, r]
        gates.append((w["gate_layer.weight"] @ out + w["gate_layer.bias"]).item())
        alignments.append(alignment)
        end = len(mels) * mels[0].shape[1]
        # The next input is the real frame, not the predicted frame.
        frames = mel[:, end - mels[0].shape[1] : end].T.reshape(-1)
    return np.concatenate(mels, axis=1), np.array(gates), np.array(alignments)


@pytest.mark.parametrize("r", [1, 2])
def test_decoder_outputs_equal_outputs_computed_with_plain_numpy(r):
    p = {"prenet": 0.5, "attention": 0.2, "decoder": 0.3}
    rates = {f"p_{name}_dropout": rate for name, rate in p.items()}
    model = tiny_model(training=True, n_frames_per_step=r, **rates).double()
    memory = torch.randn(3, 6, 8, generator=seeded(), dtype=torch.float64)
    lengths, mel = torch.tensor([6, 2, 4]), tiny_batch(((1, 8), (1, 6), (1, 3)), r).mel.double()
    masks = model.decoder.draw_masks(8 // r, 3, seeded(3))
    mask = torch.arange(6) >= lengths[:, None]
    with torch.no_grad():
        actual = teacher_forced(model.decoder, memory, mask, mel, masks)
    for row, length in enumerate(lengths.tolist()):
        keep = [x[:, row].numpy() for x in (*masks.prenet, *masks[1:])]
        clip = memory[row, :length].numpy(), mel[row].numpy()
        expected = numpy_decoder(model.decoder, *clip, keep, p)
        assert (actual[2][row, :, length:] == 0).all()
        for ours, plain in zip(actual, expected, strict=True):
            assert_close(ours[row, ..., : plain.shape[-1]], plain, 1e-12)


# ---------------------------------------------------------------------------- dropout


def test_prenet_dropout_stays_on_after_training():
    masks = tiny_model(training=False).decoder.draw_masks(4, 2)
    assert masks.attention_hidden is None
    assert masks.decoder_hidden is None
    assert all(0 < m.float().mean() < 1 for m in masks.prenet)
    model = tiny_model(training=True, prenet_dim=40, attention_rnn_dim=30, decoder_rnn_dim=50)
    masks = model.decoder.draw_masks(200, 8, seeded())
    assert [m.shape for m in masks.prenet] == [(200, 8, 40)] * 2
    assert not torch.equal(*masks.prenet)
    assert masks.attention_hidden.shape == (200, 8, 30)
    assert masks.decoder_hidden.shape == (200, 8, 50)
    # The published dropout probabilities are 0.5 and 0.1.
    # Each rate is a mean of at least 48,000 draws, so its standard deviation is at most 0.0023.
    rates = [m.float().mean().item() for m in (*masks.prenet, *masks[1:])]
    assert rates == pytest.approx([0.5, 0.5, 0.9, 0.9], abs=0.015)


def test_convolutions_drop_half_of_the_values_in_training():
    model = tiny_model(training=True, postnet_embedding_dim=64, encoder_embedding_dim=64)
    convolutions = [*model.encoder.convolutions, *model.postnet.convolutions]
    for convolution in convolutions:
        # With a large bias, no activation is zero.
        torch.nn.init.constant_(convolution[1].bias, 50.0)
    seen = []
    for module in (*convolutions, model.encoder.lstm):
        module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    outputs = model(tiny_batch(((40, 50), (40, 50))))
    dropped = [seen[1], seen[2].data, *seen[4:], outputs.mel_postnet - outputs.mel]
    for x in dropped:
        assert 0.42 < (x.abs() < 1e-4).float().mean() < 0.58
    for x in seen[4:]:  # tanh(50) is 1, and dropout doubles the values that it keeps
        assert_close(x[x != 0], 2.0, 1e-5)


# ---------------------------------------------------------------------------- loss


def naive_losses(outputs, batch, r):
    """Compute the padded losses (mel, postnet, gate) and the masked losses clip by clip."""
    padded, real = ([], [], []), ([], [], [])
    for b, frames in enumerate(batch.mel_lengths.tolist()):
        mel, gate = batch.mel[b].numpy(), batch.gate[b].numpy()
        stop = sigmoid(outputs.gate[b].numpy())
        errors = [(output[b].numpy() - mel) ** 2 for output in outputs[:2]]
        errors.append(-np.log(np.where(gate == 1, stop, 1 - stop)))
        for k, end in enumerate((frames, frames, math.ceil(frames / r))):
            padded[k].append(errors[k])
            real[k].append(errors[k][..., :end])
    return [np.concatenate(parts, axis=None).mean() for parts in (*padded, *real)]


def test_gate_weight_multiplies_the_error_at_stop_frames():
    batch = tiny_batch(((7, 9), (3, 4)), 1, dtype=torch.float64)
    shapes = (batch.mel.shape, batch.mel.shape, batch.gate.shape)
    outputs = Outputs(*(torch.randn(shape, generator=seeded()).double() for shape in shapes), None)
    stop = torch.sigmoid(outputs.gate)
    errors = torch.where(batch.gate == 1, -5 * torch.log(stop), -torch.log(1 - stop))
    assert Tacotron2Loss(5)(outputs, batch).gate.item() == pytest.approx(errors.mean().item())


@pytest.mark.parametrize("r", [1, 3])
def test_losses_equal_values_computed_with_a_naive_loop(r):
    batch = tiny_batch(((7, 9), (3, 4), (5, 13)), r, dtype=torch.float64)
    shapes = (batch.mel.shape, batch.mel.shape, batch.gate.shape)
    outputs = Outputs(*(torch.randn(shape, generator=seeded()).double() for shape in shapes), None)
    losses = Tacotron2Loss()(outputs, batch)
    expected = naive_losses(outputs, batch, r)
    expected = [sum(expected[:3]), *expected[:3], sum(expected[3:]), *expected[3:]]
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("loss", ["total", "total_unpadded"])
def test_gradient_equals_finite_differences_when_padding_is_masked(loss):
    """An in-place mask outside autograd would make this gradient incorrect."""
    model = tiny_model(p_prenet_dropout=0.0).double()
    batch = tiny_batch(((7, 9), (3, 4), (5, 12)), dtype=torch.float64)
    names = [
        "postnet.convolutions.0.0.conv.weight",
        "decoder.linear_projection.linear_layer.weight",
        "decoder.gate_layer.linear_layer.weight",
        "encoder.convolutions.0.0.conv.weight",
    ]

    def value():
        return getattr(Tacotron2Loss()(model(batch), batch), loss)

    value().backward()
    for name in names:
        weight = model.get_parameter(name)
        largest = weight.grad.abs().max().item()
        for place in torch.randperm(weight.numel(), generator=seeded())[:6].tolist():
            entry, step = weight.data.view(-1)[place], 1e-6
            with torch.no_grad():
                entry += step
                above = value()
                entry -= 2 * step
                below = value()
                entry += step
            expected = ((above - below) / (2 * step)).item()
            assert abs(weight.grad.view(-1)[place].item() - expected) < 1e-6 * largest, name


# ---------------------------------------------------------------------------- the encoder


def test_padding_affects_the_encoder_when_there_is_no_mask():
    encoder = tiny_model().encoder
    x = torch.randn(1, 7, 5, generator=seeded())
    padded = torch.cat([x, torch.full((1, 7, 3), 2.0)], dim=2)
    lengths, mask = torch.tensor([5]), torch.arange(8)[None] >= 5
    alone = encoder(x, lengths)
    assert not torch.allclose(encoder(padded, lengths)[:, :5], alone, atol=1e-3)
    masked = encoder(padded, lengths, mask)
    assert masked.shape == (1, 8, 8)
    assert_close(masked[:, :5], alone, 1e-6)
    assert (masked[:, 5:] == 0).all()


# ---------------------------------------------------------------------------- inference


def masks_of(masks, row, num_steps=None):
    """Return the prenet dropout masks for one text."""
    return DropoutMasks(tuple(m[:num_steps, row : row + 1] for m in masks.prenet), None, None)


def at_three_steps(steps):
    return len(steps.unique()) >= 3 and steps.min() > 1


def make_stop(model, text, lengths, masks, wanted=at_three_steps):
    """Make the texts stop at the chosen decoder steps [B], and return these steps."""
    gate, threshold = model.decoder.gate_layer.linear_layer, model.gate_threshold
    for seed in range(200):
        torch.nn.init.normal_(gate.weight, std=3.0, generator=seeded(seed))
        # no stop probability exceeds the threshold 2, so the stop token never ends speech
        model.gate_threshold = 2.0
        logits = model.infer(text, lengths, masks).gate
        model.gate_threshold = threshold
        for low, high in itertools.pairwise(logits.flatten().sort().values):
            passes = logits > (low + high) / 2
            steps = torch.where(passes.any(1), passes.int().argmax(1) + 1, logits.shape[1])
            if high - low > 1e-3 and wanted(steps):
                gate.bias.data -= (low + high) / 2
                return steps.tolist()
    raise AssertionError("no gate found that stops the texts at such steps")


@pytest.mark.parametrize("r", [1, 3])
def test_texts_in_one_batch_do_not_affect_each_other(r):
    model = tiny_model(n_frames_per_step=r)
    text_lengths = torch.tensor([4, 9, 1, 6, 9])
    text = torch.randint(1, 20, (5, 9), generator=seeded())  # random symbols fill the padding
    masks = model.decoder.draw_masks(12, 5, seeded(1))
    steps = make_stop(model, text, text_lengths, masks)
    together = model.infer(text, text_lengths, masks)
    assert together.mel_lengths.tolist() == [r * t for t in steps]
    assert together.mel.shape[2] == max(together.mel_lengths)
    for row, (symbols, t) in enumerate(zip(text_lengths.tolist(), steps, strict=True)):
        alone = model.infer(
            text[row : row + 1, :symbols], text_lengths[row : row + 1], masks_of(masks, row)
        )
        assert alone.mel_lengths.tolist() == [t * r]
        for name in ("mel", "mel_postnet"):
            mel = getattr(together, name)[row]
            assert_close(mel[:, : t * r], getattr(alone, name)[0], BATCHED, name)
            assert (mel[:, t * r :] == 0).all()
        assert_close(together.gate[row, :t], alone.gate[0], BATCHED)
        assert (together.gate[row, t:] == 1000).all()
        alignments = together.alignments[row, :t]
        assert_close(alignments[:, :symbols], alone.alignments[0], BATCHED)
        assert (alignments[:, symbols:] == 0).all()


@pytest.mark.parametrize("r", [1, 3])
def test_inference_outputs_equal_teacher_forcing_outputs_for_the_predicted_frames(r):
    model = tiny_model(n_frames_per_step=r)
    text, lengths = torch.randint(1, 20, (1, 8), generator=seeded()), torch.tensor([8])
    masks = model.decoder.draw_masks(12, 1, seeded(1))
    make_stop(model, text, lengths, masks, wanted=lambda steps: steps > 1)
    spoken = model.infer(text, lengths, masks)
    steps = spoken.gate.shape[1]
    batch = Batch(text, lengths, spoken.mel, torch.zeros(1, steps), spoken.mel_lengths)
    forced = model(batch, masks_of(masks, 0, steps))
    for name in ("mel", "mel_postnet", "gate", "alignments"):
        assert_close(getattr(forced, name), getattr(spoken, name), BATCHED, name)


@pytest.mark.parametrize("r", [1, 3])
def test_inference_stops_at_the_limit_of_decoder_steps(r):
    model = tiny_model(n_frames_per_step=r, gate_threshold=2.0, max_decoder_steps=7)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    text, lengths = torch.ones(2, 5, dtype=torch.int64), torch.tensor([5, 3])
    outputs = model.infer(text, lengths)
    assert outputs.mel_lengths.tolist() == [7 * r, 7 * r]
    assert outputs.mel_lengths.device.type == "cpu"
    assert outputs.mel.shape == outputs.mel_postnet.shape == (2, MELS, 7 * r)
    assert outputs.gate.shape == (2, 7)
    assert outputs.alignments.shape == (2, 7, 5)
    assert not outputs.mel_postnet.requires_grad
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    # every stop probability exceeds the threshold 0, so speech ends after one decoder step
    model.gate_threshold = 0.0
    assert model.infer(text, lengths).mel_lengths.tolist() == [r, r]
    with pytest.raises(RuntimeError, match=r"training mode.*model\.eval\(\)"):
        model.train().infer(text, lengths)


# ---------------------------------------------------------------------------- precision


def test_bfloat16_autocast_results_are_close_to_single_precision():
    batch, model = tiny_batch(), tiny_model(p_prenet_dropout=0.0)
    exact = model(batch)
    loss = Tacotron2Loss()(exact, batch)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(batch)
        rough = Tacotron2Loss()(outputs, batch)
    assert rough.total.dtype == torch.float32
    # A difference between the results shows that the model used bfloat16.
    assert not torch.equal(outputs.mel_postnet, exact.mel_postnet)
    for one, other in zip(outputs[:4], exact[:4], strict=True):
        assert_close(one.float(), other, 0.08 * other.abs().clamp(max=50).max().item())
    assert rough.total.item() == pytest.approx(loss.total.item(), rel=0.02)
    rough.total.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
