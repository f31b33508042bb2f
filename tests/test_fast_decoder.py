"""Compare the fast decoder with the reference decoder: outputs, gradients, precision, memory."""

import statistics
from dataclasses import replace

import pytest
import torch
from test_model import seeded, tiny_model

import fast_decoder
import model
from fast_decoder import operations, plain
from fast_decoder.parity import EQUAL, Problem, relative_errors

pytestmark = pytest.mark.usefixtures("one_thread")

# Tolerances are relative to the largest value of a tensor.
# Results differ slightly from the reference, because the order of summation differs.
# The largest observed errors were 2e-12 (float64) and 4e-6 (float32).
# The errors were measured on an EPYC with SSE4.1, AVX2 and AVX-512, with one to four threads.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 4e-5}
WITHOUT_DROPOUT = {"p_prenet_dropout": 0.0, "p_attention_dropout": 0.0, "p_decoder_dropout": 0.0}


@pytest.fixture(autouse=True)
def poisoned_buffers(monkeypatch):
    """Fill new memory with NaN, so that reading a value before it is written changes the result."""

    def poisoned(*shape, **options):
        return torch.full(shape, torch.nan, **options)

    monkeypatch.setattr(operations, "empty", poisoned)


@pytest.fixture(params=["oneDNN", "plain"])
def products(request, monkeypatch):
    """Run a test twice: with oneDNN, and without oneDNN as on a GPU."""
    if request.param == "plain":
        monkeypatch.setattr(operations, "onednn_multiplies", lambda *_: False)
    elif not operations.onednn_multiplies("cpu", torch.float32):
        pytest.skip("this torch has no oneDNN")
    return request.param


@pytest.fixture
def dtype(products):
    """Use float64 when oneDNN is off, because float64 tests the formulas more strictly."""
    return torch.float32 if products == "oneDNN" else torch.float64


def problem(
    lengths=((7, 9), (2, 4), (5, 12)), dtype=torch.float32, training=True, seed=0, **changes
):
    """Make clips with these sizes (symbols, frames) for a tiny decoder."""
    decoder = tiny_model(seed, training, **changes).decoder
    symbols, frames = zip(*lengths, strict=True)
    steps = -(-max(frames) // decoder.n_frames_per_step)
    return Problem.random(decoder, symbols, steps, seed).to(dtype)


def errors_by_precision(draws, lengths, precision, run):
    """Return two dicts: the errors of the fast decoder, and the errors of the reference decoder.

    Each dict maps a tensor name to the differences from float64 results, one per random draw.
    """
    changes = {"attention_rnn_dim": 32, "decoder_rnn_dim": 32, "prenet_dim": 16}
    fast, reference = {}, {}
    for draw in range(draws):
        case = problem(lengths, torch.float64, seed=draw, **changes)
        exact = case.run(model.teacher_forced)
        case = case.to(torch.float32)
        for errors, function in (
            (fast, fast_decoder.teacher_forced),
            (reference, model.teacher_forced),
        ):
            results = run(case, function, precision=precision)
            assert results["mel"].dtype == results["gate"].dtype == precision
            for name, x in results.items():
                error = (x.double().cpu() - exact[name]).norm() / exact[name].norm()
                errors.setdefault(name, []).append(error.item())
    return fast, reference


def differences(case, weights=EQUAL):
    """Return the outputs and gradients that differ from the reference, as a dict from name to
    error."""
    expected = case.run(model.teacher_forced, weights)
    actual = case.run(fast_decoder.teacher_forced, weights)
    assert [x.dtype for x in actual.values()] == [x.dtype for x in expected.values()]
    errors = relative_errors(actual, expected)
    return {name: x for name, x in errors.items() if x > TOLERANCE[case.memory.dtype]}


# ---------------------------------------------------------------------------- correct results

SIZES = {
    "usual": ((7, 9), (2, 4), (5, 12)),
    "one clip": ((6, 10),),
    "one frame": ((3, 1), (5, 1)),
    "one symbol": ((1, 11), (1, 3)),
    "one clip, one symbol, one frame": ((1, 1),),
    "very unequal sizes": ((40, 35), (1, 1), (2, 3)),
    "fewer symbols than the filter width": ((2, 17), (1, 5)),
    "three chunks": ((5, 3 * plain.CHUNK), (3, 8)),
}


@pytest.mark.parametrize("name", SIZES)
def test_outputs_and_gradients_of_the_fast_decoder_match_the_reference(name, dtype):
    assert differences(problem(SIZES[name], dtype)) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"n_frames_per_step": 3},
        {"attention_location_kernel_size": 1},
        {"attention_location_kernel_size": 31},
        {"p_attention_dropout": 0.0},
        {"p_decoder_dropout": 0.6, "p_attention_dropout": 0.3},
        {"attention_location_gradient": False},
        {"training": False, **WITHOUT_DROPOUT},
        {"attention_rnn_dim": 64, "decoder_rnn_dim": 48, "attention_dim": 16, "prenet_dim": 32},
    ],
    ids=str,
)
def test_fast_decoder_matches_the_reference_for_different_sizes_and_dropout_probabilities(
    changes, dtype
):
    assert differences(problem(dtype=dtype, **changes)) == {}


