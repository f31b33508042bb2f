"""How well speech is understood: word error rates of a checkpoint and of recordings, how often the
speech is nearest to the recording of the same text, and how natural it sounds.

The texts are those of recordings that no training has seen. A recogniser mistakes words of its own,
so a model's rate is given beside that of the recordings. The identification rate needs no
recogniser, so any language has it.
"""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import jiwer
import numpy as np
import pandas as pd
import soundfile
import torch
from scipy.fft import dct

from audio import log_mel_spectrogram, mel_fingerprint, read_audio
from common.console import progress_bar
from common.errors import UserError, grouped, lines_refused
from common.files import numbered_lines, read_as, read_bytes, write_bytes, write_json
from common.sound import write_wav
from corpus.filelist import split_filelist_line, where_clip_lies
from corpus.metadata import read_metadata
from corpus.separators import refuse_other_separators
from hparams import HParams
from paper.quality import DistillMos
from paper.recognisers import (
    POCKETSPHINX,
    WHISPER_MODEL,
    Recogniser,
    make_recogniser,
    words_of,
)
from synthesis.loading import load_speaker
from synthesis.speaker import Speaker
from synthesis.utterance import sequence_to_speak
from synthesis.vocoder import load_vocoder
from text.spoken_numbers import ENGLISH

GRIFFIN_LIM = "Griffin-Lim"
INTELLIGIBILITY_FILE = "intelligibility.json"  # in a run's folder
CEPSTRA = slice(1, 13)  # without the 0th, the loudness
REFERENCE_FILE = (
    "reference_measures.json"  # in the folder of the recordings, or after a list's name
)

Result = TypeVar("Result")


@dataclass(frozen=True)
class Transcript:
    text: str
    heard: str  # by the recogniser, in lower case
    nearest: str = ""  # the text of the recording that sounds most like it, in lower case


@dataclass(frozen=True)
class Measures:
    """What recognisers and judges say of sounds, each a mean, None where it was not asked or where
    the recogniser does not know the language."""

    word_error_rate: float | None = None
    quality: float | None = None  # DistillMOS, from 1 to 5


@dataclass(frozen=True)
class Reference:
    """Measures of recordings, the best that a model can reach."""

    recordings: Measures
    vocoded: Measures  # of the recordings after mel and vocoder, as the model's are
    made_with: dict[str, Any]  # the mels' settings, the vocoder, the recogniser and the judge


@dataclass(frozen=True)
class Intelligibility:
    """Word error rates of one checkpoint and of the recordings of the same texts, None where the
    recogniser does not know the language; and the share of the texts that are nearest to their own
    recording (by chance 1 / texts), None in files of earlier versions."""

    word_error_rate: float | None
    recordings: float | None
    recordings_after_griffin_lim: float | None  # or after the vocoder that was given
    texts: int
    checkpoint: str
    epochs: int  # that it was trained, 0 where it does not say
    transcripts: list[Transcript]
    identification_rate: float | None = None
    quality: float | None = None  # DistillMOS of the model's speech
    quality_of_recordings: float | None = None
    quality_after_griffin_lim: float | None = None  # or after the vocoder
    recogniser: str = POCKETSPHINX
    vocoder: str = GRIFFIN_LIM

    def summary(self) -> str:
        """A line for each value that was measured."""
        values = {
            "the recordings": self.recordings,
            f"after mel and {self.vocoder}": self.recordings_after_griffin_lim,
            "the model": self.word_error_rate,
            "identification rate of the model": self.identification_rate,
            "DistillMOS of the recordings": self.quality_of_recordings,
            f"DistillMOS after mel and {self.vocoder}": self.quality_after_griffin_lim,
            "DistillMOS of the model": self.quality,
        }
        measured = {name: value for name, value in values.items() if value is not None}
        width = max(37, *(len(name) + 1 for name in values))
        return "\n".join(f"{name:<{width}}{value:.3f}" for name, value in measured.items())


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
                sound, text, *_ = split_filelist_line(line)
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


