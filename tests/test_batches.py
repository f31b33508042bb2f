"""training/batches.py: a run's sampler, and what the user may have got wrong about it."""

from dataclasses import replace

import pytest

from clip_table import Clip, ClipTable
from errors import UserError
from hparams import HParams
from training.setup import batching_costs, batching_in_words, make_sampler

CLIPS = ClipTable.of(
    "list.txt", ((i, Clip(f"{i}.wav", "Ah.", b"ah.", 10 + i, f"list.txt:{i}")) for i in range(5))
)
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
