"""The Triton kernels against the readable decoder: on a GPU if there is one, else interpreted.

Triton's interpreter runs programs one after another on the CPU, in numpy: it shows wrong formulas,
wrong addresses and wrong masks, but no races. That the kernels compile for a GPU, and what they
take of it, is tested without one.
"""

import dataclasses
import json
import os
import statistics
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from test_fast_decoder import (
    DIM,
    TOLERANCE,
    Problem,
    assert_golden,
    needs_golden,
    problem,
    relative_errors,
)

import fast_decoder
import model
from benchmarks import kernels as benchmark
from fast_decoder import graphs, operations
from hparams import HParams

pytest.importorskip("triton", reason="Triton is for x86-64 Linux")
GPU = torch.cuda.is_available()  # else conftest.py has told Triton to interpret
DEVICE = torch.device("cuda" if GPU else "cpu")
# float64 is for the interpreter: a GPU's kernels are of float32
DTYPES = [torch.float32] if GPU else [torch.float64, torch.float32]
GUARD = 64  # values on either side of a buffer

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def kernels_run_anywhere(monkeypatch):
    if GPU:
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # the reference's layers
    else:
        monkeypatch.setattr(graphs, "problem", lambda *_: None)
    graphs._graphs.cache_clear()
    fast_decoder._warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the fast decoder runs in plain operations")
        yield
    graphs._graphs.cache_clear()


@pytest.fixture(autouse=True)
def guarded_buffers(monkeypatch):
    """Buffers are NaN, what is read before it is written must show, and so is what is around
    them: nothing may be written there."""
    surroundings = []

    def guarded(*shape, **options):
        whole = torch.full((torch.Size(shape).numel() + 2 * GUARD,), torch.nan, **options)
        surroundings.extend([whole[:GUARD], whole[-GUARD:]])
        return whole[GUARD:-GUARD].view(shape)

    monkeypatch.setattr(operations, "empty", guarded)
    yield
    assert all(torch.isnan(x).all() for x in surroundings)


def run(case, function, weights=(1.0, 1.0, 1.0), precision=None):
    """`Problem.run` where the kernels are."""
    if GPU:
        masks = [None if x is None else x.to(DEVICE) for x in case.dropout_masks[1:]]
        masks = model.DropoutMasks(tuple(x.to(DEVICE) for x in case.dropout_masks[0]), *masks)
        moved = {name: getattr(case, name).to(DEVICE) for name in ("memory", "mask", "mel")}
        case = dataclasses.replace(
            case, decoder=case.decoder.to(DEVICE), dropout_masks=masks, **moved
        )
    return case.run(function, weights, precision)


def assert_parity(case, weights=(1.0, 1.0, 1.0)):
    expected = run(case, model.teacher_forced, weights)
    actual = run(case, fast_decoder.teacher_forced, weights)
    assert graphs._graphs.cache_info().currsize == 1, "the kernels did not run"
    errors = relative_errors(actual, expected)
    worst = max(errors, key=errors.get)
    assert errors[worst] <= TOLERANCE[case.memory.dtype], (worst, errors[worst])


@pytest.fixture(autouse=True)
def short_chunks(monkeypatch):
    """So that few steps make several chunks; a GPU's tests have steps enough."""
    if not GPU:
        monkeypatch.setattr(graphs, "CHUNK", 4)


# ---------------------------------------------------------------------------- the same results

