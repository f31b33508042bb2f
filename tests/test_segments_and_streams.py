import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_batching import DBS, LJSPEECH, clips_of, data, few
from torch.utils.data import DataLoader

from length_batching import (
    BatchingError,
    LengthBatchStream,
    SegmentDataset,
    groups_of,
    plan_epoch,
    segments_of,
)


@few
@given(data=data, epoch=st.integers(0, 9))
def test_clips_of_a_group_stay_in_one_batch(data, epoch):
    labels = data.draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=40), "labels")
    lengths = np.array(data.draw(st.lists(st.integers(1, 60), min_size=len(labels))))
    groups, capacity = groups_of(labels), 5 * 60
    assert [{labels[i] for i in group} for group in groups] == [{x} for x in sorted({*labels})]
    longest = groups.longest(lengths)
    options = {"group_sizes": groups.sizes, "batch_capacity": capacity, "too_long": "alone"}
    plan = plan_epoch(longest, 5, "semi_sorted", epoch=epoch, **options | DBS)
    batches = [np.concatenate([groups[group] for group in of_groups]) for of_groups in plan]
    assert sorted(clips_of(batches)) == list(range(len(labels)))
    for batch, of_groups in zip(batches, plan, strict=True):
        assert len(of_groups) == 1 or len(batch) * lengths[batch].max() <= capacity


def naive_segments(frames, longest, overlap, shortest):
    parts, start = [], 0
    while start + longest < frames:
        parts.append((start, start + longest))
        start += longest - overlap
    return [*parts, (max(0, min(start, frames - shortest)), frames)]


@few
@given(data=data, longest=st.integers(1, 30))
def test_segments_of_clips_equal_segments_cut_with_a_naive_loop(data, longest):
    lengths = data.draw(st.lists(st.integers(1, 100), min_size=1, max_size=9), "lengths")
    overlap = data.draw(st.integers(0, longest - 1), "overlap")
    shortest = data.draw(st.integers(1, longest), "shortest")
    segments = segments_of(lengths, longest, overlap=overlap, shortest=shortest)
    expected = [
        (clip, start, stop)
        for clip, frames in enumerate(lengths)
        for start, stop in naive_segments(frames, longest, overlap, shortest)
    ]
    assert list(segments) == expected
    clips = [range(1000 * k, 1000 * k + n) for k, n in enumerate(lengths)]
    cut = list(SegmentDataset(clips, segments))
    assert [len(part) for part in cut] == segments.lengths.tolist()
    assert {frame for part in cut for frame in part} == {frame for clip in clips for frame in clip}
    assert max(segments.lengths) <= longest


OPTIONS = {"batch_capacity": 9_000, "batch_randomization": True, "seed": 3} | DBS
READ: list[int] = []  # the argument `skip` of each call of `read`


def stream_of(count, **changed):
    lengths = LJSPEECH[:count]

    def read(skip):
        READ.append(skip)
        return iter(range(skip, count))

    arguments = {"batch_size": 8, "strategy": "semi_sorted", "window": 100} | OPTIONS
    return LengthBatchStream(read, lambda i: lengths[i], **arguments | changed)


def passed(stream, epoch=0, workers=0):
    stream.set_epoch(epoch)
    return list(DataLoader(stream, batch_size=None, num_workers=workers))


@pytest.mark.parametrize("count", [1, 40, 100, 149, 150, 470])
def test_stream_yields_every_item_once(count):
    """Each window of a stream is planned separately. If the last items fill less than half of a
    window, they become part of the previous window."""
    stream = stream_of(count)
    first, second = (passed(stream, epoch) for epoch in (0, 1))
    assert sorted(clips_of(first)) == sorted(clips_of(second)) == list(range(count))
    assert first != second or count == 1
    assert passed(stream_of(count)) == first
    edges = [100 * k for k in range(max(1, round(count / 100 - 1e-9)))] + [count]
    windows = [{*range(a, b)} for a, b in itertools.pairwise(edges)]
    assert all(any({*batch} <= window for window in windows) for batch in first)
    assert max(len(batch) * max(LJSPEECH[batch]) for batch in first) <= 9_000
    order = clips_of(
        LengthBatchStream(lambda skip: iter(range(200)), lambda i: 5, 8, "random", window=100)
    )
    assert order[:100] != [i - 100 for i in order[100:]]  # each window has a different plan


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_processes_and_workers_yield_every_item_of_a_stream_once(world_size, workers):
    options = {"world_size": world_size, "batches_per_update": 4}
    if workers and world_size == 4:
        options["window"] = 10**6
    alone = stream_of(470, **options | {"world_size": 1})
    shares = [passed(stream_of(470, rank=r, **options), 2, workers) for r in range(world_size)]
    assert len({len(share) for share in shares}) == 1
    whole = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert whole == passed(alone, 2)
    assert sorted(clips_of(whole)) == list(range(470))


