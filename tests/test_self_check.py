"""The check of the kernels before training: what it finds, keeps and says, and what then trains.

Triton's interpreter stands for a GPU; a process of its own is not needed for it but where said.
"""

import contextlib
import io
import json
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from helpers import TINY
from test_decoder_kernels import language_patched_once  # noqa: F401 (of this module too)
from test_model import MELS, tiny_batch

import fast_decoder
from fast_decoder import graphs, self_check
from fast_decoder.self_check import Answer, Trial
from hparams import HParams, create_hparams
from model import Decoder, teacher_forced
from training.distributed import ALONE
from training.trainer import MicroBatch, Trainer, checked_decoder

pytest.importorskip("triton", reason="Triton is for x86-64 Linux")
GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
IN_A_PROCESS = self_check.in_a_process
HPARAMS = create_hparams(
    ",".join(
        f"{name}={value}"
        for name, value in (TINY | {"decoder": "fast", "n_mel_channels": MELS}).items()
    )
)
RIGHT, WRONG = Trial(True, True, "mel: 1e-7"), Trial(True, False, "grad memory: 1")
LATE_RIGHT, LATE_WRONG = RIGHT._replace(early=False), WRONG._replace(early=False)

interpreted = pytest.mark.skipif(GPU, reason="Triton interprets where there is no GPU")
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def a_gpu_of_ours(monkeypatch, tmp_path):
    """A machine whose kernels run in the interpreter, on a batch as small as can be."""
    monkeypatch.setattr(graphs, "problem", lambda *_: None)
    monkeypatch.setattr(graphs, "CHUNK", 1)
    monkeypatch.setattr(graphs, "UNITS", 32)
    monkeypatch.setattr(graphs, "GROUPS", 1)
    monkeypatch.setattr(graphs, "bucket", lambda clips, symbols: (clips, 32))
    monkeypatch.setattr(graphs, "EARLY_LAUNCHES", True)
    monkeypatch.setattr(self_check, "BATCHES", ((5, 3),))
    monkeypatch.setattr(self_check, "STEPS_AFTER_A_CHUNK", 1)
    monkeypatch.setattr(self_check, "machine", lambda _: {"GPU": "H200", "driver": "550.1"})
    monkeypatch.setattr(self_check, "in_a_process", in_this_process)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    switches = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [switch.allow_tf32 for switch in switches]
    graphs._graphs.cache_clear()
    yield
    graphs._graphs.cache_clear()
    for switch, value in zip(switches, before, strict=True):
        switch.allow_tf32 = value


def in_this_process(facts, device, early):
    """What a fresh process would be given and would answer."""
    output, standard_input = io.StringIO(), sys.stdin
    sys.stdin = io.StringIO(json.dumps({"facts": facts, "device": device, "early": early}))
    try:
        with contextlib.redirect_stdout(output):
            self_check.main()
    finally:
        sys.stdin = standard_input
    return Trial(early, *json.loads(output.getvalue()))


def answers_in_turn(monkeypatch, *trials):
    """Processes that end with these trials, and a list that counts them."""
    started, left = [], list(trials)

    def in_turn(facts, device, early):
        started.append((facts, early))
        return left.pop(0)

    monkeypatch.setattr(self_check, "in_a_process", in_turn)
    return started


def check(hparams=HPARAMS, autocast=None):
    return self_check.check(hparams, CPU, autocast)


# ---------------------------------------------------------------------------- what is found


@interpreted
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=str)
def test_right_kernels_train_and_the_start_says_how_near_they_are(autocast):
    found = check(autocast=autocast)
    assert found.right, found.trials
    decoder, phrase = self_check.settle(found, warn=True)
    assert decoder is fast_decoder.teacher_forced
    assert phrase.startswith("Triton kernels in CUDA graphs, checked against plain operations: ")
    assert " allowed" in phrase


def smaller_tanh(kernels, monkeypatch):
    """A formula."""
    tanh = kernels._tanh
    monkeypatch.setattr(kernels, "_tanh", lambda x: tanh(x) * 0.9999)


def another_address(kernels, monkeypatch):
    entries = graphs.Graphs._attention_entries
    monkeypatch.setattr(
        graphs.Graphs,
        "_attention_entries",
        lambda self, buffers: entries(self, buffers) | {"V": buffers.query_weight},
    )


def no_first_gradient(kernels, monkeypatch):
    """Wrong in the backward pass alone: memory that is not zero at its start."""
    entries = graphs.Graphs._gradient_entries

    def changed(self, *given):
        found = entries(self, *given)
        return found | {"DCELL": found["DCELL"] + 1e-3}

    monkeypatch.setattr(graphs.Graphs, "_gradient_entries", changed)


