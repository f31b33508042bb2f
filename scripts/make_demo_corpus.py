"""Make a small corpus of synthesised speech in the LJSpeech-1.1 layout, for demos and tests.

    python scripts/make_demo_corpus.py demo/corpus
    python scripts/make_demo_corpus.py demo/corpus --clips 1000 --seed 1

eSpeak NG (from the PyPI package espeakng-loader; nothing else to install) speaks sentences that
are composed from the grammar in demo_grammar.toml. The lengths of the clips are spread like
LJSpeech's, because that spread is what a batching strategy works on: 1.1 to 10.1 s, mean 6.6 s,
most of the mass towards the long end.

    OUT/metadata.csv      id|text|normalised text     (UTF-8, no header; the last one is spoken)
    OUT/wavs/ID.wav       22,050 Hz, mono, 16 bit
    OUT/demo_corpus.json  what the corpus was made from

The corpus follows from --clips and --seed alone and appears whole or not at all.
"""

from project_root import ROOT

import ctypes
import json
import os
import random
import re
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import soundfile

from analysis.arguments import make_parser
from analysis.ljspeech import LONGEST, SHORTEST, seconds_at
from errors import UserError
from files import folder_made_whole
from progress import progress_bar

VERSION = 2  # raise it with every change that changes the corpus
GRAMMAR_FILE = ROOT / "scripts" / "demo_grammar.toml"
SAMPLE_RATE = 22050
WORDS_PER_MINUTE = 145  # eSpeak's own count, which comes out at about LJSpeech's pace
RATE_RANGE = (130, 160)  # natural rates, within which a clip lands on its target length
VOLUME = 80  # of eSpeak's 100: at 100 the loudest vowels clip
DITHER = 4.0  # standard deviation in 16-bit steps (-78 dB): keeps log-mels off their floor

stop_requested = threading.Event()  # set by Ctrl-C and SIGTERM when run as a script


# ---------------------------------------------------------------------------- sentences


def read_grammar() -> dict[str, list[str]]:
    """The alternatives of every rule: those of GRAMMAR_FILE, and of numbers beside them."""
    texts = tomllib.loads(GRAMMAR_FILE.read_text(encoding="utf-8"))
    rules = {
        name: [option.strip() for option in re.split(r"[\n/]", text.strip())]
        for name, text in texts.items()
    }
    return rules | number_rules(rules.pop("ones"), rules.pop("tens"))


