"""Test that decoder steps in chunks give the same results as the reference loop."""

import contextlib
import functools
import warnings

import pytest
import torch
from test_model import make_stop, seeded, tiny_model

import model as readable
from fast_decoder import captured_steps, cuda_capture
from fast_decoder.captured_steps import CHUNK, free_running
from hparams import HParams
from model import Tacotron2

pytestmark = pytest.mark.usefixtures("one_thread")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LENGTHS = (9, 4, 6)  # number of symbols in each text
MAX_STEPS = 2 * CHUNK + 5


def speaker(**changes) -> Tacotron2:
    return tiny_model(**{"max_decoder_steps": MAX_STEPS} | changes)


def inputs(model, texts=3, lengths=LENGTHS):
    """Return arguments for model.infer."""
    lengths = torch.tensor(lengths[:texts])
    text = torch.randint(1, 20, (texts, int(lengths.max())), generator=seeded(1))
    masks = model.decoder.draw_masks(model.max_decoder_steps, texts, seeded(1))
    return text.to(model.embedding.weight.device), lengths, masks


def spoken(model, texts=3, lengths=LENGTHS):
    return model.infer(*inputs(model, texts, lengths))


def overwriting(calls, function, device):
    """Stand in for `captured_steps.replayed` without a GPU. As in a CUDA graph, each result
    overwrites the previous result."""
    result = function()
    while True:
        calls.append(len(result.gate))
        yield result
        for before, after in zip(result, function(), strict=True):
            before.copy_(after)


def in_chunks_too(model, **arguments):
    """Run the reference decoder loop and the decoder loop in chunks.

    Returns:
        The outputs of both loops, and the number of decoder steps in each chunk.
    """
    expected, calls = spoken(model, **arguments), []
    model.speaking_decoder = functools.partial(
        free_running, repeated=functools.partial(overwriting, calls)
    )
    return expected, spoken(model, **arguments), calls


def assert_same(outputs, expected):
    for name, value in expected._asdict().items():
        assert getattr(outputs, name).dtype == value.dtype
        assert torch.equal(getattr(outputs, name), value), name


def ends_at(longest, texts, r):
    """Return a model for `inputs(model, texts)`. The longest speech of these texts has `longest`
    decoder steps."""
    model = speaker(n_frames_per_step=r)
    make_stop(model, *inputs(model, texts), wanted=lambda steps: steps.max() == longest)
    return model