SIZES = {
    "usual": ((7, 9), (2, 4), (5, 10)),
    "one clip": ((6, 5),),
    "one frame": ((3, 1), (5, 1)),
    "one symbol": ((1, 6), (1, 3)),
    "one of all": ((1, 1),),
    "very unequal": ((40, 7), (1, 1), (2, 3)),
    "fewer symbols than the filter is wide": ((2, 6), (1, 5)),
    "a whole chunk": ((5, 4), (3, 4)),
    "one step more than a chunk": ((5, 5), (3, 4)),
    "more symbols than a program has": ((150, 3), (33, 2)),
    "more clips than a program of cells has": ((4, 3),) * 17,
    "more clips than a program of products has": ((3, 2),) * 66,
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_outputs_and_every_gradient_are_those_of_the_reference(name, dtype):
    assert_parity(problem(SIZES[name], dtype))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_frames_per_step": 3},
        {"attention_location_kernel_size": 1},
        {"attention_location_kernel_size": 31},
        {"p_attention_dropout": 0.0},
        {"p_decoder_dropout": 0.6, "p_attention_dropout": 0.3},
        {"training": False},
        {"attention_rnn_dim": 72, "decoder_rnn_dim": 40, "attention_dim": 20, "prenet_dim": 12},
    ],
    ids=str,
)
def test_sizes_and_dropout_change_nothing(changes):
    assert_parity(problem(((7, 6), (3, 4)), DTYPES[0], **changes))


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_loss_of_some_outputs_only_has_the_gradients_of_the_reference(weights):
    assert_parity(problem(((7, 6), (3, 4)), DTYPES[0]), weights)


