"""How well speech is understood: word error rates of a checkpoint and of recordings, how often the
speech is nearest to the recording of the same text, how natural it sounds, and how often it has
the voice of the right speaker.

The texts are those of recordings that no training has seen. A recognizer mistakes words of its own,
so a model's rate is given beside that of the recordings. The identification rate needs no
recognizer, so any language has it.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jiwer
import numpy as np
import pandas as pd
import soundfile
import torch
from scipy.fft import dct

from audio import log_mel_spectrogram, mel_fingerprint, read_audio
from corpus.filelist import split_filelist_line, where_clip_lies
from corpus.metadata import read_metadata
from corpus.separators import refuse_other_separators
from evaluation.quality import DistillMos
from evaluation.recognizers import (
    POCKETSPHINX,
    WHISPER_MODEL,
    Recognizer,
    make_recognizer,
    words_of,
)
from evaluation.speaker_identification import (
    Resemblyzer,
    centroids_of,
    nearest_speaker,
    nearest_without_own,
    refuse_too_few,
)
from export.loading import load_synthesizer
from hparams import HParams
from tacotron2_voice.speakers import chosen_index, speaker_index
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.text.spoken_numbers import ENGLISH
from tacotron2_voice.utils.audio_files import write_wav
from tacotron2_voice.utils.console import markdown_table, progress_bar
from tacotron2_voice.utils.errors import UserError, grouped, lines_refused
from tacotron2_voice.utils.files import numbered_lines, read_as, read_bytes, write_bytes, write_json
from tacotron2_voice.utterance import sequence_to_speak
from tacotron2_voice.vocoder import load_vocoder

GRIFFIN_LIM = "Griffin-Lim"
INTELLIGIBILITY_FILE = "intelligibility.json"  # in a run's folder
CEPSTRA = slice(1, 13)  # without the 0th, the loudness
REFERENCE_FILE = (
    "reference_measures.json"  # in the folder of the recordings, or after a list's name
)

Result = TypeVar("Result")


class Recording(NamedTuple):
    path: Path
    text: str
    speaker: str = ""  # the name, empty where a list has none


@dataclass(frozen=True)
class Transcript:
    text: str
    heard: str  # by the recognizer, in lower case
    nearest: str = ""  # the text of the recording that sounds most like it, in lower case
    speaker: str = ""  # whose voice the model spoke with; empty for one voice
    nearest_speaker: str = ""  # the one whose recordings sound most like it


@dataclass(frozen=True)
class Measures:
    """What recognizers and judges say of sounds, each a mean, None where it was not asked or where
    the recognizer does not know the language."""

    word_error_rate: float | None = None
    quality: float | None = None  # DistillMOS, from 1 to 5
    right_speaker: float | None = None  # share of sounds whose nearest speaker is their own


@dataclass(frozen=True)
class Reference:
    """Measures of recordings, the best that a model can reach."""

    recordings: Measures
    vocoded: Measures  # of the recordings after mel and vocoder, as the model's are
    made_with: dict[str, Any]  # the texts, mels' settings, vocoder, recognizer and judges
    speakers: dict[str, Measures] = field(default_factory=dict)  # of each one's recordings
    centroids: dict[str, list[float]] = field(default_factory=dict)  # `centroids_of` these


@dataclass(frozen=True)
class SpeakerRates:
    """What `Intelligibility` holds of all, of one speaker of several."""

    texts: int
    word_error_rate: float | None
    recordings: float | None  # the word error rate of the speaker's recordings
    identification_rate: float | None
    quality: float | None
    quality_of_recordings: float | None
    right_speaker: float | None = None
    right_speaker_of_recordings: float | None = None


@dataclass(frozen=True)
class Intelligibility:
    """Word error rates of one checkpoint and of the recordings of the same texts, None where the
    recognizer does not know the language; and the share of the texts that are nearest to their own
    recording among the speaker's (by chance 1 / texts of the speaker), None in files of earlier
    versions."""

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
    recognizer: str = POCKETSPHINX
    vocoder: str = GRIFFIN_LIM
    speakers: dict[str, SpeakerRates] = field(default_factory=dict)  # where there are several
    right_speaker: float | None = None  # share of texts whose nearest speaker is the one asked for
    right_speaker_of_recordings: float | None = None  # each left out of its speaker's centroid
    right_speaker_after_griffin_lim: float | None = None  # or after the vocoder

    def summary(self) -> str:
        """A line for each value that was measured, and a table of the speakers."""
        values = {
            "the recordings": self.recordings,
            f"after mel and {self.vocoder}": self.recordings_after_griffin_lim,
            "the model": self.word_error_rate,
            "identification rate of the model": self.identification_rate,
            "DistillMOS of the recordings": self.quality_of_recordings,
            f"DistillMOS after mel and {self.vocoder}": self.quality_after_griffin_lim,
            "DistillMOS of the model": self.quality,
            "right speaker of the recordings": self.right_speaker_of_recordings,
            f"right speaker after mel and {self.vocoder}": self.right_speaker_after_griffin_lim,
            "right speaker of the model": self.right_speaker,
        }
        measured = {name: value for name, value in values.items() if value is not None}
        width = max([37, *(len(name) + 1 for name in measured)])
        lines = [f"{name:<{width}}{value:.3f}" for name, value in measured.items()]
        return "\n".join([*lines, *([self._table_of_speakers()] if self.speakers else [])])

    def _table_of_speakers(self) -> str:
        columns = {
            "texts": "texts",
            "the recordings": "recordings",
            "the model": "word_error_rate",
            "identification": "identification_rate",
            "DistillMOS of the recordings": "quality_of_recordings",
            "DistillMOS of the model": "quality",
            "right speaker of the recordings": "right_speaker_of_recordings",
            "right speaker of the model": "right_speaker",
        }
        values = {
            name: [getattr(x, f) for x in self.speakers.values()] for name, f in columns.items()
        }
        values = {name: column for name, column in values.items() if None not in column}
        rows = [
            [name, *(f"{x:.3f}" if isinstance(x, float) else f"{x:,}" for x in numbers)]
            for name, *numbers in zip(self.speakers, *values.values(), strict=True)
        ]
        return markdown_table(["speaker", *values], rows)


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


def read_recordings(path: Path, speaker_column: str = "") -> list[Recording]:
    """Every recording of a folder in LJSpeech's layout, or of a filelist; UserError for anything
    else. `speaker_column`: the field of the folder's metadata.csv that names speakers, as
    `read_metadata` takes it."""
    if path.is_file():
        if speaker_column:
            raise UserError(
                f"--speaker-column {speaker_column}: {path} is a list, whose fourth field names "
                "the speakers; leave it out"
            )
        recordings, bad, lines = list[Recording](), list[str](), numbered_lines(path)
        refuse_other_separators(path, lines, "path|text|seconds or path|text")
        for number, line in lines:
            try:
                listed = split_filelist_line(line)
                if listed.path.endswith(".npy"):
                    raise UserError("a cached mel; name the list of sounds, as val.txt")
                sound, _ = where_clip_lies(listed.path, path)
                recordings.append(Recording(Path(sound), listed.text, listed.speaker))
            except UserError as error:
                bad.append(f"{path}:{number}: {error}")
        if bad:
            raise lines_refused(path, bad, len(lines))
        return recordings
    entries, problems = read_metadata(path, speaker_column)
    if problems:
        raise UserError("\n".join(grouped(problems)))
    return [
        Recording(path / "wavs" / f"{entry.id}.wav", entry.text, entry.speaker) for entry in entries
    ]


def speakers_of(
    clips: Sequence[Recording], known: Sequence[str], chosen: str | None, where: Path, model: Path
) -> list[str | None]:
    """Who of the speakers `known` to a model speaks the text of each recording: those of the
    recordings, or the one that is `chosen` where they have no names; None for one voice. UserError
    if it does not know one, or if both or none say who speaks."""
    named = {clip.speaker for clip in clips} - {""}
    if not known or not named:
        index = chosen_index(chosen, known, str(model))
        return [None if index is None else known[index]] * len(clips)
    if chosen is not None:
        raise UserError(f"--speaker {chosen}: {where} names the speaker of each text; leave it out")
    unknown = [clip.speaker for clip in clips if clip.speaker not in known]
    try:
        for name in unknown[:1]:
            speaker_index(name, known, str(model))
    except UserError as error:
        count = f"{len(unknown):,} of {len(clips):,} texts"
        fix = "Correct the name, or leave these lines out"
        raise UserError(f"{where}: {count}, the first of {error}. {fix}") from None
    return [clip.speaker for clip in clips]


class Listener:
    """Transcribes and rates sounds of texts, one after another.

        listener = Listener(Pocketsphinx(numbers_only=False), DistillMos(), "en-us")
        listener.hear(text, samples, 22050)
        listener.measures()

    Args:
        recognizer: None leaves out the word error rate.
        judge: None leaves out the quality.
        language: of the texts, eSpeak's name.
        encoder: None leaves out whose voice a sound has.
    """

    def __init__(
        self,
        recognizer: Recognizer | None,
        judge: DistillMos | None,
        language: str,
        encoder: Resemblyzer | None = None,
    ):
        self.recognizer, self.judge, self.language = recognizer, judge, language
        self.transcripts, self.scores = list[Transcript](), list[float]()
        self.encoder, self.embeddings = encoder, list[np.ndarray]()
        self.is_right = list[bool]()  # the nearest speaker, set when all recordings are heard

    def hear(self, text: str, samples: np.ndarray, sampling_rate: int) -> None:
        """Add float samples [N] in [-1, 1] of a text."""
        words, heard = text.lower().rstrip("."), ""
        if self.recognizer:
            words = words_of(text, self.language)
            heard = words_of(self.recognizer.hear(samples, sampling_rate), self.language)
        self.transcripts.append(Transcript(words, heard))
        if self.judge:
            self.scores.append(self.judge.score(samples, sampling_rate))
        if self.encoder:
            self.embeddings.append(self.encoder.embed(samples, sampling_rate))

    def measures(self, which: Sequence[int] | None = None) -> Measures:
        """Of all sounds, or of those with these numbers."""
        chosen = range(len(self.transcripts)) if which is None else which
        rate, quality, right = None, None, None
        if self.recognizer:
            rate = word_error_rate([self.transcripts[i] for i in chosen])
        if self.judge:
            quality = float(np.mean([self.scores[i] for i in chosen]))
        if self.is_right:
            right = float(np.mean([self.is_right[i] for i in chosen]))
        return Measures(rate, quality, right)

    def compare_speakers(
        self, centroids: Mapping[str, Sequence[float]], names: Sequence[str | None]
    ) -> list[str]:
        """The nearest speaker of each sound, "" without an encoder. `measures` then says how often
        that is the one of `names`, who should speak."""
        if not self.encoder:
            return [""] * len(names)
        means = {name: np.array(mean) for name, mean in centroids.items()}
        voices = [nearest_speaker(embedding, means) for embedding in self.embeddings]
        self.is_right = [voice == name for voice, name in zip(voices, names, strict=True)]
        return voices

    def again(self) -> "Listener":
        """One that has heard nothing yet."""
        return Listener(self.recognizer, self.judge, self.language, self.encoder)


def measure_reference(
    recordings: Path,
    speaker: Synthesizer,
    vocoder: str,
    listener: Listener,
    speaker_column: str = "",
) -> Reference:
    """The measures of `recordings`, kept beside them for the next time. These and `speaker_column`
    are as `read_recordings` takes them; `vocoder` names the speaker's. UserError if they or a sound
    cannot be read."""
    kept, hparams = recordings / REFERENCE_FILE, speaker.hparams
    if recordings.is_file():
        kept = recordings.with_name(f"{recordings.name}.{REFERENCE_FILE}")
    clips, rate = read_recordings(recordings, speaker_column), hparams.sampling_rate
    listing = "\n".join(f"{clip.path.name}|{clip.text}|{clip.speaker}" for clip in clips)
    made_with = {
        "recordings": sha256(listing.encode()).hexdigest(),
        "mels": mel_fingerprint(hparams),
        "vocoder": vocoder,
        "recognizer": listener.recognizer.name if listener.recognizer else "",
        "judge": type(listener.judge).__name__ if listener.judge else "",
        "encoder": type(listener.encoder).__name__ if listener.encoder else "",
    }
    if kept.exists() and (reference := read_findings(kept, Reference)).made_with == made_with:
        return reference
    recorded, vocoded = listener.again(), listener.again()
    for clip in progress_bar("Transcribing recordings", len(clips), " texts", iterable=clips):
        samples = read_audio(clip.path, hparams)
        recorded.hear(clip.text, samples.numpy(), rate)
        mel = log_mel_spectrogram(samples, hparams).numpy()
        vocoded.hear(clip.text, np.concatenate([*speaker.sound([mel])]), rate)
    names, centroids = [clip.speaker for clip in clips], dict[str, list[float]]()
    if listener.encoder:
        for heard in (recorded, vocoded):
            nearest = nearest_without_own(heard.embeddings, recorded.embeddings, names)
            heard.is_right = [x == own for x, own in zip(nearest, names, strict=True)]
        means = centroids_of(recorded.embeddings, names)
        centroids = {name: mean.tolist() for name, mean in means.items()}
    reference = Reference(
        recorded.measures(),
        vocoded.measures(),
        made_with,
        {name: recorded.measures(which) for name, which in places_of(names).items()},
        centroids,
    )
    write_json(kept, asdict(reference))
    return reference


def places_of(names: Sequence[str | None]) -> dict[str, list[int]]:
    """The places of each name, in alphabetical order; nothing if there are not several names."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name or "", []).append(place)
    return {name: places[name] for name in sorted(places)} if len(places) > 1 else {}


