"""Synthesize speech from text, with an exported voice or a checkpoint.

    voice = Voice("voices/english")                        # a Synthesizer
    speech = voice.synthesize("It was a quiet evening.", speaker="linda")
    speech.audio                                           # float32 [N] in [-1, 1]
    speech.sampling_rate, speech.mel, speech.alignments, speech.failures, speech.warnings

    stream = voice.stream("A long text.", speaker="linda")
    for audio in stream: ...                               # pieces, as soon as they are computed
    stream.warnings, stream.chunks                         # complete after the loop

A text is synthesized in chunks. speech_end.py detects where the speech of a chunk ends. If
alignment_failures.py detects a failure, the chunk is synthesized again with a different seed.

The classes in this module do not write files or print messages; outputs.py writes the files.
"""

import itertools
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tacotron2_voice.alignment_failures import Failure, find_failures, severity
from tacotron2_voice.griffin_lim import (
    SILENCE,
    SILENT_PIECE,
    GriffinLim,
    cut_silence,
    is_silence,
    windowed,
)
from tacotron2_voice.settings import VoiceSettings
from tacotron2_voice.speakers import chosen_index
from tacotron2_voice.speech_end import EndDetector, StopReason
from tacotron2_voice.speech_statistics import (
    MARKS,
    SpeakerStatistics,
    SpeechStatistics,
    last_symbol,
)
from tacotron2_voice.text import rules_version, sequence_to_text, uses_english_rules
from tacotron2_voice.text.lexicon import respell, with_lexicon
from tacotron2_voice.text.tags import without_tags
from tacotron2_voice.text.uncertain import uncertain_notes
from tacotron2_voice.text.unspoken import left_out
from tacotron2_voice.utils.errors import UserError, count_of
from tacotron2_voice.utterance import (
    Chunk,
    Segment,
    Utterance,
    prepare_utterance,
    split_into_chunks,
)

RETRIES = 3  # default maximum number of retries per chunk
MAX_CHUNK_SECONDS = 120.0  # maximum seconds of audio per chunk, even if the settings allow more
MAX_RETRIES = 100  # largest number of retries that users can choose
PAUSE = 0.3  # default pause after a sentence, in seconds
MAX_PAUSE = 60.0  # maximum value of the option for the pause after a sentence, in seconds
SPEEDS = (0.7, 1.5)  # lowest and highest speed at which speech sounds natural
MAX_SEED = 2**64 - 1
# Number of frames in the first piece of a chunk. Each later piece is twice as long as the previous
# piece.
FIRST_PIECE = 16
MAX_PIECE = 128  # maximum number of frames in a piece
FADE = 0.1  # seconds of the fade-out at the end of a chunk whose audio does not end quietly
# Maximum number of frames per call of a vocoder. HiFi-GAN needs about 0.3 MB per frame.
MAX_VOCODER_FRAMES = 1024
VOCODER_CONTEXT = 32  # an audio sample may depend on this many frames on each side

Vocoder = Callable[[np.ndarray], np.ndarray]  # maps log-mel [n_mels, T] to audio [T * hop_length]
Text = str | Utterance | Sequence[int]  # a text, a prepared text, or symbol ids


@dataclass(frozen=True)
class TrainingFacts:
    """Facts about a model's training that affect synthesis."""

    statistics: SpeechStatistics | None = None  # statistics of the training clips
    speaker_statistics: Sequence[SpeakerStatistics] = ()  # statistics of each speaker
    longest_text: int | None = None  # number of symbols in the longest training text
    epochs: int = 0  # number of training epochs; 0: unknown
    # Version of the rules that convert English text to symbols. "": unknown.
    text_rules: str = ""
    # ARPAbet phones in the training texts, such as "@HH"; None: unknown.
    trained_phones: list[str] | None = None


class DecoderSteps(NamedTuple):
    """The output of consecutive decoder steps for one text."""

    frames: np.ndarray  # log-mel before the postnet [steps, n_frames_per_step, n_mels]
    gate: np.ndarray  # stop probabilities [steps]
    alignments: np.ndarray  # attention weights [decoder steps, symbols]