def number_rules(ones: list[str], tens: list[str]) -> dict[str, list[str]]:
    """Numbers, "as written|as spoken", from the words for 0 to 19 and for 0, 10, ... 90."""

    def spell(number: int) -> str:
        if number < 20:
            return ones[number]
        return tens[number // 10] + (f"-{ones[number % 10]}" if number % 10 else "")

    def spell_pair(number: int, zero: str) -> str:
        """Years and times as they are read: 1862 is eighteen sixty-two, 705 is seven oh five.

        `zero` is what is said for a second pair of digits that is 00.
        """
        first, second = divmod(number, 100)
        if second == 0:
            return f"{spell(first)} {zero}"
        return f"{spell(first)} {'oh ' if second < 10 else ''}{spell(second)}"

    o_clock = "o'clock"
    times = [100 * hour + minute for hour in range(1, 13) for minute in range(0, 60, 5)]
    return {
        "few": [f"{n}|{spell(n)}" for n in range(3, 13)],
        "count": [f"{n}|{spell(n)}" for n in range(12, 100)],
        "steps": [f"{n}00|{spell(n)} hundred" for n in range(2, 10)],
        "percent": [f"{n}%|{spell(n)} per cent" for n in range(2, 30)],
        "price": [f"${n}|{spell(n)} dollars" for n in range(2, 90)],
        "year": [f"{n}|{spell_pair(n, 'hundred')}" for n in range(1870, 1980)],
        "clock": [f"{n // 100}:{n % 100:02d}|{spell_pair(n, o_clock)}" for n in times],
    }


def compose_sentence(rules: dict[str, list[str]], rng: random.Random) -> tuple[str, str]:
    """Compose one sentence, as written and as spoken. Nothing is chosen twice."""
    used = set()

    def expand(rule: str) -> str:
        choice = rng.choice([option for option in rules[rule] if option not in used])
        used.add(choice)
        return re.sub(r"\{(\w+)\}", lambda match: expand(match[1]), choice)

    marked = expand("sentence")
    both = [re.sub(r"\[(.*?)\|(.*?)\]", choice, marked) for choice in (r"\1", r"\2")]
    return tuple(text[0].upper() + text[1:] for text in both)


# ---------------------------------------------------------------------------- speech


class Voice:
    """eSpeak NG's American English voice.

    Raises:
        UserError: saying what to do, where eSpeak NG is absent or does not start.
    """

    def __init__(self) -> None:
        try:
            import espeakng_loader
        except ImportError:
            raise UserError(
                "the Python package espeakng_loader, which carries eSpeak NG, is not installed; "
                f"install it: {shlex.quote(sys.executable)} -m pip install espeakng-loader"
            ) from None
        try:
            with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
                self._start(espeakng_loader, Path(folder))
        except (OSError, RuntimeError, AttributeError) as error:
            raise UserError(
                f"eSpeak NG from the package espeakng-loader does not start on this machine "
                f"({error}); try to install the package anew: {shlex.quote(sys.executable)} -m pip "
                "install --force-reinstall espeakng-loader"
            ) from None

    def _start(self, espeakng_loader: ModuleType, folder: Path) -> None:
        # eSpeak carries state from one utterance to the next, and even past its termination; a
        # library loaded from a file of its own starts afresh, so that every corpus of a process
        # is the same as in a fresh process.
        path = espeakng_loader.get_library_path()
        try:
            self._library = ctypes.CDLL(shutil.copy(path, folder))
        except OSError:  # such as a temporary folder from which nothing may be executed
            self._library = ctypes.CDLL(path)
        data = espeakng_loader.get_data_path()
        if len(os.fsencode(data)) > 140:  # eSpeak cuts longer paths off at 160 bytes
            (folder / "espeak-ng-data").symlink_to(data, target_is_directory=True)
            data = str(folder / "espeak-ng-data")

        synchronous, no_exit = 2, 0x8000  # constants of eSpeak's speak_lib.h
        rate = self._library.espeak_Initialize(synchronous, 0, os.fsencode(data), no_exit)
        if rate != SAMPLE_RATE:
            raise RuntimeError(f"espeak_Initialize gave {rate}, expected {SAMPLE_RATE} Hz")
        self._chunks = []
        callback_type = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(ctypes.c_int16), ctypes.c_int, ctypes.c_void_p
        )
        self._callback = callback_type(self._receive)  # kept here: eSpeak holds only a pointer
        self._library.espeak_SetSynthCallback(self._callback)
        if self._library.espeak_SetVoiceByName(b"en-us") != 0:
            raise RuntimeError("its voice en-us is missing")
        self._library.espeak_Synth.argtypes = [
            *(ctypes.c_char_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int),
            *(ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_void_p),
        ]

    def _receive(self, samples, count: int, _events) -> int:
        if samples and count > 0:
            self._chunks.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0  # go on

    def speak(self, text: str, words_per_minute: int) -> np.ndarray:
        """Speak `text`: int16 samples [N] at 22,050 Hz, without the silence at either end."""
        self._chunks.clear()
        data, utf8, rate, volume = text.encode(), 1, 1, 2  # constants of eSpeak's speak_lib.h
        self._library.espeak_SetParameter(rate, words_per_minute, 0)
        self._library.espeak_SetParameter(volume, VOLUME, 0)
        status = self._library.espeak_Synth(data, len(data) + 1, 0, 0, 0, utf8, None, None)
        self._library.espeak_Synchronize()
        samples = np.concatenate(self._chunks) if self._chunks else np.zeros(0, np.int16)
        audible = np.flatnonzero(np.abs(samples.astype(int)) > 50)
        if status != 0 or len(audible) == 0:
            raise RuntimeError(f"eSpeak NG made no sound (status {status}) of the text: {text}")
        return samples[audible[0] : audible[-1] + 1]


def estimate_seconds(text: str) -> float:
    """How long eSpeak takes to speak `text` at WORDS_PER_MINUTE; mostly within 10 %."""
    pauses = text.count(",") + text.count(";")
    return 0.17 + 0.057 * len(text) + 0.36 * pauses  # a least-squares fit over 400 sentences


def speak_for(voice: Voice, text: str, seconds: float) -> np.ndarray | None:
    """Speak `text` for about `seconds`: int16 samples [N], or None where that is unnatural."""
    words_per_minute = WORDS_PER_MINUTE
    for _ in range(4):
        samples = voice.speak(text, words_per_minute)
        ratio = len(samples) / SAMPLE_RATE / seconds
        if abs(ratio - 1) < 0.015:
            fits = SHORTEST <= len(samples) / SAMPLE_RATE <= LONGEST
            return samples if fits else None
        words_per_minute = round(words_per_minute * ratio)
        if not RATE_RANGE[0] <= words_per_minute <= RATE_RANGE[1]:
            return None
    return None


# ---------------------------------------------------------------------------- the corpus


def draw_target_lengths(clips: int, seed: int) -> np.ndarray:
    """Draw the clips' lengths in seconds, [clips], spread like LJSpeech's.

    One length falls into each 1/clips of the distribution, so that small corpora have its shape
    too; their order is random.
    """
    rng = np.random.default_rng(seed)
    return seconds_at((rng.permutation(clips) + rng.random(clips)) / clips)


