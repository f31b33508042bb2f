"""How well speech is understood: word error rates of a checkpoint and of recordings, and how often
the speech is nearest to the recording of the same text.

The texts are those of recordings that no training has seen. pocketsphinx transcribes English: texts
of numbers alone by a grammar of numbers, others by its own language model. It is an old recogniser,
so a model's rate is given beside that of the recordings. The identification rate needs no
recogniser, so any language has it.
"""

import re
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import jiwer
import numpy as np
import pandas as pd
import pocketsphinx
import soundfile
import torch
from scipy.fft import dct
from scipy.signal import resample_poly

from audio import log_mel_spectrogram, mel_filters, mel_fingerprint, read_audio
from common.console import progress_bar
from common.errors import UserError, grouped, lines_refused
from common.files import numbered_lines, read_as, write_bytes, write_json
from common.sound import write_wav
from corpus.filelist import split_filelist_line, where_clip_lies
from corpus.metadata import read_metadata
from corpus.separators import refuse_other_separators
from hparams import HParams
from synthesis.griffin_lim import GriffinLim
from synthesis.loading import load_speaker
from synthesis.utterance import sequence_to_speak
from text.english import read_english
from text.spoken_numbers import ENGLISH, GRAMMAR, WORDS, is_english

RATE = 16_000  # Hz, of the recogniser's acoustic model
SILENCE = 0.2  # seconds added before and after the speech, in which it adapts to the level
INTELLIGIBILITY_FILE = "intelligibility.json"  # in a run's folder
CEPSTRA = slice(1, 13)  # without the 0th, the loudness
REFERENCE_FILE = "reference.json"  # in the folder of the recordings, or after a list's name

Result = TypeVar("Result")


@dataclass(frozen=True)
class Transcript:
    text: str
    heard: str  # by the recogniser, in lower case
    nearest: str = ""  # the text of the recording that sounds most like it, in lower case


@dataclass(frozen=True)
class Reference:
    """Word error rates of recordings, the least that a model can reach."""

    recordings: float
    after_griffin_lim: float  # of the recordings after mel and Griffin-Lim, as the model's are
    mels: dict[str, Any]  # the mels' settings


@dataclass(frozen=True)
class Intelligibility:
    """Word error rates of one checkpoint and of the recordings of the same texts, None where the
    recogniser does not know the language; and the share of the texts that are nearest to their own
    recording (by chance 1 / texts), None in files of earlier versions."""

    word_error_rate: float | None
    recordings: float | None
    recordings_after_griffin_lim: float | None
    texts: int
    checkpoint: str
    epochs: int  # that it was trained, 0 where it does not say
    transcripts: list[Transcript]
    identification_rate: float | None = None

    def summary(self) -> str:
        """A line for each rate that was measured."""
        rates = {
            "the recordings": self.recordings,
            "after mel and Griffin-Lim": self.recordings_after_griffin_lim,
            "the model": self.word_error_rate,
            "identification rate of the model": self.identification_rate,
        }
        measured = {name: rate for name, rate in rates.items() if rate is not None}
        return "\n".join(f"{name:<37}{rate:.3f}" for name, rate in measured.items())


def words_of(text: str) -> str:
    """The words of an English text as a recogniser writes them: small letters, numbers in words, no
    punctuation."""
    return " ".join(re.findall(r"[a-z]+(?:'[a-z]+)*", read_english(text).lower()))