FAULTS = {smaller_tanh: "", another_address: "", no_first_gradient: "grad "}


@interpreted
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_kernel_is_found_and_the_tensor_named(fault, monkeypatch):
    fault(graphs._kernels(), monkeypatch)
    found = check()
    assert not found.right
    [trial] = found.trials
    assert trial.text.startswith(FAULTS[fault])
    name = trial.text.split(" has error ")[0].removeprefix("grad ")
    names = {"mel", "gate", "alignments", "memory", "input mel"}
    assert name in names | dict(Decoder(HPARAMS).named_parameters()).keys()
    with pytest.warns(UserWarning, match="failed their check on this GPU") as said:
        decoder, phrase = self_check.settle(found, warn=True)
    assert decoder.keywords == {"loops_for": fast_decoder.plain_loops}
    assert phrase.startswith("plain operations")
    message = str(said[0].message)
    for needed in ("GPU: H200", "driver: 550.1", f"torch: {torch.__version__}", trial.text):
        assert needed in message
    assert message.endswith(
        f"kept in {self_check.answers_file()}; delete that file to check again."
    )


@interpreted
def test_what_is_no_number_is_wrong(monkeypatch):
    loops = graphs.Graphs.decoder_forward

    def spoilt(self, buffers):
        loops(self, buffers)
        buffers.rows[-1, 0, 0] = torch.nan

    monkeypatch.setattr(graphs.Graphs, "decoder_forward", spoilt)
    [trial] = check().trials
    assert not trial.right
    assert "error inf of 1.0e-05 allowed" in trial.text


@interpreted
def test_what_breaks_is_the_finding(monkeypatch):
    def broken(*_):
        raise RuntimeError("an illegal memory access was encountered\nmore")

    monkeypatch.setattr(graphs._Loop, "run", broken)
    assert check().trials == [
        Trial(False, False, "RuntimeError: an illegal memory access was encountered")
    ]


@interpreted
def test_kernels_that_training_would_not_use_are_not_taken_for_right(monkeypatch):
    """It would compare plain operations with themselves."""

    def broken(*_):
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(graphs, "_attention_energies", broken)
    [trial] = check().trials
    assert not trial.right
    assert "no graphs could be made: RuntimeError: out of resource" in trial.text


def test_the_sizes_are_all_that_a_decoder_reads_of_the_hyper_parameters():
    class Noting:
        def __init__(self):
            self.read = set()

        def __getattr__(self, name):
            self.read.add(name)
            return getattr(HPARAMS, name)

    noting = Noting()
    Decoder(noting)
    assert noting.read == set(self_check.SIZES)


# ---------------------------------------------------------------------------- processes


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("import os; os.kill(os.getpid(), 11)", "ended with code -11: "),
        ("raise SystemExit('no such GPU')", "ended with code 1: no such GPU"),
        ("print('what a library says')", "ended with code 0: "),
        ("import time; time.sleep(60)", "no end within 0.3 s"),
        ("print('a library\\n[true, \"mel: 0\"]')", None),
    ],
)
def test_a_process_that_crashes_or_hangs_is_a_finding(program, expected, monkeypatch):
    monkeypatch.undo()
    monkeypatch.setattr(self_check, "COMMAND", (sys.executable, "-S", "-c", program))
    monkeypatch.setattr(self_check, "SECONDS", 0.3 if "sleep" in program else 30)
    trial = self_check.in_a_process({}, "cpu", early=True)
    wanted = Trial(True, True, "mel: 0") if expected is None else Trial(True, False, expected)
    assert trial == wanted


@pytest.mark.skipif(not GPU, reason="needs a GPU")
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_on_a_gpu_the_full_size_kernels_are_found_right_by_a_fresh_process(
    autocast, monkeypatch, tmp_path
):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = self_check.check(HParams(), torch.device("cuda"), autocast)
    assert found.right, found.trials
    assert not found.late, found.trials
    assert found in self_check.read_answers()


WITHOUT_ADDRESS = """
from fast_decoder import graphs, self_check
entries = graphs.Graphs._attention_entries
graphs.Graphs._attention_entries = lambda self, buffers: entries(self, buffers) | {"GATES": None}
self_check.main()
"""


