"""Test LengthBatches and RankSampler in PyTorch loaders: clip coverage, exact resume, errors."""

import itertools
import random
import re
import time
import traceback
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_length_batch_sampler import RECIPE, TWENTY
from torch.utils.data import DataLoader, DistributedSampler

from length_batching import BatchingError, LengthBatches, LengthBatchSampler, RankSampler

EPOCHS = 3
WORKERS: list[dict] = [
    {},
    {"num_workers": 2},
    {"num_workers": 3, "persistent_workers": True},
    {"num_workers": 1, "persistent_workers": True, "multiprocessing_context": "spawn"},
]
# Workers with the start method spawn take seconds to start, so only thorough tests use them.
every_kind_of_worker = pytest.mark.parametrize(
    "workers", [*WORKERS[:3], pytest.param(WORKERS[3], marks=pytest.mark.thorough)], ids=str
)
without_spawn = pytest.mark.parametrize("workers", WORKERS[:3], ids=str)


def error_of(action) -> str:
    """Return the message of the BatchingError that the action raises.

    The function clears the frames of the traceback. Otherwise, these frames would keep the loader
    alive, and each worker would take five seconds to exit.
    """
    try:
        action()
    except BatchingError as error:
        traceback.clear_frames(error.__traceback__)
        return str(error)
    return pytest.fail("no BatchingError")


def make(world_size=1, lengths=TWENTY, **options):
    arguments = {"batch_size": 3, "strategy": "semi_sorted"} | RECIPE | options
    return LengthBatches(
        range(len(lengths)), lengths, collate=list, world_size=world_size, **arguments
    )


def loader_of(batches, rank=0, **options):
    return DataLoader(batches, batch_size=None, sampler=RankSampler(batches, rank), **options)


def plans(world_size=1, epochs=EPOCHS, **options):
    """Return the batches that LengthBatchSampler plans for each epoch."""
    arguments = {"batch_size": 3, "strategy": "semi_sorted"} | RECIPE | options
    arguments = {"batches_per_epoch": "constant", "batches_per_update": world_size} | arguments
    sampler = LengthBatchSampler(TWENTY, **arguments)
    epochs_planned = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        epochs_planned.append(list(sampler))
    return epochs_planned


@every_kind_of_worker
def test_loader_yields_the_batches_of_the_epoch_given_to_set_epoch(workers):
    whole = plans(2)
    for rank in range(2):
        batches = make(2)
        loader = loader_of(batches, rank, **workers)
        for epoch in (0, 1, 2, 1):
            loader.sampler.set_epoch(epoch)
            assert list(loader) == whole[epoch][rank::2]
            assert len(loader) == len(whole[0]) // 2
    assert {tuple(sorted(itertools.chain(*epoch))) for epoch in whole} == {tuple(range(20))}
    assert len({len(epoch) for epoch in whole}) == 1


@without_spawn
def test_loader_yields_all_batches_when_earlier_passes_were_stopped(workers):
    batches, whole = make(), plans()
    loader = loader_of(batches, **workers)
    assert next(iter(loader)) == whole[0][0]
    loader.sampler.set_epoch(0)
    assert list(loader) == whole[0]
    for epoch, drawn in ((1, 1), (1, 3), (2, len(whole[2]) - 1), (1, 2), (2, 2)):
        loader.sampler.set_epoch(epoch)
        assert list(itertools.islice(loader, drawn)) == whole[epoch][:drawn]
    loader.sampler.set_epoch(2)
    assert list(loader) == whole[2]