class Recogniser:
    """Transcribes English speech by pocketsphinx.

        recogniser = Recogniser.of(texts)
        recogniser.transcribe(text, samples, 22050).heard

    With `numbers_only` it knows the words of numbers and no others, and mistakes fewer of them.
    """

    def __init__(self, *, numbers_only: bool) -> None:
        options = {"samprate": RATE, "loglevel": "FATAL"}
        if not numbers_only:
            self._decoder = pocketsphinx.Decoder(**options)
            return
        with tempfile.TemporaryDirectory() as folder:
            grammar = Path(folder) / "numbers.jsgf"
            grammar.write_text(GRAMMAR, encoding="utf-8")
            self._decoder = pocketsphinx.Decoder(jsgf=str(grammar), **options)

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Recogniser":
        """The one that suits these texts."""
        return cls(numbers_only={word for x in texts for word in words_of(x).split()} <= WORDS)

    def transcribe(self, text: str, samples: np.ndarray, sampling_rate: int) -> Transcript:
        """What it hears in float samples [N] in [-1, 1] of a text; possibly nothing."""
        samples = np.pad(resample_poly(samples, RATE, sampling_rate), round(SILENCE * RATE))
        self._decoder.start_utt()
        clipped = np.clip(np.rint(32767 * samples), -32768, 32767).astype("<i2")
        self._decoder.process_raw(clipped.tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return Transcript(words_of(text), hypothesis.hypstr if hypothesis else "")


def word_error_rate(transcripts: list[Transcript]) -> float:
    """Words substituted, deleted and inserted, over the words of the texts."""
    return float(jiwer.wer([t.text for t in transcripts], [t.heard for t in transcripts]))


def mel_cepstra(samples: torch.Tensor, hparams: HParams) -> np.ndarray:
    """[12, frames] of samples [N]: the discrete cosine transform of the log-mel, each coefficient's
    mean taken off."""
    log_mel = log_mel_spectrogram(samples, hparams).numpy()
    cepstra = dct(log_mel, axis=0, norm="ortho")[CEPSTRA]
    return cepstra - cepstra.mean(axis=1, keepdims=True)


def warped_distance(a: np.ndarray, b: np.ndarray) -> float:
    """The mean Euclidean distance of frames [coefficients, frames] along the path of dynamic time
    warping, by librosa."""
    import librosa

    costs, path = librosa.sequence.dtw(a, b)
    return float(costs[-1, -1] / len(path))


def read_recordings(path: Path) -> list[tuple[Path, str]]:
    """(sound file, text) of every recording of a folder in LJSpeech's layout, or of a filelist,
    path|text or path|text|seconds; UserError for anything else."""
    if path.is_file():
        recordings, bad, lines = [], list[str](), numbered_lines(path)
        refuse_other_separators(path, lines, "path|text|seconds or path|text")
        for number, line in lines:
            try:
                sound, text, _ = split_filelist_line(line)
                recordings.append((Path(where_clip_lies(sound, path)[0]), text))
            except UserError as error:
                bad.append(f"{path}:{number}: {error}")
        if bad:
            raise lines_refused(path, bad, len(lines))
        return recordings
    entries, problems = read_metadata(path)
    if problems:
        raise UserError("\n".join(grouped(problems)))
    return [(path / "wavs" / f"{entry.id}.wav", entry.text) for entry in entries]


def measure_reference(recordings: Path, hparams: HParams) -> Reference:
    """The reference word error rates of `recordings`, as `read_recordings` takes them, kept beside
    them for the next time. UserError if they or a sound cannot be read."""
    kept, mels = recordings / REFERENCE_FILE, mel_fingerprint(hparams)
    if recordings.is_file():
        kept = recordings.with_name(f"{recordings.name}.{REFERENCE_FILE}")
    if kept.exists() and (reference := read_findings(kept, Reference)).mels == mels:
        return reference
    clips, rate, recorded, rebuilt = read_recordings(recordings), hparams.sampling_rate, [], []
    recogniser = Recogniser.of([text for _, text in clips])
    griffin_lim = GriffinLim(hparams, mel_filters(hparams).numpy())
    for path, text in progress_bar("Transcribing recordings", len(clips), " texts", iterable=clips):
        samples = read_audio(path, hparams)
        recorded.append(recogniser.transcribe(text, samples.numpy(), rate))
        after_griffin_lim = griffin_lim.samples(log_mel_spectrogram(samples, hparams).numpy())
        rebuilt.append(recogniser.transcribe(text, after_griffin_lim, rate))
    reference = Reference(word_error_rate(recorded), word_error_rate(rebuilt), mels)
    write_json(kept, asdict(reference))
    return reference


def evaluate(
    checkpoint: Path,
    recordings: Path,
    speech: Path | None = None,
    language: str = ENGLISH,
    *,
    words_only: bool = False,
) -> Intelligibility:
    """Speak the texts of `recordings` with `checkpoint`, transcribe that if it is English and,
    unless `words_only`, find the nearest recording. The folder `speech`, if any, keeps the sounds,
    the alignments, and an index.csv with the columns wav,text. UserError if recordings or
    checkpoint cannot be read."""
    speaker = load_speaker(checkpoint)
    hparams = speaker.hparams
    clips, recogniser, reference = read_recordings(recordings), None, None
    if is_english(language):
        recogniser = Recogniser.of([text for _, text in clips])
        reference = measure_reference(recordings, hparams)
    sounds = [read_audio(path, hparams) for path, _ in clips]
    recorded = [] if words_only else [mel_cepstra(samples, hparams) for samples in sounds]
    transcripts, right, index = [], 0, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = speech or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        progress = progress_bar("Speaking", len(clips), " texts", iterable=clips)
        for number, (_, text) in enumerate(progress, 1):
            base = folder / f"{number:04d}"
            spoken, wav = speaker.speak_text(sequence_to_speak(text, hparams)), f"{base}.wav"
            if speech:
                speaker.write_speech(base, spoken)
            else:  # without the picture, which takes longer than the speech
                sound = np.concatenate([*speaker.sound([spoken.mel])])
                write_wav(Path(wav), sound, hparams.sampling_rate)
            samples = torch.from_numpy(soundfile.read(wav, dtype="float32")[0])
            # A model that has learnt little may stop at once: a mel needs more samples.
            lacking = max(0, hparams.filter_length - len(samples))
            samples = torch.nn.functional.pad(samples, (0, lacking))
            transcript = Transcript(text.lower().rstrip("."), "")
            if recogniser:
                transcript = recogniser.transcribe(text, samples.numpy(), hparams.sampling_rate)
            if not words_only:
                cepstra = mel_cepstra(samples, hparams)
                nearest = np.argmin([warped_distance(cepstra, other) for other in recorded])
                right += int(nearest == number - 1)
                transcript = replace(transcript, nearest=clips[nearest][1].lower().rstrip("."))
            transcripts.append(transcript)
            index.append((f"{base.name}.wav", text))
        table = pd.DataFrame(index, columns=["wav", "text"]).to_csv(index=False)
        write_bytes(folder / "index.csv", table.encode())
    rates: tuple[float | None, float | None, float | None] = None, None, None
    if reference:
        rates = word_error_rate(transcripts), reference.recordings, reference.after_griffin_lim
    facts = len(clips), checkpoint.name, speaker.epochs
    identified = None if words_only else right / len(clips)
    return Intelligibility(*rates, *facts, transcripts, identified)


def read_findings(path: Path, expected: type[Result]) -> Result:
    """The dataclass `expected` from a JSON file; UserError names the file and what is wrong."""
    return read_as(path, expected, "no such file; scripts/listen.py writes it")
