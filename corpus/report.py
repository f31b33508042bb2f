"""Make the tables, the summary and the warnings about speakers for the report of `prepare`."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from corpus.checks import seconds_of
from corpus.clips import Clip
from hparams import HParams
from tacotron2_voice.speech_statistics import SpeechStatistics, last_symbol, measure
from tacotron2_voice.utils.console import markdown_table

# Maximum number of speakers in the table of speakers. If a corpus has more speakers, half of the
# table lists the speakers with the most audio, and half lists the speakers with the least audio.
MAX_ROWS = 20
MAX_NAMED = 5  # maximum number of speakers to list in a warning
MAX_LETTERS = 30  # maximum number of letters of a speaker name in the table
# Maximum level difference between speakers in dB; a larger difference causes a warning.
MAX_LEVEL_DECIBELS = 6
MIN_MINUTES = 2  # minimum minutes of audio per speaker; less audio causes a warning


def table_of_lengths(sets: Mapping[str, Sequence[Clip]], hparams: HParams) -> str:
    """Return a Markdown table of the clip lengths in each set, in seconds, frames and symbols."""
    rows = []
    for name, clips in sets.items():
        units = {
            "seconds": seconds_of(clips, hparams),
            "frames": np.array([clip.num_frames for clip in clips]),
            "symbols": np.array([len(clip.symbols) for clip in clips]),
        }
        for unit, lengths in units.items():
            numbers = (f(lengths) for f in (np.min, np.mean, np.median, np.max, np.sum))
            rows.append([name, f"{len(clips):,}", unit, *(f"{number:,.2f}" for number in numbers)])
    titles = ["set", "clips", "unit", "shortest", "mean", "median", "longest", "total"]
    return markdown_table(titles, rows)


def summary_of(
    sets: Mapping[str, Sequence[Clip]], clips: Sequence[Clip], hparams: HParams
) -> dict[str, str]:
    """Return the summary for the top of the report as {name of a row: value}."""
    seconds = seconds_of(clips, hparams)
    qualities = [clip.measured.quality for clip in clips]
    speech = sum(clip.measured.speech_samples for clip in clips) / hparams.sampling_rate
    symbols = sum(len(clip.symbols) for clip in clips)
    return {
        "clips": ", ".join(f"{len(own):,} in {name}.txt" for name, own in sets.items()),
        "audio": f"{seconds.sum() / 3600:.2f} hours at {hparams.sampling_rate:,} Hz",
        "speakers": f"{len(by_speaker(clips)):,}",
        "median length": f"{np.median(seconds):.1f} s (longest {seconds.max():.1f} s)",
        "speaking rate": f"{symbols / speech:.1f} symbols per second",
        "median speech level": f"{np.median([x.level for x in qualities]):.0f} dBFS",
        "median signal-to-noise ratio": f"{np.median([x.signal_to_noise for x in qualities]):.0f} dB",
    }


def statistics_of(clips: Sequence[Clip], hparams: HParams) -> SpeechStatistics:
    """Return the speech statistics that training stores in checkpoints."""
    symbols = hparams.table.symbols
    last = (last_symbol(symbols[i] for i in clip.symbols) for clip in clips)
    frames = np.array([clip.num_frames for clip in clips])
    lengths = np.array([len(clip.symbols) for clip in clips])
    return measure(frames, lengths, last, hparams)


class SpeakerFacts(NamedTuple):
    name: str
    clips: int
    held_out: int  # number of clips for validation
    minutes: float
    pace: float  # milliseconds of speech per symbol, without the silence at the ends
    silence: float  # seconds of silence per clip, before plus after the speech (mean over clips)
    level: float  # speech level in dBFS (median over clips)


def by_speaker(clips: Sequence[Clip]) -> dict[str, list[Clip]]:
    """Return {speaker: clips}, sorted by name."""
    clips_of: dict[str, list[Clip]] = {clip.speaker: [] for clip in clips}
    for clip in clips:
        clips_of[clip.speaker].append(clip)
    return dict(sorted(clips_of.items()))


def facts_of(sets: Mapping[str, Sequence[Clip]], hparams: HParams) -> list[SpeakerFacts]:
    """Return the measurements of each speaker, sorted by name."""
    held_out = {clip.where for clip in sets.get("val", ())}
    facts = []
    rate = hparams.sampling_rate
    for name, clips in by_speaker([clip for members in sets.values() for clip in members]).items():
        spoken = sum(clip.measured.speech_samples for clip in clips) / rate
        seconds = float(seconds_of(clips, hparams).sum())
        facts.append(
            SpeakerFacts(
                name,
                len(clips),
                sum(clip.where in held_out for clip in clips),
                seconds / 60,
                1000 * spoken / sum(len(clip.symbols) for clip in clips),
                (seconds - spoken) / len(clips),
                float(np.median([clip.measured.quality.level for clip in clips])),
            )
        )
    return facts


def speaker_table(facts: Sequence[SpeakerFacts]) -> str:
    """Return a Markdown table of the speakers, from most to least minutes of audio."""
    ordered = sorted(facts, key=lambda x: (-x.minutes, x.name))
    rows = [
        [
            x.name if len(x.name) <= MAX_LETTERS else f"{x.name[: MAX_LETTERS - 1]}…",
            f"{x.clips:,}",
            f"{x.held_out:,}",
            f"{x.minutes:,.1f}",
            f"{x.pace:.0f}",
            f"{x.silence:.2f}",
            f"{x.level:.1f}",
        ]
        for x in ordered
    ]
    if (left_out := len(rows) - MAX_ROWS) > 0:
        between = [f"... {left_out:,} more speakers", *[""] * 6]
        rows = [*rows[: MAX_ROWS // 2], between, *rows[-MAX_ROWS // 2 :]]
    titles = [
        "speaker",
        "clips",
        "validation clips",
        "minutes",
        "ms per symbol",
        "silence per clip (s)",
        "speech level (dBFS)",
    ]
    return markdown_table(titles, rows)


def speaker_warnings(facts: Sequence[SpeakerFacts], *, is_converted: bool) -> list[str]:
    """Return warnings about speakers with different levels or with too little audio.

    Args:
        is_converted: whether the clips are new copies from --convert.
    """
    warnings = []
    quietest, *_, loudest = sorted(facts, key=lambda x: x.level)
    if loudest.level - quietest.level > MAX_LEVEL_DECIBELS:
        fix = "Add --convert DIR to write copies with the same level"
        if is_converted:
            fix = "Isolated peaks limit the level of some copies. Remove these peaks from the recordings"
        warnings.append(
            f"warning: the speakers' levels differ by {loudest.level - quietest.level:.1f} dB, from "
            f"{quietest.name!r} ({quietest.level:.1f} dBFS) to {loudest.name!r} "
            f"({loudest.level:.1f} dBFS). {fix} (docs/guides/speakers.md)"
        )
    if short := sorted((x for x in facts if x.minutes < MIN_MINUTES), key=lambda x: x.minutes):
        named = ", ".join(f"{x.name!r} ({x.minutes:.1f} minutes)" for x in short[:MAX_NAMED])
        more = f" and {len(short) - MAX_NAMED:,} more" * (len(short) > MAX_NAMED)
        warnings.append(
            f"warning: {len(short):,} of {len(facts):,} speakers have less than {MIN_MINUTES} "
            f"minutes of audio: {named}{more}. Add recordings, or leave these speakers out "
            "(docs/guides/speakers.md)"
        )
    return warnings
