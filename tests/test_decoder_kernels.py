"""The Triton kernels against the readable decoder: on a GPU if there is one, else interpreted.

Triton's interpreter runs programs one after another on the CPU, in numpy: it shows wrong formulas,
wrong addresses and wrong masks, but no races. That the kernels compile for a GPU, and what they
take of it, is tested without one.
"""

import json
import os
import statistics
import subprocess
import sys
import warnings
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from test_fast_decoder import (
    TOLERANCE,
    assert_golden,
    errors_by_precision,
    needs_golden,
    problem,
)

import fast_decoder
import model
from analysis.decoder_kernels import MODELLED, MODELLED_PRECISIONS, VARIANTS
from benchmarks import kernels as benchmark
from benchmarks import machine_code
from fast_decoder import graphs, operations
from fast_decoder.parity import Problem, relative_errors
from hparams import HParams
from training.trainer import AUTOCAST_DTYPES

pytest.importorskip("triton", reason="Triton is for x86-64 Linux")
ROOT = Path(__file__).resolve().parent.parent
GPU = torch.cuda.is_available()  # else conftest.py has told Triton to interpret
DEVICE = torch.device("cuda" if GPU else "cpu")
# float64 is for the interpreter: a GPU's kernels are of float32
DTYPES = [torch.float32] if GPU else [torch.float64, torch.float32]
GUARD = 64  # values on either side of a buffer
BUCKET, ROWS, CLIPS = graphs.bucket, graphs.ROWS, graphs.CLIPS
ENERGIES, UNITS = graphs.ENERGIES, graphs.UNITS

pytestmark = pytest.mark.usefixtures("one_thread")


class Patched:
    def restore(self):
        """Triton's interpreter calls it after a launch. The patches stay."""


@pytest.fixture(autouse=True, scope="module")
def language_patched_once():
    """The interpreter patches Triton's language in each call of each function, which takes half of
    its time. Once for each module is enough."""
    if GPU:
        yield
        return
    from triton.runtime import interpreter

    patch, done = interpreter._patch_lang, {}

    def patch_once(function):
        if id(function.__globals__) not in done:
            done[id(function.__globals__)] = patch(function)
            # For range(). Triton 3.6 has int() of an array here, which numpy 2.5 refuses.
            interpreter.tl.tensor.__index__ = lambda tensor: tensor.handle.data.item()
        return Patched()

    interpreter._patch_lang = patch_once
    yield
    interpreter._patch_lang = patch
    for scope in reversed(done.values()):
        scope.restore()


@pytest.fixture(autouse=True)
def kernels_run_anywhere(monkeypatch):
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    if GPU:
        torch.backends.cudnn.allow_tf32 = False  # the reference's layers
    else:
        monkeypatch.setattr(graphs, "problem", lambda *_: None)
        # So that few steps make several chunks and few clips several programs, and few programs
        # have nothing to do; a GPU's tests have steps, clips and time enough.
        monkeypatch.setattr(graphs, "CHUNK", 4)
        monkeypatch.setattr(graphs, "ROWS", 16)
        monkeypatch.setattr(graphs, "CLIPS", 4)
        monkeypatch.setattr(graphs, "ENERGIES", 32)
        monkeypatch.setattr(graphs, "UNITS", 16)
        monkeypatch.setattr(graphs, "bucket", lambda b, n: (b + 1, BUCKET(b, n)[1]))
    graphs._graphs.cache_clear()
    fast_decoder._warn_once.cache_clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="the fast decoder runs in plain operations")
        yield
    graphs._graphs.cache_clear()
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


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
    return case.to(device=DEVICE).run(function, weights, precision)


def assert_parity(case, weights=(1.0, 1.0, 1.0)):
    expected = run(case, model.teacher_forced, weights)
    actual = run(case, fast_decoder.teacher_forced, weights)
    assert graphs._graphs.cache_info().currsize == 1, "the kernels did not run"
    errors = relative_errors(actual, expected)
    worst = max(errors, key=errors.get)
    assert errors[worst] <= TOLERANCE[case.memory.dtype], (worst, errors[worst])


# ---------------------------------------------------------------------------- the same results

