"""training/batches.py: a run's sampler, and what the user may have got wrong about it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile

from data_utils import CHECKED_FILE, Clip, record_of_checked
from errors import UserError
from hparams import HParams
from training.batches import batching_costs, batching_in_words, make_sampler, read_clips

CLIPS = [Clip(f"{i}.wav", "Ah.", b"ah.", 10 + i, f"list.txt:{i}") for i in range(5)]
HPARAMS = replace(HParams(), batch_size=2, batching_strategy="semi_sorted")


def test_options_that_the_corpus_does_not_allow_are_the_users_to_mend():
    assert len(make_sampler(CLIPS, HPARAMS)) == 3
    with pytest.raises(UserError, match=r"num_bins=6: .* 1 to 5"):
        make_sampler(CLIPS, replace(HPARAMS, batching_strategy="alternated_sort", num_bins=6))


@pytest.mark.usefixtures("broken_strategy")
def test_a_fault_of_a_strategy_keeps_its_traceback():
    with pytest.raises(ValueError, match="could not be broadcast") as found:
        make_sampler(CLIPS, HPARAMS)
    assert not isinstance(found.value, UserError)


def test_a_batching_is_named_with_what_is_on_beside_the_strategy():
    plain = replace(HPARAMS, dynamic_batch_size=False, batch_randomization=False)
    assert batching_in_words(plain) == "semi_sorted"
    dynamic = replace(plain, dynamic_batch_size=True)
    assert batching_in_words(dynamic) == "semi_sorted, dynamic sizes"
    both = replace(dynamic, batch_randomization=True)
    assert batching_in_words(both) == "semi_sorted, dynamic sizes, batches shuffled"
    late = replace(plain, random_epochs=3)
    assert batching_in_words(late) == "semi_sorted, from epoch 4 on"


def test_costs_are_those_of_the_strategy_and_not_of_random_epochs_before_it():
    hparams = replace(HPARAMS, random_epochs=2, batch_randomization=False)
    sampler = make_sampler(CLIPS, hparams)
    shown = batching_costs(sampler, hparams).splitlines()
    sampler.set_epoch(2)
    assert shown[1:] == batching_costs(sampler, replace(hparams, random_epochs=0)).splitlines()[1:]
    assert "0.0 % fewer" not in shown[2]


# ---------------------------------------------------------------------------- reading clips


@pytest.fixture
def lists(tmp_path):
    """Settings that name two lists, of two clips each; the second of either holds a nan."""
    for name in ("train", "val"):
        for clip, last in (("good", 0.0), ("bad", np.nan)):
            samples = np.append(0.5 * np.sin(np.arange(5000) / 20), last)
            soundfile.write(tmp_path / f"{name}-{clip}.wav", samples, 22050, subtype="FLOAT")
        lines = [f"{tmp_path}/{name}-{clip}.wav|Text.\n" for clip in ("good", "bad")]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    return replace(
        HParams(), training_files=f"{tmp_path}/train.txt", validation_files=f"{tmp_path}/val.txt"
    )


def record(hparams, *names):
    folder = Path(hparams.training_files).parent
    filelists = {name: (folder / name).read_bytes() for name in names}
    (folder / CHECKED_FILE).write_bytes(record_of_checked(filelists))


def test_a_new_run_reads_every_clip_of_lists_that_nobody_prepared_and_says_so(lists, capsys):
    with pytest.raises(UserError) as found:
        read_clips(lists, new_run=True)
    for filelist in (lists.training_files, lists.validation_files):
        assert f"{filelist}:2: " in str(found.value)  # both in one message
        assert f"{filelist}:1: " not in str(found.value)
        words = f"{filelist}: not as prepare_ljspeech.py checked it: reading every clip once"
        assert words in capsys.readouterr().out or filelist == lists.validation_files
    assert str(found.value).count("is nan, expected finite numbers") == 2


def test_lists_as_prepared_are_not_read_again_and_changed_ones_are(lists, capsys):
    record(lists, "train.txt", "val.txt")
    assert [len(clips) for clips in read_clips(lists, new_run=True)] == [2, 2]
    assert "reading every clip" not in capsys.readouterr().out
    with open(lists.training_files, "a") as file:
        file.write("\n")
    with pytest.raises(UserError, match=r"train.txt:2: .* is nan") as found:
        read_clips(lists, new_run=True)
    assert "val.txt" not in str(found.value)


def test_a_run_that_goes_on_reads_only_headers(lists, capsys):
    assert [len(clips) for clips in read_clips(lists, new_run=False)] == [2, 2]
    assert "reading every clip" not in capsys.readouterr().out


@pytest.mark.parametrize("new_run", [True, False])
def test_a_clip_many_times_longer_than_the_rest_is_warned_of_at_every_start(
    lists, tmp_path, capsys, new_run
):
    sounds = {f"{i}.wav": 5000 for i in range(3)} | {"long.wav": 50_000}
    lines = []
    for name, length in sounds.items():
        soundfile.write(tmp_path / name, 0.5 * np.sin(np.arange(length) / 20), 22050)
        lines.append(f"{tmp_path}/{name}|Text.\n")
    Path(lists.training_files).write_text("".join(lines))
    Path(lists.validation_files).write_text(lines[0])
    read_clips(lists, new_run=new_run)
    printed = capsys.readouterr().out
    assert "warning: 1 of 4 clips are more than 5 times as long as the median, 0.2 s" in printed
    assert f"{lists.training_files}:4: {tmp_path}/long.wav (2.3 s)." in printed
