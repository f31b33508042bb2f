"""How well a checkpoint's speech is understood, beside the recordings of the same texts.

The texts are those of a folder of recordings in LJSpeech's layout that no training has seen:

    python scripts/make_demo_corpus.py RECORDINGS --clips 100 --skip 1000

The model speaks each of them, a recogniser takes it down, and the word error rate stands beside
those of the recordings and of the recordings after mel and Griffin-Lim.
"""

import contextlib
import csv
import signal
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from analysis.intelligibility import (
    Intelligibility,
    NumberRecogniser,
    Transcript,
    plain_words,
    read_findings,
    word_error_rate,
)
from audio import frame_count, griffin_lim, log_mel_spectrogram, mel_fingerprint, read_audio
from corpus.metadata import read_metadata
from errors import UserError
from files import write_atomically, write_json
from hparams import HParams
from progress import progress_bar
from speaking import load_speaker, sequence_to_speak, speak_text, write_speech

CEILING_FILE = "ceiling.json"  # in the folder of the recordings
LONGEST_SPEECH = 1.3  # times the longest recording; what has not stopped by then never does


@dataclass(frozen=True)
class Ceiling:
    """Word error rates of recordings, the least that a model can reach."""

    recordings: float
    after_griffin_lim: float  # of the recordings after mel and Griffin-Lim, as the model's are
    mels: dict  # the mels' settings
    transcripts: list[Transcript]  # of the recordings themselves


def read_recordings(folder: Path) -> list[tuple[Path, str]]:
    """(sound file, text) of every recording.

    Raises:
        UserError: if the folder is not in LJSpeech's layout.
    """
    entries, problems = read_metadata(folder)
    if problems:
        raise UserError("\n".join(problems))
    return [(folder / "wavs" / f"{entry.id}.wav", entry.text) for entry in entries]


def kept_ceiling(folder: Path, hparams: HParams) -> Ceiling | None:
    """The rates that `measure_ceiling` kept in `folder`, if they are of such mels."""
    kept = folder / CEILING_FILE
    found = read_findings(kept, Ceiling) if kept.exists() else None
    return found if found and found.mels == mel_fingerprint(hparams) else None


def measure_ceiling(folder: Path, hparams: HParams) -> Ceiling:
    """The rates of the recordings in `folder`, which are kept there for the next time.

    Raises:
        UserError: if the folder is not in LJSpeech's layout, a sound cannot be read or the
            recogniser is not installed.
    """
    if found := kept_ceiling(folder, hparams):
        return found
    recordings, listener = read_recordings(folder), NumberRecogniser()
    heard, heard_after = [], []
    for path, text in progress_bar(
        "Listening to recordings", len(recordings), " texts", iterable=recordings
    ):
        samples = read_audio(path, hparams)
        rebuilt = griffin_lim(log_mel_spectrogram(samples, hparams), hparams)
        for transcripts, sound in ((heard, samples.numpy()), (heard_after, rebuilt)):
            words = listener.take_down(sound, hparams.sampling_rate)
            transcripts.append(Transcript(plain_words(text), words))
    mels = mel_fingerprint(hparams)
    ceiling = Ceiling(word_error_rate(heard), word_error_rate(heard_after), mels, heard)
    write_json(folder / CEILING_FILE, asdict(ceiling))
    return ceiling


def evaluate(
    checkpoint: Path, epochs: int, recordings: Path, speech: Path | None, hparams: HParams
) -> Intelligibility:
    """Speak the texts of `recordings` with `checkpoint`, and take down what was spoken.

    The recordings, if nothing has listened to them yet, are listened to in a process beside this
    one, which takes about as long.

    Args:
        epochs: that the checkpoint was trained.
        speech: a folder for the sounds and alignments, and an index.csv with the columns wav,text;
            None keeps none of them.
        hparams: of the checkpoint.

    Raises:
        UserError: if the recordings or the checkpoint cannot be read, or the recogniser is not
            installed.
    """
    clips = read_recordings(recordings)
    if kept_ceiling(recordings, hparams):
        transcripts = _speak_and_listen(checkpoint, clips, speech, hparams)
    else:
        # Forked before torch has threads here.
        beside = get_context("fork").Process(target=_measure_beside, args=(recordings, hparams))
        beside.start()
        try:
            transcripts = _speak_and_listen(checkpoint, clips, speech, hparams)
        except BaseException:
            beside.terminate()
            raise
        finally:
            beside.join()
    ceiling = measure_ceiling(recordings, hparams)  # what went wrong beside is told here
    return Intelligibility(
        word_error_rate(transcripts),
        ceiling.recordings,
        ceiling.after_griffin_lim,
        len(transcripts),
        checkpoint.name,
        epochs,
        transcripts,
    )


def _measure_beside(recordings: Path, hparams: HParams) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the other process too
    with contextlib.suppress(UserError, OSError):
        measure_ceiling(recordings, hparams)


def _speak_and_listen(
    checkpoint: Path, clips: list[tuple[Path, str]], speech: Path | None, hparams: HParams
) -> list[Transcript]:
    """What is heard of every text, spoken by the checkpoint; arguments as `evaluate`'s."""
    steps = most_decoder_steps(clips, hparams)
    speaker = load_speaker(checkpoint, f"max_decoder_steps={steps}")
    if speech is not None:
        speech.mkdir(parents=True, exist_ok=True)
    listener, transcripts, rows = NumberRecogniser(), [], [("wav", "text")]
    for number, (_, text) in enumerate(
        progress_bar("Speaking and listening", len(clips), " texts", iterable=clips), 1
    ):
        spoken = speak_text(speaker, sequence_to_speak(text, hparams))
        if speech is None:
            samples = griffin_lim(spoken.mel, hparams)
        else:
            name = f"{number:04d}"
            write_speech(speech / name, spoken, hparams)
            samples = read_audio(speech / f"{name}.wav", hparams).numpy()
            rows.append((f"{name}.wav", text))
        words = listener.take_down(samples, hparams.sampling_rate)
        transcripts.append(Transcript(plain_words(text), words))
    if speech is not None:
        write_atomically(speech / "index.csv", lambda file: _write_csv(file, rows))
    return transcripts


def _write_csv(path: Path, rows: Iterable[tuple[str, str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def most_decoder_steps(clips: list[tuple[Path, str]], hparams: HParams) -> int:
    """Decoder steps that a little more than the longest recording takes."""
    frames = [frame_count(len(read_audio(path, hparams)), hparams) for path, _ in clips]
    return int(np.ceil(LONGEST_SPEECH * max(frames) / hparams.n_frames_per_step))
