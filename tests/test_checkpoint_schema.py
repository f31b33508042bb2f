"""Checkpoints whose parts are not what they have to be: one message each, and nothing touched."""

import copy
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import ROOT, make_corpus

import speaking
import synthesize
import train
from errors import UserError
from training.checkpoint import load_checkpoint

SAVED = ROOT / "tests" / "data" / "first_release"  # written inside an epoch of 4 batches
NAME = "checkpoint_6.pt"


@pytest.fixture(autouse=True)
def _clean_process(monkeypatch, one_thread):
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture(scope="module")
def filelists(tmp_path_factory) -> str:
    """The clips of the saved run, as --hparams takes them."""
    seconds = {"train": np.linspace(0.3, 1.5, 14), "val": (0.35, 0.5, 0.7, 0.9, 1.3)}
    corpus = make_corpus(tmp_path_factory.mktemp("corpus"), seconds)
    return f"training_files={corpus.train},validation_files={corpus.val}"


@pytest.fixture(scope="module")
def good() -> dict:
    return load_checkpoint(SAVED / NAME)


def drop(*keys):
    """Take out `state[keys[0]][keys[1]]...`."""
    return lambda state: _parent(state, keys).pop(keys[-1])


def put(*keys_and_value):
    *keys, value = keys_and_value
    return lambda state: _parent(state, keys).update({keys[-1]: value})


def _parent(state, keys):
    for key in keys[:-1]:
        state = state[key]
    return state


