"""Batch groups of clips, or segments of long clips.

groups = groups_of(speakers)  # the sampler's items are groups; groups[i] contains clip indices
sampler = LengthBatchSampler(groups.longest(lengths), 64, "semi_sorted",
                             group_sizes=groups.sizes, dynamic_batch_size=True)

segments = segments_of(lengths, 500, overlap=100)  # the items are segments of up to 500 frames
sampler = LengthBatchSampler(segments.lengths, 16, "semi_sorted", dynamic_batch_size=True)
dataset = SegmentDataset(clips, segments)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_lengths
from length_batching.plan import EpochPlan

try:  # only SegmentDataset needs torch
    from torch.utils.data import Dataset
except ImportError:
    Dataset = Sequence  # type: ignore[assignment, misc]

# ---------------------------------------------------------------------------- groups


def groups_of(labels: Sequence[Any] | np.ndarray) -> EpochPlan:
    """Group the clips that have equal labels, and sort the groups by label.

        groups = groups_of(["ann", "bob", "ann"])
        groups[0]  # array([0, 2])

    Args:
        labels: [clips] the label of each clip, such as its speaker.

    Returns:
        An `EpochPlan` that contains groups instead of batches. Pass `groups.longest(lengths)` as
        `lengths`, and `groups.sizes` as `group_sizes`, to `plan_epoch` or a sampler.
    """
    _, label = np.unique(np.asarray(labels), return_inverse=True)
    order = np.argsort(label, kind="stable")
    return EpochPlan(order, np.flatnonzero(np.diff(label[order], prepend=-1)))


# ---------------------------------------------------------------------------- segments


@dataclass(frozen=True)
class Segments(Sequence[tuple[int, int, int]]):
    """Segments of clips. `segments[i]` is (index of the clip, first frame, last frame + 1).

    Attributes:
        clips: [segments] index of the clip.
        starts: [segments] first frame of the segment.
        lengths: [segments] number of frames.
    """

    clips: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: Any) -> Any:
        clip = int(self.clips[index])
        start = int(self.starts[index])
        return clip, start, start + int(self.lengths[index])


def segments_of(lengths: Lengths, longest: int, *, overlap: int = 0, shortest: int = 1) -> Segments:
    """Cut long clips into segments.

        segments = segments_of([1200, 300], 500, overlap=100)
        list(segments)  # [(0, 0, 500), (0, 400, 900), (0, 800, 1200), (1, 0, 300)]

    Doetsch et al. (2017) cut clips into segments that do not overlap. Gonzalez et al. (2023) cut
    only clips that exceed the frame budget of a dynamic batch.

    Args:
        lengths: [clips] length of each clip, a whole number of frames.
        longest: maximum number of frames per segment.
        overlap: number of frames that a segment shares with the previous segment.
        shortest: minimum number of frames per segment. If the last segment of a clip would be
            shorter, this segment begins earlier and overlaps more of the previous segment.

    Raises:
        BatchingError: unless 0 <= overlap < longest and 1 <= shortest <= longest, or if a length is
            not a whole number.
    """
    x = check_lengths(lengths)
    if x.ndim > 1 or (x % 1).any():
        raise BatchingError("lengths: expected a whole number of frames for each clip")
    if not (0 <= overlap < longest and 1 <= shortest <= longest):
        found = f"longest={longest}, overlap={overlap}, shortest={shortest}"
        expected = "0 <= overlap < longest and 1 <= shortest <= longest"
        raise BatchingError(f"{found}: expected {expected}")
    frames = x.astype(np.int64)
    distance = longest - overlap  # distance between the starts of neighboring segments
    counts = 1 + -(-np.maximum(frames - longest, 0) // distance)
    clips = np.repeat(np.arange(len(frames)), counts)
    number_in_clip = np.arange(len(clips)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = distance * number_in_clip
    ends = np.minimum(starts + longest, frames[clips])
    starts = np.maximum(np.minimum(starts, ends - shortest), 0)
    return Segments(clips, starts, ends - starts)


class SegmentDataset(Dataset[Any]):
    """A dataset whose items are segments of the clips in another dataset.

        dataset = SegmentDataset(clips, segments_of(lengths, 500))

    Args:
        clips: the dataset or list that contains the clips.
        segments: the result of `segments_of`.
        cut: a function `cut(clip, start, stop)` that returns a segment of a clip. Default:
            clip[start:stop].
    """

    def __init__(
        self,
        clips: Any,
        segments: Segments,
        cut: Callable[[Any, int, int], Any] = lambda clip, start, stop: clip[start:stop],
    ):
        self.clips = clips
        self.segments = segments
        self.cut = cut

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> Any:
        clip, start, stop = self.segments[index]
        return self.cut(self.clips[clip], start, stop)
