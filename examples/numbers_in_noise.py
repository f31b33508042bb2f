"""Generate speech and noise for the examples of speech enhancement and speech recognition.

eSpeak NG speaks the numbers. The noise and the room reverberation are synthetic.
"""

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.demo_corpus import SAMPLE_RATE, EspeakVoice
from tacotron2_voice.text.spoken_numbers import draw_numbers, sentence_of
from tacotron2_voice.utils.console import progress_bar

NOISES = ("street", "crowd")
SILENCE = 50  # a 16-bit sample counts as silence if its absolute value is at most this number


class Event(ctypes.Structure):
    """The struct `espeak_EVENT` in eSpeak's header speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("text_position", "length", "milliseconds", "sample")),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


class TimedVoice(EspeakVoice):
    """An eSpeak voice that also reports the time of each phone."""

    OPTIONS = EspeakVoice.OPTIONS | 1  # with espeakINITIALIZE_PHONEME_EVENTS
    # Event types that are defined in speak_lib.h.
    END = 0
    WORD = 1
    PHONE = 7

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        event_array = ctypes.cast(events, ctypes.POINTER(Event))
        for event in map(event_array.__getitem__, itertools.count()):
            if event.type == self.END:
                break
            if event.type in (self.WORD, self.PHONE):
                self.events.append((event.type, event.sample, event.name))
        return super()._receive(samples, count, events)

    def speak_timed(self, text: str, rate: int) -> tuple[np.ndarray, list[list[tuple[str, float]]]]:
        """Speak a text, and return its audio and the times of its phones.

        Args:
            rate: words per minute.

        Returns:
            Samples [N] between -1 and 1, and for each word a list of (phone, index of its middle
            sample).
        """
        self.events: list[tuple[int, int, bytes]] = []
        speech = self.speak(text, rate)
        untrimmed = np.concatenate(self._chunks).astype(int)
        # Subtract the silence at the beginning. `speak` removes this silence, but eSpeak's times
        # include it.
        cut_off = int(np.argmax(np.abs(untrimmed) > SILENCE))
        ends = [start for _, start, _ in self.events[1:]] + [len(untrimmed)]
        words: list[list[tuple[str, float]]] = []
        for (kind, start, name), end in zip(self.events, ends, strict=True):
            phone = name.decode().strip("',")  # name of the phone without stress marks
            is_pause = phone.startswith("_")
            if kind == self.WORD:
                words.append([])
            elif not is_pause:
                words[-1].append((phone, (start + end) / 2 - cut_off))
        return speech / 32768, words


@dataclass
class Utterance:
    samples: np.ndarray  # [N] between -1 and 1, without noise
    words: list[tuple[str, tuple[str, ...]]]  # the spoken words, each with its phones
    middles: list[float]  # time at the middle of each phone, in samples


def speak_numbers(voice: TimedVoice, numbers: Sequence[int], rng: np.random.Generator) -> Utterance:
    """Speak numbers at random speaking rates, with a pause before each number."""
    utterance = Utterance(np.zeros(0), [], [])
    for number in numbers:
        sentence = sentence_of(str(number))
        speech, phones = voice.speak_timed(sentence, int(rng.integers(140, 211)))
        pause = np.zeros(int(SAMPLE_RATE * rng.uniform(0.1, 0.4)))
        start = len(utterance.samples) + len(pause)
        for word, timed in zip(sentence.lower().rstrip(".").split(), phones, strict=True):
            utterance.words.append((word, tuple(phone for phone, _ in timed)))
            utterance.middles += [start + middle for _, middle in timed]
        utterance.samples = np.concatenate([utterance.samples, pause, speech])
    return utterance


def speak_corpus(count: int, most_numbers: int) -> list[Utterance]:
    """Speak `count` utterances of 1 to `most_numbers` numbers each. No number occurs twice."""
    voice = TimedVoice()
    rng = np.random.default_rng(0)
    numbers = iter(draw_numbers(most_numbers * count, seed=0))
    sizes = rng.integers(1, most_numbers + 1, size=count)
    sizes = progress_bar("Speaking", count, " utterances", iterable=sizes)
    return [speak_numbers(voice, [next(numbers) for _ in range(size)], rng) for size in sizes]


def make_noise(
    kind: str, length: int, speech: Sequence[Utterance], rng: np.random.Generator
) -> np.ndarray:
    """Return `length` samples of noise.

    Args:
        kind: "street" for noise of a random color, or "crowd" for five simultaneous talkers.
        speech: utterances from which each talker of a crowd gets a random utterance.
    """
    if kind == "street":
        spectrum = np.fft.rfft(rng.normal(size=length))
        slope = np.arange(1, len(spectrum) + 1) ** rng.uniform(0.3, 1.0)
        return np.fft.irfft(spectrum / slope, length)
    talkers = [speech[i].samples for i in rng.integers(len(speech), size=5)]
    shifted = [np.roll(talker, rng.integers(len(talker))) for talker in talkers]
    return np.sum([np.resize(talker, length) for talker in shifted], axis=0)


def mix(speech: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """Return the sum [N] of speech and noise at a signal-to-noise ratio of `snr` dB."""
    factor = np.sqrt(np.mean(speech**2) / np.mean(noise**2)) * 10 ** (-snr / 20)
    return speech + factor * noise


def make_room(rng: np.random.Generator, seconds: float, direct: float) -> np.ndarray:
    """Return the impulse response [N] of a room: an impulse followed by decaying noise.

    Args:
        seconds: reverberation time, during which the noise decays by 60 dB.
        direct: level of the impulse above the noise, in dB.
    """
    times = np.arange(1, round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tail = rng.normal(size=len(times)) * 10 ** (-3 * times / seconds)
    return np.append(1, tail * 10 ** (-direct / 20) / np.sqrt(np.sum(tail**2)))