def fill(value, *keys):
    """Put a value into the middle of a tensor."""

    def change(state):
        tensor = _parent(state, (*keys, None)).view(-1)
        tensor[len(tensor) // 2] = value

    return change


def change_moments(change):
    """Of the optimizer's state of the first parameter, [148, 8]."""

    def apply(state):
        entry = state["optimizer"]["state"][0]
        entry["exp_avg"] = change(entry["exp_avg"])

    return apply


WEIGHT = "decoder.attention_rnn.weight_ih"
SCALER_WITHOUT_SCALE = {
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "_growth_tracker": 0,
}
# name: (part that the message names, change to a good checkpoint)
OF_ALL = {  # whoever reads it
    "no settings": ("hparams", drop("hparams")),
    "settings are a list": ("hparams", put("hparams", [1])),
    "settings with an unknown name": ("hparams: ema_decay", put("hparams", "ema_decay", 0.9)),
    "settings of a wrong type": ("hparams: batch_size", put("hparams", "batch_size", "3")),
    "settings out of range": ("hparams: prenet_dim", put("hparams", "prenet_dim", -8)),
    "an unknown part": ("ema", put("ema", {})),
    "a part without a name": ("7", put(7, {})),
    "iteration is a text": ("iteration", put("iteration", "6")),
    "iteration is negative": ("iteration", put("iteration", -1)),
    "iteration is another than the loop's": ("loop: iteration", put("iteration", 7)),
    "weights are a list": ("state_dict", put("state_dict", [1])),
    "a weight is a number": (f"state_dict: {WEIGHT}", put("state_dict", WEIGHT, 1.0)),
    "a weight is NaN": (f"state_dict: {WEIGHT}: NaN", fill(np.nan, "state_dict", WEIGHT)),
    "a weight is infinite": (f"state_dict: {WEIGHT}: NaN", fill(np.inf, "state_dict", WEIGHT)),
    "a weight is complex": (
        f"state_dict: {WEIGHT}: torch.complex64",
        put("state_dict", WEIGHT, torch.zeros(2, dtype=torch.complex64)),
    ),
    "optimizer is a list": ("optimizer", put("optimizer", [])),
    "optimizer without state": ("optimizer: state", drop("optimizer", "state")),
    "optimizer of two groups": (
        "optimizer: param_groups",
        put("optimizer", "param_groups", [{}] * 2),
    ),
    "a moment is NaN": (
        "optimizer: 'exp_avg' of parameter 3",
        fill(np.nan, "optimizer", "state", 3, "exp_avg"),
    ),
    "a square is negative": (
        "optimizer: 'exp_avg_sq' of parameter 3",
        fill(-1.0, "optimizer", "state", 3, "exp_avg_sq"),
    ),
    "one value seen as many": (
        "optimizer: 'exp_avg' of parameter 0: not contiguous",
        change_moments(lambda moments: moments[:1, :1].expand(148, 8)),
    ),
    "a moment is a number": (
        "optimizer: 'step' of parameter 0",
        put("optimizer", "state", 0, "step", 6.0),
    ),
    "learning rate is a text": ("learning_rate", put("learning_rate", "fast")),
    "scaler is none": ("scaler", put("scaler", None)),
    "scaler lacks its scale": ("scaler: scale", put("scaler", SCALER_WITHOUT_SCALE)),
    "loop with a text": ("loop: frames", put("loop", "frames", "161")),
    "loop with an unknown name": ("loop: unknown 'tokens'", put("loop", "tokens", 1)),
    "loop lacks a name": ("loop: updates", drop("loop", "updates")),
    "loop with NaN": ("loop: loss_sum", put("loop", "loss_sum", np.nan)),
    "loop in epoch 0": ("loop: epoch", put("loop", "epoch", 0)),
    "loop with a huge number": ("loop: iteration", put("loop", "iteration", 10**400)),
    "sampler is a list": ("sampler", put("sampler", [1, 2])),
    "sampler of another shape": ("sampler: plan_checksum", drop("sampler", "plan_checksum")),
    "sampler past its end": ("sampler: 2 of 1", put("sampler", "num_batches", 1)),
    "sampler elsewhere than the loop": ("sampler: 3", put("sampler", "batches_trained", 3)),
    "sampler is none inside an epoch": ("sampler: none", put("sampler", None)),
    "corpus is a number": ("corpus", put("corpus", 5)),
    "longest text of no symbols": ("longest_text", put("longest_text", 0)),
    "random state of a wrong size": (
        "rng: cpu",
        put("rng", "cpu", torch.zeros(9, dtype=torch.uint8)),
    ),
    "random state of numbers": ("rng: cpu", put("rng", "cpu", torch.zeros(5056))),
    "random state of ones": ("rng: cpu", put("rng", "cpu", torch.ones(5056, dtype=torch.uint8))),
    "random state of no processor": ("rng: cpu", drop("rng", "cpu")),
    "random state of a GPU": ("rng: cuda", put("rng", "cuda", torch.zeros(3, dtype=torch.uint8))),
    "logs is none": ("logs", put("logs", None)),
    "logs outside the folder": ("logs: '../../other'", put("logs", "../../other", 3)),
    "logs at the root": ("logs: '/etc/passwd'", put("logs", "/etc/passwd", 3)),
    "logs of a negative size": ("logs", put("logs", "metrics.jsonl", -1)),
    "metrics' CRC-32 is a text": ("metrics_checksum", put("metrics_checksum", "c0ffee")),
}
OF_A_RUN = {  # who goes on with it; weights can be taken from it
    f"no {part}": (part, drop(part))
    for part in ("iteration", "optimizer", "scaler", "loop", "sampler", "corpus", "rng", "logs")
}
OF_ITS_MODEL = {  # seen when it is put into a model
    "moments of another shape": (
        "optimizer: exp_avg of parameter 0 is a torch.float32 tensor of shape [3, 8]",
        change_moments(lambda moments: moments[:3].clone()),
    ),
    "larger moments": (
        "optimizer: exp_avg of parameter 0",
        change_moments(lambda moments: torch.zeros(200, 8)),
    ),
    "moments of another dtype": (
        "optimizer: exp_avg of parameter 0",
        change_moments(lambda moments: moments.half()),
    ),
    "moments of one parameter less": ("optimizer: state of 39", drop("optimizer", "state", 39)),
    "moments of one parameter more": (
        "optimizer: state of 41",
        put("optimizer", "state", 40, {"step": torch.zeros(())}),
    ),
    "no second moment": (
        "optimizer: parameter 0 has step, exp_avg",
        drop("optimizer", "state", 0, "exp_avg_sq"),
    ),
    "steps by row": (
        "optimizer: step of parameter 0",
        put("optimizer", "state", 0, "step", torch.zeros(148)),
    ),
    "another optimizer": (
        "optimizer: betas",
        lambda state: state["optimizer"]["param_groups"][0].update(betas=(0.5, 0.5)),
    ),
    "another Adam": (
        "optimizer: amsgrad",
        lambda state: state["optimizer"]["param_groups"][0].update(amsgrad=True),
    ),
    "parameters of another model": (
        "optimizer: parameters other than the model's 40",
        lambda state: state["optimizer"]["param_groups"][0].update(params=[0, 1]),
    ),
}


def write_broken(folder: Path, good: dict, change) -> Path:
    folder.mkdir()
    state = copy.deepcopy(good)
    change(state)
    torch.save(state, folder / NAME)
    shutil.copy(SAVED / "metrics.jsonl", folder)
    (folder / ".lock").touch()
    return folder / NAME


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def ends(program, *arguments) -> str:
    with pytest.raises(SystemExit) as stop:
        program([str(argument) for argument in arguments])
    assert isinstance(stop.value.code, str)  # a message
    return stop.value.code


@pytest.mark.parametrize("case", [*OF_ALL, *OF_A_RUN, *OF_ITS_MODEL])
def test_a_broken_part_is_one_message_that_names_it_and_nothing_is_touched(
    case, good, filelists, tmp_path
):
    part, change = (OF_ALL | OF_A_RUN | OF_ITS_MODEL)[case]
    path = write_broken(tmp_path / "out", good, change)
    before = contents(path.parent)
    message = ends(train.main, "-o", path.parent, "--resume", "--hparams", filelists)
    assert message.startswith(f"train.py: {path}: {part}")
    assert len(message.splitlines()) == 1
    new = tmp_path / "new"
    assert f": {part}" in ends(train.main, "-o", new, "-c", path, "--hparams", filelists)
    assert not new.exists()
    if case in OF_ALL:
        warm = ["-c", path, "--warm_start", "--hparams", f"{filelists},{TINY}"]
        assert f": {part}" in ends(train.main, "-o", new, *warm)
        out = ["-o", tmp_path / "spoken"]
        message = ends(synthesize.main, "--checkpoint", path, "--text", "a", *out)
        assert message.startswith(f"synthesize.py: {path}: {part}")
        assert not new.exists()
        assert not (tmp_path / "spoken").exists()
    else:
        speaking.load_speaker(path)  # its weights are good
    assert contents(path.parent) == before


TINY = "batch_size=3,num_workers=0,decoder=reference,sampling_rate=22050,hop_length=800"


def test_several_broken_parts_are_listed_together(good, tmp_path):
    def change(state):
        put("iteration", -1)(state)
        put("rng", None)(state)
        fill(np.nan, "state_dict", WEIGHT)(state)

    path = write_broken(tmp_path / "out", good, change)
    with pytest.raises(UserError) as refusal:
        load_checkpoint(path)
    assert [line.split(":")[0].strip() for line in str(refusal.value).splitlines()[1:]] == [
        "iteration",
        "state_dict",
        "rng",
    ]


@pytest.mark.parametrize("parts", [{"state_dict"}, {"iteration", "state_dict", "learning_rate"}])
def test_of_a_checkpoint_of_another_recipe_only_the_weights_count(parts, good, tmp_path):
    theirs = {part: good[part] for part in parts} | {"optimizer": "theirs", "amp": [1]}
    torch.save(theirs, tmp_path / "theirs.pt")
    assert load_checkpoint(tmp_path / "theirs.pt").keys() == theirs.keys()
    theirs["state_dict"] = theirs["state_dict"] | {WEIGHT: torch.full((3,), np.nan)}
    torch.save(theirs, tmp_path / "theirs.pt")
    with pytest.raises(UserError, match=f"theirs.pt: state_dict: {WEIGHT}: NaN"):
        load_checkpoint(tmp_path / "theirs.pt")


def test_whole_numbers_where_the_model_has_fractions_are_refused(good, tmp_path):
    def change(state):
        state["state_dict"][WEIGHT] = state["state_dict"][WEIGHT].long()

    path = write_broken(tmp_path / "out", good, change)
    with pytest.raises(UserError, match=f"{WEIGHT} is torch.int64, the model's is torch.float32"):
        speaking.load_speaker(path)


@pytest.mark.parametrize("what", ["folder", "pipe"])
def test_what_is_no_file_is_no_checkpoint(what, tmp_path):
    path = tmp_path / "checkpoint_1.pt"
    path.mkdir() if what == "folder" else os.mkfifo(path)
    with pytest.raises(UserError, match=r"checkpoint_1\.pt: no file, expected a checkpoint"):
        load_checkpoint(path)