def spoken_sounds(
    speaker: Synthesizer, texts: Sequence[str], names: Sequence[str | None], kept: Path | None
) -> Iterator[torch.Tensor]:
    """The samples [N] of each text as a WAV has them, at least as many as a mel needs: a model that
    has learnt little may stop at once. `names`: who of the model's speakers says each. The folder
    `kept`, if any, keeps the sounds, the alignments, and an index.csv with the columns wav,text
    and, of several speakers, speaker."""
    hparams = speaker.hparams
    with tempfile.TemporaryDirectory() as temporary:
        folder = kept or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        bases = [f"{number:04d}" for number in range(1, len(texts) + 1)]
        progress = progress_bar("Speaking", len(texts), " texts", iterable=texts)
        for base, text, name in zip(bases, progress, names, strict=True):
            spoken = speaker.speak_text(sequence_to_speak(text, hparams), speaker=name)
            wav = f"{base}.wav"
            if kept:
                speaker.write_speech(folder / base, spoken)
            else:  # without the picture, which takes longer than the speech
                sound = np.concatenate([*speaker.sound([spoken.mel])])
                write_wav(folder / wav, sound, hparams.sampling_rate)
            samples = torch.from_numpy(soundfile.read(folder / wav, dtype="float32")[0])
            lacking = max(0, hparams.filter_length - len(samples))
            yield torch.nn.functional.pad(samples, (0, lacking))
        index = pd.DataFrame({"wav": [f"{base}.wav" for base in bases], "text": texts})
        if places_of(names):
            index["speaker"] = names
        write_bytes(folder / "index.csv", index.to_csv(index=False).encode())


