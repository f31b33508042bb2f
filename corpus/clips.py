"""Define `Clip`, which describes a clip at every stage from the corpus table to training."""

from dataclasses import dataclass

from corpus.audio_quality import UNMEASURED, Quality
from tacotron2_voice.utils.files import UNKNOWN, Identity

MAX_OVERLAP = 0.05  # maximum overlap of two segments of a recording, in seconds


@dataclass(frozen=True)
class Measurements:
    """The measurements of a clip's audio. All lengths are in samples."""

    num_samples: int = 0
    silence_before: int = 0
    silence_after: int = 0
    clipped: int = 0
    checksum: int = 0
    quality: Quality = UNMEASURED

    @property
    def speech_samples(self) -> int:
        return self.num_samples - self.silence_before - self.silence_after


@dataclass(frozen=True)
class Segment:
    """The section of a long recording in which a text is spoken. Times are in seconds."""

    start: float
    # Length of the segment in seconds. None: the segment ends at the end of the recording.
    seconds: float | None = None


@dataclass(frozen=True)
class Clip:
    """A clip in a corpus table or a filelist."""

    path: str  # path of an audio file or, with load_mel_from_disk, of a log-mel (.npy)
    text: str
    symbols: tuple[int, ...] = ()  # symbol ids of the text, below 2**16
    num_frames: int = 0  # number of mel frames in training
    where: str = ""  # "file:line" of the line that lists the clip, for messages
    measured: Measurements = Measurements()  # measured by `checks.check_clips`
    identity: Identity = UNKNOWN  # size and times of the file before the file was checked
    is_relative: bool = False  # whether the listed path is relative to the filelist's folder
    speaker: str = ""  # name of the speaker; empty if the filelist has no speakers
    segment: Segment | None = None  # segment of the file that forms the clip; None: whole file

    @property
    def id(self) -> str:
        return clip_id(self.path)


def clip_id(path: str) -> str:
    """Return a clip's file name without folders and extension.

    clip_id("wavs/a.wav")  # "a"
    """
    # Use string methods, which are ten times faster than PurePath, because this function runs for
    # every clip.
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name