@pytest.mark.skipif(not GPU, reason="needs a GPU")
def test_on_a_gpu_an_address_that_is_not_there_leaves_this_process_its_gpu(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(self_check, "COMMAND", (sys.executable, "-c", WITHOUT_ADDRESS))
    found = self_check.check(HParams(), torch.device("cuda"), None)
    assert not found.right
    assert "illegal memory access" in found.trials[-1].text
    assert torch.ones(2, device="cuda").sum().item() == 2


# ---------------------------------------------------------------------------- what is tried


def test_late_launches_are_tried_after_early_ones_and_used_with_a_warning(monkeypatch):
    monkeypatch.setattr(graphs, "launches_early", lambda _: True)
    started = answers_in_turn(monkeypatch, WRONG, LATE_RIGHT)
    found = check()
    assert [early for _, early in started] == [True, False]
    with pytest.warns(UserWarning, match="early launches: WRONG: grad memory: 1") as said:
        decoder, phrase = self_check.settle(found, warn=True)
    assert "late launches: right: mel: 1e-7" in str(said[0].message)
    assert decoder is fast_decoder.teacher_forced
    assert "one after another" in phrase
    assert graphs.EARLY_LAUNCHES is False


def test_where_both_are_wrong_plain_operations_train(monkeypatch):
    monkeypatch.setattr(graphs, "launches_early", lambda _: True)
    answers_in_turn(monkeypatch, WRONG, LATE_WRONG)
    with pytest.warns(UserWarning, match="late launches: WRONG"):
        decoder, _ = self_check.settle(check(), warn=True)
    assert decoder.keywords == {"loops_for": fast_decoder.plain_loops}
    assert graphs.EARLY_LAUNCHES is True


def test_where_no_process_can_be_started_nothing_is_known_of_the_kernels(monkeypatch):
    monkeypatch.setattr(self_check, "in_a_process", IN_A_PROCESS)
    monkeypatch.setattr(self_check, "COMMAND", ("/no/such/program",))
    found = check()
    assert found.open
    assert "no process could be started" in found.trials[0].text
    assert self_check.read_answers() == []


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB",
        "torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    ],
)
def test_a_gpu_that_takes_no_second_process_says_nothing_of_the_kernels(text, monkeypatch):
    monkeypatch.setattr(graphs, "launches_early", lambda _: True)
    answers_in_turn(monkeypatch, Trial(True, False, text))
    with pytest.warns(UserWarning, match="could not be checked") as said:
        decoder, _ = self_check.settle(check(), warn=True)
    assert "report" not in str(said[0].message)
    assert decoder.keywords == {"loops_for": fast_decoder.plain_loops}
    assert not self_check.answers_file().exists()


# ---------------------------------------------------------------------------- what is kept


def test_an_answer_is_kept_and_not_worked_out_twice(monkeypatch, capsys):
    started = answers_in_turn(monkeypatch, LATE_WRONG)
    found = check()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("checking the decoder's kernels, once for each GPU")
    assert second.startswith("checked in ")
    assert check() == found
    assert len(started) == 1
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "changed", ["GPU", "driver", "code", "torch", "precision", "sizes", "TF32"]
)
def test_another_machine_version_or_setting_is_looked_at_anew(changed, monkeypatch):
    started = answers_in_turn(monkeypatch, LATE_RIGHT, LATE_WRONG)
    hparams, autocast = HPARAMS, None
    first = check()
    if changed in ("GPU", "driver"):
        machine = {"GPU": "H200", "driver": "550.1"} | {changed: "other"}
        monkeypatch.setattr(self_check, "machine", lambda _: machine)
    elif changed == "code":
        monkeypatch.setattr(self_check, "fingerprint", lambda: "other")
    elif changed == "torch":
        monkeypatch.setattr(torch, "__version__", "other")
    elif changed == "precision":
        autocast = torch.bfloat16
    elif changed == "sizes":
        hparams = replace(HPARAMS, attention_dim=7)
    else:
        torch.backends.cuda.matmul.allow_tf32 = True
    second = check(hparams, autocast)
    assert len(started) == 2
    assert (first.right, second.right) == (True, False)
    assert self_check.read_answers() == [first, second]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", "[1]", '[{"facts": 1}]', '[{"facts": {}, "trials": [[1]]}]']
)
def test_a_damaged_file_is_made_anew(content, monkeypatch):
    answers_in_turn(monkeypatch, LATE_RIGHT)
    path = self_check.answers_file()
    path.parent.mkdir()
    path.write_text(content)
    found = check()
    assert self_check.read_answers() == [found]


