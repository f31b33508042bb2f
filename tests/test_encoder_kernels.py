"""Compare the encoder LSTM kernels with PyTorch's LSTM, on a GPU or in Triton's interpreter."""

import functools

import pytest
import torch
from helpers import assert_same

pytest.importorskip("triton", reason="Triton supports only x86-64 Linux")
from test_decoder_kernels import (  # noqa: F401, autouse fixtures
    DEVICE,
    DTYPES,
    FP16,
    gpu_only,
    guarded_buffers,
    kernels_run_anywhere,
    language_patched_once,
)
from test_fast_decoder import TOLERANCE

import model
from fast_decoder import graphs
from fast_decoder.encoder import bidirectional_lstm, plain_lstm_loops
from fast_decoder.parity import EncoderProblem, relative_errors
from training.precision import AUTOCAST_DTYPES

pytestmark = pytest.mark.usefixtures("one_thread")

ENCODER_SIZES = {
    "usual": (7, 2, 5),
    "one text": (6,),
    "one symbol": (1, 1),
    "very unequal sizes": (1, 13, 2),
    "more texts than one kernel program computes": (3, 2) * 9,
}


def encoder_problem(symbols, dim=12, size=10, dtype=torch.float32):
    torch.manual_seed(0)
    lstm = torch.nn.LSTM(dim, size, batch_first=True, bidirectional=True)
    return EncoderProblem.random(lstm, symbols, seed=0).to(dtype, DEVICE)


def largest_error(case, function, exact, precision=None):
    return max(relative_errors(case.run(function, precision), exact).values())


@pytest.mark.thorough
@pytest.mark.parametrize("name", ENCODER_SIZES)
@pytest.mark.parametrize("loops", [graphs.lstm_graphs_for, plain_lstm_loops])
def test_encoder_kernels_match_the_lstm_of_torch(name, loops):
    case = encoder_problem(ENCODER_SIZES[name], dtype=DTYPES[0])
    exact = case.run(model.packed_lstm)
    fast = functools.partial(bidirectional_lstm, loops_for=loops)
    assert largest_error(case, fast, exact) <= TOLERANCE[DTYPES[0]]
    padding = torch.arange(case.inputs.shape[1]) >= case.lengths[:, None]
    assert case.run(fast)["encoder outputs"].cpu()[padding].eq(0).all()


@pytest.mark.parametrize("precision", [torch.bfloat16, FP16], ids=str)
def test_matrix_products_of_the_encoder_have_the_precision_of_autocast(precision):
    """With autocast, only the operands of matrix products are rounded."""
    case = encoder_problem((9, 4, 6), dim=32, size=24)
    exact = case.to(torch.float64).run(model.packed_lstm)
    case = case.to(torch.float32)
    ours = largest_error(case, bidirectional_lstm, exact, precision)
    plain = functools.partial(bidirectional_lstm, loops_for=plain_lstm_loops)
    assert 1e-5 < ours <= 1.5 * largest_error(case, plain, exact, precision)
    assert case.run(bidirectional_lstm, precision)["encoder outputs"].dtype == torch.float32


def test_encoder_raises_when_lengths_are_out_of_range():
    case = encoder_problem((3, 2))
    for lengths in ((4, 2), (3, 0)):
        with pytest.raises(ValueError, match="from 1 to 3"):
            bidirectional_lstm(case.lstm, case.inputs, torch.tensor(lengths))


def test_encoder_uses_torch_when_kernels_are_not_available(monkeypatch):
    monkeypatch.setattr(graphs, "problem", lambda *_: "no CUDA device")
    case = encoder_problem((3, 2))
    assert_same(*(case.run(function) for function in (bidirectional_lstm, model.packed_lstm)))


@gpu_only
@pytest.mark.parametrize("precision", ["bf16", "fp32", "tf32", "fp16"])
def test_full_size_encoder_is_as_accurate_as_torch_on_a_gpu(precision):
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = precision == "tf32"
    autocast = AUTOCAST_DTYPES[precision]
    case = encoder_problem((120, 33, 70, 5) * 8, dim=512, size=256)
    exact, case = case.to(torch.float64).run(model.packed_lstm), case.to(torch.float32)
    plain = functools.partial(bidirectional_lstm, loops_for=plain_lstm_loops)
    allowed = relative_errors(case.run(plain, autocast), exact)
    for name, error in relative_errors(case.run(bidirectional_lstm, autocast), exact).items():
        assert error <= max(1e-5, 5 * allowed[name]), (name, error, allowed[name])