def nearest_recordings(
    clips: Sequence[Recording], recorded: Sequence[np.ndarray], spoken: Sequence[np.ndarray]
) -> list[int]:
    """For the mel-cepstra [12, frames] of each spoken text, the place of the nearest of the same
    speaker's recordings. It takes most of the time."""
    nearest, pairs = list[int](), zip(clips, spoken, strict=True)
    for clip, cepstra in progress_bar("Comparing", len(clips), " texts", iterable=pairs):
        distances = [
            warped_distance(cepstra, other) if own.speaker == clip.speaker else np.inf
            for own, other in zip(clips, recorded, strict=True)
        ]
        nearest.append(int(np.argmin(distances)))
    return nearest


@dataclass(frozen=True)
class Hearing:
    """What `evaluate` asks of recognizers and judges.

    Args:
        language: of the texts, eSpeak's name.
        recognizer, whisper_model: as `make_recognizer` takes them.
        words_only: no identification rate, which takes most of the time.
        quality: rate the sounds by DistillMOS too.
        right_speaker: find the nearest speaker too, among those of the recordings.
    """

    language: str = ENGLISH
    recognizer: str = POCKETSPHINX
    whisper_model: str = WHISPER_MODEL
    words_only: bool = False
    quality: bool = False
    right_speaker: bool = False

    def listener(self, texts: Sequence[str]) -> Listener:
        """For these texts. UserError if a recognizer or judge cannot be loaded."""
        recognizer = make_recognizer(self.recognizer, self.whisper_model, self.language, texts)
        judge = DistillMos() if self.quality else None
        return Listener(
            recognizer, judge, self.language, Resemblyzer() if self.right_speaker else None
        )