@pytest.mark.parametrize("workers", [0, 2])
def test_stream_yields_the_remaining_items_when_resumed(workers):
    """The number of processes and workers may change when the stream is resumed."""
    stream = stream_of(330, batches_per_update=2)
    whole = passed(stream, 5)
    for trained in range(0, len(whole) + 1, 2 if workers == 0 else 22):
        state = stream.state_dict(trained)
        shares = []
        for rank in (0, 1):
            resumed = stream_of(330, rank=rank, world_size=2)
            resumed.load_state_dict(state)
            shares.append(list(DataLoader(resumed, batch_size=None, num_workers=workers)))
            assert READ[-1] == state["items_before"] or workers
        assert [batch for turn in zip(*shares, strict=True) for batch in turn] == whole[trained:]
    assert state["items_before"] >= 200  # earlier items are not read again
    begun = stream_of(330, batches_per_update=2)
    begun.set_epoch(5)
    assert list(itertools.islice(begun, 6)) == whole[:6]
    assert begun.state_dict() == begun.state_dict(6)
    resumed.load_state_dict(stream.state_dict(4))
    with pytest.raises(BatchingError, match=r"set_epoch\(6\): .*5"):
        resumed.set_epoch(6)
    with pytest.raises(BatchingError, match=r"batches_trained=3: .*2 processes"):
        resumed.load_state_dict(begun.state_dict(3))
    begun.set_epoch(6)
    assert begun.state_dict()["batches_trained"] == 0


def test_stream_resumes_in_the_loader_of_torchdata():
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def loader(workers):
        return loaders.StatefulDataLoader(stream_of(330), batch_size=None, num_workers=workers)

    for workers in (0, 2):
        whole = list(loader(workers))
        # If `trained` is `len(whole) + 1`, the epoch is complete when the state is saved.
        for trained in (1, 4, len(whole) + 1):
            first, second = loader(workers), loader(workers)
            trained_batches = list(itertools.islice(first, trained))
            second.load_state_dict(first.state_dict())
            if trained > len(whole):
                second.dataset.set_epoch(1)
                assert list(second) == passed(stream_of(330), 1)
            else:
                assert trained_batches + list(second) == whole


def test_stream_raises_when_items_would_repeat_or_options_are_invalid():
    stream = stream_of(100)
    first = passed(stream)
    assert first
    for workers in (0, 1):
        with pytest.raises(BatchingError, match=r"epoch 0: .*set_epoch"):
            list(DataLoader(stream, batch_size=None, num_workers=workers))
    with pytest.raises(BatchingError, match=r"read\(0\)"):
        list(stream_of(0))
    with pytest.raises(BatchingError, match="window=0: "):
        stream_of(100, window=0)
    with pytest.raises(BatchingError, match="batch_capacity: "):
        stream_of(100, batch_capacity=None)
    with pytest.raises(BatchingError, match="rank=2: "):
        stream_of(100, rank=2, world_size=2)
    with pytest.raises(BatchingError, match=r"longest=5, overlap=5"):
        segments_of([9], 5, overlap=5)
    with pytest.raises(BatchingError, match="lengths: "):
        segments_of([9.5], 5)


def test_stream_fails_when_accelerate_prepares_its_loader():
    data_loader = pytest.importorskip("accelerate.data_loader")
    pytest.importorskip("accelerate").PartialState(cpu=True)
    prepared = data_loader.prepare_data_loader(
        DataLoader(stream_of(330), batch_size=None),
        num_processes=2,
        process_index=0,
        put_on_device=True,
        dispatch_batches=False,
    )
    with pytest.raises(TypeError, match="NoneType"):  # accelerate raises the TypeError
        list(prepared)
