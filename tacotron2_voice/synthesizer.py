"""From a text to speech, the same for a checkpoint (torch_speaker) and for an exported voice
(voice).

    speaker = load_synthesizer(path)                      # of export.loading
    samples = speaker.speak("It was a quiet evening.")  # float32 [N] in [-1, 1]
    samples = speaker.speak(text, speaker="anna")       # where hparams.speakers names several
    for samples in speaker.stream(text): ...            # the first before the text is finished
    speech = speaker.speak_text(utterance_of(text, speaker.hparams))
    speaker.write_speech(Path("out/evening"), speech)   # a sound, and a picture of the alignment

A text is spoken in parts. Each part ends where its speech ends (speech_end), and is spoken again if
it went wrong (alignment_faults).
"""

import itertools
import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hparams import HParams
from tacotron2_voice.alignment_failures import Fault, badness, find_faults
from tacotron2_voice.griffin_lim import SILENCE, GriffinLim, windowed
from tacotron2_voice.speakers import chosen_index
from tacotron2_voice.speech_end import End, EndFinder
from tacotron2_voice.speech_statistics import (
    MARKS,
    SpeakerStatistics,
    SpeechStatistics,
    last_symbol,
)
from tacotron2_voice.text import sequence_to_text
from tacotron2_voice.text.unspoken import left_out
from tacotron2_voice.utils.audio_files import write_mel, write_wav
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import write_atomically
from tacotron2_voice.utterance import Utterance, parts_of, utterance_of

RETRIES = 3  # times that a part is spoken again at most
MAX_PART_SECONDS = 120.0  # of sound, whatever max_decoder_steps, or a voice's statistics, may be
PAUSE = 0.3  # seconds after a sentence
FIRST_PIECE, MAX_PIECE = 16, 128  # frames; each piece is twice as long as the one before
FADE = 0.1  # seconds in which a sound that has not died away by itself is faded out
MAX_VOCODER_FRAMES = 1024  # at once: HiFi-GAN takes some 0.3 MB of memory for each
VOCODER_CONTEXT = 32  # frames on either side that a vocoder's sample may depend on

Vocoder = Callable[[np.ndarray], np.ndarray]  # from log-mel [n_mels, T] to sound [T * hop_length]


@dataclass(frozen=True)
class Speech:
    mel: np.ndarray  # [n_mels, frames], float32
    alignments: list[np.ndarray]  # [steps, symbols] of each part
    warnings: list[str]  # what is wrong with it, empty if it looks well
    notes: list[str]  # how it was spoken: in how many parts, what was spoken again


class DecoderSteps(NamedTuple):
    """What some steps of the decoder made of one text."""

    frames: np.ndarray  # [steps, n_frames_per_step, n_mels], before the postnet
    gate: np.ndarray  # [steps] probabilities that the step is the last
    alignments: np.ndarray  # [steps, symbols]


