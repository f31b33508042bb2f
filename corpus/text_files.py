"""Read the text files of a corpus, in UTF-8 or in the encoding that they are in.

    text = read_text(Path("metadata.csv"))
    texts = decode({path: path.read_bytes() for path in paths}, encoding="cp1251")

A file that is not UTF-8 is read in the encoding that charset-normalizer finds, and a note says which
one. If several encodings give different texts that are about as likely, the user must choose.
"""

import codecs
import re
from collections.abc import Mapping
from pathlib import Path

from charset_normalizer import CharsetMatch, from_bytes, is_binary

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes

# Encodings that people's tables are in. charset-normalizer knows rarer encodings too, which would
# make more files ambiguous.
ENCODINGS = (
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "cp874"),
    *("cp932", "gb18030", "big5", "cp949", "koi8_r", "utf_16", "utf_16_le", "utf_16_be", "utf_32"),
)
# An encoding counts as likely if its chaos and coherence, which charset-normalizer measures from 0
# to 1, differ by less than this from the best encoding's.
MAX_MORE_CHAOS, MAX_LESS_COHERENCE = 0.15, 0.1
MAX_SHOWN = 5  # encodings in a message
EXAMPLE_LETTERS = 60
# Marks of files that are text in part, but no table and no transcript.
DOCUMENTS = (b"%PDF-", b"{\\rtf", b"PK\x03\x04")
# The first bytes of UTF-8's accents, quotation marks and Cyrillic letters, read as Windows-1252.
LEAD_BYTES = re.compile("[ÃÂâÐÑ][^\x00-\x7f]")


def read_text(path: Path, encoding: str = "", if_missing: str = "no such file") -> str:
    """Read a text file, without a byte-order mark; `encoding` and errors as `decode`."""
    return decode({path: read_bytes(path, if_missing=if_missing)}, encoding)[path]


def decode(contents: Mapping[Path, bytes], encoding: str = "") -> dict[Path, str]:
    """Decode the contents of files that are all in one encoding, or in UTF-8.

    Args:
        contents: the bytes of each file.
        encoding: Python's name of the encoding; "" to recognize it.

    Raises:
        UserError: if a file is binary, or not in `encoding`, or if several encodings are likely.
    """
    texts = {}
    others = {}
    for path, content in contents.items():
        # UTF-16 of English letters without a byte-order mark is also UTF-8, with zero bytes.
        known = encoding or ("utf-8-sig" if b"\0" not in content else "")
        if content.startswith(DOCUMENTS):
            raise UserError(f"{path}: a document, expected plain text")
        try:
            texts[path] = content.decode(known) if known else ""
        except UnicodeDecodeError as error:
            if encoding or _is_damaged_utf8(content):
                raise _wrong_bytes(path, content, error) from None
            known = ""
        if not known:
            others[path] = content
    if others:
        found = _recognize(others)
        texts |= {path: content.decode(found) for path, content in others.items()}
        _print_note(others, texts, found)
    return {path: texts[path] for path in contents}


def _wrong_bytes(path: Path, content: bytes, error: UnicodeDecodeError) -> UserError:
    line = content[: error.start].count(b"\n") + 1
    found = content[error.start : error.start + 10]
    return UserError(f"{path}:{line}: {found!r}, expected text in {error.encoding}; fix this line")


def _is_damaged_utf8(content: bytes) -> bool:
    """Return whether most characters above ASCII are right in UTF-8, so that others are damage."""
    text = content.decode(errors="replace")
    return sum(x > "\x7f" for x in text) > 2 * text.count("\ufffd")


def _recognize(contents: Mapping[Path, bytes]) -> str:
    """Return the encoding of files that are not UTF-8; errors as `decode`."""
    path, *more = contents
    of_others = f" and {len(more):,} more files" * bool(more)
    joined = b"\n".join(contents.values()) if more else contents[path]
    if is_binary(joined):
        raise UserError(f"{path}{of_others}: binary, expected text")
    matches = list(from_bytes(joined, cp_isolation=list(ENCODINGS)))
    if not matches:
        raise UserError(f"{path}{of_others}: text in an unknown encoding; add --encoding NAME")
    clear = [x for x in matches if x.chaos <= matches[0].chaos + MAX_MORE_CHAOS]
    coherence = max(x.coherence for x in clear)
    likely = [x for x in clear if x.coherence >= coherence - MAX_LESS_COHERENCE]
    if len(likely) > 1:
        examples = "\n".join(
            f"  --encoding {_name(match)}: {_example(str(match))!r}" for match in likely[:MAX_SHOWN]
        )
        raise UserError(
            f"{path}{of_others}: not UTF-8, and in one of several encodings. Add the option whose "
            f"line is right:\n{examples}"
        )
    return _name(likely[0])


def _name(match: CharsetMatch) -> str:
    """Return the best-known name of the encodings that give this text."""
    names = match.could_be_from_charset
    return next((name for name in ENCODINGS if name in names), match.encoding)


def _example(text: str) -> str:
    """Return a piece of a line that contains letters above ASCII, from the first such letter on."""
    line = next((x for x in text.splitlines() if not x.isascii()), text.partition("\n")[0])
    first = next((i for i, x in enumerate(line) if not x.isascii()), 0)
    return line[max(0, first - 20) :][:EXAMPLE_LETTERS]


def _print_note(others: Mapping[Path, bytes], texts: Mapping[Path, str], encoding: str) -> None:
    path, *more = others
    of_others = f" and {len(more):,} more files" * bool(more)
    example = next((texts[x] for x in others if not texts[x].isascii()), texts[path])
    print(
        f"note: {path}{of_others}: not UTF-8, read as {encoding}, such as {_example(example)!r}. If "
        "this is wrong, add --encoding NAME"
    )


def check_encoding(name: str) -> str:
    """Return the name of an encoding that Python knows. ValueError if Python knows none."""
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise ValueError(name) from None


def twice_encoded(text: str) -> str | None:
    """Return the characters that were meant if UTF-8 was read as Windows-1252, otherwise None.

    twice_encoded("donâ€™t")  # "don’t"
    """
    if not LEAD_BYTES.search(text):
        return None
    try:
        return b"".join(x.encode("cp1252", "ignore") or x.encode("latin-1") for x in text).decode()
    except UnicodeError:
        return None
