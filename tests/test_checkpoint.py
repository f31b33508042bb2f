"""Checkpoint files: written whole or not at all, kept, found, refused."""

import errno
import os

import pytest
import torch
from helpers import assert_same

from errors import UserError
from hparams import create_hparams
from model import Tacotron2
from training import checkpoint

SMALL = create_hparams(
    "symbols_embedding_dim=8,encoder_embedding_dim=8,attention_rnn_dim=8,decoder_rnn_dim=8,"
    "prenet_dim=8,attention_dim=8,attention_location_n_filters=2,postnet_embedding_dim=8"
)


def state(iteration: int) -> dict:
    return {"iteration": iteration, "state_dict": {"w": torch.full((3,), float(iteration))}}


def names(directory) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_only_the_newest_are_kept_by_number_and_not_by_name(tmp_path):
    for iteration in (8, 9, 10, 100, 99):
        checkpoint.save_checkpoint(tmp_path, state(iteration), keep=2)
    assert names(tmp_path) == ["checkpoint_100.pt", "checkpoint_99.pt"]
    assert [n for n, _ in checkpoint.list_checkpoints(tmp_path)] == [99, 100]


def test_files_that_are_no_checkpoints_are_neither_listed_nor_removed(tmp_path):
    others = [
        "checkpoint_.pt",
        "checkpoint_5.pt.superseded",
        "checkpoint_x.pt",
        "my_checkpoint_3.pt",
    ]
    for name in others:
        (tmp_path / name).write_text("mine")
    for iteration in (1, 2, 3):
        checkpoint.save_checkpoint(tmp_path, state(iteration), keep=1)
    assert names(tmp_path) == sorted([*others, "checkpoint_3.pt"])


def test_what_was_saved_is_loaded(tmp_path):
    saved = state(5) | {"rng": {"cpu": torch.get_rng_state()}, "more": {"best": float("inf")}}
    path = checkpoint.save_checkpoint(tmp_path, saved, keep=1)
    assert_same(checkpoint.load_checkpoint(path), saved)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("PytorchStreamWriter failed writing file data/3: file write failed"),
        PermissionError(errno.EACCES, "Permission denied"),
    ],
)
def test_failed_write_leaves_earlier_checkpoints_and_no_rubbish(error, tmp_path, monkeypatch):
    checkpoint.save_checkpoint(tmp_path, state(1), keep=1)
    before = (tmp_path / "checkpoint_1.pt").read_bytes()

    def fail(_, path):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    for iteration in (1, 2):  # over an old one, and a new one
        with pytest.raises(UserError, match="could not be written") as refusal:
            checkpoint.save_checkpoint(tmp_path, state(iteration), keep=1)
        assert f"checkpoint_{iteration}.pt" in str(refusal.value)
        assert str(error).splitlines()[0] in str(refusal.value)
        assert "GB free" in str(refusal.value)
    assert names(tmp_path) == ["checkpoint_1.pt"]
    assert (tmp_path / "checkpoint_1.pt").read_bytes() == before


def test_folder_that_has_vanished_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match="could not be written"):
        checkpoint.save_checkpoint(tmp_path / "gone", state(1), keep=1)


def test_best_stays_when_its_checkpoint_is_removed_or_written_anew(tmp_path):
    checkpoint.mark_best(tmp_path, checkpoint.save_checkpoint(tmp_path, state(1), keep=1))
    assert os.path.samefile(tmp_path / "best.pt", tmp_path / "checkpoint_1.pt")  # no second copy
    checkpoint.save_checkpoint(tmp_path, state(1) | {"iteration": 1, "state_dict": {}}, keep=1)
    checkpoint.save_checkpoint(tmp_path, state(2), keep=1)
    assert names(tmp_path) == ["best.pt", "checkpoint_2.pt"]
    assert_same(checkpoint.load_checkpoint(tmp_path / "best.pt"), state(1))


def test_best_is_copied_where_there_are_no_hard_links(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, "Operation not permitted")

    path = checkpoint.save_checkpoint(tmp_path, state(1), keep=1)
    monkeypatch.setattr(os, "link", refuse)
    checkpoint.mark_best(tmp_path, path)
    assert_same(checkpoint.load_checkpoint(tmp_path / "best.pt"), state(1))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 half of one", b"no checkpoint at all" * 99])
