"""What `prepare` says of the speakers of a corpus, where there are two or more."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from corpus.clip_table import Clip
from corpus.recordings import seconds_of
from hparams import HParams
from tacotron2_voice.utils.console import markdown_table

MAX_ROWS = 20  # of the table; of more speakers those with the most and the fewest minutes
MAX_NAMED = 5  # in a warning
MAX_LETTERS = 30  # of a name in the table
MAX_LEVEL_DECIBELS = 6  # between two speakers
MIN_MINUTES = 2  # of a speaker


class SpeakerFacts(NamedTuple):
    """A speaker's clips, measured."""

    name: str
    clips: int
    held_out: int  # clips for validation
    minutes: float
    pace: float  # milliseconds a symbol, without silence at the ends
    silence: float  # seconds before and after speech, the mean of clips
    level: float  # dB, the median of clips


def by_speaker(clips: Sequence[Clip]) -> dict[str, list[Clip]]:
    """The clips of each speaker, in the order of the names."""
    clips_of: dict[str, list[Clip]] = {clip.speaker: [] for clip in clips}
    for clip in clips:
        clips_of[clip.speaker].append(clip)
    return dict(sorted(clips_of.items()))


def facts_of(sets: Mapping[str, Sequence[Clip]], hparams: HParams) -> list[SpeakerFacts]:
    """Measure the speakers of these sets of clips, in the order of their names."""
    held_out = {clip.where for clip in sets.get("val", ())}
    facts, rate = [], hparams.sampling_rate
    for name, clips in by_speaker([clip for members in sets.values() for clip in members]).items():
        spoken = sum(clip.sound.speech_samples for clip in clips) / rate
        seconds = float(seconds_of(clips, hparams).sum())
        facts.append(
            SpeakerFacts(
                name,
                len(clips),
                sum(clip.where in held_out for clip in clips),
                seconds / 60,
                1000 * spoken / sum(len(clip.symbols) for clip in clips),
                (seconds - spoken) / len(clips),
                float(np.median([clip.sound.level for clip in clips])),
            )
        )
    return facts


def speaker_table(facts: Sequence[SpeakerFacts]) -> str:
    """Markdown table of the speakers, those with the most minutes first."""
    ordered = sorted(facts, key=lambda x: (-x.minutes, x.name))
    rows = [
        [
            x.name if len(x.name) <= MAX_LETTERS else f"{x.name[: MAX_LETTERS - 1]}…",
            *(f"{x.clips:,}", f"{x.held_out:,}", f"{x.minutes:,.1f}", f"{x.pace:.0f}"),
            *(f"{x.silence:.2f}", f"{x.level:.1f}"),
        ]
        for x in ordered
    ]
    if (left_out := len(rows) - MAX_ROWS) > 0:
        between = [f"... {left_out:,} more", *[""] * 6]
        rows = [*rows[: MAX_ROWS // 2], between, *rows[-MAX_ROWS // 2 :]]
    titles = ["speaker", "clips", "held out", "minutes", "ms a symbol", "silence (s)", "level (dB)"]
    return markdown_table(titles, rows)


def speaker_warnings(facts: Sequence[SpeakerFacts], *, is_converted: bool) -> list[str]:
    """Warnings about speakers of other levels than others', and of few minutes. `is_converted`:
    whether the clips are copies that --convert has just made."""
    warnings = []
    quietest, *_, loudest = sorted(facts, key=lambda x: x.level)
    if loudest.level - quietest.level > MAX_LEVEL_DECIBELS:
        fix = "--convert NEW_FOLDER, added to this command, writes copies of one level"
        if is_converted:
            fix = "single peaks keep the copies of the quieter ones from getting louder: cut them"
        warnings.append(
            f"warning: levels of speakers differ by {loudest.level - quietest.level:.1f} dB, from "
            f"{quietest.name!r} ({quietest.level:.1f} dB) to {loudest.name!r} "
            f"({loudest.level:.1f} dB), and so will their voices; {fix} (docs/speakers.md)"
        )
    if short := sorted((x for x in facts if x.minutes < MIN_MINUTES), key=lambda x: x.minutes):
        named = ", ".join(f"{x.name!r} ({x.minutes:.1f})" for x in short[:MAX_NAMED])
        more = f" and {len(short) - MAX_NAMED:,} more" * (len(short) > MAX_NAMED)
        warnings.append(
            f"warning: {len(short):,} of {len(facts):,} speakers have less than {MIN_MINUTES} "
            f"minutes: {named}{more}. Add recordings, or leave these speakers out "
            "(docs/speakers.md)"
        )
    return warnings


def held_out_notice(facts: Sequence[SpeakerFacts], val_fraction: float) -> str | None:
    """A notice about speakers without a clip for validation."""
    without = [x for x in facts if not x.held_out]
    if not without or not val_fraction:
        return None
    named = ", ".join(f"{x.name!r} ({x.clips:,})" for x in without[:MAX_NAMED])
    more = f" and {len(without) - MAX_NAMED:,} more" * (len(without) > MAX_NAMED)
    return (
        f"Notice: {len(without):,} of {len(facts):,} speakers have too few clips to hold one out "
        f"for validation: {named}{more}"
    )