def make_clips(voice: Voice, clips: int, seed: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """Yield (written, spoken, samples) of each clip; no two clips say the same.

    Raises:
        UserError: where the grammar has no further sentence of a length.
    """
    rules = read_grammar()
    rng = random.Random(seed)
    dither_rng = np.random.default_rng([seed, 1])
    sentences = set()  # as spoken, of the clips so far
    for seconds in draw_target_lengths(clips, seed):
        for _ in range(20_000):
            written, spoken = compose_sentence(rules, rng)
            if spoken in sentences or abs(estimate_seconds(spoken) / seconds - 1) > 0.08:
                continue
            samples = speak_for(voice, spoken, seconds)
            if samples is not None:
                break
        else:
            raise UserError(
                f"the grammar has no more sentences of {seconds:.1f} s after {len(sentences)} "
                "clips; ask for fewer --clips"
            )
        sentences.add(spoken)
        noisy = samples + dither_rng.normal(0, DITHER, len(samples))
        yield written, spoken, np.clip(np.rint(noisy), -32768, 32767).astype("<i2")


def holds_corpus(out: Path, record: str) -> bool:
    """Whether `out` holds the corpus of `record` already.

    Raises:
        UserError: where it holds anything else, or only part of the corpus.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    record_file = out / "demo_corpus.json"
    if not record_file.is_file():
        raise UserError(
            f"{out} exists and is no demo corpus; nothing was changed. Name another folder."
        )
    found = record_file.read_text(encoding="utf-8").strip()
    if found != record:
        raise UserError(
            f"{out} holds another demo corpus; nothing was changed. Name another folder, or "
            f"delete this one first.\nfound:  {found}\nwanted: {record}"
        )
    lines = (out / "metadata.csv").read_text(encoding="utf-8").splitlines()
    paths = [out / "wavs" / f"{line.split('|')[0]}.wav" for line in lines]
    missing = [path for path in paths if not path.is_file()]
    if missing:
        raise UserError(
            f"{out} holds this demo corpus, but {len(missing)} of its clips are missing, such as "
            f"{missing[0]}; delete the folder and run this again"
        )
    return True


def write_clips(folder: Path, clips: int, seed: int, voice: Voice) -> np.ndarray:
    """Write the corpus into the new `folder`. Returns the clips' lengths in seconds, [clips]."""
    (folder / "wavs").mkdir()
    lines, lengths = [], []
    spoken_clips = make_clips(voice, clips, seed)
    bar = progress_bar("Speaking", clips, " clips", iterable=spoken_clips)
    for number, (written, spoken, samples) in enumerate(bar, start=1):
        if stop_requested.is_set():
            raise KeyboardInterrupt
        clip_id = f"DEMO-{number:04d}"
        soundfile.write(folder / "wavs" / f"{clip_id}.wav", samples, SAMPLE_RATE)
        lines.append(f"{clip_id}|{written}|{spoken}\n")
        lengths.append(len(samples) / SAMPLE_RATE)
    (folder / "metadata.csv").write_text("".join(lines), encoding="utf-8", newline="\n")
    return np.array(lengths)


def make_corpus(out: str | Path, clips: int = 240, seed: int = 0) -> None:
    """Make the corpus in the folder `out` and say so; do nothing where it is there already.

    Raises:
        UserError: where `out` holds anything else, or eSpeak NG is absent or does not start.
        OSError: where `out` cannot be written. `out` is then as it was before.
    """
    start = time.perf_counter()
    out = Path(out).absolute()
    made_by = "scripts/make_demo_corpus.py (speech synthesised by eSpeak NG)"
    record = json.dumps({"made_by": made_by, "version": VERSION, "clips": clips, "seed": seed})
    if holds_corpus(out, record):
        print(f"{out} holds this demo corpus already ({clips} clips, seed {seed}): nothing to do.")
        return
    voice = Voice()
    with folder_made_whole(out) as folder:
        lengths = write_clips(folder, clips, seed, voice)
        (folder / "demo_corpus.json").write_text(record + "\n", encoding="utf-8")
    print(
        f"Wrote {clips} clips of synthesised speech to {out} in {time.perf_counter() - start:.1f} s"
        f": {lengths.sum() / 60:.1f} minutes; shortest {lengths.min():.2f} s, mean "
        f"{lengths.mean():.2f} s, longest {lengths.max():.2f} s.\n"
        f"Next: python scripts/prepare_ljspeech.py {shlex.quote(str(out))} --out filelists/demo"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("out", metavar="OUT", help="folder to make; its parents are made too")
    parser.add_argument("--clips", type=int, default=240, help="number of clips (240: 26 minutes)")
    parser.add_argument("--seed", type=int, default=0, help="another seed, another corpus (0)")
    args = parser.parse_args(arguments)
    if args.clips < 1:
        parser.error(f"--clips {args.clips}: expected 1 or more")
    if args.seed < 0:
        parser.error(f"--seed {args.seed}: expected 0 or more")
    try:
        make_corpus(args.out, args.clips, args.seed)
    except KeyboardInterrupt:
        sys.exit("stopped; nothing was written")
    except (UserError, OSError) as error:
        sys.exit(f"make_demo_corpus: {error}")


if __name__ == "__main__":
    # A handler that raises would mostly do so inside eSpeak's callback, where it would be lost.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop_requested.set())
    main()
