"""The check of the kernels before training: what it finds, keeps and says, and what then trains.

Triton's interpreter stands for a GPU, and this process for the one of the check but where said.
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
from fast_decoder import graphs, self_check
from fast_decoder.self_check import Answer
from hparams import HParams, create_hparams
from model import Decoder, packed_lstm, teacher_forced
from training.distributed import ALONE, Processes
from training.trainer import MicroBatch, Trainer, checked_decoder

pytest.importorskip("triton", reason="Triton is for x86-64 Linux")
GPU = torch.cuda.is_available()
CPU = torch.device("cpu")
IN_A_PROCESS = self_check.check_in_process
HPARAMS = create_hparams(tiny(decoder="fast", n_mel_channels=MELS))
RIGHT, WRONG = (True, "mel: 1e-7"), (False, "grad memory: 1")

gpu_only = pytest.mark.skipif(not GPU, reason="needs a GPU")
interpreted = pytest.mark.skipif(GPU, reason="Triton interprets where there is no GPU")
pytestmark = pytest.mark.usefixtures("one_thread", "tf32_as_before")


@pytest.fixture(autouse=True)
def a_gpu_of_ours(monkeypatch, tmp_path):
    """A machine whose kernels run in the interpreter, on a batch as small as can be."""
    small = {"CHUNK": 1, "UNITS": 32, "GROUPS": 1, "EARLY_LAUNCHES": True}
    small |= {"problem": lambda *_: None, "bucket": lambda clips, symbols: (clips, 32)}
    for name, value in small.items():
        monkeypatch.setattr(graphs, name, value)
    monkeypatch.setattr(self_check, "BATCHES", ((5, 3),))
    monkeypatch.setattr(self_check, "STEPS_AFTER_A_CHUNK", 1)
    monkeypatch.setattr(self_check, "machine", lambda _: {"GPU": "H200", "driver": "550.1"})
    monkeypatch.setattr(self_check, "check_in_process", in_this_process)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    graphs._graphs.cache_clear()
    yield
    graphs._graphs.cache_clear()


def in_this_process(facts, device, mode, part):
    """What a fresh process would be given and would answer."""
    given = json.dumps({"facts": facts, "device": device, "mode": mode, "part": part})
    output = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(output):
        patch.setattr(sys, "stdin", io.StringIO(given))
        self_check.main()
    return json.loads(output.getvalue())


def answers_in_turn(monkeypatch, *answers):
    """Processes that answer so of the decoder, and the list of the modes that they tried. The
    encoder's kernels are right."""
    tried, left = [], list(answers)

    def in_turn(facts, device, mode, part):
        if part == "encoder":
            return RIGHT
        tried.append(mode)
        return left.pop(0)

    monkeypatch.setattr(self_check, "check_in_process", in_turn)
    return tried


def check(hparams=HPARAMS, autocast=None):
    return self_check.check(hparams, CPU, autocast)


def is_plain(decoder):
    return getattr(decoder, "keywords", None) == {"loops_for": fast_decoder.plain_loops}


@interpreted
@pytest.mark.parametrize("autocast", [None, torch.bfloat16], ids=str)
def test_right_kernels_train(autocast):
    answer = check(autocast=autocast)
    assert answer.mode == "late", answer.results
    decoder, phrase = self_check.settle(answer, warn=True)
    assert decoder is fast_decoder.teacher_forced
    assert phrase.startswith("Triton kernels in CUDA graphs, late launches: right: ")


def smaller_tanh(monkeypatch):
    """A formula."""
    kernels = graphs._kernels()
    tanh = kernels._tanh
    monkeypatch.setattr(kernels, "_tanh", lambda x: tanh(x) * 0.9999)


def no_first_gradient(monkeypatch):
    """Wrong in the backward pass alone: memory that is not zero at its start."""
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


FAULTS = {smaller_tanh: "", no_first_gradient: "grad ", not_finite: ""}


@interpreted
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_kernel_is_found(fault, monkeypatch):
    """The tensor is named, and the warning has all that a report needs."""
    fault(monkeypatch)
    answer = check()
    assert answer.mode == "plain"
    [found] = answer.results
    name = found.removeprefix("late launches: WRONG: ").split(" has error ")[0]
    assert FAULTS[fault] in name
    names = {"mel", "gate", "alignments", "memory", "input mel"}
    assert name.removeprefix("grad ") in names | dict(Decoder(HPARAMS).named_parameters()).keys()
    with pytest.warns(UserWarning, match="failed their check on this GPU") as said:
        decoder, phrase = self_check.settle(answer, warn=True)
    assert is_plain(decoder)
    assert phrase.startswith("plain operations")
    message, file = str(said[0].message), self_check.cache_file(answer.facts)
    for needed in ("GPU: H200", "driver: 550.1", f"torch: {torch.__version__}", found):
        assert needed in message
    assert message.endswith(f"To check again, delete {file}.")
    assert file.is_file()


