"""Find clips and texts that prevent a model from learning alignments (docs/guides/own-data.md).

for warning in corpus_warnings(clips, hparams):
    print(warning)
for finding in clip_findings(clips, hparams):
    print(finding.describe(len(clips)))
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from corpus.audio_quality import MAX_PAUSE, MIN_SIGNAL_TO_NOISE, problems_of
from corpus.clips import Clip
from corpus.filelist import OTHER_LANGUAGE, foreign_letters
from corpus.normalized_texts import UNSPACED
from hparams import HParams
from tacotron2_voice.text import sequence_to_text
from tacotron2_voice.text.lexicon import respell
from tacotron2_voice.text.sequences import PHONES
from tacotron2_voice.text.spoken_numbers import WORDS
from tacotron2_voice.text.tags import WORDS_IN_BRACKETS
from tacotron2_voice.text.uncertain import describe, uncertain_expressions
from tacotron2_voice.text.unspoken import dropped_symbols, with_columns

# Maximum silence before or after speech in seconds; longer silence causes a warning.
MAX_SILENCE_SECONDS = 0.3
# Usual range of the median time per symbol of a corpus, in milliseconds. In the corpora of four
# readers, the median is 49 to 68 ms. If a sampling rate is wrong by a factor of 3, the median is
# outside of this range.
USUAL_RATES = 35, 150
MIN_RATES = 5  # minimum number of clips for a warning about the speaking rate
# In shorter texts, such as single words, a symbol takes longer.
MIN_SYMBOLS = 15
WORST_SHOWN = 5  # maximum number of clips to list in a warning
MANUAL = "docs/guides/own-data.md"
TAG = "</?[A-Za-z][A-Za-z0-9]*>"  # pattern of an HTML tag without attributes
# Matches accented letters, quotation marks and Cyrillic letters that result from decoding UTF-8 as
# Windows-1252.
TWICE_ENCODED = re.compile("[ÂÃÐÑ][^\x00-\x7fÀ-ÿ]|â€")
# Each entry contains the description of a kind of unusual text, advice, and a pattern that matches
# the unusual part.
UNUSUAL_TEXTS = (
    (
        "HTML entities or tags, which would be read letter by letter",
        "Write the characters themselves",
        re.compile(rf"&#[0-9]+;|&#x[0-9a-fA-F]+;|&[A-Za-z]{{2,8}};|{TAG}"),
    ),
    (
        "UTF-8 that was read as Windows-1252",
        "Decode the original texts as UTF-8",
        TWICE_ENCODED,
    ),
    (
        "words in square brackets, which are speech in training but tags in synthesis",
        "Delete the words if they are not spoken, or replace the square brackets with parentheses",
        WORDS_IN_BRACKETS,
    ),
    (
        "names of speakers before the text, which would be read aloud",
        "Delete the names if they are not spoken",
        re.compile(r"^(?:>>\s*)?[A-Z][A-Z .'-]{1,30}:(?=\s)"),
    ),
    (
        "sounds in parentheses, which would be read aloud",
        "Delete the words if they are not spoken",
        re.compile(
            r"\((?i:laugh(?:s|ing|ter)?|coughs?|coughing|sighs?|sighing|applause|music|noise|silence"
            r"|inaudible|unintelligible|clears throat)\)"
        ),
    ),
    (
        "marks in angle brackets, which would be read aloud",
        "Delete the angle brackets. If the words between the brackets are not spoken, also delete these "
        "words",
        re.compile(rf"<(?!{TAG[1:]})[^\s<>][^<>\n]{{0,40}}>"),
    ),
    (
        "spaces between all characters, although this script is written without spaces",
        "Delete the spaces, or use another transcript",
        re.compile(rf"(?:{UNSPACED.pattern}\s){{4}}{UNSPACED.pattern}"),
    ),
    (
        # If a text was decoded with the wrong encoding, its quotation marks may become control
        # characters.
        "control characters",
        "Delete the control characters, or write the intended characters",
        re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]"),
    ),
)
# Maps each problem that `problems_of` can return to a description and advice.
AUDIO_PROBLEMS = {
    "noise": (
        f"noise (speech is less than {MIN_SIGNAL_TO_NOISE} dB louder than the noise)",
        "Record in a quieter place, or remove the noise with an audio editor",
    ),
    "hum": ("hum of 50 or 60 Hz", "Filter the hum with an audio editor"),
    "offset": (
        "a constant offset of the samples",
        "Add --convert DIR to write copies without the offset",
    ),
    "narrow band": (
        "a narrow frequency band (no speech above 4.5 kHz, as from a telephone)",
        "Use recordings with a higher sampling rate",
    ),
    "cut": (
        "speech at the very start or end of the file",
        "Listen to the clips. If words are cut off, cut the clips from the original recording again",
    ),
    "pause": (
        f"a pause of more than {MAX_PAUSE:g} s inside the speech",
        "Split the clip at the pause, or shorten the pause",
    ),
}
MAX_LEVEL_DIFFERENCE = 10  # maximum difference in dB from the median level of the speaker's clips
# Maps each language that has only one script to the first word in the Unicode names of its letters.
SCRIPTS = {
    language: script
    for script, languages in {
        "ARABIC": "ar fa ur",
        "ARMENIAN": "hy hyw",
        "BENGALI": "bn as",
        "CYRILLIC": "ru uk bg be mk",
        "DEVANAGARI": "hi mr ne",
        "GEORGIAN": "ka",
        "GREEK": "el",
        "HANGUL": "ko",
        "HEBREW": "he",
        "LATIN": "en de fr es it pt nl pl cs sv fi tr vi hu",
        "TAMIL": "ta",
        "TELUGU": "te",
        "THAI": "th",
    }.items()
    for language in languages.split()
}
# Maximum fraction of texts without any letter of the language's script. A larger fraction causes a
# warning. A few texts, such as foreign names, may be in another script.
MAX_OTHER_SCRIPT = 0.2
# Minimum number of clips, and minimum standard deviation of the logarithm of their lengths. Below
# these limits, the correlation between the lengths of clips and texts is meaningless.
MIN_CLIPS, MIN_SPREAD = 20, 0.15
MIN_CORRELATION = 0.3  # minimum correlation of log duration and log number of symbols
# Limits for speaking rates (see `usual_rates`). With these limits, at most 0.5% of the clips in
# each of four clean corpora have an unusual speaking rate. If half of each clip's audio is
# missing, 75 to 99% of the clips have an unusual speaking rate.
MAX_DEVIATIONS = 4.5
MIN_RATE_RATIO = 1.4
# Maximum fraction of texts with a non-English letter. A larger fraction causes a warning. English
# texts contain such letters only in foreign names.
MAX_FOREIGN_SHARE = 0.05
# The words in COMMON_WORDS make up 15% of all words in LJSpeech. Few other languages contain any of
# these words.
COMMON_WORDS = ("the", "and", "that", "with", "you", "this", "it", "they")
# Minimum number of words to decide whether a corpus is English, and minimum fraction of common
# words (COMMON_WORDS) in an English corpus.
MIN_WORDS, MIN_COMMON_SHARE = 200, 0.02


class Finding(NamedTuple):
    """A problem that prepare.py reports, and the clips with this problem."""

    problem: str
    advice: str
    # The clips, from worst to best, and a note for each clip, such as the measured value.
    notes: list[tuple[Clip, str]]

    def describe(self, num_clips: int) -> str:
        """Return the warning that `prepare` prints."""
        shown = [f"{clip.id} ({value})" for clip, value in self.notes[:WORST_SHOWN]]
        more = len(self.notes) - len(shown)
        listed = "; ".join(shown) + (f" and {more:,} more" if more else "")
        count = f"{len(self.notes):,} of {num_clips:,} clips"
        return f"warning: {self.problem} in {count}: {listed}. {self.advice} ({MANUAL})"


def corpus_warnings(clips: Sequence[Clip], hparams: HParams) -> list[str]:
    """Return warnings about the corpus as a whole, in a fixed order."""
    warnings = [
        unusual_speaking_rate(clips, hparams),
        other_language(clips, hparams),
        other_script(clips, hparams),
        texts_of_other_clips(clips),
    ]
    return [warning for warning in warnings if warning]


def unusual_speaking_rate(clips: Sequence[Clip], hparams: HParams) -> str | None:
    """Return a warning if the median time per symbol is impossible for speech. Only texts in an
    alphabet are checked.

    Such a rate has a common cause in all clips, such as a wrong sampling rate in the headers of the
    files, texts of other clips, or wrong times of subtitles.
    """
    letters = [x for clip in clips for x in clip.text if x.isalpha()]
    is_alphabetic = letters and sum(map(is_in_alphabet, letters)) >= len(letters) / 2
    if len(clips) < MIN_RATES or not is_alphabetic:
        return None
    lengths = [len(clip.symbols) for clip in clips]
    rates = [
        1000 * clip.measured.speech_samples / hparams.sampling_rate / len(clip.symbols)
        for clip in clips
    ]
    rate = float(np.median(rates))
    is_slow = rate > USUAL_RATES[1] and np.median(lengths) >= MIN_SYMBOLS
    if rate >= USUAL_RATES[0] and not is_slow:
        return None
    return (
        f"warning: the clips take {rate:.0f} ms per symbol (median), but speech usually takes "
        f"{USUAL_RATES[0]} to {USUAL_RATES[1]} ms per symbol. Listen to some clips. If the voice is too "
        "high or too low, the sampling rate in the files is wrong. The texts or times may also belong "
        f"to other audio, or the speech may be unusually fast or slow ({MANUAL})"
    )


def is_in_alphabet(letter: str) -> bool:
    """Return whether a letter is Latin, Greek, Cyrillic, Armenian, Georgian or phonetic.

    In other scripts, a letter can stand for a syllable or a word, which takes longer.
    """
    return letter < "\u0590" or "\u10a0" <= letter <= "\u10ff" or "\u1d00" <= letter <= "\u1fff"


def clip_findings(clips: Sequence[Clip], hparams: HParams) -> list[Finding]:
    """Return the problems of individual clips, in a fixed order."""
    findings = [*_audio_findings(clips, hparams), *_text_findings(clips, hparams)]
    return [finding for finding in findings if finding.notes]


def _audio_findings(clips: Sequence[Clip], hparams: HParams) -> Iterator[Finding]:
    rate = hparams.sampling_rate
    silences = [max(clip.measured.silence_before, clip.measured.silence_after) for clip in clips]
    yield Finding(
        f"silence of more than {MAX_SILENCE_SECONDS:g} s before or after speech",
        "Trim the silence with --trim-silence DIR",
        [
            (
                clips[i],
                f"{clips[i].measured.silence_before / rate:.2f} s before, "
                f"{clips[i].measured.silence_after / rate:.2f} s after",
            )
            for i in _worst(silences, MAX_SILENCE_SECONDS * rate)
        ],
    )
    clipped = [clip.measured.clipped for clip in clips]
    yield Finding(
        "clipping (three or more consecutive samples at full scale, or several flat peaks)",
        "Record at a lower level, restore the clip with a declipper, or remove it",
        [
            (clips[i], f"{clipped[i]:,} samples, {1000 * clipped[i] / rate:.1f} ms")
            for i in _worst(clipped, 0)
        ],
    )
    found = [problems_of(clip.measured.quality) for clip in clips]
    for name, (problem, advice) in AUDIO_PROBLEMS.items():
        affected = [i for i in range(len(clips)) if name in found[i]]
        yield Finding(problem, advice, [(clips[i], found[i][name]) for i in affected])
    levels = _level_differences(clips)
    yield Finding(
        f"a level more than {MAX_LEVEL_DIFFERENCE} dB from the speaker's median",
        "Add --convert DIR to write copies that all have the same level",
        [(clips[i], f"{levels[i]:+.0f} dB") for i in _worst(np.abs(levels), MAX_LEVEL_DIFFERENCE)],
    )
    yield Finding(
        "the same audio as an earlier clip",
        "Keep the clip with the correct text and remove the other clips",
        _duplicates(clips),
    )


def _level_differences(clips: Sequence[Clip]) -> np.ndarray:
    """Return each clip's level in dB, relative to the speaker's median level [clips]."""
    levels = np.array([clip.measured.quality.level for clip in clips])
    names = np.array([clip.speaker for clip in clips])
    differences = np.zeros(len(clips))
    for name in np.unique(names):
        own = names == name
        differences[own] = levels[own] - np.median(levels[own])
    return differences


def _text_findings(clips: Sequence[Clip], hparams: HParams) -> Iterator[Finding]:
    rates = comparable_rates(clips, hparams.sampling_rate)
    low, median, high = usual_rates(rates)
    unit = "symbols per second"
    if have_several_speakers(clips):
        unit = "times the speaker's median speaking rate"
    yield Finding(
        f"a speaking rate below {low:.1f} or above {high:.1f} {unit}",
        "Listen to the clips. Correct the text, cut the audio, or remove the clip",
        [
            (clips[i], f"{_line(clips[i])}, {rates[i]:.1f}")
            for i in _worst(np.abs(np.log(rates / median)), np.log(high / median))
        ],
    )
    # With the English symbol table and with eSpeak, unknown characters are dropped silently. All
    # other symbol tables reject unknown characters.
    may_drop = hparams.table.is_english or PHONES in hparams.text_cleaners
    facts = hparams.text_cleaners, hparams.table, hparams.language
    texts = [respell(clip.text, hparams.pronunciations) for clip in clips]
    dropped = [dropped_symbols(text, *facts) if may_drop else {} for text in texts]
    yield Finding(
        "characters or phones that the text cleaners drop",
        "Write them as words, or choose different text_cleaners with --hparams",
        [
            (clips[i], f"{_line(clips[i])}, columns of the text: {with_columns(dropped[i])}")
            for i in _worst([*map(len, dropped)], 0)
        ],
    )
    uncertain = [uncertain_expressions(text, hparams.text_cleaners) for text in texts]
    yield Finding(
        "expressions that may be read wrongly",
        "Compare with the recording. If the speaker says other words, write these words",
        [
            (clips[i], f"{_line(clips[i])}, {describe(uncertain[i])}")
            for i in _worst([*map(len, uncertain)], 0)
        ],
    )
    for problem, advice, pattern in UNUSUAL_TEXTS:
        found = [pattern.findall(clip.text) for clip in clips]
        yield Finding(
            problem,
            advice,
            [
                (clips[i], f"{_line(clips[i])}, {' '.join(map(repr, found[i]))}")
                for i in _worst([*map(len, found)], 0)
            ],
        )


def _line(clip: Clip) -> str:
    """Return "file:line" of a clip's text, without the folder."""
    return Path(clip.where).name


