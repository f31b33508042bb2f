"""Test checkpoint files: atomic writes, the choice of a file, and checks of the content."""

import contextlib
import copy
import errno
import os
import pickle
import re
import shutil
import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from helpers import LONG, assert_same, flags, load, newest, tiny
from training_runs import snapshot, stopped_inside_an_epoch

import synthesize
import train
from export import checkpoint_file
from export.checkpoint_synthesizer import load_checkpoint_synthesizer
from export.loading import load_synthesizer
from hparams import create_hparams
from model import Tacotron2
from tacotron2_voice.utils.errors import UserError
from training import checkpoint


def state(iteration: int) -> dict:
    return {"iteration": iteration, "state_dict": {"w": torch.full((3,), float(iteration))}}


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_checkpoints_with_the_largest_numbers_are_kept(tmp_path):
    """Checkpoints are sorted by number instead of name. All files that are not checkpoints are
    kept."""
    others = ["checkpoint_.pt", "checkpoint_5.pt.superseded", "my_checkpoint_3.pt"]
    for name in others:
        (tmp_path / name).write_text("mine")
    (tmp_path / "checkpoint_999.pt").write_text("of a later step, which others put there")
    (tmp_path / "checkpoint_1.pt").mkdir()
    others += ["checkpoint_999.pt", "checkpoint_1.pt"]
    for iteration in (8, 9, 10, 99, 100):
        path = checkpoint.write_checkpoint(tmp_path, state(iteration), keep=2)
    assert names(tmp_path) == sorted(["checkpoint_100.pt", "checkpoint_99.pt", *others])
    assert [n for n, _ in checkpoint.list_checkpoints(tmp_path)] == [1, 99, 100, 999]
    assert_same(checkpoint.load_checkpoint(path), state(100))


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"),
    ],
)
def test_earlier_checkpoints_are_kept_when_a_write_fails(error, tmp_path, monkeypatch):
    checkpoint.write_checkpoint(tmp_path, state(1), keep=1)
    before = (tmp_path / "checkpoint_1.pt").read_bytes()

    def fail(_, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    for iteration in (1, 2):  # iteration 1 replaces a checkpoint, iteration 2 writes a new file
        with pytest.raises(UserError, match="cannot write the checkpoint") as refusal:
            checkpoint.write_checkpoint(tmp_path, state(iteration), keep=1)
        assert f"checkpoint_{iteration}.pt" in str(refusal.value)
        assert str(error).splitlines()[0] in str(refusal.value)
    assert names(tmp_path) == ["checkpoint_1.pt"]
    assert (tmp_path / "checkpoint_1.pt").read_bytes() == before


def refuse_links(*_):
    raise OSError(errno.EPERM, "Operation not permitted")


@pytest.mark.parametrize("has_links", [True, False])
def test_best_checkpoint_survives_when_its_numbered_file_is_removed(
    has_links, tmp_path, monkeypatch
):
    if not has_links:
        monkeypatch.setattr(os, "link", refuse_links)
    path = checkpoint.write_checkpoint(tmp_path, state(1), keep=1)
    checkpoint.link_as("best.pt", path, tmp_path)
    # best.pt is a hard link, not a copy.
    assert os.path.samefile(tmp_path / "best.pt", path) == has_links
    checkpoint.write_checkpoint(tmp_path, state(1) | {"state_dict": {}}, keep=1)
    checkpoint.write_checkpoint(tmp_path, state(2), keep=1)
    assert names(tmp_path) == ["best.pt", "checkpoint_2.pt"]
    assert_same(checkpoint.load_checkpoint(tmp_path / "best.pt"), state(1))


def test_checkpoints_newer_than_the_given_number_are_renamed(tmp_path):
    """The newest checkpoint is renamed first. best.pt is renamed last, even if it is damaged. No
    file is overwritten."""
    for iteration in (1, 2, 3):
        path = checkpoint.write_checkpoint(tmp_path, state(iteration), keep=9)
    checkpoint.link_as("best.pt", path, tmp_path)
    (tmp_path / "checkpoint_3.pt.superseded").write_text("an earlier one")
    moved = checkpoint.set_aside_newer(tmp_path, 1)
    assert [(path.name, is_damaged) for path, is_damaged in moved] == [
        ("checkpoint_3.pt.superseded+", False),
        ("checkpoint_2.pt.superseded", False),
        ("best.pt.superseded", False),
    ]
    assert (tmp_path / "checkpoint_3.pt.superseded").read_text() == "an earlier one"
    checkpoint.link_as("best.pt", tmp_path / "checkpoint_1.pt", tmp_path)
    assert checkpoint.set_aside_newer(tmp_path, 1) == []
    (tmp_path / "best.pt").unlink()
    (tmp_path / "best.pt").write_bytes(b"damaged")
    [(moved_best, is_damaged)] = checkpoint.set_aside_newer(tmp_path, 1)
    assert (moved_best.name, is_damaged) == ("best.pt.superseded+", True)


def test_diverged_checkpoint_is_renamed_unless_it_is_the_only_or_best_checkpoint(
    tmp_path,
):
    one = checkpoint.write_checkpoint(tmp_path, state(1), keep=9)
    assert checkpoint.last_good(tmp_path, 1, -1) is None
    assert names(tmp_path) == ["checkpoint_1.pt"]
    two = checkpoint.write_checkpoint(tmp_path, state(2), keep=9)
    assert checkpoint.last_good(tmp_path, 2, 2) == two
    assert checkpoint.last_good(tmp_path, 2, -1) == one
    assert names(tmp_path) == ["checkpoint_1.pt", "checkpoint_2.pt.superseded"]
    checkpoint.write_checkpoint(tmp_path, state(3), keep=9)
    checkpoint.write_checkpoint(tmp_path, state(4), keep=9)
    assert checkpoint.last_good(tmp_path, 3, -1) == one
    assert [name for name in names(tmp_path) if name.endswith(".pt")] == ["checkpoint_1.pt"]


# ---------------------------------------------------------------------------- damaged files


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[bytes, dict]:
    """Return a checkpoint with blocks of zeros, as bytes and as loaded content."""
    torch.manual_seed(0)
    tensors = {f"w{i}": torch.randn(3 + 40 * i) for i in range(4)} | {"b": torch.zeros(300)}
    path = checkpoint.write_checkpoint(
        tmp_path_factory.mktemp("written"), {"iteration": 7, "state_dict": tensors}, keep=1
    )
    return path.read_bytes(), torch.load(path, weights_only=True)


def flip_a_bit(content: bytearray, place: int) -> bytearray:
    content[place] ^= 1 << place % 8
    return content


def zero_a_sector(content: bytearray, place: int) -> bytearray:
    start = place // 512 * 512
    content[start : start + 512] = bytes(len(content[start : start + 512]))
    return content


def cut(content: bytearray, place: int) -> bytearray:
    return content[:place]


@pytest.mark.parametrize("damage", [flip_a_bit, zero_a_sector, cut])
def test_damage_to_a_checkpoint_is_detected_unless_it_is_harmless(damage, written, tmp_path):
    """Damage between the records of the zip file is harmless if the content is loaded correctly."""
    content, state = written
    path, noticed, places = tmp_path / "checkpoint_7.pt", 0, range(0, len(content), 61)
    for place in places:
        path.write_bytes(damage(bytearray(content), place))
        try:
            loaded = checkpoint.load_checkpoint(path)
        except checkpoint_file.DamagedCheckpoint:
            noticed += 1
        else:
            assert_same(loaded, state)
    assert noticed > len(places) / 2


def test_damaged_attributes_in_the_zip_directory_are_detected(written, tmp_path):
    """If the attributes of an entry mark it as a folder, torch skips the entry and leaves its
    tensor uninitialized."""
    content, state = written
    path = tmp_path / "checkpoint_7.pt"
    entries = [match.start() for match in re.finditer(b"PK\x01\x02", content)]
    assert len(entries) > 5
    for start in entries:
        for bit in range(8):  # invert each bit of the MS-DOS attributes
            damaged = bytearray(content)
            damaged[start + 38] ^= 1 << bit
            path.write_bytes(damaged)
            with contextlib.suppress(checkpoint_file.DamagedCheckpoint):
                assert_same(checkpoint.load_checkpoint(path), state)


def test_oldest_checkpoint_format_is_accepted_although_it_has_no_checksum(tmp_path):
    torch.save(state(3), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_same(checkpoint.load_checkpoint(tmp_path / "old.pt"), state(3))


def test_checkpoint_is_rejected_when_it_would_run_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="other than tensors and plain values"):
        checkpoint.load_checkpoint(tmp_path / "evil.pt")
    (tmp_path / "old.pt").write_bytes(pickle.dumps({"state_dict": Evil()}, protocol=4))
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(UserError, match="other than tensors"),
    ):
        checkpoint.load_checkpoint(tmp_path / "old.pt")
    assert not (tmp_path / "ran").exists()