@interpreted
def test_a_fault_of_the_encoder_spares_the_decoder(monkeypatch):
    """Its answer is kept, and the worst of several machines' is theirs too."""
    wrong_encoder(monkeypatch)
    with pytest.warns(UserWarning, match="encoder's kernels failed their check on this") as said:
        found = checked_decoder("fast", HPARAMS, CPU, ALONE)
    assert found.decoder is fast_decoder.teacher_forced
    assert found.encoder_lstm is packed_lstm
    assert found.description.endswith("; torch's LSTM in the encoder)")
    assert "\n    encoder: WRONG: " in str(said[0].message)
    monkeypatch.setattr(self_check, "check_in_process", None)  # the cache answers
    answer = check()
    assert answer.encoder
    assert answer.mode == "late"
    monkeypatch.setattr(self_check, "check", lambda *_: answer._replace(encoder=""))
    processes = Several(1, 2)
    processes.gather = lambda value: [value, answer]
    assert checked_decoder("fast", HPARAMS, CPU, processes).encoder_lstm is packed_lstm


@interpreted
@pytest.mark.parametrize(
    ("owner", "name", "expected"),
    [
        (graphs._Loop, "run", "RuntimeError: illegal access"),
        # training would not use such kernels: plain operations are not compared with themselves
        (graphs, "_attention_energies", "RuntimeError: no graphs could be made"),
    ],
)
def test_what_fails_is_the_finding(owner, name, expected, monkeypatch):
    def broken(*_):
        raise RuntimeError("illegal access\nmore")

    monkeypatch.setattr(owner, name, broken)
    answer = check()
    assert answer.mode == "plain"
    assert answer.results[0].startswith(f"late launches: WRONG: {expected}")
    assert answer.results[0].endswith("illegal access")


def test_nothing_to_compare_is_no_proof(monkeypatch):
    monkeypatch.setattr(self_check, "compare", lambda *_: iter(()))
    assert check().mode == "plain"


def test_the_sizes_are_all_that_a_decoder_reads():
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
        ("import os; os.kill(os.getpid(), 11)", (False, "ended with code -11: ")),
        ("raise SystemExit('no such GPU')", (False, "ended with code 1: no such GPU")),
        ("print('what a library says')", (False, "ended with code 0: ")),
        ("import time; time.sleep(60)", (False, "no end within 0.3 s")),
        ("print('a library\\n[true, \"mel: 0\"]')", (True, "mel: 0")),
    ],
)
def test_crashed_or_hanging_process_is_a_finding(program, expected, monkeypatch):
    monkeypatch.setattr(self_check, "COMMAND", (sys.executable, "-S", "-c", program))
    monkeypatch.setattr(self_check, "SECONDS", 0.3 if "sleep" in program else 30)
    assert IN_A_PROCESS({}, "cpu", "early", "decoder") == expected


