"""Spoken numbers for small speech systems: utterances of several numbers with the place of every
phone, and noises to mix them with. eSpeak NG speaks, as for the demo's corpus."""

import ctypes
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from corpus.demo_corpus import SAMPLE_RATE, EspeakVoice
from tacotron2_voice.text.spoken_numbers import draw_numbers, sentence_of
from tacotron2_voice.utils.console import progress_bar


class Event(ctypes.Structure):
    """espeak_EVENT of eSpeak's speak_lib.h."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("identifier", ctypes.c_uint),
        *((name, ctypes.c_int) for name in ("text_position", "length", "milliseconds", "sample")),
        ("user_data", ctypes.c_void_p),
        ("name", ctypes.c_char * 8),
    )


class TimedVoice(EspeakVoice):
    """A voice that says which phones it speaks, and when."""

    OPTIONS = EspeakVoice.OPTIONS | 1  # espeakINITIALIZE_PHONEME_EVENTS
    END, WORD, PHONE = 0, 1, 7  # types of events

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        found = ctypes.cast(events, ctypes.POINTER(Event))
        for event in map(found.__getitem__, itertools.count()):
            if event.type == self.END:
                break
            if event.type in (self.WORD, self.PHONE):
                self.events.append((event.type, event.sample, event.name))
        return super()._receive(samples, count, events)

    def speak_timed(self, text: str, rate: int) -> tuple[np.ndarray, list[list[tuple[str, float]]]]:
        """Samples [N] in [-1, 1]; of every word the phones, each with its middle in samples."""
        self.events: list[tuple[int, int, bytes]] = []
        speech = self.speak(text, rate)
        spoken = np.concatenate(self._chunks).astype(int)
        cut_off = int(np.argmax(np.abs(spoken) > 50))  # the silence at the beginning
        ends = [start for _, start, _ in self.events[1:]] + [len(spoken)]
        words: list[list[tuple[str, float]]] = []
        for (kind, start, name), end in zip(self.events, ends, strict=True):
            phone = name.decode().strip("',")  # without the marks of stress
            if kind == self.WORD:
                words.append([])
            elif not phone.startswith("_"):  # a pause
                words[-1].append((phone, (start + end) / 2 - cut_off))
        return speech / 32768, words


@dataclass
class Utterance:
    samples: np.ndarray  # [N] in [-1, 1], without noise
    words: list[tuple[str, tuple[str, ...]]]  # and the phones of each
    middles: list[float]  # of all phones, in samples


def speak_numbers(voice: TimedVoice, numbers: Sequence[int], rng: np.random.Generator) -> Utterance:
    """Some numbers with pauses between them, at different speeds."""
    spoken = Utterance(np.zeros(0), [], [])
    for number in numbers:
        sentence = sentence_of(str(number))
        speech, phones = voice.speak_timed(sentence, int(rng.integers(140, 211)))
        pause = np.zeros(int(SAMPLE_RATE * rng.uniform(0.1, 0.4)))
        start = len(spoken.samples) + len(pause)
        for word, timed in zip(sentence.lower().rstrip(".").split(), phones, strict=True):
            spoken.words.append((word, tuple(phone for phone, _ in timed)))
            spoken.middles += [start + middle for _, middle in timed]
        spoken.samples = np.concatenate([spoken.samples, pause, speech])
    return spoken


def speak_corpus(count: int, most_numbers: int) -> list[Utterance]:
    """So many utterances of up to so many numbers; no number occurs twice."""
    voice, rng = TimedVoice(), np.random.default_rng(0)
    numbers = iter(draw_numbers(most_numbers * count, seed=0))
    counts = rng.integers(1, most_numbers + 1, size=count)
    counts = progress_bar("Speaking", count, " utterances", iterable=counts)
    return [speak_numbers(voice, [next(numbers) for _ in range(n)], rng) for n in counts]


NOISES = ("street", "crowd")


def make_noise(
    kind: str, length: int, others: Sequence[Utterance], rng: np.random.Generator
) -> np.ndarray:
    """Samples [length] of a "street", noise of a random color, or of a "crowd", five talkers of
    `others` at once."""
    if kind == "street":
        spectrum = np.fft.rfft(rng.normal(size=length))
        slope = np.arange(1, len(spectrum) + 1) ** rng.uniform(0.3, 1.0)
        return np.fft.irfft(spectrum / slope, length)
    talkers = [others[i].samples for i in rng.integers(len(others), size=5)]
    turned = [np.roll(talker, rng.integers(len(talker))) for talker in talkers]
    return np.sum([np.resize(talker, length) for talker in turned], axis=0)


def mix(speech: np.ndarray, noise: np.ndarray, level: float) -> np.ndarray:
    """Their sum [N], with speech `level` dB louder than noise."""
    loudness = np.sqrt(np.mean(speech**2) / np.mean(noise**2)) * 10 ** (-level / 20)
    return speech + loudness * noise


def make_room(rng: np.random.Generator, seconds: float, direct: float) -> np.ndarray:
    """The response of a room [N]: an impulse, then noise that falls by 60 dB in so many seconds;
    the impulse is `direct` dB louder."""
    times = np.arange(1, round(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    tail = rng.normal(size=len(times)) * 10 ** (-3 * times / seconds)
    return np.append(1, tail * 10 ** (-direct / 20) / np.sqrt(np.sum(tail**2)))