def test_error_lists_the_checkpoints_in_the_folder_when_a_checkpoint_is_missing(tmp_path):
    for time, name in enumerate(("checkpoint_500.pt", "best.pt", "checkpoint_1000.pt")):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time, time))
    for function in (checkpoint.load_checkpoint, load_synthesizer):
        with pytest.raises(UserError) as raised:
            function(tmp_path / "last.pt")
        message = str(raised.value)
        assert str(tmp_path / "last.pt") in message
        assert "best.pt, checkpoint_1000.pt, checkpoint_500.pt" in message


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "no such checkpoint"),
        (os.mkfifo, "a named pipe"),
        (lambda path: torch.save([1, 2], path), "contains no state_dict"),
        (lambda path: path.write_text("some text"), "damaged or not a PyTorch checkpoint"),
    ],
)
def test_file_is_rejected_when_it_is_not_a_checkpoint(make, message, tmp_path):
    path = tmp_path / "checkpoint_1.pt"
    make(path)
    with pytest.raises(UserError, match=f"{path}: {message}"):
        checkpoint.load_checkpoint(path)


H = create_hparams(tiny())


def random_model(seed: int) -> Tacotron2:
    torch.manual_seed(seed)
    return Tacotron2(H)


@pytest.mark.parametrize("prefix", ["", "module.", "_orig_mod.", "model.", "_orig_mod.module."])
def test_weights_are_loaded_with_or_without_a_wrapper_prefix(prefix, tmp_path):
    theirs = random_model(1)
    model = random_model(2)
    path = tmp_path / "some.pt"
    saved = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
    torch.save({"state_dict": saved}, path)
    checkpoint_file.load_weights(model, checkpoint_file.read_checkpoint(path), path, H)
    assert_same(dict(model.state_dict()), dict(theirs.state_dict()))


