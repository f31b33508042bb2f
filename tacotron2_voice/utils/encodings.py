"""Texts in UTF-8. For other encodings messages say which one it looks like, and how to convert it.

text = decoded("metadata.csv", content)
warning = wrong_conversion("metadata.csv", content)  # to be printed, or None
"""

import codecs
import os
import re
import shlex
from pathlib import Path

from tacotron2_voice.utils.errors import UserError, in_place

MAX_FOREIGN_SHARE = 0.3  # of the bytes of a text in Latin letters, above 127: accents, quotes
MAX_LINES_NAMED = 5
# The first bytes of UTF-8's accents, quotation marks and Cyrillic letters, as Windows-1252
LEAD_BYTES = re.compile("[ÃÂâÐÑ][^\x00-\x7f]")
# What a wrong conversion from Windows-1252 leaves of quotation marks, dashes and the euro sign.
CONTROLS = re.compile("[\x80-\x9f]")

# How files begin that are no text, and what they are. A conversion would make nonsense of them.
DOCUMENT = "save it as plain text in UTF-8 where it was written, and name that file"
OTHER_FILES = {
    b"%PDF-": ("a PDF", "take its text, and name that file: pdftotext {path} {path}.txt"),
    b"PK\x03\x04": ("a .docx, .odt, .epub or other zip file", DOCUMENT),
    b"{\\rtf": ("a document in Rich Text Format", DOCUMENT),
    b"\xd0\xcf\x11\xe0": ("a document of Microsoft Office", DOCUMENT),
    b"\x1f\x8b": ("a gzip file", "unpack it, and name that file: gunzip -c {path} > {path}.txt"),
    **dict.fromkeys((b"RIFF", b"fLaC", b"OggS", b"ID3"), ("a sound", "check its path")),
    **dict.fromkeys((b"\x89PNG", b"\xff\xd8\xff", b"GIF8"), ("a picture", "check its path")),
    b"\x7fELF": ("a program", "check its path"),
}


def decoded(path: str | Path, content: bytes) -> str:
    """The text of a file's bytes, without a byte-order mark. UserError if they are not UTF-8; it
    says how to convert the file, and keeps its original. UserError for a document, too."""
    for begin, (kind, fix) in OTHER_FILES.items():
        if content.startswith(begin):
            fix = fix.format(path=shlex.quote(str(path)))
            raise UserError(f"{path}: {kind}, expected a text; {fix}")
    encoding = _wide_encoding(content)
    try:
        if not encoding:
            return content.decode("utf-8-sig")
        reason, line = f"{encoding} text", 1
        fix = f"convert it: {_conversion(path, _from(encoding))}"
    except UnicodeDecodeError as error:
        reason, line = error.reason, content[: error.start].count(b"\n") + 1
        fix = _fix(path, content)
    raise UserError(f"{path}: not readable as UTF-8 text ({reason} in line {line}); {fix}")