def test_gradient_keeps_its_precision_when_many_rows_are_summed():
    """The gradient of the attention vector v is a sum of terms that partly cancel. One long sum of
    all terms would lose a digit of precision."""
    case = problem(((80, 60),) * 16, torch.float64, attention_dim=32)
    exact, case = case.run(model.teacher_forced), case.to(torch.float32)
    name = "grad attention_layer.v.linear_layer.weight"
    ours, reference = (
        relative_errors(case.run(function), exact)[name]
        for function in (fast_decoder.teacher_forced, model.teacher_forced)
    )
    assert ours <= 3 * reference


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 0, 1), (0, 1, 1)])
def test_gradients_of_the_fast_decoder_match_the_reference_when_the_loss_uses_only_some_outputs(
    weights,
):
    """The guided attention loss depends on the alignments, so the gradients through the alignments
    are tested too."""
    assert differences(problem(dtype=torch.float64), weights) == {}


def test_outputs_of_the_fast_decoder_stay_the_same_when_gradients_are_off():
    case = problem(training=False)
    expected = case.outputs(model.teacher_forced)
    with torch.no_grad():
        validation = case.outputs()
    with torch.inference_mode():
        inference = case.outputs()
    for one, two, three in zip(expected, validation, inference, strict=True):
        assert torch.allclose(two, one, atol=1e-5)
        assert torch.equal(two, three)
        assert not two.requires_grad


def refused(*_):
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize("multiply", [refused, lambda x, *_: x.new_zeros(2, 7), None])
def test_onednn_is_not_used_when_its_results_are_incorrect(multiply, monkeypatch):
    """oneDNN's operators are private in PyTorch, so a new PyTorch version may remove or change
    them."""
    check = operations.onednn_multiplies.__wrapped__
    assert not check("cuda", torch.float32)
    assert not check("cpu", torch.float64)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", multiply)
    assert not check("cpu", torch.float32)


# ---------------------------------------------------------------------------- mixed precision


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_fast_decoder_is_as_accurate_as_the_reference_when_autocast_is_on(precision, products):
    """The test compares typical errors, because in some random batches, attention amplifies the
    errors."""
    fast, reference = errors_by_precision(12, ((9, 18), (4, 11)), precision, Problem.run)
    for name, errors in fast.items():
        assert statistics.median(errors) <= 1.25 * statistics.median(reference[name]), name


def test_backward_pass_keeps_full_precision_when_autocast_is_on():
    """The loss in this test depends only on the alignments, so the gradient of the attention vector
    v comes from the hand-written backward pass."""
    case = problem()
    weight = case.decoder.attention_layer.v.linear_layer.weight
    gradients = []
    for enabled in (False, True):
        alignments = case.outputs()[2]
        loss = (alignments * torch.randn(alignments.shape, generator=seeded())).sum()
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            gradients.append(torch.autograd.grad(loss, weight)[0])
    assert torch.equal(*gradients)


# ---------------------------------------------------------------------------- safety


def passes_are_independent(one, two):
    """Return whether gradients stay the same when two forward passes run before the backward
    passes."""
    two.decoder = one.decoder
    is_same = []
    expected = [case.run(fast_decoder.teacher_forced)["grad memory"] for case in (one, two)]
    for first, second in ((0, 1), (1, 0)):
        memories = [case.memory.clone().requires_grad_() for case in (one, two)]
        losses = []
        for case, memory in zip((one, two), memories, strict=True):
            losses.append(case.loss(replace(case, memory=memory).outputs()))
            with torch.no_grad():  # imitate a validation between the forward and the backward pass
                case.outputs()
        losses[first].backward()
        losses[second].backward()
        gradients = [memory.grad for memory in memories]
        is_same += map(torch.equal, gradients, expected)
    return len(is_same) == 4 and all(is_same)


def test_gradients_of_the_fast_decoder_are_correct_when_two_forward_passes_precede_backward():
    assert passes_are_independent(problem(), problem(((4, 6), (6, 9), (3, 12))))


def test_fast_decoder_raises_when_backward_runs_twice():
    case = problem()
    loss = case.loss(case.outputs())
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match=r"only one backward pass.*decoder=reference"):
        loss.backward()


def test_fast_decoder_raises_when_a_second_derivative_is_computed():
    case = problem()
    loss, parameters = case.loss(case.outputs()), list(case.decoder.parameters())
    with pytest.raises(RuntimeError, match=r"no second derivative.*decoder=reference"):
        torch.autograd.grad(loss, parameters, create_graph=True)


def test_backward_pass_raises_when_an_output_was_changed():
    mel, _, alignments = problem().outputs()
    with torch.no_grad():
        alignments.mul_(2)
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation"):
        mel.sum().backward()


def test_frozen_parameters_get_no_gradient():
    """All parameters that are not frozen still get gradients."""
    case = problem()
    expected = case.run(model.teacher_forced)
    for name, parameter in case.decoder.named_parameters():
        parameter.requires_grad_("decoder_rnn" not in name and "query" not in name)
    errors = relative_errors(case.run(fast_decoder.teacher_forced), expected)
    for name, parameter in case.decoder.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad
        assert parameter.grad is None or errors[f"grad {name}"] <= TOLERANCE[torch.float32]


def test_fast_decoder_raises_when_the_mel_ends_with_a_partial_decoder_step():
    case = problem(((4, 8),), n_frames_per_step=2)
    case.mel = case.mel[:, :, :7]
    with pytest.raises(ValueError, match="the mel has 7 frames, expected a multiple of 2"):
        case.run(fast_decoder.teacher_forced)
