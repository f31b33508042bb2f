"""Define the results that scripts/evaluate.py writes as JSON.

    result = read_result(Path("intelligibility.json"), Intelligibility)
    print(result.summary())

The field names are the keys in the JSON files, and are the same as in earlier versions of this
project.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from evaluation.recognizers import POCKETSPHINX
from tacotron2_voice.utils.console import markdown_table
from tacotron2_voice.utils.files import read_as

Result = TypeVar("Result")

GRIFFIN_LIM = "Griffin-Lim"
INTELLIGIBILITY_FILE = "intelligibility.json"  # name of the results file in a run folder


@dataclass(frozen=True)
class Transcript:
    """A text and the transcript of its audio. All words are in lower case."""

    text: str
    heard: str  # transcript of the audio; empty if the recognizer does not support the language
    nearest: str = ""  # text of the recording that is nearest to the audio (nearest_recording.py)
    speaker: str = ""  # requested speaker; empty if the model has a single speaker
    # The speaker whose mean embedding is nearest to the embedding of the audio.
    nearest_speaker: str = ""


@dataclass(frozen=True)
class Measures:
    """The means of metrics over several audio files. A metric is None if the user did not request
    this metric or if it does not apply."""

    word_error_rate: float | None = None
    quality: float | None = None  # DistillMOS score from 1 to 5
    right_speaker: float | None = None  # speaker identification accuracy, 0 to 1


@dataclass(frozen=True)
class Reference:
    """The metrics of the recordings, which are the reference for a model. The speech of a model is
    rarely better than the recordings."""

    recordings: Measures
    vocoded: Measures  # metrics of the recordings after conversion to mels and back to audio
    # The texts, mel settings, vocoder and evaluation models that were used to measure the metrics.
    made_with: dict[str, Any]
    speakers: dict[str, Measures] = field(default_factory=dict)  # metrics per speaker
    centroids: dict[str, list[float]] = field(default_factory=dict)  # mean embedding per speaker


@dataclass(frozen=True)
class SpeakerRates:
    """The metrics of one speaker. The docstring of `Intelligibility` describes the fields."""

    texts: int
    word_error_rate: float | None
    recordings: float | None
    identification_rate: float | None
    quality: float | None
    quality_of_recordings: float | None
    right_speaker: float | None = None
    right_speaker_of_recordings: float | None = None


@dataclass(frozen=True)
class Intelligibility:
    """The metrics of a checkpoint's speech, and of recordings of the same texts.

    Word error rates are None if the recognizer does not support the language. The identification
    rate is the fraction of texts for which the recording nearest to the synthetic speech has the
    same text. The speech is compared only with recordings of the same speaker. With a random
    choice, the identification rate would be 1 / (number of texts of the speaker).
    """

    word_error_rate: float | None
    recordings: float | None  # word error rate of the recordings
    # Word error rate of the recordings after conversion to mels and back to audio.
    recordings_after_griffin_lim: float | None
    texts: int
    checkpoint: str
    epochs: int  # number of training epochs; 0: unknown
    transcripts: list[Transcript]
    identification_rate: float | None = None
    quality: float | None = None  # DistillMOS of the model's speech
    quality_of_recordings: float | None = None
    # DistillMOS of the recordings after conversion to mels and back to audio.
    quality_after_griffin_lim: float | None = None
    recognizer: str = POCKETSPHINX
    vocoder: str = GRIFFIN_LIM
    # Metrics of each speaker; empty for a single-speaker model.
    speakers: dict[str, SpeakerRates] = field(default_factory=dict)
    right_speaker: float | None = None  # speaker identification accuracy of the model's speech
    right_speaker_of_recordings: float | None = None
    # Speaker identification accuracy of the recordings after conversion to mels and back to audio.
    right_speaker_after_griffin_lim: float | None = None

    def summary(self) -> str:
        """Return one line per metric. With several speakers, a table with one row per speaker
        follows these lines."""
        values = {
            "the recordings": self.recordings,
            f"the recordings resynthesized with {self.vocoder}": self.recordings_after_griffin_lim,
            "the model": self.word_error_rate,
            "identification rate of the model": self.identification_rate,
            "DistillMOS of the recordings": self.quality_of_recordings,
            f"DistillMOS of the recordings resynthesized with {self.vocoder}": self.quality_after_griffin_lim,
            "DistillMOS of the model": self.quality,
            "speaker identification accuracy of the recordings": self.right_speaker_of_recordings,
            f"speaker identification accuracy of the recordings resynthesized with {self.vocoder}": (
                self.right_speaker_after_griffin_lim
            ),
            "speaker identification accuracy of the model": self.right_speaker,
        }
        measured = {name: value for name, value in values.items() if value is not None}
        width = max([46, *(len(name) + 1 for name in measured)])
        lines = [f"{name:<{width}}{value:.3f}" for name, value in measured.items()]
        if self.speakers:
            lines.append(self._speaker_table())
        return "\n".join(lines)

    def _speaker_table(self) -> str:
        fields = {
            "texts": "texts",
            "the recordings": "recordings",
            "the model": "word_error_rate",
            "identification": "identification_rate",
            "DistillMOS of the recordings": "quality_of_recordings",
            "DistillMOS of the model": "quality",
            "speaker identification accuracy of the recordings": "right_speaker_of_recordings",
            "speaker identification accuracy of the model": "right_speaker",
        }
        columns = {}
        for title, name in fields.items():
            column = [getattr(rates, name) for rates in self.speakers.values()]
            if None not in column:
                columns[title] = column
        rows = []
        for name, *numbers in zip(self.speakers, *columns.values(), strict=True):
            cells = [f"{x:.3f}" if isinstance(x, float) else f"{x:,}" for x in numbers]
            rows.append([name, *cells])
        return markdown_table(["speaker", *columns], rows)


def read_result(path: Path, expected: type[Result]) -> Result:
    """Read a JSON file into the dataclass `expected`.

    Raises:
        UserError: if the file is invalid. The error message contains the file and the field.
    """
    return read_as(path, expected, "no such file. Run scripts/evaluate.py to write it")