SIZES = {
    "usual": ((7, 5), (2, 4), (5, 6)),
    "one clip": ((6, 5),),
    "one frame": ((3, 1), (5, 1)),
    "one symbol": ((1, 6), (1, 3)),
    "one of all": ((1, 1),),
    "very unequal": ((40, 5), (1, 1), (2, 3)),
    "fewer symbols than the filter is wide": ((2, 3), (1, 2)),
    "a whole chunk": ((5, 4), (3, 4)),
    "one step more than a chunk": ((5, 5), (3, 4)),
    "more symbols than a program has": ((150, 2), (33, 2)),
    "more clips than a program has": ((3, 2),) * (66 if GPU else 17),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, DTYPES[0]) for name in SIZES), *(("usual", dtype) for dtype in DTYPES[1:])],
    ids=str,
)
def test_outputs_and_every_gradient_are_those_of_the_reference(name, dtype):
    assert_parity(problem(SIZES[name], dtype))


def test_programs_without_a_clip_or_a_symbol_change_nothing(monkeypatch):
    """With the buckets and sizes of programs that training has."""
    monkeypatch.setattr(graphs, "bucket", BUCKET)
    monkeypatch.setattr(graphs, "ROWS", ROWS)
    monkeypatch.setattr(graphs, "CLIPS", CLIPS)
    monkeypatch.setattr(graphs, "ENERGIES", ENERGIES)
    monkeypatch.setattr(graphs, "UNITS", UNITS)
    assert_parity(problem(((7, 5), (2, 4)), DTYPES[0]))


@pytest.mark.parametrize(
    "changes",
    [
        {"n_frames_per_step": 3},
        {"attention_location_kernel_size": 1},
        {"attention_location_kernel_size": 31},
        {"p_attention_dropout": 0.0},
        {"p_decoder_dropout": 0.6, "p_attention_dropout": 0.3},
        {"training": False},
        {"attention_location_gradient": False},
        {"attention_rnn_dim": 72, "decoder_rnn_dim": 40, "attention_dim": 20, "prenet_dim": 12},
    ],
    ids=str,
)
def test_sizes_and_dropout_change_nothing(changes):
    assert_parity(problem(((7, 5), (3, 4)), DTYPES[0], **changes))