def run_until(stops, world_size, workers, batches_per_update=None, **options):
    """Run an interrupted training loop, and return the batches of all ranks for each epoch.

    The loop stops at each number of optimizer steps in `stops`, and resumes from its saved state.
    """
    trained, state = [[] for _ in range(EPOCHS)], None
    for stop in [*stops, 10**9]:
        steps, states = 0, []
        options["batches_per_update"] = batches_per_update
        ranks = [make(world_size, **options) for _ in range(world_size)]
        for rank, batches in enumerate(ranks):
            if state is not None:
                batches.load_state_dict(state)
            steps = 0
            loader = loader_of(batches, rank, **workers)
            for epoch in range(batches.epoch, EPOCHS):
                loader.sampler.set_epoch(epoch)
                for count, batch in enumerate(loader, start=1):
                    trained[epoch].append(batch)
                    steps += 1
                    if steps == stop:
                        states.append(batches.state_dict(count))
                        break
                if steps == stop:
                    break
        if not states:
            return trained
        assert all(each == states[0] for each in states)
        state = states[0]
    return trained


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 12), max_size=5), st.integers(1, 3))
def test_training_uses_every_clip_once_when_it_resumes_at_any_optimizer_step(stops, world_size):
    for epoch in run_until(stops, world_size, {}):
        assert Counter(itertools.chain(*epoch)) == Counter(range(20))


@pytest.mark.thorough
@pytest.mark.parametrize("workers", WORKERS[1:3], ids=str)
def test_training_with_workers_uses_every_clip_once_when_it_resumes(workers):
    draw = random.Random(0)
    for world_size in (1, 2):
        stops = [draw.randint(1, 7) for _ in range(3)]
        for epoch in run_until(stops, world_size, workers):
            assert Counter(itertools.chain(*epoch)) == Counter(range(20))


# The first epoch has 7 or 8 batches. The other two epochs have 5 or 6 batches each.
TWO_PHASES: dict = {"batches_per_epoch": "per_phase", "random_epochs": 1}


@pytest.mark.parametrize("world_size", [1, 2])
@without_spawn
def test_loader_has_fewer_batches_after_the_random_epochs(workers, world_size):
    whole = plans(world_size, **TWO_PHASES)
    assert len(whole[0]) > len(whole[1]) == len(whole[2])
    for rank in range(world_size):
        batches = make(world_size, **TWO_PHASES)
        loader = loader_of(batches, rank, **workers)
        for epoch in (0, 1, 2, 0, 2):
            loader.sampler.set_epoch(epoch)
            assert list(loader) == whole[epoch][rank::world_size]
            assert len(loader) == len(whole[epoch]) // world_size
            with pytest.raises(IndexError):
                batches[len(whole[epoch])]


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 12), max_size=5), st.integers(1, 3))
def test_training_resumes_exactly_when_later_epochs_have_fewer_batches(stops, world_size):
    trained = run_until(stops, world_size, {}, **TWO_PHASES)
    assert [len(epoch) for epoch in trained] == list(map(len, plans(world_size, **TWO_PHASES)))
    for epoch in trained:
        assert Counter(itertools.chain(*epoch)) == Counter(range(20))


def test_total_batches_is_the_number_of_batches_of_all_epochs():
    batches = make(2, **TWO_PHASES)
    counts = [len(epoch) for epoch in plans(2, **TWO_PHASES)]
    for epochs in range(4):
        assert batches.total_batches(epochs) == sum(counts[:epochs])
    assert make(2).total_batches(3) == 3 * len(make(2))


def test_record_option_is_rejected_when_random_epochs_have_more_batches_than_later_epochs(tmp_path):
    """The Hugging Face Trainer assumes that all epochs have the same number of batches, so it would
    resume in the wrong epoch."""
    with pytest.raises(BatchingError, match="record: cannot be combined with batches_per_epoch="):
        make(record=tmp_path / "batches.txt", **TWO_PHASES)
    make(record=tmp_path / "batches.txt", batches_per_epoch="per_phase")