class Synthesizer(ABC):
    """Speaks one text at a time. After `mels` has ended, `warnings` and `notes` are those of its
    text, as in `Speech`, and `attempts` the one that was kept of each part."""

    source: str | Path = "the model"  # as messages name it

    warnings: list[str]
    notes: list[str]
    attempts: list["Attempt"]
    vocoder: Vocoder | None = None  # in place of Griffin-Lim
    shows_progress = False

    def __init__(
        self,
        hparams: HParams,
        filters: np.ndarray,
        statistics: SpeechStatistics | None,
        longest_text: int | None,
        epochs: int,
        speaker_statistics: Sequence[SpeakerStatistics] = (),
    ):
        """`filters` as audio.mel_filters. Of the training: the statistics of its clips and the
        longest text in symbols, None where they are not known, and the epochs, 0 where they are
        not; the statistics of each of hparams.speakers, none where they are not known."""
        self.hparams, self.statistics = hparams, statistics
        self.speaker_statistics = speaker_statistics
        self.longest_text, self.epochs = longest_text, epochs
        self.griffin_lim = GriffinLim(hparams, filters)

    @abstractmethod
    def decode(
        self, words: Sequence[int], seed: int, max_steps: int, index: int | None = None
    ) -> Iterator[DecoderSteps]:
        """The decoder's steps for ids of symbols, with prenet dropout from `seed`, as they are
        asked for. `index`: of the speaker in hparams.speakers; None where there are none."""

    @abstractmethod
    def refine(self, mel: np.ndarray) -> np.ndarray:
        """The log-mel [n_mels, frames] after the postnet."""

    def mels(
        self,
        text: Utterance | Sequence[int],
        seed: int = 0,
        max_symbols: int | None = None,
        pause: float = PAUSE,
        retries: int = RETRIES,
        speed: float = 1.0,
        speaker: str | None = None,
    ) -> Iterator[np.ndarray]:
        """Log-mels [n_mels, frames] that follow one another, of a text, or of ids of symbols, in
        parts of at most `max_symbols` symbols (by default the longest training text's, if known),
        each as if it were alone. Silence joins them, so that Griffin-Lim smooths the joins: `pause`
        seconds after a sentence, less after other endings (PAUSES), or what the text asks for.
        Speech is `speed` times as fast, the silence as long. `speaker` is one of hparams.speakers:
        UserError for another name, and without one where there are several.

        A part whose alignment shows a fault is spoken again with the next seed, at most `retries`
        times, and the best is kept. So the first frames of a part come when its decoder has ended;
        without retries they come as they are made, for nothing is taken back.
        """
        h, self.warnings, self.notes, self.attempts = self.hparams, [], [], []
        index = chosen_index(speaker, h.speakers, str(self.source))
        limit = max_symbols or self.longest_text or math.inf
        utterance = text if isinstance(text, Utterance) else Utterance([([*text], None)])
        if utterance.text:
            self.warnings += left_out(utterance.text, h.text_cleaners, h.table, h.language)
        parts = parts_of(utterance, limit, h.table, pause)
        if any(len(symbols) > limit for symbols, _ in utterance.pieces):
            longest = max(len(symbols) for symbols, _ in parts)
            but = f"; the longest word has {longest}" if longest > limit else ""
            of_parts = f"{len(parts)} part{'s' * (len(parts) > 1)}"
            self.notes.append(f"in {of_parts}, to keep to {limit} symbols each{but}")
        parts_with_bar: Iterable[tuple[list[int], float]] = parts
        if self.shows_progress:
            parts_with_bar = progress_bar("Speaking", len(parts), " parts", iterable=parts)
        for number, (words, seconds) in enumerate(parts_with_bar, 1):
            if words:
                words = self.with_final_mark(words)
                start = textwrap.shorten(sequence_to_text(words, h.table), 30, placeholder="...")
                where = f"part {number} of {len(parts)} ({start!r}): " if len(parts) > 1 else ""
                kept = yield from self._speak_part(words, seed, retries, speed, index, where)
                self.warnings += [where + fault.message for fault in kept.faults]
                self.attempts.append(kept)
            if silence := round(seconds * h.sampling_rate / h.hop_length):
                yield np.full((h.n_mel_channels, silence), SILENCE, np.float32)

    def with_final_mark(self, words: Sequence[int]) -> list[int]:
        """The ids of a part, ended as the training's texts are: where nearly all of these end with
        a mark and the part has none, with the commonest mark."""
        table, words = self.hparams.table, list(words)
        mark = self.statistics.final_mark if self.statistics else ""
        ends = last_symbol(table.symbols[i] for i in words)
        # A voice from elsewhere may name a mark that it does not know.
        return words if ends in MARKS or mark not in table.ids else [*words, table.ids[mark]]

    def pace_of(self, index: int | None) -> SpeechStatistics | None:
        """The statistics of a speaker's clips; the corpus's where there are no speakers, or where
        theirs are not known."""
        if index is None or not self.speaker_statistics:
            return self.statistics
        return self.speaker_statistics[index].statistics

    def max_steps(self, num_symbols: int, index: int | None = None) -> int:
        """Steps that a part takes at most: the time of the speaker's slowest speech, and that in
        which attention rests at the end; never more than MAX_PART_SECONDS. `index` as in
        `decode`."""
        h, seconds, statistics = self.hparams, MAX_PART_SECONDS, self.pace_of(index)
        if statistics is not None:
            slowest = statistics.longest_time(num_symbols) + h.attention_rest_time / 1000
            seconds = min(slowest, seconds)
        steps = seconds * h.sampling_rate / (h.hop_length * h.n_frames_per_step)
        return min(math.ceil(steps), h.max_decoder_steps)

    def _speak_part(
        self,
        words: list[int],
        seed: int,
        retries: int,
        speed: float,
        index: int | None,
        where: str,
    ) -> Generator[np.ndarray, None, "Attempt"]:
        """Log-mels of a part, and the attempt that they are of."""
        h = self.hparams
        context = h.postnet_n_convolutions * (h.postnet_kernel_size // 2)
        if retries == 0:
            attempt = Attempt(self, words, seed, index)
            yield from stretched(windowed(attempt.frames(), self.refine, context), speed)
            return attempt
        attempts, made = [], []
        for number in range(retries + 1):
            attempts.append(Attempt(self, words, (seed + number) % 2**64, index))
            made.append([*attempts[-1].frames()])
            if not attempts[-1].is_to_repeat:
                break
        best = min(range(len(attempts)), key=lambda i: badness(attempts[i].faults))
        if len(attempts) > 1:
            kept = f"kept the one with seed {attempts[best].seed}"
            kinds = dict.fromkeys(fault.kind for one in attempts for fault in one.faults)
            tried = f"spoken {len(attempts)} times ({', '.join(kinds)}), {kept}"
            self.notes.append(f"{where}{tried}")
        attempts[best].tries = len(attempts)
        yield from stretched(windowed(made[best], self.refine, context), speed)
        return attempts[best]

    def speak_text(self, text: Utterance | Sequence[int], **options: Any) -> Speech:
        """All that `mels` makes, with the same options."""
        mel = np.concatenate([*self.mels(text, **options)], axis=1)
        alignments = [attempt.alignment for attempt in self.attempts]
        return Speech(mel, alignments, self.warnings, self.notes)

    def speak(self, text: str | Utterance | Sequence[int], **options: Any) -> np.ndarray:
        """Samples of a text, float32 [N] in [-1, 1], those of `stream` with the same options."""
        return np.concatenate([*self.stream(text, **options)])

    def stream(self, text: str | Utterance | Sequence[int], **options: Any) -> Iterator[np.ndarray]:
        """The samples of a text, an utterance or ids of symbols as soon as they are there, float32
        [N] in [-1, 1], in pieces of up to a second or two. `options` are those of `mels`; a text
        with a seed is the same bytes each time. UserError if there is nothing to speak, or if the
        model or its sound is broken."""
        if isinstance(text, str):
            text = utterance_of(text, self.hparams)
        for samples in self.sound(self.mels(text, **options)):
            if not np.isfinite(samples).all():
                fix = "export the voice again, or use an earlier checkpoint"
                raise UserError(f"{self.source}: the sound holds nan or infinity; {fix}")
            yield np.clip(samples, -1, 1)

    def sound(self, mels: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Samples [N] in pieces, of log-mels [n_mels, frames] that follow one another."""
        if self.vocoder:
            pieces = (
                mel[:, start : start + MAX_VOCODER_FRAMES]
                for mel in mels
                for start in range(0, mel.shape[1], MAX_VOCODER_FRAMES)
            )
            return windowed(pieces, self.vocoder, VOCODER_CONTEXT, self.hparams.hop_length)
        return self.griffin_lim.stream(mels)

    def write_speech(self, base: Path, speech: Speech, *, save_mel: bool = False) -> float:
        """Write `base`.wav, the alignment as `base`.png and, if asked, the mel as .npy. Returns the
        seconds of sound; UserError if a file cannot be written."""
        from tacotron2_voice.utils.plots import draw_alignment

        samples, rate = np.concatenate([*self.sound([speech.mel])]), self.hparams.sampling_rate
        texts = [[self.hparams.table.symbols[i] for i in x.words] for x in self.attempts]
        picture = draw_alignment(*speech.alignments, texts=texts)
        try:
            write_wav(base.with_suffix(".wav"), samples, rate)
            draw = lambda file: picture.savefig(file, format="png")  # noqa: E731
            write_atomically(base.with_suffix(".png"), draw)
            if save_mel:
                write_mel(base.with_suffix(".npy"), speech.mel)
        except OSError as error:
            raise UserError(
                f"the files {base}.* could not be written ({error}): make room, or choose another "
                "folder with -o; every file that is there is complete"
            ) from None
        return len(samples) / rate


def stretched(mels: Iterable[np.ndarray], speed: float) -> Iterator[np.ndarray]:
    """Log-mels [n_mels, frames] in pieces, `speed` times as fast: each new frame lies between two
    old ones, by linear interpolation. The pieces' sizes change nothing."""
    if speed == 1:
        yield from mels
        return
    held, start, total, made = np.empty((0, 0), np.float32), 0, 0, 0  # `start`: of what is held
    for piece in itertools.chain(mels, [None]):
        if piece is not None:
            held = np.concatenate([held, piece], axis=1) if held.size else piece
            total += piece.shape[1]
        # A frame needs the two around it; the last ones repeat the last.
        count = math.floor((total - 2) / speed) + 1 if piece is not None else round(total / speed)
        if count > made:
            places = np.minimum(np.arange(made, count) * speed, total - 1)
            before = places.astype(np.int64)
            share = (places - before).astype(np.float32)
            after = np.minimum(before + 1, total - 1)
            yield (1 - share) * held[:, before - start] + share * held[:, after - start]
            made, kept = count, max(int(count * speed), start)
            held, start = held[:, min(kept, total) - start :], min(kept, total)


class Attempt:
    """One way in which a part is spoken. After `frames` has ended, `alignment` [steps, symbols],
    `end`, `faults`, `died_away` and `gates` say how."""

    alignment: np.ndarray
    end: End
    faults: list[Fault]
    died_away: bool  # the sound, at the end, without fading it out
    gates: list[float]  # probabilities of all steps made, also of those after the end
    tries = 1  # how often its part was spoken in all

    def __init__(self, speaker: Synthesizer, words: list[int], seed: int, index: int | None):
        """`index` as in `Synthesizer.decode`."""
        self.speaker, self.words, self.seed, self.index = speaker, words, seed, index

    @property
    def is_to_repeat(self) -> bool:
        """Whether another dropout may do better: a model that has not learnt to align does not."""
        return any(badness(self.faults)) and all(x.kind != "blurred" for x in self.faults)

    def frames(self) -> Iterator[np.ndarray]:
        """Log-mels [n_mels, frames] before the postnet, as they are made. What may lie behind the
        end is held back, so nothing has to be taken back."""
        speaker, h = self.speaker, self.speaker.hparams
        max_steps = speaker.max_steps(len(self.words), self.index)
        finder = EndFinder(self.words, h, h.table, max_steps)
        held, weights, sent, size = list[np.ndarray](), list[np.ndarray](), 0, FIRST_PIECE
        for steps in speaker.decode(self.words, self.seed, max_steps, self.index):
            for frames, gate, alignment in zip(*steps, strict=True):
                held.append(frames)
                weights.append(alignment)
                if finder.add(frames[-1], float(gate), alignment):
                    break
                ready = finder.num_certain - sent
                if ready * h.n_frames_per_step >= size:
                    yield np.concatenate(held[:ready]).T
                    del held[:ready]
                    sent, size = sent + ready, min(2 * size, MAX_PIECE)
            if finder.reason is not None:
                break
        assert finder.reason is not None  # at the latest after max_steps
        left = held[: finder.num_steps - sent]  # none if all that is certain was sent
        self.alignment, self.end = np.array(weights[: finder.num_steps]), finder.reason
        self.died_away, self.gates = finder.is_quiet, finder.gates
        # What the gate ends may be loud there, as the clips are that it learnt from.
        if left:
            mel = np.concatenate(left).T
            yield mel if self.died_away or self.end is End.GATE else self._faded(mel)
        facts = h, h.table, speaker.pace_of(self.index)
        self.faults = find_faults(self.alignment, self.words, self.end, *facts)

    def _faded(self, mel: np.ndarray) -> np.ndarray:
        """A mel whose last frames fall to silence, so that it does not end in a click."""
        h, mel = self.speaker.hparams, mel.copy()
        count = min(mel.shape[1], round(FADE * h.sampling_rate / h.hop_length))
        share = np.arange(1, count + 1, dtype=np.float32) / count
        mel[:, mel.shape[1] - count :] *= 1 - share
        mel[:, mel.shape[1] - count :] += share * np.float32(SILENCE)
        return mel