@pytest.mark.parametrize("folder", ["a file", "relative"])
def test_where_nothing_can_be_kept_a_line_says_that_each_start_checks(
    folder, monkeypatch, tmp_path, capsys
):
    (tmp_path / "file").write_text("")
    path = str(tmp_path / "file") if folder == "a file" else "relative"
    monkeypatch.setenv("XDG_CACHE_HOME", path)
    monkeypatch.chdir(tmp_path)
    started = answers_in_turn(monkeypatch, LATE_WRONG, LATE_WRONG)
    with pytest.warns(UserWarning, match="failed their check") as said:
        self_check.settle(check(), warn=True)
    assert "kept in" not in str(said[0].message)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "checked at every start" in lines[2]
    assert path in lines[2]
    check()
    assert len(started) == 2


class Libcuda:
    """The driver's library, of CUDA 12.4."""

    def __init__(self, name):
        assert name == "libcuda.so.1"

    def cuDriverGetVersion(self, number):
        number.value = 12040


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5", "550.54.15"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86  Release", "570.86"),
        ("another format", "for CUDA 12.4"),
        (None, "for CUDA 12.4"),
    ],
)
def test_the_drivers_version_is_read_from_the_system(content, expected, monkeypatch, tmp_path):
    path = tmp_path / "version"
    if content is not None:
        path.write_text(content)
    monkeypatch.setattr(self_check, "DRIVER_FILE", path)
    monkeypatch.setattr(self_check.ctypes, "CDLL", Libcuda)
    monkeypatch.setattr(self_check.ctypes, "byref", lambda number: number)
    assert self_check.driver_version() == expected


def test_a_driver_that_says_nothing_is_unknown(monkeypatch, tmp_path):
    def missing(name):
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(self_check, "DRIVER_FILE", tmp_path / "none")
    monkeypatch.setattr(self_check.ctypes, "CDLL", missing)
    assert self_check.driver_version() == "unknown"


# ---------------------------------------------------------------------------- training


def trained(hparams):
    """The parameters after three updates, and how the decoder ran."""
    trainer = Trainer(hparams, CPU)
    trainer.model.train()
    for _ in range(3):
        trainer.step([MicroBatch(tiny_batch(((5, 3), (3, 2))))])
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()), trainer


@interpreted
def test_training_with_a_fault_in_a_kernel_goes_on_as_with_plain_operations(monkeypatch):
    no_first_gradient(graphs._kernels(), monkeypatch)
    with pytest.warns(UserWarning, match="failed their check"):
        found, trainer = trained(HPARAMS)
    assert trainer.decoder_description.startswith("fast (plain operations, several times slower")
    trainer.use_decoder("reference")
    assert trainer.model.training_decoder is teacher_forced
    with warnings.catch_warnings(action="error"):
        trainer.use_decoder("fast")  # what was found is remembered
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "problem", lambda *_: "no CUDA device")
        expected, plain = trained(HPARAMS)
    assert torch.equal(found, expected)  # right kernels too would differ in the last bits
    assert "oneDNN" in plain.decoder_description or "plain" in plain.decoder_description


class Several(type(ALONE)):
    """The first of two processes, each on a machine of its own."""

    def all_or_none_however_long(self, action, what):
        return action()

    def gather(self, value):
        return [value, Answer({}, [WRONG, LATE_WRONG])]


def test_the_worst_answer_of_several_machines_holds_for_all(monkeypatch):
    answers_in_turn(monkeypatch, LATE_RIGHT)
    with pytest.warns(UserWarning, match="failed their check"):
        decoder, phrase = checked_decoder("fast", HPARAMS, CPU, Several(0, 2))
    assert decoder.keywords == {"loops_for": fast_decoder.plain_loops}
    with warnings.catch_warnings(action="error"):  # the first process warns, no other
        assert checked_decoder("fast", HPARAMS, CPU, Several(1, 2))[1] == phrase


def test_the_others_of_a_machine_do_not_look(monkeypatch):
    started = answers_in_turn(monkeypatch)
    with warnings.catch_warnings(action="error"):
        _, phrase = checked_decoder("fast", HPARAMS, CPU, Several(1, 2, local_rank=1))
    assert started == []
    assert phrase.startswith("fast (plain operations")


def test_the_reference_decoder_and_a_cpu_need_no_check(monkeypatch):
    started = answers_in_turn(monkeypatch)
    assert checked_decoder("reference", HPARAMS, CPU, ALONE)[0] is teacher_forced
    monkeypatch.setattr(graphs, "problem", lambda *_: "no CUDA device")
    assert checked_decoder("fast", HPARAMS, CPU, ALONE)[0] is fast_decoder.teacher_forced
    assert started == []