@gpu_only
@pytest.mark.parametrize("autocast", [None, torch.bfloat16, torch.float16], ids=str)
def test_gpu_full_size_is_found_right(autocast, monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    device = torch.device("cuda")
    answer = self_check.check(HParams(), device, autocast)
    assert answer.mode == ("early" if graphs.launches_early(device) else "late"), answer.results
    assert answer.encoder == ""
    assert self_check.cache_file(answer.facts).is_file()


WITHOUT_ADDRESS = """
from fast_decoder import graphs, self_check
entries = graphs.Graphs._entries
graphs.Graphs._entries = lambda self, buffers: entries(self, buffers) | {"GATES": None}
self_check.main()
"""


@gpu_only
def test_gpu_illegal_access_spares_this_process(monkeypatch, tmp_path):
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(self_check, "COMMAND", (sys.executable, "-c", WITHOUT_ADDRESS))
    answer = self_check.check(HParams(), torch.device("cuda"), None)
    assert answer.mode == "plain"
    assert "illegal memory access" in answer.results[-1]
    assert torch.ones(2, device="cuda").sum().item() == 2


@pytest.mark.parametrize("second", [RIGHT, WRONG])
def test_late_launches_are_tried_after_early_ones(second, monkeypatch):
    monkeypatch.setattr(graphs, "launches_early", lambda _: True)
    tried = answers_in_turn(monkeypatch, WRONG, second)
    answer = check()
    assert tried == ["early", "late"]
    with pytest.warns(UserWarning, match="early launches: WRONG: grad memory: 1") as said:
        decoder, _ = self_check.settle(answer, warn=True)
    assert f"late launches: {'right' if second[0] else 'WRONG'}" in str(said[0].message)
    assert is_plain(decoder) != second[0]
    assert second[0] != graphs.EARLY_LAUNCHES


@pytest.mark.parametrize("text", ["CUDA out of memory.", "CUDA error: busy or unavailable", None])
def test_gpu_without_second_process_stays_unknown(text, monkeypatch):
    """None: no process can be started."""
    if text is None:
        monkeypatch.setattr(self_check, "check_in_process", IN_A_PROCESS)
        monkeypatch.setattr(self_check, "COMMAND", ("/no/such/program",))
    else:
        answers_in_turn(monkeypatch, (False, text))
    answer = check()
    with pytest.warns(UserWarning, match="failed their check"):
        assert is_plain(self_check.settle(answer, warn=True)[0])
    assert not self_check.cache_file(answer.facts).exists()


# ---------------------------------------------------------------------------- what is cached


CHANGES = {  # of what the answer depends on
    "GPU": (self_check, "machine", lambda _: {"GPU": "other"}),
    "code": (self_check, "fingerprint_of_code", lambda *_: "other"),
    "torch": (torch, "__version__", "other"),
}


@pytest.mark.parametrize("changed", ["nothing", *CHANGES, "precision", "sizes", "TF32"])
def test_another_machine_version_or_setting_is_checked_again(changed, monkeypatch, capsys):
    tried = answers_in_turn(monkeypatch, RIGHT, WRONG)
    first = check()
    assert capsys.readouterr().err.startswith("checking the decoder's kernels, once for each GPU")
    if changed in CHANGES:
        monkeypatch.setattr(*CHANGES[changed])
    torch.backends.cuda.matmul.allow_tf32 = changed == "TF32"
    hparams = replace(HPARAMS, attention_dim=7) if changed == "sizes" else HPARAMS
    second = check(hparams, torch.bfloat16 if changed == "precision" else None)
    assert len(tried) == (1 if changed == "nothing" else 2)
    assert (second == first) == (changed == "nothing")
    assert bool(capsys.readouterr().err) == (changed != "nothing")


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", {"mode": "x"}, {"results": []}])
def test_a_damaged_cache_is_written_again(content, monkeypatch):
    tried = answers_in_turn(monkeypatch, RIGHT, RIGHT)
    answer = check()
    if isinstance(content, dict):
        content = json.dumps(answer._asdict() | content)
    self_check.cache_file(answer.facts).write_text(content)
    assert check() == answer
    assert check() == answer
    assert len(tried) == 2


def test_a_cache_that_cannot_be_written_is_reported(monkeypatch, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    answers_in_turn(monkeypatch, RIGHT)
    assert check().mode == "late"
    assert "check cannot be cached" in capsys.readouterr().err.splitlines()[1]


# ---------------------------------------------------------------------------- training


def trained(hparams):
    """The parameters after three updates, and how the decoder ran."""
    trainer = Trainer(hparams, CPU)
    trainer.model.train()
    for _ in range(3):
        trainer.step([MicroBatch(tiny_batch(((5, 3), (3, 2))))])
    return torch.nn.utils.parameters_to_vector(trainer.model.parameters()), trainer


@interpreted
def test_training_after_a_fault_uses_plain_operations(monkeypatch):
    no_first_gradient(monkeypatch)
    with pytest.warns(UserWarning, match="failed their check"):
        found, trainer = trained(HPARAMS)
    assert trainer.decoder_description.startswith("fast (plain operations, several times slower")
    assert trainer.model.encoder.run_lstm is packed_lstm
    trainer.use_decoder("reference")
    assert trainer.model.training_decoder is teacher_forced
    with warnings.catch_warnings(action="error"):
        trainer.use_decoder("fast")  # what was found is remembered
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "problem", lambda *_: "no CUDA device")
        expected, _ = trained(HPARAMS)
    assert torch.equal(found, expected)  # right kernels too would differ in the last bits


class Several(Processes):
    """One of two processes, on machines of their own."""

    def all_or_none_with_heartbeat(self, action, what):
        return action()

    def gather(self, value):
        return [value, Answer("plain", ["early launches: WRONG", "late launches: WRONG"], {})]


def test_worst_answer_of_machines_holds(monkeypatch):
    tried = answers_in_turn(monkeypatch, RIGHT)
    with pytest.warns(UserWarning, match="failed their check"):
        decoder, _, phrase = checked_decoder("fast", HPARAMS, CPU, Several(0, 2))
    assert is_plain(decoder)
    with warnings.catch_warnings(action="error"):  # the first process warns, no other
        assert checked_decoder("fast", HPARAMS, CPU, Several(1, 2)).description == phrase
        # and of a machine's processes only the first checks
        third = checked_decoder("fast", HPARAMS, CPU, Several(1, 2, local_rank=1))
        assert third.description == phrase
    assert tried == ["late"]


def test_reference_decoder_and_cpu_need_no_check(monkeypatch):
    tried = answers_in_turn(monkeypatch)
    assert checked_decoder("reference", HPARAMS, CPU, ALONE).decoder is teacher_forced
    monkeypatch.setattr(graphs, "problem", lambda *_: "no CUDA device")
    assert checked_decoder("fast", HPARAMS, CPU, ALONE).decoder is fast_decoder.teacher_forced
    assert tried == []