def test_ignored_layers_do_not_change_when_weights_are_loaded():
    model, fresh, theirs = random_model(2), random_model(2), random_model(1).state_dict()
    theirs["embedding.weight"] = torch.zeros(10, 3)
    checkpoint_file.load_weights(model, {"state_dict": theirs}, "some.pt", H, ["embedding.weight"])
    assert torch.equal(model.embedding.weight, fresh.embedding.weight)
    with pytest.raises(UserError, match="the model has no tensor named 'embeding'"):
        checkpoint_file.load_weights(model, {"state_dict": {}}, "some.pt", H, ["embeding"])


def test_error_lists_the_settings_that_differ_from_the_checkpoint():
    saved = {"state_dict": random_model(1).state_dict(), "hparams": asdict(H)}
    other = replace(H, prenet_dim=H.prenet_dim + 1)
    with pytest.raises(UserError) as rejected:
        checkpoint_file.load_weights(Tacotron2(other), saved, "some.pt", other)
    expected = f"prenet_dim={other.prenet_dim}: expected {H.prenet_dim}"
    assert expected in str(rejected.value)
    assert "\n" not in str(rejected.value)


def test_error_lists_the_tensors_that_do_not_fit_the_model():
    model, theirs = random_model(2), random_model(1).state_dict()
    theirs["decoder.extra"] = torch.zeros(1)
    theirs["embedding.weight"] = torch.zeros(10, 8)
    del theirs["decoder.gate_layer.linear_layer.bias"]
    with pytest.raises(UserError, match=r"some\.pt does not fit") as rejected:
        checkpoint_file.load_weights(model, {"state_dict": theirs}, "some.pt", H)
    lines = str(rejected.value).splitlines()
    for words in (
        ("Missing", "decoder.gate_layer.linear_layer.bias"),
        ("Unexpected", "decoder.extra"),
        ("embedding.weight", "[10, 8]", "[148, 8]"),
    ):
        assert any(all(word in line for word in words) for line in lines), words


# ---------------------------------------------------------------------------- broken parts


@pytest.fixture(scope="module")
def stopped(corpus, tmp_path_factory):
    """Return the folder of a run that was killed during its second epoch."""
    return stopped_inside_an_epoch(corpus, tmp_path_factory.mktemp("stopped") / "out")


def drop(*keys):
    """Return a function that deletes `state[keys[0]][keys[1]]...`."""
    return lambda state: _parent(state, keys).pop(keys[-1])


def put(*keys_and_value):
    *keys, value = keys_and_value
    return lambda state: _parent(state, keys).update({keys[-1]: value})


def _parent(state, keys):
    for key in keys[:-1]:
        state = state[key]
    return state