def other_script(clips: Sequence[Clip], hparams: HParams) -> str | None:
    """Return a warning if many texts contain no letter of the language's script, otherwise None.

    Texts in a different script may be translations, for example English translations of Korean
    speech.
    """
    script = SCRIPTS.get(hparams.language.partition("-")[0])
    is_english = hparams.table.is_english and PHONES not in hparams.text_cleaners
    if not script or is_english:  # `other_language` checks English texts
        return None
    others = [clip for clip in clips if not _has_script(clip.text, script)]
    if len(others) <= MAX_OTHER_SCRIPT * len(clips):
        return None
    return (
        f"warning: {len(others):,} of {len(clips):,} texts contain no {script.title()} letters, "
        f"although language={hparams.language}. The first of these texts is {others[0].text[:60]!r} "
        f"({others[0].where}). Check that --text-column is the column with the spoken words"
    )


def _has_script(text: str, script: str) -> bool:
    return any(unicodedata.name(x, "").startswith(script) for x in text if x.isalpha())


def other_language(clips: Sequence[Clip], hparams: HParams) -> str | None:
    """Return a warning if letters or words suggest that the texts are not English, otherwise None.

    Only the texts of runs with the English symbol table are checked.
    """
    if not hparams.table.is_english:
        return None
    foreign = [foreign_letters(clip.text) for clip in clips]
    indices = [i for i, letters in enumerate(foreign) if letters]
    counts = Counter(letter for letters in foreign for letter in sorted(letters))
    texts = (re.findall("[a-z']+", clip.text.lower()) for clip in clips)
    words = Counter(word for text in texts for word in text if word not in WORDS)
    num_common = sum(words[word] for word in COMMON_WORDS)
    example = clips[indices[0] if indices else 0]
    if len(indices) > MAX_FOREIGN_SHARE * len(clips):
        commonest = ", ".join(letter for letter, _ in counts.most_common(WORST_SHOWN))
        found = f"{len(indices):,} of {len(clips):,} texts contain letters that are not English: "
        found += commonest
    elif words.total() >= MIN_WORDS and num_common < MIN_COMMON_SHARE * words.total():
        found = f"only {num_common:,} of {words.total():,} words are {', '.join(COMMON_WORDS)}"
    else:
        return None
    becomes = f"{example.text[:40]!r} becomes {sequence_to_text(example.symbols)[:60]!r}"
    return (
        f"warning: {found}. The texts are read as English: {becomes}. If they are in a different "
        f"language, run prepare.py with {OTHER_LANGUAGE}"
    )


