"""encodings.py: what it says of text that is not UTF-8; the commands that it names convert it."""

import contextlib
import gzip
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from corpus.filelist import read_filelist
from corpus.metadata import read_metadata
from hparams import HParams
from tacotron2_voice.texts import read_texts
from tacotron2_voice.utils.encodings import wrong_conversion
from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import numbered_lines, read_bytes

needs_iconv = pytest.mark.skipif(not shutil.which("iconv"), reason="no iconv")
ENGLISH = "1|“It’s 5 € – no more…”\n2|Café\n"


def run_advice(message: str) -> str:
    """Run the command that ends a message; returns it."""
    command = message[message.index("cp -n ") :]
    subprocess.run(command, shell=True, check=True)
    return command


def refusal(path) -> str:
    with pytest.raises(UserError) as caught:
        numbered_lines(path)
    return str(caught.value)


def texts(path) -> str:
    return "".join(f"{line}\n" for _, line in numbered_lines(path))


@needs_iconv
@pytest.mark.parametrize("text", [ENGLISH, "1|Größe, für alle\n2|Café\n"])
def test_western_text_is_converted_from_windows(tmp_path, text):
    """Where no byte from 0x80 to 0x9F occurs, Latin-1 and Windows-1252 are the same."""
    path = tmp_path / "a list.csv"
    path.write_bytes(text.encode("cp1252"))
    message = refusal(path)
    assert "if it is English or Western European, convert it from Windows-1252 (else" in message
    run_advice(message)
    assert texts(path) == text
    assert wrong_conversion(path, path.read_bytes()) is None
    assert path.with_name("a list.csv.old").read_bytes() == text.encode("cp1252")


@needs_iconv
def test_every_conversion_keeps_its_own_original(tmp_path):
    """One that began again from the first original would undo the others."""
    path = tmp_path / "metadata.csv"
    path.write_bytes("a\tIt’s five.\nb\tCafé.\n".encode("cp1252"))
    command = run_advice(refusal(path))
    subprocess.run(command, shell=True, check=True)  # a second time, by mistake
    with pytest.raises(UserError, match="separated by tabs") as caught:
        read_metadata(tmp_path)
    run_advice(str(caught.value))
    assert texts(path) == "a|It’s five.\nb|Café.\n"
    assert sorted(x.name for x in tmp_path.iterdir()) == [
        "metadata.csv",
        "metadata.csv.old",
        "metadata.csv.old+",
    ]


@pytest.mark.parametrize(
    "content",
    ["1|Дом и сад\n".encode("cp1251"), "1|語学の本\n".encode("shift_jis"), b"1|It\x81s 5 o'clock"],
)
def test_other_code_pages_are_not_guessed(tmp_path, content):
    path = tmp_path / "list"
    path.write_bytes(content)
    message = refusal(path)
    assert "find out its encoding, such as" in message
    assert "iconv -f ENCODING -t UTF-8 " in message


def test_damaged_utf8_is_not_converted(tmp_path):
    path = tmp_path / "list"
    path.write_bytes("1|Größe, für\n2|über\n3|".encode() + b"\xe4\n")
    assert refusal(path).endswith(
        "; the rest is UTF-8: write the damaged characters of line 3 again"
    )


@needs_iconv
def test_controls_of_wrong_conversions_are_mended(tmp_path):
    path = tmp_path / "list"
    path.write_text(ENGLISH.encode("cp1252").decode("latin-1"), encoding="utf-8")
    warning = wrong_conversion(path, read_bytes(path))
    assert "list: control characters in line 1, as a conversion of Windows-1252" in warning
    run_advice(warning)
    assert texts(path) == ENGLISH
    path.write_text("1|It\x92s …\n" * 9, encoding="utf-8")  # which Latin-1 lacks
    warning = wrong_conversion(path, read_bytes(path))
    assert "in lines 1, 2, 3, 4, 5 and 4 more, " in warning
    assert warning.endswith("; replace them (U+0092 for ’)")


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1"])
@pytest.mark.parametrize("text", ["1|It’s 5 € – no…\n2|Café\n3|plain\n", "1|“Go on.”\n", "1|да\n"])
def test_text_that_was_encoded_twice_is_converted_back(tmp_path, text, encoding):
    """It’s would be spoken as "ita euro trademark s"."""
    path = tmp_path / "a list"
    wrong = "".join(
        bytes([x]).decode(encoding, "ignore") or bytes([x]).decode("latin-1") for x in text.encode()
    )
    path.write_text(wrong, encoding="utf-8-sig")
    warning = wrong_conversion(path, read_bytes(path))
    assert f"warning: {path}: UTF-8 that was read as Windows-1252, in line" in warning
    command = run_advice(warning.replace("python ", f"{sys.executable} "))
    assert "iconv" not in command
    assert texts(path) == text
    assert wrong_conversion(path, read_bytes(path)) is None