def test_a_wide_context_and_many_units_are_split_between_programs(monkeypatch):
    monkeypatch.setattr(graphs, "CONTEXT", 16)
    monkeypatch.setattr(graphs, "PROCESSORS", 12)
    monkeypatch.setattr(graphs, "SYMBOLS", 16)
    sizes = {"attention_rnn_dim": 72, "decoder_rnn_dim": 72, "encoder_embedding_dim": 40}
    case = problem(((20, 4), (9, 3)), DTYPES[0], **sizes)
    case.memory = case.memory.repeat(1, 1, 40 // DIM)
    assert_parity(case)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_costs_no_more_precision_than_it_costs_the_reference(precision):
    """The usual error against float64: in some draws attention magnifies either one's errors."""
    changes = {"attention_rnn_dim": 32, "decoder_rnn_dim": 32, "prenet_dim": 16}
    ours, reference = {}, {}
    for draw in range(6):
        case = problem(((9, 7), (4, 5)), torch.float64, seed=draw, **changes)
        exact = case.run(model.teacher_forced)
        case.decoder.float()
        case.memory, case.mel = case.memory.float(), case.mel.float()
        for errors, function in (
            (ours, fast_decoder.teacher_forced),
            (reference, model.teacher_forced),
        ):
            for name, x in run(case, function, precision=precision).items():
                error = (x.double().cpu() - exact[name]).norm() / exact[name].norm()
                errors.setdefault(name, []).append(error.item())
        case.decoder.double()
        if GPU:
            case.decoder.cpu()
    for name, errors in ours.items():
        usual = statistics.geometric_mean(errors), statistics.geometric_mean(reference[name])
        assert usual[0] <= 1.25 * usual[1], name


@needs_golden
@pytest.mark.skipif(GPU, reason="golden arrays are compared on the CPU")
def test_golden_outputs_and_gradients_are_met():
    assert_golden()
    assert graphs._graphs.cache_info().currsize == 1, "the kernels did not run"


# ---------------------------------------------------------------------------- graphs


def test_one_bucket_serves_every_number_of_steps():
    decoder = problem().decoder
    for lengths in (((7, 9), (2, 4)), ((30, 2),), ((5, 13), (4, 1), (9, 7))):
        case = problem(lengths)
        case.decoder = decoder
        expected = run(case, model.teacher_forced)
        errors = relative_errors(run(case, fast_decoder.teacher_forced), expected)
        assert max(errors.values()) < TOLERANCE[torch.float32]
    assert graphs._graphs.cache_info().misses == 1


@pytest.mark.parametrize(
    ("batch_size", "num_symbols", "expected"),
    [
        (1, 1, (16, 32)),
        (16, 32, (16, 32)),
        (17, 33, (32, 64)),
        (64, 120, (64, 128)),
        (70, 190, (80, 192)),
    ],
)
def test_buckets_hold_their_batches(batch_size, num_symbols, expected):
    assert graphs.bucket(batch_size, num_symbols) == expected


def test_two_runs_are_bitwise_the_same():
    case = problem()
    one, two = (run(case, fast_decoder.teacher_forced) for _ in range(2))
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def test_two_forward_passes_before_their_backward_passes_do_not_meet():
    one, two = problem(((4, 5), (2, 3))), problem(((5, 4), (3, 2)))
    two.decoder = one.decoder
    expected = [run(case, fast_decoder.teacher_forced)["grad memory"] for case in (one, two)]
    memories, losses = [], []
    for case in (one, two):
        memory = case.memory.to(DEVICE).requires_grad_()
        masks = [x.to(DEVICE) for x in case.dropout_masks[1:]]
        masks = model.DropoutMasks(tuple(x.to(DEVICE) for x in case.dropout_masks[0]), *masks)
        outputs = fast_decoder.teacher_forced(
            case.decoder, memory, case.mask.to(DEVICE), case.mel.to(DEVICE), masks
        )
        generator, loss = torch.Generator().manual_seed(case.seed), 0.0
        for x in outputs:
            noise = torch.randn(x.shape, generator=generator, dtype=torch.float64)
            loss = loss + (x * noise.to(x)).sum()
        memories.append(memory)
        losses.append(loss)
    for loss in losses:
        loss.backward()
    for memory, wanted in zip(memories, expected, strict=True):
        assert torch.equal(memory.grad, wanted)


def test_a_step_is_three_launches_forward_and_five_backward(monkeypatch):
    counts = []
    launch = graphs._Loop._launch
    monkeypatch.setattr(
        graphs._Loop,
        "_launch",
        lambda self, steps: (counts.append(len(self.launches)), launch(self, steps)),
    )
    run(problem(((3, 2),)), fast_decoder.teacher_forced)
    # attention, decoder LSTM, forwards and backwards; a GPU warms up and captures each first
    assert counts == ([2, 2, 1, 1, 3, 3, 2, 2] if GPU else [2, 1, 2, 3])


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_gpu_replays_what_it_would_launch():
    case = problem(((20, 70), (9, 33)))
    replayed = run(case, fast_decoder.teacher_forced)
    loop_run = graphs._Loop.run

    def launched(self, start, stop, entries):
        graph, self.graph = self.graph, None
        loop_run(self, start, stop, entries)
        self.graph = graph

    try:
        graphs._Loop.run = launched
        eager = run(case, fast_decoder.teacher_forced)
    finally:
        graphs._Loop.run = loop_run
    for name, tensor in replayed.items():
        assert torch.equal(tensor, eager[name]), name


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_on_a_gpu_launching_early_changes_nothing(monkeypatch):
    """A launch that did not wait for the one before it would read what is not there yet."""
    case = full_size(((120, 200), (33, 140)) * 8)
    case.decoder.float()
    case.memory, case.mel = case.memory.float(), case.mel.float()
    early = [run(case, fast_decoder.teacher_forced) for _ in range(5)]
    made = graphs._graphs.cache_info()
    assert (made.misses, made.currsize) == (1, 1), "it could not launch early"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    late = run(case, fast_decoder.teacher_forced)
    for results in early:
        for name, tensor in results.items():
            assert torch.equal(tensor, late[name]), name


def full_size(lengths):
    """A problem of the full-size model as training begins with it."""
    torch.manual_seed(0)
    decoder = model.Tacotron2(HParams()).double().decoder.train()
    symbols, frames = (torch.tensor(x) for x in zip(*lengths, strict=True))
    return Problem(
        decoder,
        torch.randn(len(lengths), int(symbols.max()), 512, dtype=torch.float64),
        torch.arange(int(symbols.max())) >= symbols[:, None],
        torch.randn(len(lengths), 80, int(frames.max()), dtype=torch.float64),
        decoder.draw_masks(int(frames.max()), len(lengths)),
        seed=0,
    )


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("precision", ["bf16", "fp32", "tf32", "fp16", "bf16, 64 clips"])
def test_on_a_gpu_the_full_size_decoder_is_as_exact_as_the_reference(precision, monkeypatch):
    lengths = ((30, 34), (9, 20)) * 32 if "64" in precision else ((120, 70), (33, 40)) * 8
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", precision == "tf32")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision == "tf32")
    autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision[:4])
    case = full_size(lengths)
    exact = run(case, model.teacher_forced)
    case.decoder.float()
    case.memory, case.mel = case.memory.float(), case.mel.float()
    ours = relative_errors(run(case, fast_decoder.teacher_forced, precision=autocast), exact)
    reference = relative_errors(run(case, model.teacher_forced, precision=autocast), exact)
    for name, error in ours.items():
        # one draw, and its largest error: the usual one is tested above
        assert error <= max(1e-5, 2.5 * reference[name]), (name, error, reference[name])