def test_damaged_file_is_refused_by_name(content, tmp_path):
    path = tmp_path / "checkpoint_3.pt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"checkpoint_3\.pt: damaged, or no checkpoint"):
        checkpoint.load_checkpoint(path)


def test_every_truncation_is_noticed(tmp_path):
    path = checkpoint.save_checkpoint(tmp_path, state(1), keep=1)
    content = path.read_bytes()
    for size in range(0, len(content), 97):
        path.write_bytes(content[:size])
        with pytest.raises(UserError):
            checkpoint.load_checkpoint(path)


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> tuple[bytes, dict]:
    """The bytes of a checkpoint with blocks of zeros in it, as batch norms begin; its content."""
    torch.manual_seed(0)
    tensors = {f"w{i}": torch.randn(3 + 40 * i) for i in range(4)} | {"b": torch.zeros(300)}
    path = checkpoint.save_checkpoint(
        tmp_path_factory.mktemp("written"), {"iteration": 7, "state_dict": tensors}, keep=1
    )
    return path.read_bytes(), torch.load(path, weights_only=True)


def flip_a_bit(content: bytearray, place: int) -> None:
    content[place] ^= 1 << place % 8


def zero_a_block(content: bytearray, place: int) -> None:
    start = place // 64 * 64
    content[start : start + 64] = bytes(len(content[start : start + 64]))


def zero_a_sector(content: bytearray, place: int) -> None:
    start = place // 512 * 512
    content[start : start + 512] = bytes(len(content[start : start + 512]))


@pytest.mark.parametrize("damage", [flip_a_bit, zero_a_block, zero_a_sector])
def test_damage_anywhere_is_noticed_or_changes_nothing(damage, written, tmp_path):
    """Bytes between the records, and names of no use, may be others: what is loaded is the same."""
    content, state = written
    path, noticed, places = tmp_path / "checkpoint_7.pt", 0, range(0, len(content), 11)
    for place in places:
        damaged = bytearray(content)
        damage(damaged, place)
        path.write_bytes(damaged)
        try:
            loaded = checkpoint.load_checkpoint(path)
        except checkpoint.DamagedCheckpoint:
            noticed += 1
        else:
            assert_same(loaded, state)
    assert noticed > len(places) / 2


@pytest.mark.parametrize("damage", [b"\0\0\0\0\0\0\0\0", b"\1"])  # two weights, a bit of a third
def test_damage_to_a_weight_is_warned_of_and_the_checkpoint_before_is_taken(damage, tmp_path):
    for iteration in (1, 2):
        path = checkpoint.save_checkpoint(tmp_path, state(iteration), keep=2)
    content = bytearray(path.read_bytes())
    start = content.index(state(2)["state_dict"]["w"].numpy().tobytes())
    content[start : start + len(damage)] = damage
    path.write_bytes(content)
    torch.load(path, weights_only=True)  # torch sees nothing
    warnings = []
    assert checkpoint.load_newest(tmp_path, warnings.append).state["iteration"] == 1
    assert [str(path) in warning for warning in warnings] == [True]


def test_a_file_of_the_oldest_format_has_no_checksum_and_is_loaded(tmp_path):
    torch.save(state(3), tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert_same(checkpoint.load_checkpoint(tmp_path / "old.pt"), state(3))


def test_checkpoint_that_would_run_code_is_refused_and_runs_none(tmp_path):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "ran"),))

    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(UserError, match="damaged, or no checkpoint"):
        checkpoint.load_checkpoint(tmp_path / "evil.pt")
    assert not (tmp_path / "ran").exists()


