"""Make a corpus of spoken numbers in the layout of LJSpeech, with speech from eSpeak NG.

make_corpus("demo/corpus", clips=1000)
"""

import ctypes
import json
import os
import shlex
import shutil
import tempfile
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from tacotron2_voice.text.spoken_numbers import ENGLISH, draw_numbers, sentence_of
from tacotron2_voice.utils.audio_files import encode
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import folder_made_whole, read_bytes, write_bytes

RECORD_FILE = "demo_corpus.json"  # file that contains the options of the corpus
MADE_BY = "scripts/make_demo_corpus.py (speech synthesized by eSpeak NG)"
VERSION = 3  # increase this number when a code change affects the demo corpus
SAMPLE_RATE = 22050
WORDS_PER_MINUTE = 175  # speaking rate in the unit that eSpeak defines
SILENCE_AFTER = 0.05  # seconds of silence after each number, from which a model learns when to stop
VOLUME = 80  # eSpeak's volume; with its default, 100, the loudest vowels are clipped
NOISE = 30.0  # standard deviation of the added noise in 16-bit steps (-61 dBFS, as in a quiet room)

# Ctrl-C and SIGTERM set the event `stop_requested` if this module runs as a script.
stop_requested = threading.Event()


class EspeakVoice:
    """Synthesize speech in one language with eSpeak NG.

    Args:
        language: eSpeak's code for the language, such as de.

    Raises:
        UserError: if eSpeak NG does not support this language.
    """

    OPTIONS = 0x8000  # value of espeakINITIALIZE_DONT_EXIT in eSpeak's speak_lib.h

    def __init__(self, language: str = ENGLISH) -> None:
        import espeakng_loader

        self._chunks: list[np.ndarray] = []
        samples = ctypes.POINTER(ctypes.c_int16)
        kind = ctypes.CFUNCTYPE(ctypes.c_int, samples, ctypes.c_int, ctypes.c_void_p)
        # Keep a reference to the callback, because eSpeak only stores a pointer.
        self._callback = kind(self._receive)
        # Keep the temporary folder after the constructor returns, because eSpeak later reads
        # dictionaries from the folder.
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        # eSpeak's library keeps its state between utterances, even after espeak_Terminate. Load a
        # new copy of the library, without such state, so that the corpus is reproducible.
        copy = shutil.copy(espeakng_loader.get_library_path(), folder)
        self._library = library = ctypes.CDLL(str(copy))
        # Create a link with a short path, because eSpeak truncates paths longer than 160 bytes.
        data = Path(folder, "espeak-ng-data")
        data.symlink_to(espeakng_loader.get_data_path(), target_is_directory=True)
        synchronous = 2  # value of AUDIO_OUTPUT_SYNCHRONOUS in eSpeak's speak_lib.h
        rate = library.espeak_Initialize(synchronous, 0, os.fsencode(data), self.OPTIONS)
        library.espeak_SetSynthCallback(self._callback)
        # If eSpeak has no voice for a code such as fr-fr, try the short code, such as fr.
        names = language.encode(), language.partition("-")[0].encode()
        if rate != SAMPLE_RATE or all(library.espeak_SetVoiceByName(name) for name in names):
            raise UserError(
                f"--language {language}: eSpeak NG does not support this language (expected one of "
                "eSpeak's language codes)"
            )

    def _receive(self, samples: Any, count: int, _events: Any) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # the return value 0 tells eSpeak to continue

    def speak(self, text: str, words_per_minute: int) -> np.ndarray:
        """Return the speech for `text`, int16 [N] at 22,050 Hz, without silence at the beginning
        and end."""
        self._chunks.clear()
        # Values of espeakCHARS_UTF8, espeakRATE and espeakVOLUME in eSpeak's speak_lib.h.
        data, utf8, rate, volume = text.encode(), 1, 1, 2
        size = ctypes.c_size_t(len(data) + 1)
        self._library.espeak_SetParameter(rate, words_per_minute, 0)
        self._library.espeak_SetParameter(volume, VOLUME, 0)
        status = self._library.espeak_Synth(data, size, 0, 0, 0, utf8, None, None)
        self._library.espeak_Synchronize()
        samples = np.concatenate([np.zeros(0, np.int16), *self._chunks])
        audible = np.flatnonzero(np.abs(samples.astype(int)) > 50)
        if status != 0 or len(audible) == 0:
            raise RuntimeError(f"eSpeak NG returned no audio (status {status}) for: {text}")
        return samples[audible[0] : audible[-1] + 1]


def make_corpus(
    out: str | Path, clips: int = 1000, seed: int = 0, skip: int = 0, language: str = ENGLISH
) -> None:
    """Create the demo corpus in the folder `out`, unless `out` already contains the same demo
    corpus.

    Args:
        clips: number of clips, each with one random number.
        seed: random seed for the numbers and the noise.
        skip: how many of the drawn numbers to skip, for example because another corpus contains
            these numbers.
        language: eSpeak's code for the language, such as de.

    Raises:
        UserError: if `out` contains other files. If an error occurs, `out` does not change.
    """
    out = Path(out).absolute()
    made_from = {"made_by": MADE_BY, "version": VERSION, "clips": clips, "seed": seed}
    made_from |= {"skip": skip} if skip else {}
    made_from |= {"language": language} if language != ENGLISH else {}
    record = json.dumps(made_from)
    file = out / RECORD_FILE
    if out.is_file() or (out.exists() and any(out.iterdir())):
        found = (
            read_bytes(file).decode(errors="replace").strip() if file.exists() else "no such file"
        )
        if found != record:
            raise UserError(
                f"{out}: this folder is not empty, but does not contain this demo corpus. {RECORD_FILE}: "
                f"{found[:200]}, expected {record}. Choose a different folder"
            )
        print(f"note: {out} already contains this demo corpus ({clips} clips, seed {seed})")
        return
    voice = EspeakVoice(language)
    lines = []
    seconds = 0.0
    noise_rng = np.random.default_rng([seed, 1])
    numbers = draw_numbers(skip + clips, seed)[skip:]
    with folder_made_whole(out) as folder:
        (folder / "wavs").mkdir()
        bar = progress_bar("Speaking", clips, " clips", iterable=numbers)
        for i, number in enumerate(bar, start=skip + 1):
            if stop_requested.is_set():
                raise KeyboardInterrupt
            sentence = sentence_of(str(number), language)
            samples = voice.speak(sentence, WORDS_PER_MINUTE)
            samples = np.pad(samples, (0, round(SILENCE_AFTER * SAMPLE_RATE)))
            samples = np.rint(samples + noise_rng.normal(0, NOISE, len(samples)))
            samples = np.clip(samples, -32768, 32767).astype("<i2")
            write_bytes(folder / "wavs" / f"DEMO-{i:04d}.wav", encode(samples, SAMPLE_RATE))
            lines.append(f"DEMO-{i:04d}|{number:,}|{sentence}\n")
            seconds += len(samples) / SAMPLE_RATE
        (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8", newline="\n")
        (folder / RECORD_FILE).write_text(f"{record}\n", encoding="utf-8")
    print(
        f"Wrote {clips} clips of synthesized speech to {out}: {seconds / 60:.1f} minutes\n"
        f"Next: python scripts/prepare.py {shlex.quote(str(out))} --out filelists/demo"
    )