@pytest.mark.parametrize("trained", [2, None])
@pytest.mark.parametrize("epoch", [0, 1])
def test_changed_batches_per_epoch_is_accepted_in_random_epochs_and_rejected_in_later_epochs(
    epoch, trained
):
    """Both values of `batches_per_epoch` give the same batches in random epochs, but different
    batches in later epochs."""
    constant = make(random_epochs=1)
    loader = loader_of(constant)
    loader.sampler.set_epoch(epoch)
    before = list(itertools.islice(loader, 2))
    resumed = make(**TWO_PHASES)
    if epoch == 1:
        with pytest.raises(BatchingError, match="batches_per_epoch"):
            resumed.load_state_dict(constant.state_dict(trained))
        return
    resumed.load_state_dict(constant.state_dict(trained))
    resumed.set_epoch(epoch)
    rest = [resumed[i] for i in range(2, len(resumed))]
    assert before + rest == plans(**TWO_PHASES)[0]


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1), (4, 2)])
def test_processes_yield_the_remaining_batches_when_the_world_size_changes(before, after):
    first = make(before, batches_per_update=4)
    loader = loader_of(first)
    loader.sampler.set_epoch(1)
    steps = 4 // before
    assert len(list(itertools.islice(loader, steps))) == steps
    state, rest = first.state_dict(steps), []
    for rank in range(after):
        resumed = make(after, batches_per_update=4)
        resumed.load_state_dict(state)
        rest.append(list(loader_of(resumed, rank)))
    whole = plans(4)[1]
    assert [batch for turn in zip(*rest, strict=True) for batch in turn] == whole[4:]
    with pytest.raises(
        BatchingError, match=r"4 of \d+ batches \(of all.*batches_per_update \(now 3"
    ):
        make(3).load_state_dict(state)
    odd = make(1, batches_per_update=4)
    odd.set_epoch(1)
    list(itertools.islice(loader_of(odd), 3))
    with pytest.raises(BatchingError, match=r"batches_trained=3: .*2 processes"):
        make(2, batches_per_update=4).load_state_dict(odd.state_dict(3))


@settings(max_examples=200, derandomize=True)
@given(st.lists(st.integers(0, 9), max_size=8), st.sampled_from([1, 2]), st.integers(0, 3))
def test_reading_a_batch_raises_when_its_index_is_not_the_next_index(numbers, world_size, epoch):
    """A rank can read its batches only in order, starting with its first batch."""
    batches = make(world_size)
    batches.set_epoch(epoch)
    shares = [list(range(rank, len(batches), world_size)) for rank in range(world_size)]
    given = []
    try:
        for number in numbers:
            batches[number]
            given.append(number)
    except (BatchingError, IndexError):
        wrong = [*given, numbers[len(given)]]
        assert all(share[: len(wrong)] != wrong for share in shares)
    assert not given or any(share[: len(given)] == given for share in shares)


def test_reading_a_batch_raises_when_its_index_comes_from_an_earlier_pass():
    """Each call of set_epoch starts a new pass, even over the same epoch. A persistent worker can
    then still receive an index from the earlier pass."""
    batches = make()
    batches.set_epoch(1)
    indices = iter(RankSampler(batches))
    batches[next(indices)]
    late = next(indices)
    batches.set_epoch(1)
    with pytest.raises(BatchingError, match="set_epoch"):
        batches[late]
    assert list(loader_of(batches)) == plans()[1]


def train(batches, loader, epochs=2):
    for epoch in range(epochs):
        batches.set_epoch(epoch)
        list(loader)


TEN: Any = range(10)
LEAVES: dict = {"batch_size": 1, "collate_fn": LengthBatches.unwrap}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("world_size", "options"),
    [
        (1, {"batch_size": None, "shuffle": True}),
        (1, {"batch_size": 1, "collate_fn": list, "shuffle": True}),
        (1, {"batch_size": 2, "collate_fn": LengthBatches.unwrap}),
        (2, LEAVES),  # the batches are planned for two processes, but only one process reads
        (1, LEAVES | {"sampler": DistributedSampler(TEN, 2, 0, shuffle=False)}),
        (2, LEAVES | {"sampler": DistributedSampler(TEN, 2, 0, shuffle=True)}),
        (2, LEAVES | {"sampler": DistributedSampler(TEN, 4, 1, shuffle=False)}),
    ],
    ids=[
        "shuffled",
        "shuffled, custom collate_fn",
        "two batches per item",
        "one process, batches planned for two",
        "distributed to processes twice",
        "distributed to processes twice, shuffled",
        "distributed to too many processes",
    ],
)
def test_training_raises_when_the_loader_changes_the_order_or_number_of_batches(
    world_size, options, num_workers
):
    batches = make(world_size)
    loader = DataLoader(batches, num_workers=num_workers, **options)
    assert re.search("world_size=|batch_size=", error_of(lambda: train(batches, loader)))


