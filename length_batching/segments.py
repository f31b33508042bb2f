"""Items of a plan that are not clips: groups that stay together, and segments of long clips.

groups = groups_of(speakers)  # items of the sampler are groups; groups[i] are the clips of one
sampler = LengthBatchSampler(groups.longest(lengths), 64, "semi_sorted",
                             group_sizes=groups.sizes, dynamic_batch_size=True)

segments = segments_of(lengths, 500, overlap=100)  # items are segments of at most 500 frames
sampler = LengthBatchSampler(segments.lengths, 16, "semi_sorted", dynamic_batch_size=True)
dataset = SegmentDataset(clips, segments)
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from length_batching.checks import BatchingError, Lengths, check_lengths
from length_batching.plan import EpochPlan

try:  # for SegmentDataset; the functions need numpy alone
    from torch.utils.data import Dataset
except ImportError:
    Dataset = Sequence  # type: ignore[assignment, misc]

# ---------------------------------------------------------------------------- groups


def groups_of(labels: Sequence[Any] | np.ndarray) -> EpochPlan:
    """The clips of each label, in the order of the labels, as if they were batches: `groups[i]`,
    `groups.sizes`, `groups.longest(lengths)`."""
    _, label = np.unique(np.asarray(labels), return_inverse=True)
    order = np.argsort(label, kind="stable")
    return EpochPlan(order, np.flatnonzero(np.diff(label[order], prepend=-1)))


# ---------------------------------------------------------------------------- segments


@dataclass(frozen=True)
class Segments(Sequence[tuple[int, int, int]]):
    """Parts of clips: segment i goes from frame `starts[i]` of clip `clips[i]` on for `lengths[i]`
    frames; `segments[i]` is (clip, start, stop)."""

    clips: np.ndarray  # [segments]
    starts: np.ndarray
    lengths: np.ndarray

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: Any) -> Any:
        clip, start = int(self.clips[index]), int(self.starts[index])
        return clip, start, start + int(self.lengths[index])


def segments_of(lengths: Lengths, longest: int, *, overlap: int = 0, shortest: int = 1) -> Segments:
    """Clips longer than `longest` are cut into segments of that length, each of which repeats the
    last `overlap` frames of the one before. A clip's last segment may be shorter; where it would be
    shorter than `shortest` it begins earlier. (Doetsch17 without, Gonzalez23 with a dynamic batch's
    capacity as the longest.)

    Raises:
        BatchingError: unless all are whole numbers, 0 <= overlap < longest, shortest <= longest.
    """
    x = check_lengths(lengths)
    if x.ndim > 1 or (x % 1).any():
        raise BatchingError("lengths: expected a whole number of frames per clip")
    if not (0 <= overlap < longest and 1 <= shortest <= longest):
        allowed = "0 <= overlap < longest, 1 <= shortest <= longest"
        problem = f"longest={longest}, overlap={overlap}, shortest={shortest}"
        raise BatchingError(f"{problem}: expected {allowed}")
    frames, step = x.astype(np.int64), longest - overlap
    counts = 1 + -(-np.maximum(frames - longest, 0) // step)
    clips = np.repeat(np.arange(len(frames)), counts)
    starts = step * (np.arange(len(clips)) - np.repeat(np.cumsum(counts) - counts, counts))
    ends = np.minimum(starts + longest, frames[clips])
    starts = np.maximum(np.minimum(starts, ends - shortest), 0)
    return Segments(clips, starts, ends - starts)


class SegmentDataset(Dataset[Any]):
    """The segments of a dataset's clips; `cut(clip, start, stop)` cuts one out."""

    def __init__(
        self,
        clips: Any,
        segments: Segments,
        cut: Callable[[Any, int, int], Any] = lambda clip, start, stop: clip[start:stop],
    ):
        self.clips, self.segments, self.cut = clips, segments, cut

    def __len__(self) -> int:
        return len(self.segments)

    def __getitem__(self, index: int) -> Any:
        clip, start, stop = self.segments[index]
        return self.cut(self.clips[clip], start, stop)