# ---------------------------------------------------------------------------- where they cannot


def cuda_without(monkeypatch, capability=(9, 0)):
    """A machine that says it has a GPU; what is asked of it stays on the CPU."""
    monkeypatch.undo()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Old GPU")


@pytest.mark.parametrize(
    ("device", "dtype", "capability", "message"),
    [
        ("cpu", torch.float32, (9, 0), "no CUDA device"),
        ("cuda", torch.float64, (9, 0), "parameters are float64, not float32"),
        ("cuda", torch.float32, (7, 5), "Old GPU has no CUDA compute capability of 8.0"),
        ("cuda", torch.float32, (8, 0), None),
    ],
)
def test_the_reason_against_the_kernels_is_said(device, dtype, capability, message, monkeypatch):
    cuda_without(monkeypatch, capability)
    assert graphs.problem(torch.device(device), dtype) == message


def test_without_triton_the_reason_is_its_import_error(monkeypatch):
    cuda_without(monkeypatch)
    monkeypatch.setitem(sys.modules, "decoder_kernels", None)
    graphs._kernels.cache_clear()
    try:
        reason = graphs.problem(torch.device("cuda"), torch.float32)
        assert reason.startswith("Triton cannot be imported (")
        described = fast_decoder.describe(torch.device("cuda"))
        assert described.startswith("plain operations")
        assert reason in described
    finally:
        graphs._kernels.cache_clear()


def test_what_breaks_in_making_the_graphs_is_the_reason_for_plain_operations(monkeypatch):
    def broken(*_):
        raise RuntimeError("out of resource: shared memory\nmore")

    monkeypatch.setattr(graphs, "problem", lambda *_: None)
    monkeypatch.setattr(graphs, "_attention_step", broken)
    case = problem(((7, 6), (3, 4)))
    reason = graphs.graphs_for(case.decoder, case.memory, torch.float32, case.dropout_masks)
    assert reason == "RuntimeError: out of resource: shared memory"
    errors = relative_errors(case.run(fast_decoder.teacher_forced), case.run(model.teacher_forced))
    assert max(errors.values()) < TOLERANCE[torch.float32]


def test_a_gpu_that_cannot_launch_early_launches_late(monkeypatch):
    tried = []

    def graphs(setting):
        tried.append(setting.early_launch)
        if setting.early_launch:
            raise RuntimeError("no programmatic launch")
        return "made"

    case, setting = problem(((7, 6), (3, 4))), None
    monkeypatch.setattr(graphs, "problem", lambda *_: None)

    def keep(wanted):
        nonlocal setting
        setting = wanted

    with monkeypatch.context() as patched:
        patched.setattr(graphs, "_graphs", keep)
        graphs.graphs_for(case.decoder, case.memory, torch.float32, case.dropout_masks)
    monkeypatch.setattr(graphs, "Graphs", graphs)
    assert graphs._graphs(setting._replace(early_launch=True)) == "made"
    assert tried == [True, False]