def test_loader_raises_when_distributed_sampler_wraps_rank_sampler():
    batches = make(2)
    again = DistributedSampler(RankSampler(batches, 1), 2, 1, shuffle=False)
    with pytest.raises(BatchingError, match="world_size=2"):
        train(batches, DataLoader(batches, batch_size=None, sampler=again))
    with pytest.raises(BatchingError, match="rank=1, world_size=1: "):
        RankSampler(make(), 1)


class SlowFirst(list):
    def __getitem__(self, index):
        time.sleep(0.3 * (torch.utils.data.get_worker_info().id == 0))
        return index


def test_loader_raises_when_workers_are_out_of_order():
    """In this test, the first worker is slow. If `in_order` is False, the loader gives indices of
    the slow worker to the second worker."""
    batches = make()
    batches.dataset = SlowFirst(range(20))
    loader = loader_of(batches, num_workers=2, in_order=False)
    assert "in_order=True" in error_of(lambda: train(batches, loader))


@without_spawn
def test_second_pass_over_the_loader_raises_when_set_epoch_was_not_called(workers):
    batches = make()
    loader = loader_of(batches, **workers)
    list(loader)
    assert "set_epoch" in error_of(lambda: list(loader))
    batches.set_epoch(1)
    assert list(loader) == plans()[1]
    assert "set_epoch" in error_of(lambda: list(loader))
    batches.set_epoch(1)
    # Some frameworks create a loader without RankSampler.
    loader = DataLoader(batches, **LEAVES, **workers)
    assert list(loader) == plans()[1]
    assert "set_epoch" in error_of(lambda: list(loader))


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("other", [1, 2])
def test_loader_raises_when_set_epoch_is_called_during_iteration(num_workers, other):
    batches = make(batches_per_epoch=14)
    for loader in (loader_of(batches, num_workers=num_workers), DataLoader(batches, **LEAVES)):
        batches.set_epoch(1)
        drawing = iter(loader)
        next(drawing)
        batches.set_epoch(other)
        assert "set_epoch" in error_of(lambda drawing=drawing: list(drawing))


@pytest.mark.parametrize(
    "changed", [{"seed": 12}, {"batch_size": 4}, {"lengths": [*TWENTY[:-1], 15]}], ids=str
)
@pytest.mark.parametrize("trained", [2, None])
def test_saved_state_of_length_batches_is_rejected_when_clips_or_options_differ(changed, trained):
    batches = make()
    loader = loader_of(batches)
    loader.sampler.set_epoch(1)
    list(itertools.islice(loader, 2))
    with pytest.raises(BatchingError, match=r"epoch 1 "):
        make(**changed).load_state_dict(batches.state_dict(trained))


def test_set_epoch_raises_when_the_loaded_state_is_for_a_different_epoch():
    batches = make()
    loader = loader_of(batches)
    loader.sampler.set_epoch(1)
    list(itertools.islice(loader, 2))
    for trained, wrong in ((2, 2), (2, 0), (None, 0), (None, 3)):
        resumed = make()
        resumed.load_state_dict(batches.state_dict(trained))
        with pytest.raises(BatchingError, match=rf"set_epoch\({wrong}\): expected epoch 1"):
            resumed.set_epoch(wrong)
        resumed.set_epoch(1)
    late = make()
    late.set_epoch(3)
    with pytest.raises(BatchingError, match=r"epoch 1.*set_epoch\(3\)"):
        late.load_state_dict(batches.state_dict(2))
    with pytest.raises(BatchingError, match=r"trained=3: .*2"):
        batches.state_dict(3)
    with pytest.raises(BatchingError, match=r"state_dict\(trained\)"):
        list(loader_of(resumed))


