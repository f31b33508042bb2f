"""Measure how intelligible and natural the speech of a model is, compared with recordings of the
same texts.

    options = EvaluationOptions(recognizer="whisper", quality=True)
    result = evaluate(Path("runs/mine/best.pt"), Path("unseen"), options)
    print(result.summary())

Choose recordings that are not in the training set. Recognizers make mistakes, so compare the
model's word error rate with the word error rate of the recordings. The identification rate needs no
recognizer, so you can measure this rate in any language.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import jiwer
import numpy as np
import pandas as pd
import soundfile
import torch

from audio import log_mel_spectrogram, mel_fingerprint, read_audio
from evaluation.nearest_recording import mel_cepstra, nearest_recordings
from evaluation.quality import DistillMos
from evaluation.recognizers import (
    POCKETSPHINX,
    Recognizer,
    is_mostly_foreign,
    make_recognizer,
    words_of,
)
from evaluation.recordings import Recording, indices_by_speaker, read_recordings, speakers_of_texts
from evaluation.results import (
    GRIFFIN_LIM,
    Intelligibility,
    Measures,
    Reference,
    SpeakerRates,
    Transcript,
    read_result,
)
from evaluation.speaker_identification import (
    Resemblyzer,
    centroids_of,
    check_enough_speakers,
    nearest_speaker,
    nearest_without_own,
)
from export.loading import load_synthesizer
from tacotron2_voice.outputs import write_speech
from tacotron2_voice.synthesizer import Synthesizer
from tacotron2_voice.text.spoken_numbers import ENGLISH, is_english
from tacotron2_voice.utils.audio_files import write_wav
from tacotron2_voice.utils.console import progress_bar
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes, write_bytes, write_json
from tacotron2_voice.utterance import text_to_ids
from tacotron2_voice.vocoder import load_vocoder

# Name of the file with the metrics of the recordings. The file is in the folder of the recordings.
REFERENCE_FILE = "reference_measures.json"


def word_error_rate(transcripts: Sequence[Transcript]) -> float:
    """Return the word error rate: the number of substituted, deleted and inserted words, divided by
    the number of words in the texts."""
    texts = [transcript.text for transcript in transcripts]
    hypotheses = [transcript.heard for transcript in transcripts]
    return float(jiwer.wer(texts, hypotheses))


@dataclass
class Evaluators:
    """Transcribe and rate the audio of utterances whose texts are known.

        evaluators = Evaluators(Pocketsphinx(numbers_only=False), DistillMos(), "en-us")
        evaluators.add("Seven.", samples, 22050)
        evaluators.measures()

    Args:
        recognizer: speech recognizer; None: do not measure the word error rate.
        quality_model: the model that predicts the quality; None: do not measure the quality.
        language: eSpeak's code for the language of the texts.
        encoder: speaker encoder; None: do not identify speakers.
    """

    recognizer: Recognizer | None
    quality_model: DistillMos | None
    language: str
    encoder: Resemblyzer | None = None
    transcripts: list[Transcript] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    embeddings: list[np.ndarray] = field(default_factory=list)
    # `identify_speakers` fills this list after all audio has been added
    is_right_speaker: list[bool] = field(default_factory=list)

    def add(self, text: str, samples: np.ndarray, sampling_rate: int) -> None:
        """Evaluate the audio of one text, and keep the results. `samples` are floats [N] in [-1,
        1]."""
        words = text.lower().rstrip(".")
        transcript = ""
        if self.recognizer:
            words = words_of(text, self.language)
            if not words or (is_english(self.language) and is_mostly_foreign(text)):
                raise UserError(
                    f"{text[:60]!r}: contains no words in the language of --language {self.language}"
                )
            transcript = words_of(self.recognizer.transcribe(samples, sampling_rate), self.language)
        self.transcripts.append(Transcript(words, transcript))
        if self.quality_model:
            self.scores.append(self.quality_model.score(samples, sampling_rate))
        if self.encoder:
            self.embeddings.append(self.encoder.embed(samples, sampling_rate))

    def measures(self, indices: Sequence[int] | None = None) -> Measures:
        """Return the mean metrics over the utterances with the given indices. If `indices` is None,
        return the mean metrics over all utterances."""
        chosen = range(len(self.transcripts)) if indices is None else indices
        rate = None
        quality = None
        speaker_accuracy = None
        if self.recognizer:
            rate = word_error_rate([self.transcripts[i] for i in chosen])
        if self.quality_model:
            quality = float(np.mean([self.scores[i] for i in chosen]))
        if self.is_right_speaker:
            speaker_accuracy = float(np.mean([self.is_right_speaker[i] for i in chosen]))
        return Measures(rate, quality, speaker_accuracy)

    def identify_speakers(
        self, centroids: Mapping[str, Sequence[float]], names: Sequence[str | None]
    ) -> list[str]:
        """Return the most similar speaker for each utterance, or "" if no speaker encoder is used.

        Args:
            centroids: {speaker: mean embedding [256] of the speaker's recordings}.
            names: the correct speaker of each utterance. Later, `measures` returns how often the
                correct speaker is the nearest speaker.
        """
        if not self.encoder:
            return [""] * len(names)
        means = {name: np.array(mean) for name, mean in centroids.items()}
        nearest = [nearest_speaker(embedding, means) for embedding in self.embeddings]
        self.is_right_speaker = [x == name for x, name in zip(nearest, names, strict=True)]
        return nearest

    def copy_without_results(self) -> "Evaluators":
        """Return a copy that uses the same models but contains no results."""
        return Evaluators(self.recognizer, self.quality_model, self.language, self.encoder)


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `evaluate`.

    Args:
        language: eSpeak's code for the language of the texts.
        recognizer, whisper_model: arguments for `make_recognizer`.
        words_only: whether to skip the identification rate, which takes most of the time of an
            evaluation.
        quality: whether to also rate the audio with DistillMOS.
        right_speaker: whether to also measure the speaker identification accuracy.
    """

    language: str = ENGLISH
    recognizer: str = POCKETSPHINX
    whisper_model: str = ""
    words_only: bool = False
    quality: bool = False
    right_speaker: bool = False

    def make_evaluators(self, texts: Sequence[str]) -> Evaluators:
        """Load the models that are needed to evaluate audio.

        Raises:
            UserError: if a package or a model cannot be loaded.
        """
        recognizer = make_recognizer(self.recognizer, self.whisper_model, self.language, texts)
        quality_model = DistillMos() if self.quality else None
        encoder = Resemblyzer() if self.right_speaker else None
        return Evaluators(recognizer, quality_model, self.language, encoder)


def evaluate(
    checkpoint: Path,
    recordings_path: Path,
    options: EvaluationOptions = EvaluationOptions(),
    *,
    speaker_column: str = "",
    speaker: str | None = None,
    vocoder: Path | None = None,
    output: Path | None = None,
) -> Intelligibility:
    """Synthesize the texts of recordings, and compare the speech with the recordings.

    Args:
        checkpoint: a checkpoint or the folder of an exported voice.
        recordings_path, speaker_column: arguments for `read_recordings`.
        speaker: the speaker for all texts, if the recordings have no speakers.
        vocoder: an ONNX file to use instead of Griffin-Lim.
        output: folder for the audio and the alignments.

    Raises:
        UserError: if the recordings, the checkpoint, the vocoder or a model cannot be read.
    """
    recordings = read_recordings(recordings_path, speaker_column)
    texts = [recording.text for recording in recordings]
    synthesizer = load_synthesizer(checkpoint)
    known = synthesizer.settings.speakers
    if options.right_speaker:
        named = [recording.speaker for recording in recordings]
        check_enough_speakers(named, known, recordings_path, checkpoint)
    names = speakers_of_texts(recordings, known, speaker, recordings_path, checkpoint)
    vocoder_name = GRIFFIN_LIM
    if vocoder:
        synthesizer.vocoder = load_vocoder(vocoder, synthesizer.settings)
        vocoder_name = f"{vocoder.name} ({sha256(read_bytes(vocoder)).hexdigest()[:8]})"
    evaluators = options.make_evaluators(texts)
    reference = Reference(Measures(), Measures(), {})
    if evaluators.recognizer or evaluators.quality_model or evaluators.encoder:
        reference = measure_reference(
            recordings_path, recordings, synthesizer, vocoder_name, evaluators
        )

    # Read all recordings before synthesizing any text, so that an invalid recording stops the
    # evaluation at once.
    hparams = synthesizer.settings
    recorded: list[np.ndarray] = []
    if not options.words_only:
        recorded = [mel_cepstra(read_audio(x.path, hparams), hparams) for x in recordings]
    spoken: list[np.ndarray] = []
    speech = synthesize_texts(synthesizer, texts, names, output)
    for text, samples in zip(texts, speech, strict=True):
        evaluators.add(text, samples.numpy(), hparams.sampling_rate)
        if not options.words_only:
            spoken.append(mel_cepstra(samples, hparams))
    nearest = [] if options.words_only else nearest_recordings(recordings, recorded, spoken)
    is_identified = np.equal(nearest, range(len(nearest)))
    nearest_speakers = evaluators.identify_speakers(reference.centroids, names)
    measures = evaluators.measures()

    return Intelligibility(
        word_error_rate=measures.word_error_rate,
        recordings=reference.recordings.word_error_rate,
        recordings_after_griffin_lim=reference.vocoded.word_error_rate,
        texts=len(recordings),
        checkpoint=checkpoint.name,
        epochs=synthesizer.training.epochs,
        transcripts=labeled_transcripts(
            evaluators.transcripts, recordings, nearest, names, nearest_speakers
        ),
        identification_rate=float(np.mean(is_identified)) if nearest else None,
        quality=measures.quality,
        quality_of_recordings=reference.recordings.quality,
        quality_after_griffin_lim=reference.vocoded.quality,
        recognizer=evaluators.recognizer.name if evaluators.recognizer else "",
        vocoder=vocoder_name,
        speakers=rates_by_speaker(names, evaluators, reference, is_identified),
        right_speaker=measures.right_speaker,
        right_speaker_of_recordings=reference.recordings.right_speaker,
        right_speaker_after_griffin_lim=reference.vocoded.right_speaker,
    )


def measure_reference(
    path: Path,
    recordings: Sequence[Recording],
    synthesizer: Synthesizer,
    vocoder_name: str,
    evaluators: Evaluators,
) -> Reference:
    """Return the mean metrics of the recordings, which are the reference for a model.

    The metrics are saved in a file next to the recordings. If the recordings, settings, vocoder and
    evaluation models have not changed, the function returns the saved metrics.

    Args:
        path: the filelist or the folder of the recordings.
        synthesizer: a synthesizer, whose vocoder converts the mels of the recordings back to audio.

    Raises:
        UserError: if a recording or the file with the saved metrics cannot be read.
    """
    hparams = synthesizer.settings
    kept = path / REFERENCE_FILE
    if path.is_file():
        kept = path.with_name(f"{path.name}.{REFERENCE_FILE}")
    listing = "\n".join(f"{x.path.name}|{x.text}|{x.speaker}" for x in recordings)
    quality_model = evaluators.quality_model
    made_with = {
        "recordings": sha256(listing.encode()).hexdigest(),
        "mels": mel_fingerprint(hparams),
        "vocoder": vocoder_name,
        "recognizer": evaluators.recognizer.name if evaluators.recognizer else "",
        "judge": type(quality_model).__name__ if quality_model else "",
        "encoder": type(evaluators.encoder).__name__ if evaluators.encoder else "",
    }
    if kept.exists():
        reference = read_result(kept, Reference)
        if reference.made_with == made_with:
            return reference

    recorded = evaluators.copy_without_results()
    vocoded = evaluators.copy_without_results()
    rate = hparams.sampling_rate
    progress = progress_bar("Evaluating recordings", len(recordings), " texts", iterable=recordings)
    for recording in progress:
        samples = read_audio(recording.path, hparams)
        recorded.add(recording.text, samples.numpy(), rate)
        mel = log_mel_spectrogram(samples, hparams).numpy()
        vocoded.add(recording.text, synthesizer.audio_of(mel), rate)

    names = [recording.speaker for recording in recordings]
    centroids: dict[str, list[float]] = {}
    if evaluators.encoder:
        # Compare each recording with the mean of the other recordings of its speaker. A mean that
        # contained the recording itself would be too similar to the recording.
        for each in (recorded, vocoded):
            nearest = nearest_without_own(each.embeddings, recorded.embeddings, names)
            each.is_right_speaker = [x == own for x, own in zip(nearest, names, strict=True)]
        means = centroids_of(recorded.embeddings, names)
        centroids = {name: mean.tolist() for name, mean in means.items()}
    by_speaker = indices_by_speaker(names)
    reference = Reference(
        recorded.measures(),
        vocoded.measures(),
        made_with,
        {name: recorded.measures(indices) for name, indices in by_speaker.items()},
        centroids,
    )
    write_json(kept, asdict(reference))
    return reference


def synthesize_texts(
    synthesizer: Synthesizer,
    texts: Sequence[str],
    names: Sequence[str | None],
    output: Path | None,
) -> Iterator[torch.Tensor]:
    """Yield the samples [N] for each text, rounded to 16 bits as in a WAV file.

    A model in early training may produce audio that is too short for a mel spectrogram. Audio that
    is too short is padded with silence.

    Args:
        names: the speaker of each text.
        output: folder for the audio, the alignments and index.csv with the columns `wav`, `text`
            and, with several speakers, `speaker`.
    """
    hparams = synthesizer.settings
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        progress = progress_bar("Synthesizing", len(texts), " texts", iterable=texts)
        for number, (text, name) in enumerate(zip(progress, names, strict=True), 1):
            speech = synthesizer.synthesize(text_to_ids(text, hparams), speaker=name)
            wav = folder / f"{number:04d}.wav"
            if output:
                write_speech(wav.with_suffix(""), speech, hparams.table)
            else:  # do not draw alignments, because drawing takes longer than synthesis
                write_wav(wav, speech.audio, hparams.sampling_rate)
            samples = torch.from_numpy(soundfile.read(wav, dtype="float32")[0])
            missing = max(0, hparams.filter_length - len(samples))
            yield torch.nn.functional.pad(samples, (0, missing))
        wavs = [f"{number:04d}.wav" for number in range(1, len(texts) + 1)]
        index = pd.DataFrame({"wav": wavs, "text": texts})
        if indices_by_speaker(names):
            index["speaker"] = names
        write_bytes(folder / "index.csv", index.to_csv(index=False).encode())


def labeled_transcripts(
    transcripts: Sequence[Transcript],
    recordings: Sequence[Recording],
    nearest: Sequence[int],
    names: Sequence[str | None],
    nearest_speakers: Sequence[str],
) -> list[Transcript]:
    """Return copies of the transcripts in which three additional fields are set: the text of the
    nearest recording, the requested speaker and the nearest speaker."""
    nearest_texts = [""] * len(recordings)
    if nearest:
        nearest_texts = [recordings[i].text.lower().rstrip(".") for i in nearest]
    labels = zip(transcripts, nearest_texts, names, nearest_speakers, strict=True)
    return [
        replace(transcript, nearest=text, speaker=name or "", nearest_speaker=nearest_name)
        for transcript, text, name, nearest_name in labels
    ]


def rates_by_speaker(
    names: Sequence[str | None],
    evaluators: Evaluators,
    reference: Reference,
    is_identified: np.ndarray,
) -> dict[str, SpeakerRates]:
    """Return {speaker: metrics}, or {} if there is only one speaker.

    Args:
        names: the speaker of each text that was added to `evaluators`.
        is_identified: for each text, whether its speech is nearest to a recording of the same text,
            bool [texts]. Empty if this comparison was skipped.
    """
    rates: dict[str, SpeakerRates] = {}
    for name, indices in indices_by_speaker(names).items():
        own = evaluators.measures(indices)
        recorded = reference.speakers.get(name, Measures())
        identified = float(np.mean(is_identified[indices])) if len(is_identified) else None
        rates[name] = SpeakerRates(
            texts=len(indices),
            word_error_rate=own.word_error_rate,
            recordings=recorded.word_error_rate,
            identification_rate=identified,
            quality=own.quality,
            quality_of_recordings=recorded.quality,
            right_speaker=own.right_speaker,
            right_speaker_of_recordings=recorded.right_speaker,
        )
    return rates
