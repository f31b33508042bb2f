"""Test the kernel check before training: its results, its cache, and the selected decoder.

Most tests run the kernel check in the test process, with Triton's interpreter in place of a GPU.
"""

import contextlib
import io
import json
import sys
import warnings
from dataclasses import replace

import pytest
import torch
from helpers import tiny
from test_decoder_kernels import language_patched_once  # noqa: F401 (used here)
from test_model import MELS, tiny_batch

import fast_decoder
from fast_decoder import compare_kernels, graphs, self_check
from fast_decoder.self_check import Answer
from hparams import HParams, create_hparams
from model import Decoder, packed_lstm, teacher_forced
from training.decoders import checked_decoder
from training.distributed import ALONE, Processes
from training.trainer import MicroBatch, Trainer

pytest.importorskip("triton", reason="Triton supports only x86-64 Linux")
GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
IN_A_PROCESS = self_check.check_in_process
HPARAMS = create_hparams(tiny(decoder="fast", n_mel_channels=MELS))
ATTENTION = Decoder(HPARAMS).attention_layer
RIGHT = (True, "mel: 1e-7")
WRONG = (False, "grad memory: 1")

gpu_only = pytest.mark.skipif(not GPU, reason="needs a GPU")
interpreted = pytest.mark.skipif(GPU, reason="Triton interprets kernels only if there is no GPU")
pytestmark = pytest.mark.usefixtures("one_thread", "tf32_as_before")


@pytest.fixture(autouse=True)
def a_gpu_of_ours(monkeypatch, tmp_path):
    """Let Triton's interpreter stand in for a GPU, with the smallest possible batch."""
    small = {"CHUNK": 1, "UNITS": 32, "GROUPS": 1, "DEPENDENT_LAUNCHES": True}
    small |= {"problem": lambda *_: None, "bucket": lambda clips, symbols: (clips, 32)}
    for name, value in small.items():
        monkeypatch.setattr(graphs, name, value)
    monkeypatch.setattr(compare_kernels, "BATCHES", ((5, 3),))
    monkeypatch.setattr(compare_kernels, "STEPS_AFTER_A_CHUNK", 1)
    monkeypatch.setattr(self_check, "machine", lambda _: {"GPU": "H200", "driver": "550.1"})
    monkeypatch.setattr(self_check, "check_in_process", in_this_process)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graphs._graphs.cache_clear()
    yield
    graphs._graphs.cache_clear()


def in_this_process(facts, device):
    """Return the result that the kernel check would return in a new process."""
    given = json.dumps({"facts": facts, "device": device})
    output = io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(output),
        torch.random.fork_rng(devices=[]),  # the random state of this process must not change
    ):
        patch.setattr(sys, "stdin", io.StringIO(given))
        compare_kernels.main()
    return json.loads(output.getvalue())


def answers_in_turn(monkeypatch, *answers):
    """Make the next calls of the kernel check return these results, one result per call.

    Returns:
        A list to which each call appends its argument `facts`.
    """
    tried = []
    left = list(answers)

    def in_turn(facts, device):
        tried.append(facts)
        return left.pop(0)

    monkeypatch.setattr(self_check, "check_in_process", in_turn)
    return tried


def check(hparams=HPARAMS, autocast=None):
    return self_check.check(hparams, CPU, autocast)


def is_plain(decoder):
    return getattr(decoder, "keywords", None) == {"loops_for": fast_decoder.plain_loops}


@interpreted
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=str)
def test_training_uses_the_kernels_when_the_kernel_check_passes(autocast):
    answer = check(autocast=autocast)
    assert answer.is_right, answer.text
    decoder, phrase = self_check.resolve(answer, warn=True)
    assert decoder is fast_decoder.teacher_forced
    assert phrase.startswith("Triton kernels in CUDA graphs, ")


def smaller_tanh(monkeypatch):
    """Make the kernels compute a tanh that is slightly too small."""
    kernels = graphs._kernels()
    tanh = kernels._tanh
    monkeypatch.setattr(kernels, "_tanh", lambda x: tanh(x) * 0.9999)


def no_first_gradient(monkeypatch):
    """Set wrong initial values in a buffer of the backward pass."""
    entries = graphs.Graphs._gradient_entries

    def changed(self, *given):
        found = entries(self, *given)
        return found | {"DCELL": found["DCELL"] + 1e-3}

    monkeypatch.setattr(graphs.Graphs, "_gradient_entries", changed)


def not_finite(monkeypatch):
    forward = graphs.Graphs.lstm_forward

    def spoilt(self, buffers):
        forward(self, buffers)
        buffers.rows[-1, 0, 0] = torch.nan

    monkeypatch.setattr(graphs.Graphs, "lstm_forward", spoilt)


def wrong_encoder(monkeypatch):
    forward = graphs.Graphs.lstm_forward

    def changed(self, buffers):
        forward(self, buffers)
        if not self.setting.attention.size:
            buffers.rows += 1e-3

    monkeypatch.setattr(graphs.Graphs, "lstm_forward", changed)


