"""How well a recogniser understands speech: word error rates of a checkpoint and of recordings.

The texts are spoken numbers that no training has seen, as scripts/make_demo_corpus.py makes them.
pocketsphinx is an old recogniser: a model's rate is given beside that of the recordings themselves.
"""

import tempfile
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from typing import Any, TypeVar

import jiwer
import numpy as np
import pocketsphinx
from pydantic import TypeAdapter, ValidationError
from scipy.signal import resample_poly

from audio import frame_count, griffin_lim, log_mel_spectrogram, mel_fingerprint, read_audio
from corpus.metadata import read_metadata
from corpus.spoken_numbers import GRAMMAR
from errors import UserError
from files import LARGEST_JSON, read_bytes, write_atomically, write_json
from hparams import HParams, hparams_from_dict
from progress import progress_bar
from reading import sequence_to_speak
from speaking import load_speaker, speak_text, write_speech
from training.checkpoint import load_checkpoint

RATE = 16_000  # Hz, of the recogniser's acoustic model
SILENCE = 0.2  # seconds added before and after the speech, in which it adapts to the level
LONGEST_SPEECH = 1.3  # times the longest recording; what has not stopped by then never does
INTELLIGIBILITY_FILE = "intelligibility.json"  # in a run's folder
REFERENCE_FILE = "reference.json"  # in the folder of the recordings

Result = TypeVar("Result")


@dataclass(frozen=True)
class Transcript:
    text: str
    heard: str  # by the recogniser, in lower case


@dataclass(frozen=True)
class Reference:
    """Word error rates of recordings, the least that a model can reach."""

    recordings: float
    after_griffin_lim: float  # of the recordings after mel and Griffin-Lim, as the model's are
    mels: dict[str, Any]  # the mels' settings


@dataclass(frozen=True)
class Intelligibility:
    """Word error rates of one checkpoint and of the recordings of the same texts."""

    word_error_rate: float
    recordings: float
    recordings_after_griffin_lim: float
    texts: int
    checkpoint: str
    epochs: int  # that it was trained, 0 where it does not say
    transcripts: list[Transcript]

    def summary(self) -> str:
        return (
            f"the recordings                       {self.recordings:.3f}\n"
            f"after mel and Griffin-Lim            {self.recordings_after_griffin_lim:.3f}\n"
            f"the model                            {self.word_error_rate:.3f}"
        )


class NumberRecogniser:
    """Transcribes spoken numbers; it knows no other words."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            grammar = Path(folder) / "numbers.jsgf"
            grammar.write_text(GRAMMAR, encoding="utf-8")
            self._decoder = pocketsphinx.Decoder(jsgf=str(grammar), samprate=RATE, loglevel="FATAL")

    def transcribe(self, text: str, samples: np.ndarray, sampling_rate: int) -> Transcript:
        """What it understands of a text in float samples [N] in [-1, 1]: numbers, or nothing."""
        samples = np.pad(resample_poly(samples, RATE, sampling_rate), round(SILENCE * RATE))
        self._decoder.start_utt()
        clipped = np.clip(np.rint(32767 * samples), -32768, 32767).astype("<i2")
        self._decoder.process_raw(clipped.tobytes(), full_utt=True)
        self._decoder.end_utt()
        found = self._decoder.hyp()
        return Transcript(text.lower().rstrip("."), found.hypstr if found else "")


def word_error_rate(transcripts: list[Transcript]) -> float:
    """Words substituted, deleted and inserted, over the words of the texts."""
    return float(jiwer.wer([t.text for t in transcripts], [t.heard for t in transcripts]))


def read_recordings(folder: Path) -> list[tuple[Path, str]]:
    """(sound file, text) of every recording; UserError if the folder is not as LJSpeech's."""
    entries, problems = read_metadata(folder)
    if problems:
        raise UserError("\n".join(problems))
    return [(folder / "wavs" / f"{entry.id}.wav", entry.text) for entry in entries]


def measure_reference(folder: Path, hparams: HParams) -> Reference:
    """The reference word error rates of the recordings in `folder`, kept there for the next time.
    UserError if the folder is not in LJSpeech's layout or a sound cannot be read."""
    kept, mels = folder / REFERENCE_FILE, mel_fingerprint(hparams)
    if kept.exists() and (found := read_findings(kept, Reference)).mels == mels:
        return found
    clips, recogniser, rate = read_recordings(folder), NumberRecogniser(), hparams.sampling_rate
    recorded, rebuilt = [], []
    for path, text in progress_bar("Transcribing recordings", len(clips), " texts", iterable=clips):
        samples = read_audio(path, hparams)
        recorded.append(recogniser.transcribe(text, samples.numpy(), rate))
        after_griffin_lim = griffin_lim(log_mel_spectrogram(samples, hparams), hparams)
        rebuilt.append(recogniser.transcribe(text, after_griffin_lim, rate))
    reference = Reference(word_error_rate(recorded), word_error_rate(rebuilt), mels)
    write_json(kept, asdict(reference))
    return reference


def evaluate(checkpoint: Path, recordings: Path, speech: Path | None = None) -> Intelligibility:
    """Speak the texts of `recordings` with `checkpoint`, and transcribe that. The folder `speech`,
    if any, keeps the sounds, the alignments, and an index.csv with the columns wav,text.
    UserError if the recordings or the checkpoint cannot be read."""
    saved = load_checkpoint(checkpoint)
    hparams = hparams_from_dict(saved.get("hparams", {}))
    clips, reference = read_recordings(recordings), measure_reference(recordings, hparams)
    frames = max(frame_count(len(read_audio(path, hparams)), hparams) for path, _ in clips)
    most_steps = ceil(LONGEST_SPEECH * frames / hparams.n_frames_per_step)
    speaker = load_speaker(checkpoint, f"max_decoder_steps={most_steps}")
    recogniser, transcripts, index = NumberRecogniser(), [], "wav,text\n"
    with tempfile.TemporaryDirectory() as temporary:
        folder = speech or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        progress = progress_bar("Speaking", len(clips), " texts", iterable=clips)
        for number, (_, text) in enumerate(progress, 1):
            base = folder / f"{number:04d}"
            write_speech(base, speak_text(speaker, sequence_to_speak(text, hparams)), hparams)
            samples = read_audio(base.with_suffix(".wav"), hparams).numpy()
            transcripts.append(recogniser.transcribe(text, samples, hparams.sampling_rate))
            index += f"{base.name}.wav,{text}\n"  # numbers in words: there is nothing to quote
        write_atomically(folder / "index.csv", lambda file: file.write_text(index, "utf-8"))
    epochs = saved.get("loop", {"epoch": 1})["epoch"] - 1
    rates = word_error_rate(transcripts), reference.recordings, reference.after_griffin_lim
    return Intelligibility(*rates, len(transcripts), checkpoint.name, epochs, transcripts)


def read_findings(path: Path, expected: type[Result]) -> Result:
    """The dataclass `expected` from a JSON file; UserError names the file and what is wrong."""
    content = read_bytes(path, LARGEST_JSON, "no such file; scripts/listen.py writes it")
    try:
        return TypeAdapter(expected).validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        problem = f"{name}={first['input']!r:.60}, {first['msg']}; delete it and make it again"
    raise UserError(f"{path}: {problem}")