def evaluate(
    checkpoint: Path,
    recordings: Path,
    hearing: Hearing = Hearing(),
    *,
    speaker_column: str = "",
    voice_of: str | None = None,
    vocoder: Path | None = None,
    speech: Path | None = None,
) -> Intelligibility:
    """Speak the texts of `recordings` with `checkpoint`, transcribe that where the recognizer knows
    the language and, unless only words are asked for, find the nearest recording.

    Args:
        checkpoint: or a voice's folder.
        recordings, speaker_column: as `read_recordings` takes them.
        voice_of: the speaker of all texts, where the model has several and the recordings have no
            names. Recordings with names are spoken with each one's own speaker's voice.
        vocoder: an ONNX file in place of Griffin-Lim.
        speech: a folder that keeps what `spoken_sounds` makes.

    Raises:
        UserError: if recordings, checkpoint, vocoder, recognizer or judge cannot be read.
    """
    clips = read_recordings(recordings, speaker_column)
    speaker, vocoder_name = load_synthesizer(checkpoint), GRIFFIN_LIM
    known = speaker.hparams.speakers
    if hearing.right_speaker:
        refuse_too_few([clip.speaker for clip in clips], known, recordings, checkpoint)
    names = speakers_of(clips, known, voice_of, recordings, checkpoint)
    if vocoder:
        speaker.vocoder = load_vocoder(vocoder, speaker.hparams)
        vocoder_name = f"{vocoder.name} ({sha256(read_bytes(vocoder)).hexdigest()[:8]})"
    listener = hearing.listener([clip.text for clip in clips])
    reference = Reference(Measures(), Measures(), {})
    if listener.recognizer or listener.judge or listener.encoder:
        reference = measure_reference(recordings, speaker, vocoder_name, listener, speaker_column)
    spoken = spoken_sounds(speaker, [clip.text for clip in clips], names, speech)
    nearest = hear_all(clips, spoken, listener, speaker.hparams, compare=not hearing.words_only)
    is_identified = np.equal(nearest, range(len(nearest)))
    voices = listener.compare_speakers(reference.centroids, names)
    measures = listener.measures()
    return Intelligibility(
        word_error_rate=measures.word_error_rate,
        recordings=reference.recordings.word_error_rate,
        recordings_after_griffin_lim=reference.vocoded.word_error_rate,
        texts=len(clips),
        checkpoint=checkpoint.name,
        epochs=speaker.epochs,
        transcripts=labeled_transcripts(listener.transcripts, clips, nearest, names, voices),
        identification_rate=float(np.mean(is_identified)) if nearest else None,
        quality=measures.quality,
        quality_of_recordings=reference.recordings.quality,
        quality_after_griffin_lim=reference.vocoded.quality,
        recognizer=listener.recognizer.name if listener.recognizer else "",
        vocoder=vocoder_name,
        speakers=rates_of_speakers(names, listener, reference, is_identified),
        right_speaker=measures.right_speaker,
        right_speaker_of_recordings=reference.recordings.right_speaker,
        right_speaker_after_griffin_lim=reference.vocoded.right_speaker,
    )