def texts_of_other_clips(clips: Sequence[Clip]) -> str | None:
    """Return a warning if long clips do not have longer texts than short clips, otherwise None.

    For example, all texts after a missing line of the table belong to other clips, or the selected
    column does not contain the texts. The function computes the correlation between the logarithms
    of the duration and of the number of symbols. In LJSpeech, this correlation is 0.97. If
    LJSpeech's texts are shifted by a few lines, the correlation is at most 0.15.
    """
    seconds = np.log([clip.measured.speech_samples for clip in clips])
    symbols = np.log([len(clip.symbols) for clip in clips])
    if len(clips) < MIN_CLIPS or seconds.std() < MIN_SPREAD:
        return None
    if (correlation := _correlation(seconds, symbols)) >= MIN_CORRELATION:
        return None
    return (
        "warning: texts of long clips are not longer than texts of short clips "
        f"(correlation {correlation:.2f}; LJSpeech: 0.97). The texts may belong to other clips. "
        "Listen to a few clips, such as "
        f"{clips[0].id}: {clips[0].text[:60]!r} ({MANUAL})"
    )


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Return the Pearson correlation of two arrays, or 0 if an array is constant."""
    if not (deviations := one.std() * other.std()):
        return 0.0
    return float(np.mean((one - one.mean()) * (other - other.mean())) / deviations)


def symbol_rates(clips: Sequence[Clip], sampling_rate: int) -> np.ndarray:
    """Return each clip's number of symbols per second of speech [clips]."""
    return np.array([len(c.symbols) * sampling_rate / c.measured.speech_samples for c in clips])