@pytest.mark.parametrize(("texts", "r"), [(1, 1), (3, 3)])
@pytest.mark.parametrize(
    "longest",
    [3, CHUNK, CHUNK + 1],
    ids=["inside a chunk", "at the end of a chunk", "in the next chunk"],
)
def test_chunked_results_equal_the_results_of_the_reference_loop(longest, texts, r):
    expected, outputs, calls = in_chunks_too(ends_at(longest, texts, r), texts=texts)
    assert expected.gate.shape[1] == longest
    assert_same(outputs, expected)
    # The host checks once per chunk whether the speech has ended.
    assert len(calls) == -(-longest // CHUNK)


def test_chunked_decoder_steps_keep_attention_inside_the_attention_window():
    model, steps = speaker(p_prenet_dropout=0.0), []
    text, lengths, masks = inputs(model)
    chunked = functools.partial(free_running, repeated=functools.partial(overwriting, []))
    for model.speaking_decoder in (readable.free_running, chunked):
        made = [*model.speak(text, lengths, masks, MAX_STEPS, 1)]
        steps.append([torch.cat(parts) for parts in zip(*made, strict=True)])
    for one, other in zip(*steps, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("most", [1, CHUNK, CHUNK + 3])
def test_last_chunk_ends_at_the_limit_of_decoder_steps(most):
    model = speaker(gate_threshold=1.0, max_decoder_steps=most, p_prenet_dropout=0.0)
    expected, outputs, calls = in_chunks_too(model)
    assert outputs.mel_lengths.tolist() == [most] * 3
    assert_same(outputs, expected)
    assert len(calls) == -(-most // CHUNK)


def test_each_chunk_is_a_single_decoder_step_on_a_cpu():
    model = speaker(gate_threshold=1.0)
    memory, masks = torch.zeros(1, 4, 8), model.decoder.draw_masks(2, 1)
    steps = free_running(model.decoder, memory, memory[:, :, 0] > 0, masks, 2)
    assert [len(step.gate) for step in steps] == [1, 1]


def test_decoder_steps_run_one_by_one_with_a_warning_when_the_graph_capture_fails(monkeypatch):
    def fail(function, stream):
        try:
            raise ValueError("the kernel\nis lost")
        finally:
            raise RuntimeError("capture failed")

    monkeypatch.setattr(captured_steps, "_alone_on_side_stream", contextlib.nullcontext)
    monkeypatch.setattr(captured_steps, "_side_stream", lambda device: None)
    monkeypatch.setattr(captured_steps, "captured", fail)
    model = speaker(gate_threshold=1.0)
    expected = spoken(model)
    model.speaking_decoder = functools.partial(free_running, repeated=captured_steps.replayed)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            assert_same(spoken(model), expected)
    assert len(caught) == 1
    assert str(caught[0].message).endswith("ValueError: the kernel")


@pytest.fixture(scope="module")
def full_size():
    torch.manual_seed(0)
    return Tacotron2(HParams(max_decoder_steps=5 * CHUNK + 3, gate_threshold=1.0)).eval().cuda()


@needs_gpu
@torch.no_grad()
@pytest.mark.parametrize("lengths", [(60,), (23,), (60, 41, 7), tuple(range(20, 116, 6))], ids=len)
def test_cuda_graph_results_are_bitwise_equal_to_the_reference_loop_on_a_gpu(full_size, lengths):
    decoder, most_steps = full_size.decoder, full_size.max_decoder_steps
    memory = torch.randn(len(lengths), max(lengths), 512, generator=seeded()).cuda()
    mask = torch.arange(max(lengths)) >= torch.tensor(lengths).unsqueeze(1)
    masks = decoder.draw_masks(most_steps, len(lengths), seeded())

    def steps_of(free_running):
        steps = list(free_running(decoder, memory, mask.cuda(), masks, most_steps))
        return readable.SpokenSteps(*map(torch.cat, zip(*steps, strict=True)))

    expected = steps_of(readable.free_running)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a failed capture issues a warning
        for _ in range(2):
            assert_same(steps_of(free_running), expected)


@needs_gpu
def test_synthesis_keeps_the_random_state_on_a_gpu(full_size):
    full_size.speaking_decoder = free_running
    torch.cuda.manual_seed(3)
    before, expected = torch.cuda.get_rng_state(), torch.rand(5, device="cuda")
    torch.cuda.set_rng_state(before)
    spoken(full_size, 1, (30,))
    assert torch.equal(torch.cuda.get_rng_state(), before)
    assert torch.equal(torch.rand(5, device="cuda"), expected)


@needs_gpu
def test_gpu_still_works_when_a_cuda_graph_capture_has_failed():
    device = torch.device("cuda", torch.cuda.current_device())
    counter = torch.zeros((), device=device)

    def waits():  # a graph capture fails if the host waits for the GPU
        counter.add_(1)
        return counter.item()

    stream = torch.cuda.current_stream(device)
    results = captured_steps.replayed(waits, device)
    assert next(results) == 1
    with pytest.warns(UserWarning, match="by a CUDA graph, which failed"):
        assert next(results) == 2
    assert next(results) == 3
    assert torch.cuda.current_stream(device) == stream
    assert torch.nn.functional.dropout(torch.ones(100, device=device)).max() == 2
    # This call fails if torch still assumes that a CUDA graph is being captured.
    torch.cuda.empty_cache()
    graph, value = cuda_capture.captured(lambda: counter.add_(1), torch.cuda.Stream(device))
    graph.replay()
    assert value.item() == 4