@dataclass(frozen=True)
class SpokenChunk:
    """The settings and the result of the synthesis of one chunk."""

    ids: list[int]  # symbol ids
    seed: int  # seed of the prenet dropout
    alignment: np.ndarray  # attention weights [decoder steps, symbols]
    stop_reason: StopReason
    failures: list[Failure]
    died_away: bool  # whether the audio is quiet at the end, so that no fade-out was needed
    # Stop probabilities of all decoder steps, including the steps after the end of speech.
    gates: list[float]
    start: float = 0.0  # start of the chunk's audio, in seconds from the start of all audio
    seconds: float = 0.0  # length of the chunk's audio in seconds, without the following pause
    attempts: int = 1  # how many times the chunk was synthesized
    # If the chunk was synthesized several times: kinds of the failures in all attempts. Otherwise
    # empty.
    causes: Sequence[str] = ()

    @property
    def can_improve(self) -> bool:
        """Return whether a different seed may produce better speech.

        A different seed does not help if the model has not learned alignments.
        """
        is_blurred = any(failure.kind == "blurred" for failure in self.failures)
        return any(severity(self.failures)) and not is_blurred


@dataclass
class Report:
    """Details about how a text was synthesized. While a `SpeechStream` is read, details are added to
    its report."""

    num_chunks: int = 0  # number of chunks in the whole text, known before the synthesis
    chunks: list[SpokenChunk] = field(default_factory=list)  # the finished chunks
    warnings: list[str] = field(default_factory=list)  # possible mistakes in the speech
    notes: list[str] = field(default_factory=list)  # facts that are not mistakes, such as retries


class _Reported:
    """Provide the fields of a report as properties."""

    report: Report

    @property
    def chunks(self) -> list[SpokenChunk]:
        """Return the chunks of the text, with their alignments."""
        return self.report.chunks

    @property
    def warnings(self) -> list[str]:
        """Return messages about possible failures in the speech, such as skipped words."""
        return self.report.warnings

    @property
    def notes(self) -> list[str]:
        """Return messages that are not warnings, for example about retries."""
        return self.report.notes


@dataclass(frozen=True)
class Speech(_Reported):
    """The speech of a text.

        soundfile.write("evening.mp3", speech.audio, speech.sampling_rate)

    Attributes:
        audio: samples, float32 [N] in [-1, 1].
        sampling_rate: sampling rate in Hz.
        mel: log-mel, float32 [n_mels, frames].
        report: how the text was synthesized.
    """

    audio: np.ndarray
    sampling_rate: int
    mel: np.ndarray
    report: Report

    @property
    def seconds(self) -> float:
        """Return the length of the audio in seconds."""
        return len(self.audio) / self.sampling_rate

    @property
    def alignments(self) -> list[np.ndarray]:
        """Return the attention weights [decoder steps, symbols] of each chunk."""
        return [chunk.alignment for chunk in self.chunks]

    @property
    def failures(self) -> list[Failure]:
        """Return the failures that remain after all retries."""
        return [failure for chunk in self.chunks for failure in chunk.failures]


class SpeechStream(_Reported):
    """Yield pieces of audio [N] or of log-mels. Each piece is yielded as soon as it is computed.

    The lists `chunks`, `warnings` and `notes` grow during the iteration, and are complete after the
    last piece.
    """

    def __init__(self, pieces: Iterator[np.ndarray], report: Report):
        self._pieces = pieces
        self.report = report

    def __iter__(self) -> Iterator[np.ndarray]:
        return self._pieces

    def __next__(self) -> np.ndarray:
        return next(self._pieces)


