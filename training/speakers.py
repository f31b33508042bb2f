"""Report the amount of speech and the validation loss of each speaker in a run.

print(describe_speakers(clips, hparams, weights))    # when a run starts
losses = losses_of_speakers(clips.validation, rows)  # in a validation
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from batching import draws_of_clips
from corpus.cache import ClipTable
from hparams import HParams
from tacotron2_voice.speakers import listed
from training.clips import Clips

# Maximum number of speakers to list in messages, and of speakers with an example in validation.
MAX_SHOWN = 8
# Values for one validation clip: the index of the clip, the number of frames, the number of decoder
# steps, and the two errors from `loss.sums_of_clips`.
ClipRow = Sequence[float]


def frames_of_speakers(clips: ClipTable) -> dict[str, float]:
    """Return the number of frames of each speaker, sorted from most to fewest frames."""
    totals = np.bincount(clips.speaker_numbers, clips.num_frames).tolist()
    frames = dict(zip(clips.speakers, totals, strict=True))
    return dict(sorted(frames.items(), key=lambda item: (-item[1], item[0])))


def speech_of_speakers(clips: Clips, hparams: HParams) -> dict[str, dict[str, float]]:
    """Return each speaker's number of training clips, training minutes and validation clips.

    The speakers are sorted from most to least training speech.
    """
    frames_per_minute = 60 * hparams.sampling_rate / hparams.hop_length
    trained = Counter(clips.training.names_of("speaker"))
    validated = Counter(clips.validation.names_of("speaker"))
    return {
        name: {
            "training_clips": trained[name],
            "training_minutes": frames / frames_per_minute,
            "validation_clips": validated[name],
        }
        for name, frames in frames_of_speakers(clips.training).items()
    }


def describe_speakers(clips: Clips, hparams: HParams, weights: np.ndarray | None = None) -> str:
    """Return a description of the speakers with at most MAX_SHOWN + 3 lines.

    Args:
        weights: sampling weights of the training clips (see `batching.balancing_weights`).
    """
    speech = speech_of_speakers(clips, hparams)
    draws = {}
    if weights is not None:
        # All clips of a speaker have the same sampling weight, so each clip of a speaker is drawn
        # equally often.
        names = clips.training.names_of("speaker")
        draws = dict(zip(names, draws_of_clips(weights).tolist(), strict=True))
    unseen = sum(not values["validation_clips"] for values in speech.values())
    note = f", {unseen:,} of them without validation clips" if unseen else ""
    lines = [f"{len(speech):,} speaker{'s' * (len(speech) > 1)}{note}:"]
    for name, values in list(speech.items())[:MAX_SHOWN]:
        drawn = f", each drawn {draws[name]:.3g} times per epoch" if draws else ""
        lines.append(
            f"  {short(name)}: {values['training_clips']:,} training clips, "
            f"{values['training_minutes']:,.1f} minutes{drawn}; {values['validation_clips']:,} "
            "validation clips"
        )
    gone = sorted({*hparams.speakers} - {*speech})
    if gone:
        lines.append(f"  speakers of the model without clips in the filelists: {listed(gone)}")
    rest = list(speech)[MAX_SHOWN:]
    if rest:
        least = speech[rest[-1]]["training_minutes"]
        most = speech[rest[0]]["training_minutes"]
        drawn = f", drawn up to {max(draws[name] for name in rest):.3g} times" if draws else ""
        lines.append(f"  {len(rest):,} more: {least:,.1f} to {most:,.1f} minutes{drawn}")
    return "\n".join(lines)


def short(name: str) -> str:
    """Shorten a speaker name to at most 24 characters."""
    return name if len(name) <= 24 else f"{name[:23]}…"


# ---------------------------------------------------------------------------- validation


def first_positions(
    batches: Sequence[Sequence[int]], clips: ClipTable
) -> dict[str, tuple[int, int]]:
    """Return the batch number and the row of each speaker's first validation clip, keyed by
    speaker.

    In a filelist from prepare.py, the first clip of each speaker is a typical clip. The result
    contains only the MAX_SHOWN speakers with the most speech, sorted from most to least speech.

    Args:
        batches: the validation batches of all processes.
    """
    position_of = {
        clip: (number, row)
        for number, batch in enumerate(batches)
        for row, clip in enumerate(batch)
    }
    speakers, firsts = np.unique(clips.speaker_numbers, return_index=True)
    first_of = dict(zip((clips.speakers[i] for i in speakers), firsts.tolist(), strict=True))
    names = list(frames_of_speakers(clips))[:MAX_SHOWN]
    return {name: position_of[first_of[name]] for name in names}


def losses_of_speakers(clips: ClipTable, rows: Sequence[ClipRow]) -> dict[str, float]:
    """Return the masked loss of each speaker, sorted from most to least speech.

    The loss is the mean mel error over all real frames of the speaker's clips, plus the mean
    stop-token error over all real decoder steps. With one frame per decoder step, the
    frame-weighted mean of the speakers' losses equals the masked validation loss.
    """
    index, *columns = np.array(rows).T
    numbers = clips.speaker_numbers[index.astype(int)]
    frames, steps, mel, gate = (np.bincount(numbers, column) for column in columns)
    losses = dict(zip(clips.speakers, (mel / frames + gate / steps).tolist(), strict=True))
    return {name: losses[name] for name in frames_of_speakers(clips)}