def test_lines_that_were_encoded_twice_are_named(tmp_path):
    """Converting the whole file would damage the others."""
    path = tmp_path / "list"
    path.write_text("1|Café\n2|CafÃ©s\n", encoding="utf-8")
    warning = wrong_conversion(path, read_bytes(path))
    assert warning.endswith("in line 2: 'Ã©s' for 'és'; write their characters again")


@pytest.mark.parametrize("text", ["1|CAFÉ” – Ângela âgée Ñandú\n", "1|É—\n", "1|ÂME\n"])
def test_usual_letters_are_not_taken_for_bytes(tmp_path, text):
    assert wrong_conversion(tmp_path / "list", text.encode()) is None


READERS = {
    "metadata.csv": lambda path: read_metadata(path.parent),
    "train.txt": lambda path: read_filelist(path, HParams(), new_run=True),
    "texts.txt": lambda path: read_texts(
        Namespace(text=None, text_file=path, numbers=False, drop_unknown=False), HParams()
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_programs_warn_of_wrong_conversions(tmp_path, capsys, name):
    path = tmp_path / name
    path.write_text("a|raw|It\x92s five.\n", encoding="utf-8")
    with contextlib.suppress(UserError):  # of the sound, which is missing
        READERS[name](path)
    printed = "".join(capsys.readouterr())
    assert f"warning: {path}: control characters in line 1, as a conversion" in printed


@pytest.mark.parametrize(
    ("encoding", "name", "mark"),
    [
        ("utf-16", "UTF-16", ""),  # python writes a byte-order mark
        ("utf-16-be", "UTF-16", "\ufeff"),
        ("utf-16-le", "UTF-16LE", ""),
        ("utf-16-be", "UTF-16BE", ""),
        ("utf-16", "UTF-16", "語"),  # no zero in its first bytes
        ("utf-32", "UTF-32", ""),
    ],
)
def test_wide_encodings_get_the_command_to_convert(tmp_path, encoding, name, mark):
    path = tmp_path / "a list.csv"
    path.write_bytes(f"{mark}id|Größe\nid2|b\n".encode(encoding))
    with pytest.raises(UserError, match=rf"a list.csv: .* \({name} text in line 1\)") as caught:
        numbered_lines(path, "")
    assert f"iconv -f {name} -t UTF-8 " in run_advice(str(caught.value))
    assert numbered_lines(path, "") == [
        (1, f"{mark.strip(chr(0xFEFF))}id|Größe"),
        (2, "id2|b"),
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"%PDF-1.4\n%\xe2\xe3", r"a PDF, expected a text; .*: pdftotext 'a b' 'a b'\.txt$"),
        (b"PK\x03\x04\x14\0", "zip file, expected a text; save it as plain text in UTF-8 where"),
        (b"{\\rtf1\\ansi four}", "Rich Text Format, expected a text; save it"),
        (gzip.compress(b"four", mtime=0), r"gzip file, .*: gunzip -c 'a b' > 'a b'\.txt$"),
        (b"RIFF\0\0\0\0WAVE", "a sound, expected a text; check its path"),
    ],
)
def test_documents_are_no_text_to_convert(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Path("a b")
    path.write_bytes(content)
    advice = refusal(path)
    assert re.search(message, advice)
    if "gunzip" in advice:
        subprocess.run(advice.partition("that file: ")[2], shell=True, check=True)
        assert texts("a b.txt") == "four\n"