class Synthesizer(ABC):
    """Synthesize speech from texts. `Voice` is the synthesizer for exported voices.

    A synthesizer keeps no state between texts, so several threads can share an exported voice or a
    checkpoint on a CPU. A checkpoint on a GPU must be used by only one thread at a time, because
    synthesis on a GPU captures CUDA graphs.

    Attributes:
        settings: settings of the model. `settings.speakers` contains the names of the speakers.
        training: known facts about the model's training.
        source: the file or folder of the model, for messages.
        vocoder: a vocoder to use instead of Griffin-Lim, or None.
    """

    vocoder: Vocoder | None = None

    def __init__(
        self,
        settings: VoiceSettings,
        filters: np.ndarray,
        training: TrainingFacts | None = None,
        source: str | Path = "the model",
    ):
        """Set up a synthesizer for a model with these settings.

        Args:
            filters: the mel filters used in training, [n_mels, filter_length / 2 + 1].
        """
        self.settings = settings
        self.training = training or TrainingFacts()
        self.source = source
        self.griffin_lim = GriffinLim(settings, filters)
        self.rules = rules_version(settings.pronunciations)

    @abstractmethod
    def decode(
        self, ids: Sequence[int], seed: int, max_steps: int, speaker: int | None = None
    ) -> Iterator[DecoderSteps]:
        """Compute and yield decoder steps for a sequence of symbol ids.

        Args:
            seed: seed of the prenet dropout.
            speaker: index into settings.speakers; None if the model's speaker has no name.
        """

    @abstractmethod
    def refine(self, mel: np.ndarray) -> np.ndarray:
        """Apply the postnet to a log-mel [n_mels, frames]."""

    def use_lexicon(self, path: str | Path) -> str:
        """Use the pronunciations in a file in addition to the model's pronunciations.

            voice.use_lexicon("names.txt")

        Each line of the file contains a word and its respelling, such as "Nguyen win".

        Returns:
            A note that lists the pronunciations that were not used in training, or "".

        Raises:
            UserError: if the file cannot be read, or if it contains an invalid line.
        """
        trained = set(self.settings.pronunciations)
        self.settings = with_lexicon(self.settings, Path(path))
        added = set(self.settings.pronunciations) - trained
        if not added:
            return ""
        count = count_of(len(added), "pronunciation")
        return f"note: {path}: adds {count} that {self.source} was not trained with"

    # ------------------------------------------------------------------------ speak

    def synthesize(
        self,
        text: Text,
        *,
        speaker: str | None = None,
        seed: int = 0,
        speed: float = 1.0,
        pause: float = PAUSE,
        retries: int = RETRIES,
        max_symbols: int | None = None,
    ) -> Speech:
        """Return speech for a text.

            speech = voice.synthesize("It was a quiet evening.", speaker="linda", speed=1.1)
            soundfile.write("evening.wav", speech.audio, speech.sampling_rate)

        This method computes the audio from the whole log-mel. With Griffin-Lim, the samples differ
        slightly from the samples of `stream`, which computes the audio in pieces.

        Args:
            text: a text, a prepared text, or symbol ids.
            speaker: a name from settings.speakers; required if there are several speakers. Tags
                such as [speaker anna] change the speaker within the text.
            seed: seed of the prenet dropout, from 0 to 2**64 - 1.
            speed: factor by which to change the speaking rate, from 0.7 to 1.5. The speed does not
                change the length of pauses.
            pause: pause after a chunk that ends with a sentence, in seconds from 0 to 60; pauses
                after all other chunks are shorter. `pause` does not affect pause tags, such as
                [pause 0.5].
            retries: maximum number of retries per chunk, from 0 to 100.
            max_symbols: maximum number of symbols per chunk (default: the length of the longest
                training text, if it is known).

        Raises:
            UserError: if the text cannot be spoken, if the speaker is missing or unknown, if an
                option is out of range, or if the audio contains NaN or infinity.
        """
        stream = self.stream_mels(
            text,
            speaker=speaker,
            seed=seed,
            speed=speed,
            pause=pause,
            retries=retries,
            max_symbols=max_symbols,
        )
        mel = np.concatenate([*stream], axis=1)
        return self.speech_of(mel, stream.report)

    def speech_of(self, mel: np.ndarray, report: Report) -> Speech:
        """Convert a log-mel [n_mels, frames] to speech. If the absolute value of any sample exceeds
        1, the whole audio is scaled down."""
        audio = self.audio_of(mel)
        peak = float(np.abs(audio).max(initial=1.0))
        return Speech(audio / peak, self.settings.sampling_rate, mel, report)

    def stream(
        self,
        text: Text,
        *,
        speaker: str | None = None,
        seed: int = 0,
        speed: float = 1.0,
        pause: float = PAUSE,
        retries: int = RETRIES,
        max_symbols: int | None = None,
    ) -> SpeechStream:
        """Return a stream of audio pieces, float32 [N] in [-1, 1], of up to two seconds each.

            for audio in voice.stream("A long text.", speaker="linda"): ...

        The same text with the same arguments always produces the same samples. The arguments are
        the same as in `synthesize`.

        Raises:
            UserError: if the text cannot be spoken, if the speaker is missing or unknown, or if an
                option is out of range. The returned stream also raises UserError if the audio
                contains NaN or infinity.
        """
        stream = self.stream_mels(
            text,
            speaker=speaker,
            seed=seed,
            speed=speed,
            pause=pause,
            retries=retries,
            max_symbols=max_symbols,
        )
        return SpeechStream(self.audio_pieces(stream), stream.report)

    def stream_mels(
        self,
        text: Text,
        *,
        speaker: str | None = None,
        seed: int = 0,
        speed: float = 1.0,
        pause: float = PAUSE,
        retries: int = RETRIES,
        max_symbols: int | None = None,
        speeds: tuple[float, float] = SPEEDS,
    ) -> SpeechStream:
        """Return a stream of consecutive log-mels [n_mels, frames].

        Chunks are synthesized separately and joined with silence. Griffin-Lim smooths the
        transitions between chunks and silence. If a chunk's alignment shows a failure, the chunk is
        synthesized again with the next seed, and the best attempt is used. Therefore, the stream
        yields no frames of a chunk before the last decoder step of the chunk. If `retries` is 0,
        frames are yielded while the decoder runs.

        Args:
            text: a text, a prepared text, or symbol ids.
            speeds: smallest and largest accepted speed.

        All other arguments are the same as in `synthesize`.

        Raises:
            UserError: if the text cannot be spoken, if the speaker is missing or unknown, or if an
                option is out of range.
        """
        _check_range("seed", seed, 0, MAX_SEED)
        _check_range("speed", speed, *speeds)
        _check_range("pause", pause, 0, MAX_PAUSE)
        _check_range("retries", retries, 0, MAX_RETRIES)
        if max_symbols is not None:
            _check_range("max_symbols", max_symbols, 1, math.inf)
        settings = self.settings
        index = chosen_index(speaker, settings.speakers, str(self.source))
        if isinstance(text, str):
            utterance = prepare_utterance(text, settings)
        elif isinstance(text, Utterance):
            utterance = text
        else:
            utterance = Utterance([Segment([*text])])
        limit = max_symbols or self.training.longest_text or math.inf
        chunks = split_into_chunks(utterance, limit, settings.table, pause)
        report = Report(num_chunks=len(chunks))
        if utterance.text:
            text = respell(utterance.text, settings.pronunciations)
            report.warnings += left_out(
                text, settings.text_cleaners, settings.table, settings.language
            )
            report.notes += uncertain_notes(without_tags(text), settings.text_cleaners)
        if utterance.replaced:
            pairs = ", ".join(f"{one!r} as {other!r}" for one, other in utterance.replaced.items())
            report.warnings.append(f"phones that the training texts lack are spoken as: {pairs}")
        report.warnings += self._untrained_phones(utterance)
        if any(len(segment.ids) > limit for segment in utterance.segments):
            longest = max(len(chunk.ids) for chunk in chunks)
            exception = f"; the longest word has {longest}" if longest > limit else ""
            count = f"{len(chunks)} chunk{'s' * (len(chunks) > 1)}"
            report.notes.append(f"split into {count} of at most {limit} symbols{exception}")
        pieces = self._mel_pieces(chunks, report, index, seed, retries, speed)
        return SpeechStream(pieces, report)

    def audio_pieces(self, mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield samples [N] in [-1, 1] for consecutive log-mels.

        Raises:
            UserError: if the audio contains NaN or infinity.
        """
        for samples in self._audio_of_mels(mels):
            yield np.clip(samples, -1, 1)

    def audio_of(self, mel: np.ndarray) -> np.ndarray:
        """Convert a log-mel [n_mels, frames] to samples [N] with the vocoder or Griffin-Lim."""
        return np.concatenate([*self._audio_of_mels([mel])])

    # ------------------------------------------------------------------------ limits of a text

    def with_end_punctuation(self, ids: Sequence[int]) -> list[int]:
        """Add the most frequent end punctuation of the training texts to a chunk without end
        punctuation. If the training texts have no common end punctuation, nothing is added."""
        table = self.settings.table
        ids = list(ids)
        statistics = self.training.statistics
        mark = statistics.final_mark if statistics else ""
        ending = last_symbol(table.symbols[i] for i in ids)
        if ending in MARKS or mark not in table.ids:
            return ids
        return [*ids, table.ids[mark]]

    def statistics_of(self, speaker: int | None) -> SpeechStatistics | None:
        """Return the statistics of a speaker. If the speaker's statistics are unknown, return the
        statistics of all clips."""
        if speaker is None or not self.training.speaker_statistics:
            return self.training.statistics
        return self.training.speaker_statistics[speaker].statistics

    def max_steps(self, num_symbols: int, speaker: int | None = None) -> int:
        """Return the maximum number of decoder steps for a chunk.

        The maximum is the longest plausible duration for the speaker plus `attention_rest_time`,
        but at most MAX_CHUNK_SECONDS and at most `max_decoder_steps`.
        """
        settings = self.settings
        seconds = MAX_CHUNK_SECONDS
        statistics = self.statistics_of(speaker)
        if statistics is not None:
            slowest = statistics.longest_time(num_symbols) + settings.attention_rest_time / 1000
            seconds = min(slowest, seconds)
        frames_per_step = settings.hop_length * settings.n_frames_per_step
        steps = math.ceil(seconds * settings.sampling_rate / frames_per_step)
        return min(steps, settings.max_decoder_steps)

    def rules_note(self) -> str:
        """Return a note if the rules that convert English text to symbols have changed since the
        model was trained, otherwise ""."""
        trained = self.training.text_rules
        if trained in ("", self.rules) or not uses_english_rules(self.settings.text_cleaners):
            return ""
        return (
            f"note: {self.source} was trained with different English text normalization rules "
            f"(version {trained}, now version {self.rules}), so it may pronounce some words "
            "differently"
        )

    def _untrained_phones(self, utterance: Utterance) -> list[str]:
        """Return a list with a warning about ARPAbet phones that were not in the training texts."""
        trained = self.training.trained_phones
        if trained is None:
            return []
        symbols = [self.settings.table.symbols[i] for one in utterance.segments for i in one.ids]
        phones = {symbol for symbol in symbols if len(symbol) > 1}.difference(trained)
        if not phones:
            return []
        listed = " ".join(sorted(phone[1:] for phone in phones))
        return [f"no training text contained these ARPAbet phones: {listed}"]

    # ------------------------------------------------------------------------ chunks

    def _mel_pieces(
        self,
        chunks: Sequence[Chunk],
        report: Report,
        speaker: int | None,
        seed: int,
        retries: int,
        speed: float,
    ) -> Iterator[np.ndarray]:
        """Yield the log-mel of each chunk, followed by silence."""
        settings = self.settings
        seconds_per_frame = settings.hop_length / settings.sampling_rate
        num_frames = 0  # total number of frames before the current chunk
        for number, chunk in enumerate(chunks, 1):
            if chunk.ids:
                ids = self.with_end_punctuation(chunk.ids)
                place = ""
                if len(chunks) > 1:
                    text = sequence_to_text(ids, settings.table)
                    shown = textwrap.shorten(text, 30, placeholder="...")
                    place = f"chunk {number} of {len(chunks)} ({shown!r}): "
                own = speaker if chunk.speaker is None else chunk.speaker
                spoken = yield from self._speak_chunk(ids, own, seed, retries, speed)
                if spoken.attempts > 1:
                    tried = f"synthesized {spoken.attempts} times ({', '.join(spoken.causes)})"
                    result = "still has a failure" if spoken.failures else "has no failure"
                    kept = f"the best attempt (seed {spoken.seed}) {result}"
                    report.notes.append(f"{place}{tried}; {kept}")
                report.warnings += [place + failure.message for failure in spoken.failures]
                decoded_frames = len(spoken.alignment) * settings.n_frames_per_step
                spoken_frames = round(decoded_frames / speed)
                start = num_frames * seconds_per_frame
                seconds = spoken_frames * seconds_per_frame
                report.chunks.append(replace(spoken, start=start, seconds=seconds))
                num_frames += spoken_frames
            frames = round(chunk.pause * settings.sampling_rate / settings.hop_length)
            for num_before in range(0, frames, SILENT_PIECE):
                shape = (settings.n_mel_channels, min(SILENT_PIECE, frames - num_before))
                yield np.full(shape, SILENCE, np.float32)
            num_frames += frames

    def _speak_chunk(
        self, ids: list[int], speaker: int | None, seed: int, retries: int, speed: float
    ) -> Generator[np.ndarray, None, SpokenChunk]:
        """Yield the log-mel of the best attempt in pieces, and return the details of this
        attempt."""
        settings = self.settings
        context = settings.postnet_n_convolutions * (settings.postnet_kernel_size // 2)
        if retries == 0:
            frames = _ResultKeeper(self._attempt(ids, speaker, seed))
            yield from stretched(windowed(frames, self.refine, context), speed)
            return frames.result
        attempts: list[tuple[SpokenChunk, list[np.ndarray]]] = []
        for number in range(retries + 1):
            frames = _ResultKeeper(self._attempt(ids, speaker, (seed + number) % 2**64))
            mels = [*frames]
            attempts.append((frames.result, mels))
            if not frames.result.can_improve:
                break
        best, mels = min(attempts, key=lambda attempt: severity(attempt[0].failures))
        yield from stretched(windowed(mels, self.refine, context), speed)
        if len(attempts) == 1:
            return best
        kinds = [failure.kind for spoken, _ in attempts for failure in spoken.failures]
        return replace(best, attempts=len(attempts), causes=[*dict.fromkeys(kinds)])

    def _attempt(
        self, ids: list[int], speaker: int | None, seed: int
    ) -> Generator[np.ndarray, None, SpokenChunk]:
        """Synthesize a chunk once. Yield the decoder's log-mels [n_mels, frames], and return the
        details of the attempt.

        The postnet has not been applied to these log-mels. A frame is yielded only when it is
        certain that speech has not ended before this frame.
        """
        settings = self.settings
        max_steps = self.max_steps(len(ids), speaker)
        detector = EndDetector(ids, settings, max_steps)
        waiting: list[np.ndarray] = []  # frames of decoder steps that have not been yielded yet
        weights: list[np.ndarray] = []  # attention weights of all decoder steps
        num_sent = 0
        size = FIRST_PIECE
        for steps in self.decode(ids, seed, max_steps, speaker):
            for frames, gate, alignment in zip(*steps, strict=True):
                waiting.append(frames)
                weights.append(alignment)
                if detector.add(frames[-1], float(gate), alignment):
                    break
                ready = detector.num_certain - num_sent
                if ready * settings.n_frames_per_step >= size:
                    yield np.concatenate(waiting[:ready]).T
                    del waiting[:ready]
                    num_sent += ready
                    size = min(2 * size, MAX_PIECE)
            if detector.reason is not None:
                break
        reason = detector.reason
        assert reason is not None  # the detector stops after max_steps decoder steps at the latest
        rest = waiting[: detector.num_steps - num_sent]
        if rest:
            mel = np.concatenate(rest).T
            # Do not fade out speech that ends with the stop token, because training clips may also
            # be loud at their end.
            ends_well = detector.is_quiet or reason is StopReason.GATE
            yield mel if ends_well else self._faded_out(mel)
        alignment = np.array(weights[: detector.num_steps])
        statistics = self.statistics_of(speaker)
        failures = find_failures(alignment, ids, reason, settings, statistics)
        return SpokenChunk(
            ids, seed, alignment, reason, failures, detector.is_quiet, detector.gates
        )

    def _faded_out(self, mel: np.ndarray) -> np.ndarray:
        """Fade the last frames of a log-mel to silence, so that the audio does not end in a click."""
        mel = mel.copy()
        frames_per_second = self.settings.sampling_rate / self.settings.hop_length
        count = min(mel.shape[1], round(FADE * frames_per_second))
        share = np.arange(1, count + 1, dtype=np.float32) / count
        start = mel.shape[1] - count
        mel[:, start:] *= 1 - share
        mel[:, start:] += share * np.float32(SILENCE)
        return mel

    # ------------------------------------------------------------------------ audio

    def _audio_of_mels(self, mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Convert consecutive log-mels [n_mels, frames] to samples [N] in pieces."""
        vocoder = self.vocoder
        if vocoder is None:
            return self.griffin_lim.stream(mels)
        hop = self.settings.hop_length

        def audio_of_piece(mel: np.ndarray) -> np.ndarray:
            return np.zeros(mel.shape[1] * hop, np.float32) if is_silence(mel) else vocoder(mel)

        pieces = (
            mel[:, start : start + MAX_VOCODER_FRAMES]
            for mel in cut_silence(mels)
            for start in range(0, mel.shape[1], MAX_VOCODER_FRAMES)
        )
        return windowed(pieces, audio_of_piece, VOCODER_CONTEXT, hop)


def _check_range(name: str, value: float, least: float, most: float) -> None:
    """Raise UserError if an option is out of range. NaN is always out of range."""
    if not least <= value <= most:
        expected = f"from {least} to {most}" if most < math.inf else f"at least {least}"
        raise UserError(f"{name}: {value} (expected {expected})")


class _ResultKeeper:
    """Iterate over a generator, and store its return value in `result`."""

    result: SpokenChunk

    def __init__(self, generator: Generator[np.ndarray, None, SpokenChunk]):
        self.generator = generator

    def __iter__(self) -> Iterator[np.ndarray]:
        self.result = yield from self.generator


def stretched(mels: Iterable[np.ndarray], speed: float) -> Iterator[np.ndarray]:
    """Change the speaking rate of consecutive log-mels [n_mels, frames] by a factor of `speed`.

    Each output frame is a linear interpolation of two input frames. The output does not depend on
    where the stream of input frames is cut into log-mels.
    """
    if speed == 1:
        yield from mels
        return
    # Input frames that are still needed for later output frames.
    waiting = np.empty((0, 0), np.float32)
    start = 0  # index of the first frame in `waiting`
    total = 0  # number of input frames so far
    made = 0  # number of output frames so far
    for piece in itertools.chain(mels, [None]):
        if piece is None:
            count = round(total / speed)  # the last output frames may repeat the last input frame
        else:
            waiting = np.concatenate([waiting, piece], axis=1) if waiting.size else piece
            total += piece.shape[1]
            # If more input frames follow, only output frames between two known input frames can be
            # computed.
            count = math.floor((total - 2) / speed) + 1
        if count > made:
            positions = np.minimum(np.arange(made, count) * speed, total - 1)
            before = positions.astype(np.int64)
            share = (positions - before).astype(np.float32)
            after = np.minimum(before + 1, total - 1)
            yield (1 - share) * waiting[:, before - start] + share * waiting[:, after - start]
            made = count
            kept = min(int(count * speed), total)
            waiting = waiting[:, kept - start :]
            start = kept
