"""The speakers of a run: how much each has, and what validation says of each.

print(describe_speakers(clips, hparams, weights))   # when a run starts
losses = losses_of_speakers(clips.validation, rows)  # of a validation, by name
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from batching import draws_of_clips
from corpus.cache import ClipTable
from hparams import HParams
from tacotron2_voice.speakers import listed
from training.epoch import Clips

MAX_SHOWN = 8  # speakers that are printed, and that a validation has an example of
ClipRow = Sequence[float]  # of a validation clip: index, frames, steps, sums of loss.sums_of_clips


def most_speech_first(clips: ClipTable) -> list[str]:
    """The names of the speakers, those with the most frames first."""
    totals = np.bincount(clips.speaker_numbers, clips.num_frames).tolist()
    frames = dict(zip(clips.speakers, totals, strict=True))
    return sorted(frames, key=lambda name: (-frames[name], name))


def speech_of_speakers(clips: Clips, hparams: HParams) -> dict[str, dict[str, float]]:
    """What each speaker has, most speech first: clips and minutes to train, clips to validate."""
    table, minute = clips.training, 60 * hparams.sampling_rate / hparams.hop_length  # in frames
    counts, frames = (
        dict(zip(table.speakers, np.bincount(table.speaker_numbers, weights).tolist(), strict=True))
        for weights in (None, table.num_frames)
    )
    validated = Counter(clips.validation.names_of("speaker"))
    return {
        name: {
            "training_clips": counts[name],
            "training_minutes": frames[name] / minute,
            "validation_clips": validated[name],
        }
        for name in most_speech_first(table)
    }


def describe_speakers(clips: Clips, hparams: HParams, weights: np.ndarray | None = None) -> str:
    """At most MAX_SHOWN + 3 lines. `weights` are those with which training clips are drawn
    (batching.balancing_weights)."""
    speech, table = speech_of_speakers(clips, hparams), clips.training
    draws = {}
    if weights is not None:  # the same for all clips of a speaker
        draws = dict(zip(table.names_of("speaker"), draws_of_clips(weights).tolist(), strict=True))
    unseen = sum(not each["validation_clips"] for each in speech.values())
    note = f", {unseen:,} of them without clips for validation" if unseen else ""
    lines = [f"{len(speech):,} speaker{'s' * (len(speech) > 1)}{note}:"]
    for name, each in list(speech.items())[:MAX_SHOWN]:
        drawn = f", each drawn {draws[name]:.3g} times an epoch" if draws else ""
        lines.append(
            f"  {short(name)}: {each['training_clips']:,} clips, "
            f"{each['training_minutes']:,.1f} minutes{drawn}; "
            f"{each['validation_clips']:,} for validation"
        )
    if gone := sorted({*hparams.speakers} - {*speech}):  # of a resumed run
        lines.append(f"  without clips now, with the voices they have learnt: {listed(gone)}")
    if rest := list(speech)[MAX_SHOWN:]:
        minutes = [speech[name]["training_minutes"] for name in (rest[-1], rest[0])]
        drawn = f", drawn up to {max(draws[name] for name in rest):.3g} times" if draws else ""
        lines.append(f"  {len(rest):,} more: {minutes[0]:,.1f} to {minutes[1]:,.1f} minutes{drawn}")
    return "\n".join(lines)


def short(name: str) -> str:
    """A name for a line of its own; names have up to 128 characters."""
    return name if len(name) <= 24 else f"{name[:23]}…"


# ---------------------------------------------------------------------------- validation


def first_places(batches: Sequence[Sequence[int]], clips: ClipTable) -> dict[str, tuple[int, int]]:
    """Where the first clip of each speaker is in the batches of all processes: the batch's number
    and the row in it. Of the MAX_SHOWN with the most speech, these first."""
    numbers = np.concatenate([np.full(len(batch), i) for i, batch in enumerate(batches)])
    rows = np.concatenate([np.arange(len(batch)) for batch in batches])
    order = clips.speaker_numbers[np.concatenate(batches)]
    speakers, firsts = np.unique(order, return_index=True)
    place = dict(zip((clips.speakers[i] for i in speakers), firsts, strict=True))
    names = most_speech_first(clips)[:MAX_SHOWN]
    return {name: (int(numbers[place[name]]), int(rows[place[name]])) for name in names}


def losses_of_speakers(clips: ClipTable, rows: Sequence[ClipRow]) -> dict[str, float]:
    """The unpadded loss of each speaker, most speech first: over all real frames of the speaker's
    clips the mean of the mel's errors, and over all real steps that of the gate's. With one frame a
    step, their mean weighted by frames is the unpadded loss of the validation."""
    index, *columns = np.array(rows).T
    numbers = clips.speaker_numbers[index.astype(int)]
    frames, steps, mel, gate = (np.bincount(numbers, column) for column in columns)
    losses = dict(zip(clips.speakers, (mel / frames + gate / steps).tolist(), strict=True))
    return {name: losses[name] for name in most_speech_first(clips)}