def wrong_conversion(path: str | Path, content: bytes) -> str | None:
    """A warning if a text in UTF-8 has control characters from U+0080 to U+009F, or was UTF-8 that
    was read as Windows-1252 and encoded again. None if it is no UTF-8, which `decoded` refuses."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    if warning := _twice_encoded(path, text):
        return warning
    controls = sorted(set(CONTROLS.findall(text)))
    if not controls:
        return None
    lines = [number for number, x in enumerate(text.split("\n"), 1) if CONTROLS.search(x)]
    meant = {x: x.encode("latin-1").decode("cp1252", "replace") for x in controls}
    pairs = [f"U+{ord(x):04X} for {mark}" for x, mark in meant.items() if mark != "\ufffd"]
    fix = f"replace them ({', '.join(pairs[:MAX_LINES_NAMED])})" if pairs else "delete them"
    if max(text) <= "\xff" and len(pairs) == len(controls):
        fix = f"convert it again: {_conversion(path, 'iconv -f UTF-8 -t LATIN1', 'CP1252')}"
    return (
        f"warning: {path}: control characters in {_named(lines)}, as a conversion of Windows-1252 "
        f"text from Latin-1 leaves of quotation marks and dashes; {fix}"
    )


def _twice_encoded(path: str | Path, text: str) -> str | None:
    """A warning about lines whose characters are the bytes of UTF-8: â€™ for an apostrophe."""
    lines = [(i, line) for i, line in enumerate(text.split("\n"), 1) if not line.isascii()]
    once = {number: _encoded_once(line) for number, line in lines if LEAD_BYTES.search(line)}
    wrong = [number for number, line in once.items() if line is not None]
    if not wrong:
        return None
    number, line = next((number, line) for number, line in lines if number == wrong[0])
    place = LEAD_BYTES.search(line).start()  # type: ignore[union-attr]
    meant = str(once[number])
    fix = "write their characters again"
    if len(wrong) == len(lines):
        decode = "sys.stdin.reconfigure(encoding='utf-8-sig')"
        each = "c.encode('cp1252', 'ignore') or c.encode('latin-1')"
        write = f"sys.stdout.buffer.write(b''.join({each} for c in sys.stdin.read()))"
        command = f'python -c "import sys; {decode}; {write}"'
        fix = f"convert it back: {_conversion(path, command)}"
    return (
        f"warning: {path}: UTF-8 that was read as Windows-1252, in {_named(wrong)}: "
        f"{line[place : place + 20]!r} for {meant[place : place + 16]!r}; {fix}"
    )


def _encoded_once(line: str) -> str | None:
    """The line whose UTF-8 was read as Windows-1252 to make this one, or None."""
    try:
        content = b"".join(x.encode("cp1252", "ignore") or x.encode("latin-1") for x in line)
        return content.decode()
    except UnicodeError:
        return None


def _wide_encoding(content: bytes) -> str:
    """UTF-16 or UTF-32, if that is what a text is in; else empty."""
    is_marked = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if not is_marked and b"\0" not in content[:4]:  # the other half of an ASCII character
        return ""
    if b"\0\0" in content[:4]:
        return "UTF-32"
    return "UTF-16" if is_marked else "UTF-16LE" if content[0] else "UTF-16BE"


def _fix(path: str | Path, content: bytes) -> str:
    """How to mend a text that is not UTF-8."""
    text, high = content.decode(errors="replace"), [x for x in content if x > 127]
    lines = [number for number, x in enumerate(text.split("\n"), 1) if "\ufffd" in x]
    if sum(x > "\x7f" for x in text) > 2 * text.count("\ufffd"):
        return f"the rest is UTF-8: write the damaged characters of {_named(lines)} again"
    others = "such as CP1250 for Polish, CP1251 for Russian, GB18030 for Chinese"
    try:
        content.decode("cp1252")  # which lacks five bytes
        is_western = len(high) <= MAX_FOREIGN_SHARE * len(content)
    except UnicodeDecodeError:
        is_western = False
    if is_western:
        when, name = "if it is English or Western European, convert it from Windows-1252", "CP1252"
        return f"{when} (else name its encoding, {others}): {_conversion(path, _from(name))}"
    when = f"find out its encoding, {others}, and write it in place of ENCODING"
    return f"{when}: {_conversion(path, _from('ENCODING'))}"


def _from(encoding: str) -> str:
    return f"iconv -f {encoding} -t UTF-8"


def _conversion(path: str | Path, command: str, then_from: str = "") -> str:
    """A shell's command that converts a file in place and keeps the original beside it; of what is
    no file, the command to pipe it through."""
    then = f" | {_from(then_from)}" if then_from else ""
    if not os.path.isfile(path):
        return f"pipe it through {command}{then}"
    return in_place(path, command + then)


def _named(lines: list[int]) -> str:
    """Lines by their numbers, as in "lines 2, 5 and 7 more"."""
    numbers = ", ".join(map(str, lines[:MAX_LINES_NAMED]))
    more = f" and {len(lines) - MAX_LINES_NAMED:,} more" if len(lines) > MAX_LINES_NAMED else ""
    return f"line{'s' * (len(lines) > 1)} {numbers}{more}"