class Listener:
    """Transcribes and rates sounds of texts, one after another.

        listener = Listener(Pocketsphinx(numbers_only=False), DistillMos(), "en-us")
        listener.hear(text, samples, 22050)
        listener.measures()

    Args:
        recogniser: None leaves out the word error rate.
        judge: None leaves out the quality.
        language: of the texts, eSpeak's name.
    """

    def __init__(self, recogniser: Recogniser | None, judge: DistillMos | None, language: str):
        self.recogniser, self.judge, self.language = recogniser, judge, language
        self.transcripts, self.scores = list[Transcript](), list[float]()

    def hear(self, text: str, samples: np.ndarray, sampling_rate: int) -> None:
        """Add float samples [N] in [-1, 1] of a text."""
        words, heard = text.lower().rstrip("."), ""
        if self.recogniser:
            words = words_of(text, self.language)
            heard = words_of(self.recogniser.hear(samples, sampling_rate), self.language)
        self.transcripts.append(Transcript(words, heard))
        if self.judge:
            self.scores.append(self.judge.score(samples, sampling_rate))

    def measures(self) -> Measures:
        rate = word_error_rate(self.transcripts) if self.recogniser else None
        return Measures(rate, float(np.mean(self.scores)) if self.judge else None)

    def again(self) -> "Listener":
        """One that has heard nothing yet."""
        return Listener(self.recogniser, self.judge, self.language)


def measure_reference(
    recordings: Path, speaker: Speaker, vocoder: str, listener: Listener
) -> Reference:
    """The measures of `recordings`, as `read_recordings` takes them, kept beside them for the next
    time. `vocoder` names the speaker's. UserError if they or a sound cannot be read."""
    kept, hparams = recordings / REFERENCE_FILE, speaker.hparams
    if recordings.is_file():
        kept = recordings.with_name(f"{recordings.name}.{REFERENCE_FILE}")
    made_with = {
        "mels": mel_fingerprint(hparams),
        "vocoder": vocoder,
        "recogniser": listener.recogniser.name if listener.recogniser else "",
        "judge": type(listener.judge).__name__ if listener.judge else "",
    }
    if kept.exists() and (reference := read_findings(kept, Reference)).made_with == made_with:
        return reference
    clips, rate = read_recordings(recordings), hparams.sampling_rate
    recorded, vocoded = listener.again(), listener.again()
    for path, text in progress_bar("Transcribing recordings", len(clips), " texts", iterable=clips):
        samples = read_audio(path, hparams)
        recorded.hear(text, samples.numpy(), rate)
        mel = log_mel_spectrogram(samples, hparams).numpy()
        vocoded.hear(text, np.concatenate([*speaker.sound([mel])]), rate)
    reference = Reference(recorded.measures(), vocoded.measures(), made_with)
    write_json(kept, asdict(reference))
    return reference


def spoken_sounds(
    speaker: Speaker, texts: Sequence[str], kept: Path | None
) -> Iterator[torch.Tensor]:
    """The samples [N] of each text as a WAV has them, at least as many as a mel needs: a model that
    has learnt little may stop at once. The folder `kept`, if any, keeps the sounds, the alignments,
    and an index.csv with the columns wav,text."""
    hparams = speaker.hparams
    with tempfile.TemporaryDirectory() as temporary:
        folder = kept or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        names = [f"{number:04d}" for number in range(1, len(texts) + 1)]
        progress = progress_bar("Speaking", len(texts), " texts", iterable=texts)
        for name, text in zip(names, progress, strict=True):
            spoken, wav = speaker.speak_text(sequence_to_speak(text, hparams)), f"{name}.wav"
            if kept:
                speaker.write_speech(folder / name, spoken)
            else:  # without the picture, which takes longer than the speech
                sound = np.concatenate([*speaker.sound([spoken.mel])])
                write_wav(folder / wav, sound, hparams.sampling_rate)
            samples = torch.from_numpy(soundfile.read(folder / wav, dtype="float32")[0])
            lacking = max(0, hparams.filter_length - len(samples))
            yield torch.nn.functional.pad(samples, (0, lacking))
        index = pd.DataFrame({"wav": [f"{name}.wav" for name in names], "text": texts})
        write_bytes(folder / "index.csv", index.to_csv(index=False).encode())