def skipping(batches, epoch, skipped):
    """Return the batches that a framework reads when it resumes an epoch by skipping batches."""
    batches.set_epoch(epoch)
    return [batches[number] for number in range(skipped, len(batches))]


def test_skipping_batches_raises_when_there_is_no_saved_state_and_no_record_file(tmp_path):
    with pytest.raises(BatchingError, match=r"record="):
        skipping(make(), 0, 2)
    saved = make()
    saved.set_epoch(1)
    resumed = make()
    resumed.load_state_dict(saved.state_dict())
    assert skipping(resumed, 1, 2) == plans()[1][2:]
    record = tmp_path / "run" / "batches.txt"
    assert skipping(make(record=record), 0, 0) == plans()[0]
    again = make(record=record)
    assert skipping(again, 1, 2) == plans()[1][2:]
    # An epoch that is not resumed must begin with batch 0.
    with pytest.raises(BatchingError, match="batch 2 of epoch 2"):
        skipping(again, 2, 2)
    for changed in ({"seed": 12}, {"world_size": 2}, {"lengths": [*TWENTY[:-1], 15]}):
        with pytest.raises(BatchingError, match=r"batches\.txt: "):
            make(record=record, **changed)
    again = make(record=record)
    again.set_epoch(0)
    with pytest.raises(BatchingError, match=r"state_dict\(0\)"):
        again.state_dict(0)


@pytest.mark.parametrize("sampler_too", [False, True])
def test_length_of_the_loader_is_the_same_in_every_epoch(sampler_too):
    """If all epochs have the same length, a learning-rate schedule of EPOCHS * len(loader)
    optimizer steps ends exactly at the last optimizer step."""
    batches = make()
    loader, set_epoch = loader_of(batches), batches.set_epoch
    if sampler_too:
        sampler = LengthBatchSampler(
            TWENTY, 3, "semi_sorted", **RECIPE, batches_per_epoch="constant"
        )
        loader = DataLoader(range(20), batch_sampler=sampler, collate_fn=list)
        set_epoch = sampler.set_epoch
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, 0.1, epochs=EPOCHS, steps_per_epoch=len(loader)
    )
    for epoch in range(EPOCHS):
        set_epoch(epoch)
        for _ in loader:
            optimizer.step()
            schedule.step()
    assert schedule.last_epoch == EPOCHS * len(loader)
    with pytest.raises(BatchingError, match="batches_per_epoch=None: "):
        make(batches_per_epoch=None)


@pytest.mark.parametrize("options", [{}, TWO_PHASES], ids=["constant", "per phase"])
def test_torchdata_loader_resumes_with_the_same_batches(options):
    """The state is saved inside an epoch, at the end of an epoch, and between two epochs."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(workers):
        batches = make(**options)
        return loaders.StatefulDataLoader(
            batches, batch_size=None, sampler=RankSampler(batches), num_workers=workers
        )

    whole = plans(**options)
    count = len(whole[1])
    for workers, drawn in itertools.product((0, 2), (1, 4, count, count + 1)):
        first, second = loader(workers), loader(workers)
        first.sampler.set_epoch(0)
        list(first)
        first.sampler.set_epoch(1)
        seen = list(itertools.islice(first, drawn))
        second.load_state_dict(first.state_dict())
        if drawn <= count:  # otherwise, epoch 1 was complete when the state was saved
            second.sampler.set_epoch(1)
            seen += list(second)
        second.sampler.set_epoch(2)
        assert [seen, list(second)] == whole[1:]


@pytest.mark.parametrize("options", [{}, TWO_PHASES], ids=["constant", "per phase"])
@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_loader_starts_the_next_epoch_when_the_saved_epoch_is_complete(workers, options):
    """In an earlier version, a loader that resumed at the end of an epoch skipped the next
    epoch."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        batches = make(**options)
        return loaders.StatefulDataLoader(
            batches, batch_size=None, sampler=RankSampler(batches), num_workers=workers
        )

    whole = plans(**options)
    first = loader()
    first.sampler.set_epoch(0)
    assert list(itertools.islice(first, len(whole[0]))) == whole[0]
    second = loader()
    second.load_state_dict(first.state_dict())
    second.sampler.set_epoch(1)
    assert list(second) == whole[1]
    assert "set_epoch" in error_of(lambda: list(second))