def fill(value, *keys):
    """Return a function that writes a value into the middle of a tensor."""

    def change(state):
        tensor = _parent(state, (*keys, None)).view(-1)
        tensor[len(tensor) // 2] = value

    return change


WEIGHT = "decoder.attention_rnn.weight_ih"
# Each pair contains the beginning of the error message, and a function that breaks a part of the
# checkpoint. The error message begins with the name of this part.
OF_ALL = [  # changes that make all programs reject the checkpoint
    ("hparams", drop("hparams")),
    ("hparams: ema_decay", put("hparams", "ema_decay", 0.9)),
    ("hparams: batch_size", put("hparams", "batch_size", "3")),
    (
        "attention: WindowAttention, expected LocationSensitiveAttention",
        put("attention_class", "WindowAttention"),
    ),
    (f"state_dict: {WEIGHT}: contains NaN", fill(np.nan, "state_dict", WEIGHT)),
    ("loop: epoch", put("loop", "epoch", 0)),
]
OF_TRAINING = [  # changes that synthesis accepts and training rejects (even with --warm_start)
    ("iteration", put("iteration", -1)),
    ("loop: tokens", put("loop", "tokens", 1)),
]
OF_A_RUN = [  # changes of entries that only a resumed run uses, so only a resumed run rejects them
    ("logs", drop("logs")),
    ("optimizer: RAdam, expected Adam", put("optimizer_class", "RAdam")),
    ("optimizer", drop("optimizer", "state", 39)),
    ("optimizer: the state of parameter 0", drop("optimizer", "state", 0, "exp_avg_sq")),
    (
        "optimizer: the state of parameter 3",
        put("optimizer", "state", 3, "exp_avg", torch.zeros(3)),
    ),
]
CASES = [(*case, "all") for case in OF_ALL]
CASES += [(*case, "training") for case in OF_TRAINING] + [(*case, "run") for case in OF_A_RUN]


def ends(program, *arguments) -> str:
    with pytest.raises((SystemExit, UserError)) as stop:
        program([str(argument) for argument in arguments])
    assert str(stop.value) not in ("1", "2")  # the exit value is the error message, not a number
    return str(stop.value)


@pytest.mark.thorough
@pytest.mark.usefixtures("clean_process")
@pytest.mark.parametrize(("part", "change", "refused_by"), CASES)
def test_programs_report_a_broken_part_of_a_checkpoint_in_one_line(
    part, change, refused_by, stopped, corpus, tmp_path
):
    out = shutil.copytree(stopped, tmp_path / "out")
    path, new = newest(out), tmp_path / "new"
    broken = copy.deepcopy(load(path))
    change(broken)
    torch.save(broken, path)
    before = snapshot(out)
    message = ends(train.main, "-o", out, "--resume")
    assert message.startswith(f"train.py: {path}: {part}")
    assert len(message.splitlines()) == 1
    assert f": {part}" in ends(train.main, "-o", new, "-c", path)
    if refused_by != "run":
        assert f": {part}" in ends(
            train.main, *flags(new, corpus.hparams(**LONG)), "-c", path, "--warm_start"
        )
    if refused_by == "all":
        spoken = ["--checkpoint", path, "--text", "a", "-o", tmp_path / "spoken"]
        assert ends(synthesize.main, *spoken).startswith(f"{path}: {part}")
    else:
        load_checkpoint_synthesizer(path)
    assert names(tmp_path) == ["out"]
    assert snapshot(out) == before


def test_error_lists_all_broken_parts_of_a_checkpoint(stopped, tmp_path):
    broken = load(newest(stopped))
    for change in (put("iteration", -1), put("logs", None), fill(np.nan, "state_dict", WEIGHT)):
        change(broken)
    torch.save(broken, tmp_path / "broken.pt")
    with pytest.raises(UserError) as refusal:
        checkpoint.load_checkpoint(tmp_path / "broken.pt")
    parts = {line.split(":")[0].strip() for line in str(refusal.value).splitlines()[1:]}
    assert parts == {"iteration", "state_dict", "logs"}


def test_only_weights_are_checked_when_the_checkpoint_is_from_another_recipe(stopped, tmp_path):
    theirs = {"state_dict": load(newest(stopped))["state_dict"], "optimizer": "theirs", "amp": [1]}
    torch.save(theirs, tmp_path / "theirs.pt")
    assert checkpoint.load_checkpoint(tmp_path / "theirs.pt").keys() == theirs.keys()
    theirs["state_dict"] = theirs["state_dict"] | {WEIGHT: torch.full((3,), np.nan)}
    torch.save(theirs, tmp_path / "theirs.pt")
    with pytest.raises(UserError, match=f"theirs.pt: state_dict: {WEIGHT}: contains NaN"):
        checkpoint.load_checkpoint(tmp_path / "theirs.pt")