# Each value is a part of the name of the tensor that has the largest error after this failure.
FAILURES = {smaller_tanh: "", no_first_gradient: "grad ", not_finite: "", wrong_encoder: "encoder"}


@pytest.mark.thorough
@interpreted
@pytest.mark.parametrize("failure", FAILURES)
def test_kernel_check_fails_when_kernels_compute_incorrect_values(failure, monkeypatch):
    """The result names the tensor with the largest error. The warning contains the facts that are
    needed in a bug report."""
    failure(monkeypatch)
    answer = check()
    assert not answer.is_right
    name = answer.text.split(" has relative error ")[0]
    assert FAILURES[failure] in name
    names = {"mel", "gate", "alignments", "memory", "input mel"}
    names |= dict(Decoder(HPARAMS).named_parameters()).keys()
    assert name.removeprefix("grad ") in names or "encoder" in name
    with pytest.warns(UserWarning, match="failed their check") as said:
        decoder, phrase = self_check.resolve(answer, warn=True)
    assert is_plain(decoder)
    assert phrase.startswith("plain operations")
    message = str(said[0].message)
    file = self_check.cache_file(answer.facts)
    for needed in ("H200", "550.1", torch.__version__, answer.text, str(file)):
        assert needed in message
    assert file.is_file()


@interpreted
def test_training_uses_no_kernels_when_the_encoder_kernels_are_incorrect(monkeypatch):
    """The second call uses the cached result of the check."""
    wrong_encoder(monkeypatch)
    for _ in range(2):
        with pytest.warns(UserWarning, match="failed their check"):
            found = checked_decoder("fast", HPARAMS, ATTENTION, CPU, ALONE)
        assert is_plain(found.decoder)
        assert found.encoder_lstm is packed_lstm
        monkeypatch.setattr(self_check, "check_in_process", None)


@interpreted
@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (graphs._Loop, "run", "RuntimeError: illegal access"),
        # without graphs, training does not use the kernels, so the check compares nothing
        (graphs, "_attention_energies", "RuntimeError: cannot create CUDA graphs"),
    ],
)
def test_kernel_check_result_reports_the_failure(owner, name, expected, monkeypatch):
    def broken(*_):
        raise RuntimeError("illegal access\nmore")

    monkeypatch.setattr(owner, name, broken)
    answer = check()
    assert not answer.is_right
    assert answer.text.startswith(expected)
    assert answer.text.endswith("illegal access")


def test_kernel_check_fails_when_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(compare_kernels, "compare", lambda *_: iter(()))
    assert not check().is_right


def test_kernel_check_lists_every_size_setting_that_a_decoder_reads():
    class Noting:
        def __init__(self):
            self.read = set()

        def __getattr__(self, name):
            self.read.add(name)
            return getattr(HPARAMS, name)

    noting = Noting()
    Decoder(noting)
    parts_of_memory = {"encoder_embedding_dim", "speaker_embedding_dim"}
    assert noting.read - {"memory_dim"} | parts_of_memory == set(self_check.SIZES)


# ---------------------------------------------------------------------------- processes


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("raise SystemExit('no such GPU')", (False, "the process exited with code 1: no such GPU")),
        ("print('what a library says')", (False, "the process exited with code 0: ")),
        ("import time; time.sleep(60)", (False, "not finished within 0.3 s")),
        ("print('a library\\n[true, \"mel: 0\"]')", (True, "mel: 0")),
    ],
)
def test_kernel_check_fails_when_its_process_crashes_or_hangs(program, expected, monkeypatch):
    monkeypatch.setattr(self_check, "COMMAND", (sys.executable, "-S", "-c", program))
    monkeypatch.setattr(self_check, "SECONDS", 0.3 if "sleep" in program else 30)
    assert IN_A_PROCESS({}, "cpu") == expected