def hear_all(
    clips: Sequence[Recording],
    spoken: Iterator[torch.Tensor],
    listener: Listener,
    hparams: HParams,
    *,
    compare: bool,
) -> list[int]:
    """Let `listener` hear the sound of each text. With `compare`, returns `nearest_recordings`."""
    sounds = [read_audio(clip.path, hparams) for clip in clips] if compare else []
    recorded = [mel_cepstra(samples, hparams) for samples in sounds]
    cepstra = list[np.ndarray]()
    for clip, samples in zip(clips, spoken, strict=True):
        listener.hear(clip.text, samples.numpy(), hparams.sampling_rate)
        if compare:
            cepstra.append(mel_cepstra(samples, hparams))
    return nearest_recordings(clips, recorded, cepstra) if compare else []


def labeled_transcripts(
    transcripts: Sequence[Transcript],
    clips: Sequence[Recording],
    nearest: Sequence[int],
    names: Sequence[str | None],
    voices: Sequence[str],
) -> list[Transcript]:
    """Transcripts with the nearest recording, the speaker who was asked for and the nearest one."""
    words = [clips[i].text.lower().rstrip(".") for i in nearest] or [""] * len(clips)
    labels = zip(transcripts, words, names, voices, strict=True)
    return [
        replace(transcript, nearest=word, speaker=name or "", nearest_speaker=voice)
        for transcript, word, name, voice in labels
    ]


def rates_of_speakers(
    names: Sequence[str | None],
    listener: Listener,
    reference: Reference,
    is_identified: np.ndarray,
) -> dict[str, SpeakerRates]:
    """The rates of each speaker of several. `names` are those of the texts that `listener` heard,
    and `is_identified` bool [texts], or [0] where that was not asked."""
    rates = dict[str, SpeakerRates]()
    for name, places in places_of(names).items():
        own, recorded = listener.measures(places), reference.speakers.get(name, Measures())
        identified = float(np.mean(is_identified[places])) if len(is_identified) else None
        rates[name] = SpeakerRates(
            texts=len(places),
            word_error_rate=own.word_error_rate,
            recordings=recorded.word_error_rate,
            identification_rate=identified,
            quality=own.quality,
            quality_of_recordings=recorded.quality,
            right_speaker=own.right_speaker,
            right_speaker_of_recordings=recorded.right_speaker,
        )
    return rates


def read_findings(path: Path, expected: type[Result]) -> Result:
    """The dataclass `expected` from a JSON file; UserError names the file and what is wrong."""
    return read_as(path, expected, "no such file; scripts/evaluate.py writes it")