def test_record_file_is_rejected_when_an_option_of_later_epochs_has_changed(tmp_path):
    """Batches of random epochs are the same for every strategy, so they do not reveal a changed
    strategy."""
    record = tmp_path / "batches.txt"
    options = {"record": record, "random_epochs": 1}
    make(**options)
    make(**options)
    for changed in ({"strategy": "sorted"}, {"random_epochs": 2}):
        with pytest.raises(BatchingError, match=r"batches\.txt: "):
            make(**(options | changed))
    first_line = record.read_text().splitlines(keepends=True)[0]
    record.write_text(first_line)  # version 0.4.0 wrote only the first line of the record file
    make(**options)


def test_error_suggests_rank_sampler_when_the_loader_does_not_use_it():
    """In an earlier version, Lightning users got the error about a missing RankSampler only after a
    whole epoch."""
    batches = make()
    batches.set_epoch(0)
    list(DataLoader(batches, batch_size=None))
    with pytest.raises(BatchingError, match="RankSampler"):
        batches.state_dict(1)
    batches = make(2)
    with pytest.raises(BatchingError, match=r"RankSampler.*use_distributed_sampler"):
        list(DataLoader(batches, batch_size=None, sampler=DistributedSampler(batches, 2, 0)))


@pytest.mark.parametrize(
    ("options", "words"),
    [({"collate_fn": list}, "collate_fn: .*collate"), ({"rank": 0}, "rank: .*world_size.*record")],
    ids=["collate_fn", "rank"],
)
def test_error_lists_the_options_of_the_dataset_when_an_option_is_unknown(options, words):
    with pytest.raises(BatchingError, match=words):
        make(**options)


@pytest.mark.parametrize("count", [49, 51])
def test_dataset_raises_when_the_numbers_of_clips_and_lengths_differ(count):
    """With 49 lengths for 50 clips, one clip would never be trained."""
    with pytest.raises(BatchingError) as raised:
        LengthBatches(range(50), range(1, count + 1), 4, "random", collate=list)
    assert {"50", str(count)} <= set(re.findall(r"\d+", str(raised.value)))


@pytest.mark.parametrize(
    "state",
    [
        None,
        {},
        {"epoch": 0},
        {"epoch": 0, "batches_trained": -1, "num_batches": 3},
        {"epoch": 0, "batches_trained": float("nan"), "num_batches": 3},
        {"epoch": None, "batches_trained": 0, "num_batches": 3},
        {"epoch": "x", "batches_trained": 0, "num_batches": 3},
        {"epoch": 0, "batches_trained": 0, "num_batches": np.array([1, 2])},
        {"epoch": 0, "batches_trained": 1, "num_batches": 3},
        {"epoch": 0, "batches_trained": 1, "plan_checksum": 5},
        {"epoch": 0, "batches_trained": 1, "num_batches": 3, "plan_checksum": None},
        {"epoch": 0, "batches_trained": 1, "num_batches": 3, "plan_checksum": np.array([1, 2])},
    ],
)
def test_saved_state_is_rejected_when_it_is_invalid(state):
    """An earlier version accepted `batches_trained=-1`, and then started the epoch again."""
    with pytest.raises(BatchingError):
        make().load_state_dict(state)
    with pytest.raises(BatchingError):
        LengthBatchSampler([3, 5, 8, 9], batch_size=2, strategy="random").load_state_dict(state)


def test_sampler_rejects_a_saved_state_when_it_contains_no_position():
    sampler = LengthBatchSampler([3, 5, 8, 9], batch_size=2, strategy="random")
    with pytest.raises(BatchingError, match="batches_trained=None"):
        sampler.load_state_dict(sampler.state_at(1) | {"batches_trained": None})
