"""The sound files of a corpus in LJSpeech's layout: every one checked before training sees it."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from audio import is_cut_off, read_header
from corpus.metadata import Entry
from errors import UserError
from hparams import HParams
from progress import progress_bar
from text import sequence_to_text, text_to_sequence

READING_THREADS = 8  # headers wait for the disk, not for the processor


@dataclass(frozen=True)
class Recording:
    """A clip that passed every check."""

    id: str
    path: Path
    text: str
    num_samples: int
    num_symbols: int


def check_recordings(
    corpus: Path, entries: list[Entry], hparams: HParams
) -> tuple[list[Recording], list[str], list[str]]:
    """The good clips, what is wrong with the others, and sound files that no line names.

    Raises:
        UserError: where the folder wavs is missing.
    """
    wavs, metadata = corpus / "wavs", corpus / "metadata.csv"
    if not wavs.is_dir():
        raise UserError(f"{wavs}: no such folder; it should hold the clips that {metadata} names")
    sounds = {
        path.name: path
        for path in wavs.iterdir()
        if path.suffix in (".wav", ".flac") and not path.name.startswith(".")
    }
    used = {}  # by id: the sound file that is read
    for entry in entries:
        used[entry.id] = sounds.get(f"{entry.id}.wav") or sounds.get(f"{entry.id}.flac")

    def check(entry: Entry) -> Recording | str:
        path = used[entry.id]
        if path is None:
            return (
                f"{wavs / entry.id}.wav (or .flac): no such file; copy it there, or take line "
                f"{entry.line} out of {metadata}"
            )
        sequence = text_to_sequence(entry.text, hparams.text_cleaners)
        if not sequence_to_text(sequence).strip():
            return (
                f"{metadata}:{entry.line}: the normalised text {entry.text!r} of {entry.id} is "
                "empty after cleaning; write what is said"
            )
        try:
            num_samples = read_header(path, hparams)
        except UserError as error:
            return f"{path}: {error}"
        if is_cut_off(path):
            return f"{path}: cut off, its header promises more; copy it again"
        return Recording(entry.id, path, entry.text, num_samples, len(sequence))

    recordings, problems = [], []
    with (
        ThreadPoolExecutor(READING_THREADS) as threads,
        progress_bar("Checking", len(entries), " clips") as bar,
    ):
        for result in threads.map(check, entries):
            (problems if isinstance(result, str) else recordings).append(result)
            bar.update()
    unnamed = set(sounds) - {path.name for path in used.values() if path}
    return recordings, problems, sorted(unnamed)
