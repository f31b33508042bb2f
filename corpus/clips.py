"""Define `Clip`, which describes one clip from the corpus's own table to training."""

from dataclasses import dataclass

from corpus.audio_quality import UNMEASURED, Quality
from tacotron2_voice.utils.files import UNKNOWN, Identity


@dataclass(frozen=True)
class Measurements:
    """What `checks.measure` found in a clip. Lengths are in samples."""

    num_samples: int = 0
    silence_before: int = 0  # before speech
    silence_after: int = 0  # after speech
    clipped: int = 0  # number of clipped samples
    checksum: int = 0  # checksum of the samples
    quality: Quality = UNMEASURED

    @property
    def speech_samples(self) -> int:
        return self.num_samples - self.silence_before - self.silence_after


@dataclass(frozen=True)
class Segment:
    """Describe the part of a long recording that a line of a table transcribes, in seconds."""

    start: float
    seconds: float | None = None  # None: to the end of the recording


@dataclass(frozen=True)
class Clip:
    """A line of a corpus's table or of a filelist."""

    path: str  # audio file, or .npy log-mel with load_mel_from_disk
    text: str
    symbols: tuple[int, ...] = ()  # symbol ids of the text, below 2**16
    num_frames: int = 0  # length in training
    where: str = ""  # "file:line", for messages
    measured: Measurements = Measurements()  # set if `prepare` has checked the clip
    identity: Identity = UNKNOWN  # identity of the file before it was checked
    is_relative: bool = False  # whether the filelist's path is relative to its own folder
    speaker: str = ""  # name of the speaker; empty if the filelist has no speakers
    segment: Segment | None = None  # the clip's part of a long recording; None: the whole file

    @property
    def id(self) -> str:
        return clip_id(self.path)


def clip_id(path: str) -> str:
    """Return the name of a clip's file without folder and extension.

    clip_id("wavs/a.wav")  # "a"
    """
    # This is ten times faster than PurePath, and it is called for every clip.
    name = path.rpartition("/")[2]
    return name.rpartition(".")[0] or name