@pytest.mark.parametrize("weights", [(1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_a_loss_of_some_outputs_only_has_the_gradients_of_the_reference(weights):
    assert_parity(problem(((7, 5), (3, 4)), DTYPES[0]), weights)


def test_a_wide_context_and_many_units_are_split_between_programs(monkeypatch):
    monkeypatch.setattr(graphs, "CONTEXT", 16)
    monkeypatch.setattr(graphs, "PROCESSORS", 12)
    monkeypatch.setattr(graphs, "SYMBOLS", 16)
    sizes = {"attention_rnn_dim": 72, "decoder_rnn_dim": 72, "encoder_embedding_dim": 40}
    assert_parity(problem(((20, 2), (9, 1)), DTYPES[0], **sizes))


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_costs_no_more_precision_than_it_costs_the_reference(precision, monkeypatch):
    """The usual error: in some draws attention magnifies either one's errors."""
    if not GPU:
        monkeypatch.setattr(graphs, "UNITS", 32)
    fast, reference = errors_by_precision(6, ((9, 5), (4, 3)), precision, run)
    for name, errors in fast.items():
        usual = statistics.geometric_mean(errors), statistics.geometric_mean(reference[name])
        assert usual[0] <= 1.25 * usual[1], name


@needs_golden
@pytest.mark.skipif(GPU, reason="golden arrays are compared on the CPU")
def test_golden_outputs_and_gradients_are_met(monkeypatch):
    # Few programs and chunks, for their number makes the interpreter slow.
    few = {"UNITS": 64, "SYMBOLS": 64, "PROCESSORS": 1, "CHUNK": 16, "CLIPS": 8, "ENERGIES": 64}
    for name, value in few.items():
        monkeypatch.setattr(graphs, name, value)
    assert_golden()
    assert graphs._graphs.cache_info().currsize == 1, "the kernels did not run"


# ---------------------------------------------------------------------------- graphs


def test_one_bucket_serves_every_number_of_steps(monkeypatch):
    decoder = problem().decoder
    monkeypatch.setattr(graphs, "bucket", BUCKET)
    for lengths in (((7, 3), (2, 4)), ((30, 2),), ((5, 6), (4, 1), (9, 3))):
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
    assert BUCKET(batch_size, num_symbols) == expected


@pytest.mark.skipif(GPU, reason="there graphs move the table on")
@pytest.mark.parametrize("backwards", [False, True])
def test_the_table_moves_on_by_a_chunk_and_then_has_no_steps(backwards):
    """A graph always makes a whole chunk: a table that went too far would have it write past all
    buffers. The interpreter makes no more steps than there are."""
    kernels = graphs._kernels()
    move_on = graphs._next_chunk(SimpleNamespace(early_launch=False), backwards)
    places = [getattr(kernels, name).value for name in ("START", "STOP", "STEPS")]
    for num_steps in range(1, 3 * graphs.CHUNK + 2):
        steps = list(range(num_steps))
        if backwards:
            steps.reverse()
        table = torch.zeros(kernels.TABLE_SIZE, dtype=torch.int64)
        first = steps[: graphs.CHUNK]
        table[places] = torch.tensor([min(first), max(first) + 1, num_steps])
        while steps:
            start, stop, _ = table[places].tolist()
            chunk = steps[: graphs.CHUNK]
            assert (start, stop) == (min(chunk), max(chunk) + 1)
            del steps[: graphs.CHUNK]
            move_on(table)
        start, stop, _ = table[places].tolist()
        assert start == stop


def test_two_runs_are_bitwise_the_same():
    case = problem(((7, 5), (2, 4)))
    one, two = (run(case, fast_decoder.teacher_forced) for _ in range(2))
    for name, tensor in one.items():
        assert torch.equal(tensor, two[name]), name


def test_two_forward_passes_before_their_backward_passes_do_not_meet():
    one, two = problem(((4, 5), (2, 3))), problem(((4, 4), (3, 2)))  # of one bucket
    two.decoder = one.decoder
    cases = [case.to(device=DEVICE) for case in (one, two)]
    expected = [case.run(fast_decoder.teacher_forced)["grad memory"] for case in cases]
    memories = [case.memory.clone().requires_grad_() for case in cases]
    losses = [
        case.loss(case.outputs(memory=memory)) for case, memory in zip(cases, memories, strict=True)
    ]
    for loss in losses:
        loss.backward()
    for memory, wanted in zip(memories, expected, strict=True):
        assert torch.equal(memory.grad, wanted)


def test_a_step_is_four_launches_forward_and_five_backward(monkeypatch):
    counts = []
    launch = graphs._Loop._launch
    monkeypatch.setattr(
        graphs._Loop,
        "_launch",
        lambda self, steps: (counts.append(len(self.launches)), launch(self, steps)),
    )
    run(problem(((3, 2),)), fast_decoder.teacher_forced)
    # attention, decoder LSTM, forwards and backwards; a GPU warms up and captures each first
    assert counts == ([3, 3, 1, 1, 3, 3, 2, 2] if GPU else [3, 1, 2, 3])


@pytest.mark.skipif(GPU, reason="the interpreter shows what is read and written")
def test_nothing_is_read_before_the_wait_that_the_graph_has_written(monkeypatch):
    """A program made early would read what is not there yet. The table is copied between graphs."""
    from triton.runtime.interpreter import InterpreterBuilder, interpreter_builder

    kernels, waited, written, early_bytes = graphs._kernels(), True, set(), 0
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def addresses(pointers, mask) -> set[int]:
        return set(pointers.data[mask.data].tolist())

    def recording_load(self, pointers, mask, *args):
        nonlocal early_bytes
        if not waited:
            read = addresses(pointers, mask)
            assert not read & written, "read before the wait"
            early_bytes += len(read)
        return load(self, pointers, mask, *args)

    def recording_store(self, pointers, value, mask, *args):
        written.update(addresses(pointers, mask))
        return store(self, pointers, value, mask, *args)

    def wait(*_):
        nonlocal waited
        waited = True

    def begin(self, *args):
        nonlocal waited
        waited = False
        set_grid(self, *args)

    def launch_graph(self, num_steps):
        written.clear()
        launch(self, num_steps)

    set_grid, launch = InterpreterBuilder.set_grid_idx, graphs._Loop._launch
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", recording_load)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", recording_store)
    monkeypatch.setattr(InterpreterBuilder, "set_grid_idx", begin)  # each program's beginning
    monkeypatch.setattr(kernels, "_wait", wait)
    monkeypatch.setattr(graphs._Loop, "_launch", launch_graph)
    assert interpreter_builder is not None
    assert_parity(problem(((7, 6), (3, 5)), DTYPES[0]))
    assert early_bytes > 0


@pytest.mark.skipif(GPU, reason="the interpreter shows what is read and written")
def test_without_steps_to_make_nothing_but_the_table_is_touched(monkeypatch):
    """As when graphs are captured: the table holds no address yet."""
    from triton.runtime.interpreter import InterpreterBuilder

    case, count = problem(((7, 6), (3, 5)), DTYPES[0]), 0
    batch = case.decoder, case.memory, DTYPES[0], case.dropout_masks
    loops = [loop for loop in vars(graphs.graphs_for(*batch)).values() if hasattr(loop, "table")]
    assert len(loops) == 4

    def checked(name, place_of_mask):
        function = getattr(InterpreterBuilder, name)

        def check(self, pointers, *args):
            nonlocal count
            places = pointers.data[args[place_of_mask].data].astype(int) - table.data_ptr()
            assert ((places >= 0) & (places < table.numel() * 8)).all(), "not in the table"
            count += len(places)
            return function(self, pointers, *args)

        monkeypatch.setattr(InterpreterBuilder, name, check)

    checked("create_masked_load", 0)
    checked("create_masked_store", 1)
    for loop in loops:
        table, count = loop.table, 0
        loop._launch(2)
        assert count > 0, "nothing was launched"


@pytest.mark.parametrize("constants", list(VARIANTS.values())[1:], ids=str)
def test_every_variant_has_the_results_of_the_reference(constants, monkeypatch):
    for name, value in constants.items():
        monkeypatch.setattr(graphs, name, value)
    assert_parity(problem(((7, 6), (3, 5)), DTYPES[0]))


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_a_gpu_replays_what_it_would_launch():
    case = problem(((20, 70), (9, 33)))
    replayed = run(case, fast_decoder.teacher_forced)
    loop_run = graphs._Loop.run

    def launched(self, num_steps, entries):
        graph, self.graph = self.graph, None
        loop_run(self, num_steps, entries)
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
    case = full_size(((120, 200), (33, 140)) * 8).to(torch.float32)
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
def test_on_a_gpu_the_full_size_decoder_is_as_exact_as_the_reference(precision):
    lengths = ((30, 34), (9, 20)) * 32 if "64" in precision else ((120, 70), (33, 40)) * 8
    for switch in (torch.backends.cuda.matmul, torch.backends.cudnn):
        switch.allow_tf32 = precision == "tf32"
    autocast = AUTOCAST_DTYPES[precision[:4]]
    case = full_size(lengths)
    exact, case = run(case, model.teacher_forced), case.to(torch.float32)
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
    monkeypatch.setitem(sys.modules, "fast_decoder.kernels", None)
    monkeypatch.delattr(fast_decoder, "kernels", raising=False)
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
    monkeypatch.setattr(graphs, "_attention_energies", broken)
    case = problem(((7, 5), (3, 4)))
    reason = graphs.graphs_for(case.decoder, case.memory, torch.float32, case.dropout_masks)
    assert reason == "RuntimeError: out of resource: shared memory"
    errors = relative_errors(case.run(fast_decoder.teacher_forced), case.run(model.teacher_forced))
    assert max(errors.values()) < TOLERANCE[torch.float32]


def test_a_gpu_that_cannot_launch_early_launches_late(monkeypatch):
    tried = []

    def made_late(setting):
        tried.append(setting.early_launch)
        if setting.early_launch:
            raise RuntimeError("no programmatic launch")
        return "made"

    case, setting = problem(((7, 5), (3, 4))), None
    monkeypatch.setattr(graphs, "problem", lambda *_: None)

    def keep(wanted):
        nonlocal setting
        setting = wanted

    with monkeypatch.context() as patched:
        patched.setattr(graphs, "_graphs", keep)
        graphs.graphs_for(case.decoder, case.memory, torch.float32, case.dropout_masks)
    monkeypatch.setattr(graphs, "Graphs", made_late)
    assert graphs._graphs(setting._replace(early_launch=True)) == "made"
    assert tried == [True, False]


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_on_a_gpu_training_goes_on_in_plain_operations_after_a_capture_that_fails(monkeypatch):
    lstm_step = graphs._lstm_step

    def waiting(*arguments):
        launch = lstm_step(*arguments)

        def launch_and_wait(table, offset):
            launch(table, offset)
            if torch.cuda.is_current_stream_capturing():
                torch.cuda.synchronize()  # which breaks the capture off

        return launch_and_wait

    def active_bytes():
        return torch.cuda.memory_stats()["active_bytes.all.current"]

    monkeypatch.setattr(graphs, "_lstm_step", waiting)
    case = problem(((7, 5), (3, 4)))
    expected = run(case, model.teacher_forced)
    stream = torch.cuda.current_stream()
    with pytest.warns(UserWarning, match="plain operations.*captur"):
        actual = run(case, fast_decoder.teacher_forced)
    errors = relative_errors(actual, expected)
    assert max(errors.values()) < TOLERANCE[torch.float32]
    assert torch.cuda.current_stream() == stream
    assert 0 < int(F.dropout(torch.ones(1000, device=DEVICE)).count_nonzero()) < 1000
    torch.cuda.synchronize()
    before = active_bytes()
    torch.empty(2**20, device=DEVICE).record_stream(torch.cuda.Stream())
    torch.cuda.synchronize()
    torch.empty(1, device=DEVICE)  # the allocator looks for what streams have done with
    assert active_bytes() <= before


@pytest.mark.parametrize(
    ("device", "capability", "wanted", "expected"),
    [
        ("cuda", (9, 0), True, True),
        ("cuda", (10, 0), True, True),
        ("cuda", (8, 9), True, False),
        ("cuda", (9, 0), False, False),
        ("cpu", (9, 0), True, False),
    ],
)
def test_launches_are_early_where_the_gpu_can_and_nobody_turned_it_off(
    device, capability, wanted, expected, monkeypatch
):
    cuda_without(monkeypatch, capability)
    monkeypatch.setattr(graphs, "EARLY_LAUNCHES", wanted)
    assert graphs.launches_early(torch.device(device)) == expected


def test_memory_that_runs_out_is_no_reason_for_the_next_batch(monkeypatch):
    def broken(*_):
        raise RuntimeError("CUDA driver error: out of memory")

    monkeypatch.setattr(graphs, "problem", lambda *_: None)
    monkeypatch.setattr(graphs, "Graphs", broken)
    case = problem(((7, 5), (3, 4)))
    batch = case.decoder, case.memory, torch.float32, case.dropout_masks
    with pytest.raises(RuntimeError, match="out of memory"):
        graphs.graphs_for(*batch)
    monkeypatch.setattr(graphs, "Graphs", lambda setting: "made")
    assert graphs.graphs_for(*batch) == "made"


def test_without_gradients_no_backward_pass_is_made():
    case = problem(((3, 2),), training=False)
    with torch.no_grad():
        case = case.to(device=DEVICE)
        args = case.decoder, case.memory, torch.float32, case.dropout_masks
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


def test_the_kernels_compile_for_a_gpu_and_fit_it(tmp_path):
    """Sizes of the full model, in a process of its own: here Triton interprets."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    command = [sys.executable, "benchmarks/machine_code.py", "--disassemble", "LSTM: lstm_step"]
    command += ["--json", str(tmp_path / "rows.json")]
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"]
    assert len(rows) == 7 * (4 + 2 + 6 + 3)
    for row in rows:
        assert row["shared_bytes"] <= 227 * 1024, row
        assert row["spilled_bytes"] == 0, row
        assert row["waits"], row
        assert not row.get("next_crowds"), row
        if row["name"] == "cell_gradient" and row["programs"] > 132 and row["precision"] == "bf16":
            assert 2 * machine_code.registers_of(row) <= 65536, row  # of a processor
        if row["name"] in ("lstm_step", "gradient_product", "attention_energies"):
            assert row["products"] > 0, row
        if row["name"] in ("lstm_step", "gradient_product"):
            assert row["wide_copies"] > 0, row  # 16 bytes at a time, asynchronously
    chains = {
        row["precision"]: row["chain_cycles"]
        for row in rows
        if (row["loop"], row["name"], row["clips"]) == ("decoder LSTM", "lstm_step", 16)
    }
    # 1,024 values, four warps, 16 or 8 values a product; three products of TF32 for one of fp32
    expected = {"bf16": 16 * 33, "tf32": 32 * 25, "fp32": 3 * 32 * 25}
    assert chains == expected
    for row in rows:
        if "modelled_us" in row and (row["clips"], row["symbols"]) == (16, 120):
            modelled = MODELLED[row["loop"], row["name"]]
            shown = modelled[MODELLED_PRECISIONS.index(row["precision"])]
            assert row["modelled_us"] == pytest.approx(shown, rel=0.15), row


def test_the_longest_chain_of_products_is_found():
    code = """
        /*0010*/                   LDSM.16.M88.4 R8, [R2] ;
        /*0020*/                   HMMA.16816.F32.BF16 R12, R8, R4, RZ ;
        /*0030*/              @!P0 HMMA.16816.F32.BF16 R16, R8.reuse, R6, RZ ;
        /*0040*/                   FADD R20, R15, R1 ;
.L_x_0:
        /*0050*/                   HMMA.1688.F32.TF32 R20, R8, R4, R20 ;
        /*0060*/               @P0 BRA `(.L_x_0) ;
        /*0070*/                   EXIT ;
.L_x_1:
        /*0080*/                   BRA `(.L_x_1);
"""
    instructions, loops = machine_code.parse(code)
    assert len(instructions) == 7  # what comes after the end is padding
    assert loops == [(4, 5)]
    assert machine_code.product_chain(instructions) == 33 + 25
    assert machine_code.product_chain(instructions[4:6]) == 25


@pytest.mark.parametrize(
    ("first", "second", "crowded"),
    [
        # the attention of before: 226 registers and 256 threads on 64 of 132 processors, beside
        # which no LSTM program fits, so two of them come to lie on each of the others
        ((64, 256, 226, 131072), (128, 128, 63, 57344), True),
        ((64, 256, 226, 131072), (68, 128, 63, 57344), False),  # each finds a processor of its own
        ((128, 256, 48, 45056), (128, 128, 80, 57344), False),  # each finds room
        ((120, 128, 156, 61440), (64, 256, 194, 4096), False),  # one a processor wherever it is
    ],
)
def test_programs_that_find_no_room_beside_the_launch_before_crowd(first, second, crowded):
    names = "programs", "threads", "registers", "shared_bytes"
    first, second = (dict(zip(names, values, strict=True)) for values in (first, second))
    assert machine_code.crowds(first, second) == crowded


# ---------------------------------------------------------------------------- their benchmark


@pytest.mark.skipif(GPU, reason="the interpreter stands for the GPU")
def test_the_kernels_benchmark_runs_all_four_loops(monkeypatch):
    args = SimpleNamespace(device=torch.device("cpu"), batch_size=2, frames=2, symbols=5, shrink=64)
    decoder, ran = graphs.Graphs(benchmark.setting_of(args, "fp32", early=False)), []
    run_loop = graphs._Loop.run
    monkeypatch.setattr(
        graphs._Loop, "run", lambda self, *steps: (ran.append(self), run_loop(self, *steps))
    )
    for loop in benchmark.loops(decoder, args).values():
        loop()
    forward = [decoder._attention, decoder._decoder]
    backward = [decoder._attention_backward, decoder._decoder_backward]
    assert ran == [*forward, *backward]


def test_the_kernels_benchmark_prints_a_row_a_setting(monkeypatch):
    monkeypatch.setattr(benchmark, "microseconds", lambda loop, args: 2.5)
    monkeypatch.setattr(benchmark, "loops", lambda graphs, args: {"one": None, "two": None})
    monkeypatch.setattr(graphs, "Graphs", lambda setting: setting)
    args = SimpleNamespace(device=torch.device("cpu"), batch_size=2, frames=2, symbols=5, shrink=1)
    args.precisions, args.json, args.variants = "bf16,fp32", None, False
    rows = benchmark.measure_loops(args)
    assert [row["setting"] for row in rows] == ["bf16", "bf16, late", "fp32", "fp32, late"]
    assert (
        benchmark.loops_table(rows).splitlines()[2].split() == "| bf16 | 2.5 | 2.5 | 5.0 |".split()
    )


def test_the_kernels_benchmark_times_every_variant_with_its_constants(monkeypatch):
    monkeypatch.setattr(benchmark, "loops", lambda decoder, args: {"one": decoder})
    monkeypatch.setattr(benchmark, "microseconds", lambda loop, args: loop)

    def constants(_):
        return graphs.EARLY_LOADS + 2 * graphs.COPY_ONCE + 4 * graphs.WARPS

    monkeypatch.setattr(graphs, "Graphs", constants)
    args = SimpleNamespace(device=torch.device("cpu"), batch_size=2, frames=2, symbols=5, shrink=1)
    args.precisions, args.json, args.variants = "tf32", None, True
    seen = {row["setting"]: row["one"] for row in benchmark.measure_loops(args)}
    assert [seen[name] for name in seen if "late" not in name] == [19, 18, 7, 17]
    assert constants(None) == 19


@pytest.mark.parametrize(("batch_size", "modelled"), [(16, [3.2, 7.5]), (8, [None, None])])
def test_launches_stand_beside_their_model_where_there_is_one(batch_size, modelled, monkeypatch):
    monkeypatch.setattr(graphs, "Graphs", lambda setting: setting)
    monkeypatch.setattr(benchmark, "loops", lambda _, args: dict.fromkeys("abcd"))
    times = defaultdict(lambda: [3.0, 9.0, 5.0], cell_gradient=[])
    monkeypatch.setattr(benchmark, "launch_durations", lambda decoder, loop: times)
    args = SimpleNamespace(device=torch.device("cpu"), batch_size=batch_size, symbols=120, shrink=1)
    args.precisions, args.json = "bf16,fp32", None
    found = benchmark.measure_launches(args)
    assert len(found) == 2 * 9
    first = [row for row in found if row["launch"] == "attention: lstm_step"]
    assert [(row["precision"], row["measured_us"]) for row in first] == [("bf16", 5), ("fp32", 5)]
    assert [row["modelled_us"] for row in first] == modelled
    shown = [line.split() for line in benchmark.launches_table(found).splitlines()]
    unseen = "| decoder LSTM, backward: cell_gradient | fp32 | – |".split()
    assert shown[-1][: len(unseen)] == unseen


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_on_a_gpu_every_launch_of_a_step_has_a_duration():
    args = SimpleNamespace(device=DEVICE, batch_size=16, frames=40, symbols=60, shrink=1)
    args.precisions, args.json = "bf16", None
    assert all(0.5 < row["measured_us"] < 1000 for row in benchmark.measure_launches(args))


@pytest.mark.skipif(GPU, reason="there is a GPU")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the kernels run on GPUs only, and torch finds no GPU here"),
        (["--device", "foo"], "'foo': expected cpu, cuda or cuda:1"),
        (["--device", "cuda"], "'cuda': torch finds no GPU here"),
        (["--frames", "0"], "--frames: '0': expected a whole number from 1"),
        (["--precisions", "fp8"], "--precisions fp8: expected some of fp32"),
        (["--json", "none/x.json"], "no such folder: none"),
    ],
)
def test_the_kernels_benchmark_says_what_it_cannot_measure(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        benchmark.main(arguments)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