def test_memory_that_runs_out_is_no_reason_for_the_next_batch(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA driver error: out of memory")

    monkeypatch.setattr(graphs, "problem", lambda *_: None)
    monkeypatch.setattr(graphs, "Graphs", broken)
    case = problem(((7, 6), (3, 4)))
    batch = case.decoder, case.memory, torch.float32, case.dropout_masks
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.graphs_for(*batch)
    monkeypatch.setattr(graphs, "Graphs", lambda setting: "made")
    assert graphs.graphs_for(*batch) == "made"


def test_without_gradients_no_backward_pass_is_made():
    case = problem(((3, 2),), training=False)
    with torch.no_grad():
        args = case.decoder, case.memory, torch.float32, case.dropout_masks
        if GPU:
            args = case.decoder.to(DEVICE), case.memory.to(DEVICE), *args[2:]
        assert not hasattr(graphs.graphs_for(*args), "_attention_backward")
    assert hasattr(graphs.graphs_for(*args), "_attention_backward")


def test_a_fallback_warns_once():
    fast_decoder._warn_once.cache_clear()
    with pytest.warns(UserWarning, match=r"plain operations.*slower.*an odd size"):
        fast_decoder._warn_once("an odd size")
    with warnings.catch_warnings(action="error"):
        assert fast_decoder._warn_once("an odd size") is None
    fast_decoder._warn_once.cache_clear()


# ---------------------------------------------------------------------------- compiled for a GPU


def test_the_kernels_compile_for_a_gpu_and_fit_it():
    """Sizes of the full model, in a process of its own: here Triton interprets."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    program = Path(__file__).with_name("compile_kernels.py")
    result = subprocess.run(
        [sys.executable, program], env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    kernels = json.loads(result.stdout)
    assert len(kernels) == 6 * 10
    for kernel in kernels:
        assert kernel["shared_bytes"] <= 227 * 1024, kernel
        assert kernel["spilled_bytes"] == 0, kernel
        assert {load.rpartition(".")[2] for load in kernel["loads_before_waiting"]} <= {"b64"}, (
            kernel
        )
        if kernel["name"] in ("lstm_step", "gradient_product", "attention_step"):
            assert kernel["tensor_core_instructions"] > 0, kernel
        if kernel["name"] in ("lstm_step", "gradient_product"):
            assert kernel["wide_copies"] > 0, kernel  # 16 bytes at a time, asynchronously


# ---------------------------------------------------------------------------- their benchmark


@pytest.mark.skipif(GPU, reason="the interpreter stands for the GPU")
def test_the_kernels_benchmark_runs_all_four_loops(monkeypatch):
    args = SimpleNamespace(device="cpu", batch_size=2, frames=2, symbols=5, shrink=64)
    setting = benchmark.setting_of(args, "fp32", early=False)
    graphs, ran = graphs.Graphs(setting), []
    run_loop = graphs._Loop.run
    monkeypatch.setattr(
        graphs._Loop, "run", lambda self, *steps: (ran.append(self), run_loop(self, *steps))
    )
    for loop in benchmark.loops(graphs, args).values():
        loop()
    assert ran == [
        *(graphs._attention, graphs._decoder, graphs._attention_backward, graphs._decoder_backward)
    ]


def test_the_kernels_benchmark_prints_a_row_a_setting(monkeypatch):
    monkeypatch.setattr(benchmark, "microseconds", lambda loop, args: 2.5)
    monkeypatch.setattr(benchmark, "loops", lambda graphs, args: {"one": None, "two": None})
    monkeypatch.setattr(graphs, "Graphs", lambda setting: setting)
    args = SimpleNamespace(device="cpu", batch_size=2, frames=2, symbols=5, shrink=1)
    args.precisions, args.json = "bf16,fp32", None
    rows = benchmark.measure(args)
    assert [row["setting"] for row in rows] == ["bf16", "bf16, late", "fp32", "fp32, late"]
    assert benchmark.table(rows).splitlines()[2] == "| bf16 | 2.5 | 2.5 | 5.0 |"


@pytest.mark.skipif(GPU, reason="there is a GPU")
def test_the_kernels_benchmark_says_that_it_needs_a_gpu():
    program = Path(__file__).parents[1] / "benchmarks" / "kernels.py"
    result = subprocess.run([sys.executable, program], capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "finds no GPU here" in result.stderr
