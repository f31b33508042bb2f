"""Read the text files of a corpus, in UTF-8 or in another encoding.

    text = read_text(Path("metadata.csv"))
    texts = decode({path: path.read_bytes() for path in paths}, encoding="cp1251")

A file that is not UTF-8 is read in the encoding that charset-normalizer finds, and a note says
which one. If several encodings give different texts that are about as likely, the user must choose.
"""

import codecs
from collections.abc import Mapping
from pathlib import Path

from charset_normalizer import from_bytes, is_binary

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes

# These encodings are common. charset-normalizer also finds rarer encodings, but they would make
# more files ambiguous.
ENCODINGS = (
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp874 cp932 gb18030 big5 cp949 koi8_r "
    "utf_16 utf_16_le utf_16_be utf_32"
).split()
# An encoding counts as likely if its chaos and coherence, which charset-normalizer measures from 0
# to 1, differ by less than this from the best encoding's.
MAX_MORE_CHAOS, MAX_LESS_COHERENCE = 0.15, 0.1
MAX_SHOWN = 5  # encodings in a message
EXAMPLE_LETTERS = 60


def read_text(path: Path, encoding: str = "", if_missing: str = "no such file") -> str:
    """Read a text file, without its byte-order mark. See `decode` for `encoding` and for errors."""
    return decode({path: read_bytes(path, if_missing=if_missing)}, encoding)[path]


def decode(contents: Mapping[Path, bytes], encoding: str = "") -> dict[Path, str]:
    """Decode the contents of files that all have the same encoding, or UTF-8.

    Args:
        contents: the bytes of each file.
        encoding: Python's name of the encoding; "": find the encoding.

    Raises:
        UserError: if a file is binary, or not in `encoding`, or if several encodings are likely.
    """
    texts = {}
    others = {}
    for path, content in contents.items():
        if b"\0" in content and not encoding:
            # UTF-16 of English letters is also valid UTF-8, but contains zero bytes.
            others[path] = content
            continue
        try:
            texts[path] = content.decode(encoding or "utf-8-sig")
        except UnicodeDecodeError as error:
            if encoding or _is_damaged_utf8(content):
                line = content[: error.start].count(b"\n") + 1
                found = content[error.start : error.start + 10]
                raise UserError(
                    f"{path}:{line}: {found!r}, expected text in {error.encoding}; fix this line"
                ) from None
            others[path] = content
    if others:
        path, *more = others
        where = f"{path} and {len(more):,} more files" if more else str(path)
        joined = b"\n".join(others.values())
        name = _recognize(where, joined)
        texts |= {path: content.decode(name) for path, content in others.items()}
        example = _example(joined.decode(name, "replace"))
        print(
            f"note: {where}: not UTF-8, read as {name}, such as {example!r}. If this is wrong, add "
            "--encoding NAME"
        )
    return {path: texts[path] for path in contents}


def _is_damaged_utf8(content: bytes) -> bool:
    """Return whether most characters above ASCII are valid UTF-8, so that the file is damaged
    UTF-8."""
    text = content.decode(errors="replace")
    return sum(x > "\x7f" for x in text) > 2 * text.count("\ufffd")


def _recognize(where: str, content: bytes) -> str:
    """Return the encoding of text that is not UTF-8. Raises the errors of `decode`."""
    if is_binary(content):
        raise UserError(f"{where}: binary, expected text")
    matches = list(from_bytes(content, cp_isolation=ENCODINGS))
    if not matches:
        raise UserError(f"{where}: text in an unknown encoding; add --encoding NAME")
    clear = [x for x in matches if x.chaos <= matches[0].chaos + MAX_MORE_CHAOS]
    coherence = max(x.coherence for x in clear)
    likely = {  # encodings that give the same text are merged under the best-known name
        next(name for name in ENCODINGS if name in match.could_be_from_charset): str(match)
        for match in clear
        if match.coherence >= coherence - MAX_LESS_COHERENCE
    }
    if len(likely) > 1:
        examples = [f"\n  --encoding {name}: {_example(likely[name])!r}" for name in likely]
        raise UserError(
            f"{where}: not UTF-8, and in one of several encodings. Add the option whose line is "
            f"right:{''.join(examples[:MAX_SHOWN])}"
        )
    return next(iter(likely))


def _example(text: str) -> str:
    """Return a piece of a line, starting at the first letter above ASCII."""
    line = next((x for x in text.splitlines() if not x.isascii()), text.partition("\n")[0])
    first = next((i for i, x in enumerate(line) if not x.isascii()), 0)
    return line[max(0, first - 20) :][:EXAMPLE_LETTERS]


def check_encoding(name: str) -> str:
    """Return Python's name of an encoding. Raises ValueError if Python does not support it."""
    try:
        return codecs.lookup(name).name
    except LookupError:
        raise ValueError(name) from None
