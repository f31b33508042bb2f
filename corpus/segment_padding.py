"""Lengthen the segments of recordings at both ends.

clips, problems = padded(clips, 0.1)
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from corpus.clips import MAX_OVERLAP, Clip, Segment


def padded(clips: Sequence[Clip], padding: float) -> tuple[list[Clip], list[str]]:
    """Lengthen segments by `padding` seconds at each end.

    If two segments of a recording are less than twice `padding` apart, both segments extend only to
    the middle of the gap. Clips that are whole recordings do not change.

    Returns:
        A tuple of the clips in their original order, and a list of messages. The list contains one
        message for each bad segment. A segment is bad if its end is not after its start, or if it
        overlaps another segment by more than 0.05 s.
    """
    by_recording = defaultdict[str, list[int]](list)
    changed = list(clips)
    problems = {}
    for i, clip in enumerate(clips):
        if not clip.segment or clip.segment.seconds is None:
            continue
        if clip.segment.seconds > 0:
            by_recording[clip.path].append(i)
        else:
            start, end = _bounds(clip)
            problems[i] = (
                f"{clip.where}: the segment starts at {start:g} s and ends at {end:g} s, expected start "
                "before end"
            )
    for indices in by_recording.values():
        indices.sort(key=lambda i: _bounds(clips[i]))
        bounds = [_bounds(clips[i]) for i in indices]
        before = 0.0  # latest end time of the segments before segment i
        latest_index = indices[0]  # index of the segment that ends at `before`
        for rank, i in enumerate(indices):
            start, end = bounds[rank]
            if before - start > MAX_OVERLAP:
                # Report both segments, because either segment may be wrong.
                for one, other in ((i, latest_index), (latest_index, i)):
                    first_second, last_second = _bounds(clips[one])
                    problems.setdefault(
                        one,
                        f"{clips[one].where}: the segment from {first_second:.2f} s to "
                        f"{last_second:.2f} s overlaps "
                        f"{clips[other].where} by {before - start:.2f} s; expected segments that "
                        "do not overlap",
                    )
            first = rank == 0
            earliest = 0.0 if first else (before + start) / 2
            latest = (end + bounds[rank + 1][0]) / 2 if rank + 1 < len(indices) else end + padding
            new_start = min(start, max(start - padding, earliest))
            new_end = max(end, min(end + padding, latest))
            changed[i] = replace(clips[i], segment=Segment(new_start, new_end - new_start))
            if end > before:
                before = end
                latest_index = i
    kept = [clip for i, clip in enumerate(changed) if i not in problems]
    return kept, [problems[i] for i in sorted(problems)]


def _bounds(clip: Clip) -> tuple[float, float]:
    # `padded` calls this function only for clips that have a segment of known length
    assert clip.segment is not None
    assert clip.segment.seconds is not None
    return clip.segment.start, clip.segment.start + clip.segment.seconds
