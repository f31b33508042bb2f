"""The sound files of a corpus in LJSpeech's layout: every one checked before training sees it."""

import unicodedata
from dataclasses import dataclass
from pathlib import Path

from corpus.dropped_symbols import dropped_symbols
from corpus.metadata import Entry
from corpus.sound_measures import SoundMeasures, measure_sound
from errors import UserError
from files import map_in_threads
from hparams import HParams
from progress import progress_bar
from text import can_be_spoken, text_to_sequence


@dataclass(frozen=True)
class Recording:
    """A clip that passed every check."""

    id: str
    path: Path
    text: str
    line: int  # of metadata.csv
    symbols: bytes  # the text's symbol ids, one a byte
    dropped: tuple[str, ...]  # what of the text is spoken, perhaps, and has no symbol
    num_samples: int
    silence_before: int  # samples before speech
    silence_after: int  # samples after speech
    clipped: int  # samples at full scale
    checksum: tuple[int, int]  # equal for equal sounds

    @property
    def num_symbols(self) -> int:
        return len(self.symbols)

    @property
    def speech_samples(self) -> int:
        return self.num_samples - self.silence_before - self.silence_after


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
    # macOS and some archives write é as e with an accent to follow, metadata.csv as one letter.
    composed = {unicodedata.normalize("NFC", name): path for name, path in sounds.items()}

    def sound_of(entry: Entry) -> Path | None:
        names = [f"{entry.id}{suffix}" for suffix in (".wav", ".flac")]
        found = [sounds.get(name) for name in names]
        found += [composed.get(unicodedata.normalize("NFC", name)) for name in names]
        return next((path for path in found if path), None)

    def measures_or_problem(entry: Entry) -> SoundMeasures | str:
        path = used[entry.id]
        if path is None:
            return (
                f"{wavs / entry.id}.wav (or .flac): no such file; copy it there, or take line "
                f"{entry.line} out of {metadata}"
            )
        try:
            return measure_sound(path, hparams)
        except UserError as error:
            return f"{path}: {error}"

    used = {entry.id: sound_of(entry) for entry in entries}
    recordings, problems = [], []
    cleaners = tuple(hparams.text_cleaners)
    with progress_bar("Checking", len(entries), " clips") as bar:
        measured = map_in_threads(measures_or_problem, entries)
        for entry, found in zip(entries, measured, strict=True):
            bar.update()
            # Not in a thread: inflect, which spells numbers, is not made for several.
            sequence = text_to_sequence(entry.text, cleaners)
            faults = [found] if isinstance(found, str) else []
            if not can_be_spoken(sequence):
                faults.append(
                    f"{metadata}:{entry.line}: the normalised text {entry.text!r} of {entry.id} "
                    "leaves nothing to say after cleaning; write what is said"
                )
            if faults:
                problems.append("; and ".join(faults))
            else:
                recordings.append(
                    Recording(
                        id=entry.id,
                        path=used[entry.id],
                        text=entry.text,
                        line=entry.line,
                        symbols=bytes(sequence),
                        dropped=tuple(dropped_symbols(entry.text, cleaners)),
                        **vars(found),
                    )
                )
    unnamed = set(sounds) - {path.name for path in used.values() if path}
    return recordings, problems, sorted(unnamed)