@gpu_only
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_kernel_check_of_the_full_size_model_passes_on_a_gpu(autocast, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = torch.device("cuda")
    answer = self_check.check(HParams(), device, autocast)
    assert answer.is_right, answer.text
    assert self_check.cache_file(answer.facts).is_file()


WITHOUT_ADDRESS = """
from fast_decoder import compare_kernels, graphs
entries = graphs.Graphs._entries
graphs.Graphs._entries = lambda self, buffers: entries(self, buffers) | {"GATES": None}
compare_kernels.main()
"""


@gpu_only
def test_training_process_survives_when_a_checked_kernel_reads_invalid_memory_on_a_gpu(
    monkeypatch, tmp_path
):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(self_check, "COMMAND", (sys.executable, "-c", WITHOUT_ADDRESS))
    answer = self_check.check(HParams(), torch.device("cuda"), None)
    assert not answer.is_right
    assert "illegal memory access" in answer.text
    assert torch.ones(2, device="cuda").sum().item() == 2


@pytest.mark.parametrize("text", ["CUDA out of memory.", "CUDA error: busy or unavailable", None])
def test_kernel_check_result_is_not_cached_when_the_gpu_is_busy(text, monkeypatch):
    """If `text` is None, the kernel check cannot start its process."""
    if text is None:
        monkeypatch.setattr(self_check, "check_in_process", IN_A_PROCESS)
        monkeypatch.setattr(self_check, "COMMAND", ("/no/such/program",))
    else:
        answers_in_turn(monkeypatch, (False, text))
    answer = check()
    with pytest.warns(UserWarning, match="failed their check"):
        assert is_plain(self_check.resolve(answer, warn=True)[0])
    assert not self_check.cache_file(answer.facts).exists()


# ---------------------------------------------------------------------------- the cache


@pytest.mark.parametrize("changed", ["nothing", "GPU", "precision", "sizes", "TF32"])
def test_kernel_check_runs_again_when_the_device_or_a_setting_changes(changed, monkeypatch, capsys):
    tried = answers_in_turn(monkeypatch, RIGHT, WRONG)
    first = check()
    assert capsys.readouterr().err.startswith("checking the decoder kernels")
    if changed == "GPU":
        monkeypatch.setattr(self_check, "machine", lambda _: {"GPU": "other"})
    torch.backends.cuda.matmul.allow_tf32 = changed == "TF32"
    hparams = replace(HPARAMS, attention_dim=7) if changed == "sizes" else HPARAMS
    second = check(hparams, torch.bfloat16 if changed == "precision" else None)
    assert len(tried) == (1 if changed == "nothing" else 2)
    assert (second == first) == (changed == "nothing")
    assert bool(capsys.readouterr().err) == (changed != "nothing")


@pytest.mark.parametrize("content", ["{", "{}"])
def test_kernel_check_runs_again_when_its_cache_is_damaged(content, monkeypatch):
    tried = answers_in_turn(monkeypatch, RIGHT, RIGHT)
    answer = check()
    self_check.cache_file(answer.facts).write_text(content)
    assert check() == answer
    assert check() == answer
    assert len(tried) == 2


def test_kernel_check_warns_when_its_cache_cannot_be_written(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    answers_in_turn(monkeypatch, RIGHT)
    assert check().is_right
    assert "XDG_CACHE_HOME" in capsys.readouterr().err.splitlines()[1]


# ---------------------------------------------------------------------------- training


def trained(hparams):
    """Return the parameters after three optimizer steps, and the description of the decoder."""
    trainer = Trainer(hparams, CPU)
    trainer.model.train()
    for _ in range(3):
        trainer.step([MicroBatch(tiny_batch(((5, 3), (3, 2))))])
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()), trainer


@pytest.mark.thorough
@interpreted
def test_training_uses_plain_operations_when_the_kernel_check_fails(monkeypatch):
    no_first_gradient(monkeypatch)
    with pytest.warns(UserWarning, match="failed their check"):
        found, trainer = trained(HPARAMS)
    assert trainer.decoder_description.startswith("fast (plain operations, several times slower")
    assert trainer.model.encoder.run_lstm is packed_lstm
    trainer.use_decoder("reference")
    assert trainer.model.training_decoder is teacher_forced
    with warnings.catch_warnings(action="error"):
        trainer.use_decoder("fast")  # this call uses the result of the first check
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "problem", lambda *_: "no CUDA device")
        expected, _ = trained(HPARAMS)
    # Kernels round differently from plain operations, so equal bits show that no kernel ran.
    assert torch.equal(found, expected)


class Several(Processes):
    """Stand in for one of two processes on different machines."""

    def all_or_none_with_heartbeat(self, action, what):
        return action()

    def gather(self, value):
        return [value, Answer(False, "mel: 1", {})]


def test_processes_use_the_worst_kernel_check_result_of_all_machines(monkeypatch):
    tried = answers_in_turn(monkeypatch, RIGHT)
    with pytest.warns(UserWarning, match="failed their check"):
        decoder, _, phrase = checked_decoder("fast", HPARAMS, ATTENTION, CPU, Several(0, 2))
    assert is_plain(decoder)
    with warnings.catch_warnings(action="error"):  # only the first process may warn
        second = checked_decoder("fast", HPARAMS, ATTENTION, CPU, Several(1, 2))
        # The check runs only in the first process on a machine.
        third = checked_decoder("fast", HPARAMS, ATTENTION, CPU, Several(1, 2, local_rank=1))
    assert second.description == third.description == phrase
    assert len(tried) == 1


def test_kernel_check_is_skipped_for_the_reference_decoder_and_on_a_cpu(monkeypatch):
    tried = answers_in_turn(monkeypatch)
    reference = checked_decoder("reference", HPARAMS, ATTENTION, CPU, ALONE)
    assert reference.decoder is teacher_forced
    monkeypatch.setattr(graphs, "problem", lambda *_: "no CUDA device")
    fast = checked_decoder("fast", HPARAMS, ATTENTION, CPU, ALONE)
    assert fast.decoder is fast_decoder.teacher_forced
    assert tried == []