def have_several_speakers(clips: Sequence[Clip]) -> bool:
    return len({clip.speaker for clip in clips}) > 1


def comparable_rates(clips: Sequence[Clip], sampling_rate: int) -> np.ndarray:
    """Return the speaking rate of each clip [clips], scaled so that speakers can be compared.

    With a single speaker, the rates are symbols per second. With several speakers, each rate is
    divided by the speaker's median rate, so that the clips of a slow speaker do not count as
    unusual.
    """
    rates = symbol_rates(clips, sampling_rate)
    if not have_several_speakers(clips):
        return rates
    names, numbers = np.unique([clip.speaker for clip in clips], return_inverse=True)
    medians = np.array([np.median(rates[numbers == i]) for i in range(len(names))])
    return rates / medians[numbers]


def usual_rates(rates: np.ndarray) -> tuple[float, float, float]:
    """Return the lowest typical speaking rate, the median and the highest typical speaking rate.

    A speaking rate is unusual if it fulfills two conditions. First, the rate is above the median
    times MIN_RATE_RATIO, or below the median divided by MIN_RATE_RATIO. Second, the logarithm of
    the rate is more than MAX_DEVIATIONS robust standard deviations away from the logarithm of the
    median. A robust standard deviation is 1.4826 times the median absolute deviation.
    """
    logarithms = np.log(rates)
    middle = np.median(logarithms)
    deviation = 1.4826 * np.median(np.abs(logarithms - middle))
    furthest = max(MAX_DEVIATIONS * deviation, np.log(MIN_RATE_RATIO))
    low, median, high = np.exp([middle - furthest, middle, middle + furthest])
    return float(low), float(median), float(high)


def _worst(badness: Sequence[float] | np.ndarray, limit: float) -> list[int]:
    """Return the indices of all values above `limit`, sorted from the largest to the smallest
    value."""
    order = np.argsort(-np.asarray(badness), kind="stable")
    return [i for i in order.tolist() if badness[i] > limit]


def _duplicates(clips: Sequence[Clip]) -> list[tuple[Clip, str]]:
    """Return the clips that have the same audio as an earlier clip, each with a note.

    The list begins with the clips whose text differs from the text of the earlier clip.
    """
    first: dict[int, Clip] = {}
    with_another_text = []
    with_the_same_text = []
    for clip in clips:
        before = first.setdefault(clip.measured.checksum, clip)
        if clip is before:
            continue
        if clip.text == before.text:
            with_the_same_text.append((clip, f"same audio and text as {before.id}"))
        else:
            with_another_text.append((clip, f"same audio as {before.id}, different text"))
    return with_another_text + with_the_same_text
