"""Make small corpora in LJSpeech's layout."""

import signal
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import soundfile
from helpers import fork_server, kill_self

from corpus import prepare as preparation
from corpus.prepare import Preparation, prepare
from tacotron2_voice.utils.errors import UserError

RATE = 22050


def write_tone(
    path: Path, num_samples: int, rate: int = RATE, peak: float = 0.5, **options
) -> None:
    """Write a 220 Hz tone."""
    tone = peak * np.sin(2 * np.pi * 220 * np.arange(num_samples) / RATE)
    soundfile.write(path, tone, rate, **options)


def make_corpus(
    folder: Path, clips: int = 10, suffix: str = "wav", text: str = "Number {}."
) -> Path:
    """Write clips c00, c01, ... with 4000, 4137, ... samples.

    The normalized text of each clip differs from its raw text. A `text` without numbers makes a
    test 3 s faster, because only numbers need the slow import of inflect.
    """
    (folder / "wavs").mkdir(parents=True)
    for i in range(clips):
        write_tone(folder / "wavs" / f"c{i:02}.{suffix}", 4000 + 137 * i)
        add_line(folder, f"c{i:02}|No. {i}|{text.format(i)}")
    return folder


def add_line(corpus: Path, line: str) -> None:
    with open(corpus / "metadata.csv", "a", encoding="utf-8") as file:
        file.write(line + "\n")


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of a folder as {relative path: bytes}, without lock files."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def refusal(function, *arguments, error: type[BaseException] = UserError, **options) -> str:
    """Return the message of the UserError that the call raises."""
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    return str(caught.value)


def kill_while_preparing(suffix: str, options: list[str]) -> None:
    """Run prepare.py, and kill it while it writes its fourth file whose name ends in `suffix`."""
    process = fork_server().Process(target=_prepare_and_be_killed, args=(suffix, options))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def _prepare_and_be_killed(suffix: str, options: list[str]) -> None:
    from scripts import prepare

    write_bytes = Path.write_bytes

    def killing_write(path, content):
        if len(list(path.parent.glob(f"*{suffix}"))) >= 3:
            with open(path, "wb") as file:
                file.write(content[: len(content) // 2])
            kill_self()
        return write_bytes(path, content)

    with patch.object(Path, "write_bytes", killing_write):
        prepare.main(options)


def prepare_with(*values, **options) -> list[Path]:
    """Create a `Preparation` with these arguments, and pass it to `prepare`."""
    return prepare(Preparation(*values, **options))


def skip_plots(patch: pytest.MonkeyPatch) -> None:
    """Replace the plots of `prepare` with placeholders, because drawing takes most of its time."""
    for name in ("draw_lengths", "draw_corpus"):
        patch.setattr(preparation, name, lambda *_: b"a plot")