def evaluate(
    checkpoint: Path,
    recordings: Path,
    speech: Path | None = None,
    language: str = ENGLISH,
    *,
    recogniser: str = POCKETSPHINX,
    whisper_model: str = WHISPER_MODEL,
    vocoder: Path | None = None,
    words_only: bool = False,
    quality: bool = False,
) -> Intelligibility:
    """Speak the texts of `recordings` with `checkpoint`, transcribe that where the recogniser knows
    the language and, unless `words_only`, find the nearest recording.

    Args:
        checkpoint: or a voice's folder.
        recordings: as `read_recordings` takes them.
        speech: a folder that keeps what `spoken_sounds` makes.
        language: of the texts, eSpeak's name.
        recogniser, whisper_model: as `make_recogniser` takes them.
        vocoder: an ONNX file in place of Griffin-Lim.
        words_only: no identification rate, which takes most of the time.
        quality: rate the sounds by DistillMOS too.

    Raises:
        UserError: if recordings, checkpoint, vocoder, recogniser or judge cannot be read.
    """
    clips = read_recordings(recordings)
    texts = [text for _, text in clips]
    speaker, vocoder_name = load_speaker(checkpoint), GRIFFIN_LIM
    if vocoder:
        speaker.vocoder = load_vocoder(vocoder, speaker.hparams)
        vocoder_name = f"{vocoder.name} ({sha256(read_bytes(vocoder)).hexdigest()[:8]})"
    hparams, reference = speaker.hparams, Reference(Measures(), Measures(), {})
    chosen = make_recogniser(recogniser, whisper_model, language, texts)
    listener = Listener(chosen, DistillMos() if quality else None, language)
    if listener.recogniser or listener.judge:
        reference = measure_reference(recordings, speaker, vocoder_name, listener)
    sounds = [] if words_only else [read_audio(path, hparams) for path, _ in clips]
    recorded = [mel_cepstra(samples, hparams) for samples in sounds]
    nearest = list[int]()
    for text, samples in zip(texts, spoken_sounds(speaker, texts, speech), strict=True):
        listener.hear(text, samples.numpy(), hparams.sampling_rate)
        if not words_only:
            cepstra = mel_cepstra(samples, hparams)
            distances = [warped_distance(cepstra, other) for other in recorded]
            nearest.append(int(np.argmin(distances)))
    transcripts, identified = listener.transcripts, None
    if not words_only:
        identified = float(np.mean(np.equal(nearest, range(len(clips)))))
        words = [texts[i].lower().rstrip(".") for i in nearest]
        transcripts = [replace(t, nearest=x) for t, x in zip(transcripts, words, strict=True)]
    measures = listener.measures()
    return Intelligibility(
        word_error_rate=measures.word_error_rate,
        recordings=reference.recordings.word_error_rate,
        recordings_after_griffin_lim=reference.vocoded.word_error_rate,
        texts=len(clips),
        checkpoint=checkpoint.name,
        epochs=speaker.epochs,
        transcripts=transcripts,
        identification_rate=identified,
        quality=measures.quality,
        quality_of_recordings=reference.recordings.quality,
        quality_after_griffin_lim=reference.vocoded.quality,
        recogniser=chosen.name if chosen else "",
        vocoder=vocoder_name,
    )


def read_findings(path: Path, expected: type[Result]) -> Result:
    """The dataclass `expected` from a JSON file; UserError names the file and what is wrong."""
    return read_as(path, expected, "no such file; scripts/listen.py writes it")