def test_missing_file_and_other_contents_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such checkpoint"):
        checkpoint.load_checkpoint(tmp_path / "none.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(UserError, match="holds no state_dict"):
        checkpoint.load_checkpoint(tmp_path / "list.pt")


def test_newest_good_checkpoint_is_found_and_damaged_ones_are_told(tmp_path):
    for iteration in (7, 30, 200):
        checkpoint.save_checkpoint(tmp_path, state(iteration), keep=9)
    (tmp_path / "checkpoint_200.pt").write_bytes(b"half")
    warnings = []
    path, saved = checkpoint.load_newest(tmp_path, warnings.append)
    assert (path.name, saved["iteration"]) == ("checkpoint_30.pt", 30)
    [warning] = warnings
    assert "checkpoint_200.pt" in warning


def test_nothing_found_is_none(tmp_path):
    assert checkpoint.load_newest(tmp_path, pytest.fail) is None
    assert checkpoint.load_newest(tmp_path / "no folder", pytest.fail) is None


def test_later_checkpoints_are_set_aside_and_nothing_is_overwritten(tmp_path):
    for iteration in (1, 2, 3):
        path = checkpoint.save_checkpoint(tmp_path, state(iteration), keep=9)
    checkpoint.mark_best(tmp_path, path)
    (tmp_path / "checkpoint_3.pt.superseded").write_text("an earlier one")
    moved = checkpoint.set_aside_newer(tmp_path, 1)
    assert sorted(path.name for path in moved) == [
        "best.pt.superseded",
        "checkpoint_2.pt.superseded",
        "checkpoint_3.pt.superseded+",
    ]
    assert names(tmp_path) == sorted(
        [*(path.name for path in moved), "checkpoint_1.pt", "checkpoint_3.pt.superseded"]
    )
    assert (tmp_path / "checkpoint_3.pt.superseded").read_text() == "an earlier one"
    assert checkpoint.set_aside_newer(tmp_path, 1) == []


def test_best_of_an_earlier_step_stays(tmp_path):
    checkpoint.mark_best(tmp_path, checkpoint.save_checkpoint(tmp_path, state(1), keep=9))
    assert checkpoint.set_aside_newer(tmp_path, 1) == []
    (tmp_path / "best.pt").unlink()
    (tmp_path / "best.pt").write_bytes(b"damaged")
    assert [path.name for path in checkpoint.set_aside_newer(tmp_path, 1)] == ["best.pt.superseded"]


# ---------------------------------------------------------------------------- weights


def random_model(seed: int) -> Tacotron2:
    torch.manual_seed(seed)
    return Tacotron2(SMALL)


def test_weights_are_copied_bitwise_with_or_without_a_wrappers_prefix():
    theirs = random_model(1)
    for prefix in ("", "module."):
        model = random_model(2)
        saved = {prefix + name: tensor for name, tensor in theirs.state_dict().items()}
        checkpoint.load_weights(model, {"state_dict": saved}, "some.pt")
        assert_same(dict(model.state_dict()), dict(theirs.state_dict()))


def test_ignored_layers_are_left_as_they_are_even_of_another_shape():
    model, fresh, theirs = random_model(2), random_model(2), random_model(1).state_dict()
    theirs["embedding.weight"] = torch.zeros(10, 3)
    checkpoint.load_weights(model, {"state_dict": theirs}, "some.pt", ["embedding.weight"])
    assert torch.equal(model.embedding.weight, fresh.embedding.weight)
    del theirs["embedding.weight"]
    assert_same({n: t for n, t in model.state_dict().items() if n in theirs}, dict(theirs))


def test_all_that_does_not_fit_is_listed_and_nothing_is_loaded():
    model, theirs = random_model(2), random_model(1).state_dict()
    theirs["decoder.extra"] = torch.zeros(1)
    theirs["embedding.weight"] = torch.zeros(10, 8)
    del theirs["decoder.gate_layer.linear_layer.bias"]
    with pytest.raises(UserError) as refusal:
        checkpoint.load_weights(model, {"state_dict": theirs}, "some.pt")
    message = str(refusal.value)
    assert "some.pt does not fit" in message
    assert "lacks decoder.gate_layer.linear_layer.bias" in message
    assert "has decoder.extra, which this model lacks" in message
    assert "embedding.weight is [10, 8], the model's is [148, 8]" in message
    assert_same(dict(model.state_dict()), dict(random_model(2).state_dict()))


def test_unknown_ignored_layer_is_refused():
    with pytest.raises(UserError, match="the model has no tensor 'embeding'"):
        checkpoint.load_weights(random_model(1), {"state_dict": {}}, "some.pt", ["embeding"])


def test_a_best_checkpoint_that_cannot_be_written_is_a_message_and_the_other_stays(
    tmp_path, monkeypatch
):
    """A file system without hard links that is full."""
    path = checkpoint.save_checkpoint(tmp_path, {"iteration": 1, "state_dict": {}}, keep=1)
    before = path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.os, "link", full)
    monkeypatch.setattr(checkpoint.shutil, "copyfile", full)
    with pytest.raises(UserError, match=r"best\.pt could not be written .*No space left"):
        checkpoint.mark_best(tmp_path, path)
    assert path.read_bytes() == before
    assert not (tmp_path / "best.pt").exists()
