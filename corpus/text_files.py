"""Read the text files of a corpus, in UTF-8 or another encoding.

    text = read_text(Path("metadata.csv"))
    texts = decode({path: path.read_bytes() for path in paths}, encoding="cp1251")

If a file is not UTF-8, charset-normalizer detects the encoding, and a note with the encoding is
printed. If several encodings are about equally likely and produce different texts, the user must
choose an encoding.
"""

import codecs
import contextlib
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from charset_normalizer import CharsetMatch, from_bytes, is_binary

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes

# List only common encodings, because more files would be ambiguous with rare encodings.
ENCODINGS = (
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp874 cp932 gb18030 big5 cp949 koi8_r "
    "utf_16 utf_16_le utf_16_be utf_32"
).split()
# charset-normalizer rates the chaos and the coherence of a decoded text from 0 to 1. Encodings are
# likely if both ratings are close to the best ratings. The chaos may be higher by MAX_MORE_CHAOS,
# and the coherence may be lower by MAX_LESS_COHERENCE.
MAX_MORE_CHAOS, MAX_LESS_COHERENCE = 0.15, 0.1
# Matches punctuation at the end of a text.
ENDS_SENTENCE = re.compile(r"[.!?…。！？।॥,;:—–-][\"'”’»)\]」』]*\s*$")
# If the last text ends without punctuation, a warning is printed only if at least MIN_TEXTS other
# texts exist, and if at least the fraction MIN_COMPLETE of the other texts ends with punctuation.
MIN_TEXTS, MIN_COMPLETE = 4, 0.9
MIN_LATIN = 0.8  # minimum fraction of Latin letters in UTF-16 without a byte-order mark
# Maximum fraction of zero bytes in a damaged UTF-8 file. Files in UTF-16 and UTF-32 contain more
# zero bytes.
MAX_ZEROS = 0.05
MAX_SHOWN = 5  # maximum number of encodings to list in a message
EXAMPLE_LETTERS = 60  # maximum number of letters of a decoded excerpt in a message


def read_text(path: Path, encoding: str = "", if_missing: str = "no such file") -> str:
    """Return the text of a file without the byte-order mark. Raise UserError if the file cannot be
    decoded."""
    return decode({path: read_bytes(path, if_missing=if_missing)}, encoding)[path]


def on_one_line(text: str, divided: list[str]) -> str:
    """Return a text on one line.

    If a line ends with a hyphen, the hyphen stays, because the program cannot know whether the hyphen
    divides a word ("compara-" and "tively") or belongs to the text ("I was going to-"). The two parts
    are appended to the list `divided`.
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    for before, line in pairwise(lines):
        if re.search(r"\w-$", before) and line[0].islower():
            divided.append(f"{before.split()[-1]} {line.split()[0]}")
    return " ".join(lines)


def print_divided(path: Path, divided: Sequence[str]) -> None:
    """Print a note about lines that end with a hyphen, if there are such lines."""
    if divided:
        lines = "1 line ends" if len(divided) == 1 else f"{len(divided):,} lines end"
        print(
            f"note: {path}: {lines} with a hyphen, such as in {divided[0]!r}. If the hyphen divides a "
            "word, write the word on one line without the hyphen"
        )


def check_last_line(path: Path, content: str, texts: Sequence[str]) -> None:
    """Print a warning if a file may be cut off inside its last text.

    The warning is printed if all of these conditions are met:

    - The last text is at the end of the file, and no line break follows.
    - The last text does not end with punctuation.
    - Most other texts end with punctuation.

    Args:
        content: the content of the file.
        texts: the texts in the file, in file order.
    """
    ends_with_text = bool(texts) and content.split()[-1:] == texts[-1].split()[-1:]
    if len(texts) <= MIN_TEXTS or not ends_with_text or content.endswith("\n"):
        return
    num_complete = sum(ENDS_SENTENCE.search(text) is not None for text in texts[:-1])
    if ENDS_SENTENCE.search(texts[-1]) or num_complete < MIN_COMPLETE * (len(texts) - 1):
        return
    last_line = 1 + content.count("\n")
    print(
        f"warning: {path}:{last_line}: the last text, {texts[-1][-60:]!r}, ends without punctuation "
        "and without a line break, unlike the other texts, so the end of the file may be missing. If "
        "the text is complete, add a line break"
    )


def decode(contents: Mapping[Path, bytes], encoding: str = "") -> dict[Path, str]:
    """Decode text files. All files that are not UTF-8 must have the same encoding.

    Args:
        encoding: the encoding, as named in Python; "": detect the encoding.

    Raises:
        UserError: if a file is binary, if a file is not valid in `encoding`, or if several
            encodings are equally likely.
    """
    texts = {}
    utf16: dict[str, dict[Path, bytes]] = {}
    others = {}
    for path, content in contents.items():
        if not encoding and (name := _name_of_utf16(content)):
            utf16.setdefault(name, {})[path] = content
            continue
        if problem := _problem_of_zeros(content):
            raise UserError(f"{path}:{problem}")
        if b"\0" in content and not encoding:
            # English text in UTF-16 is also valid UTF-8, but contains zero bytes.
            others[path] = content
            continue
        try:
            texts[path] = content.decode(encoding or "utf-8-sig")
        except UnicodeDecodeError as error:
            if encoding or _is_damaged_utf8(content):
                line = content[: error.start].count(b"\n") + 1
                found = content[error.start : error.start + 10]
                raise UserError(
                    f"{path}:{line}: {found!r} cannot be decoded as {error.encoding}; fix this line"
                ) from None
            others[path] = content
    for name, group in utf16.items():
        texts |= _decode_others(group, name)
    if others:
        texts |= _decode_others(others, "")
    return {path: texts[path] for path in contents}


def _name_of_utf16(content: bytes) -> str:
    """Return "utf_16", "utf_16_be" or "utf_16_le" if the content is encoded in UTF-16. Otherwise
    return "".

    UTF-16 without a byte-order mark is recognized by its zero bytes: most Latin letters consist of
    one zero byte and one other byte.
    """
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    if content.startswith(marks) and not content.startswith(codecs.BOM_UTF32_LE):
        return "utf_16"
    halves = {"utf_16_be": (content[::2], content[1::2])}
    halves["utf_16_le"] = halves["utf_16_be"][::-1]
    for name, (high, low) in halves.items():
        if (
            0 not in low
            and high
            and high.count(0) >= MIN_LATIN * len(high)
            and len(content) % 2 == 0
        ):
            return name
    return ""


def _problem_of_zeros(content: bytes) -> str:
    """If a file in UTF-8 contains a few zero bytes, return a message that begins with the line number
    of the first zero byte. Otherwise return ""."""
    if not 0 < content.count(0) <= MAX_ZEROS * len(content):
        return ""
    with contextlib.suppress(UnicodeDecodeError):
        content.decode()
        line = content[: content.index(0)].count(b"\n") + 1
        return f"{line}: contains a zero byte (\\0), expected only text; remove this byte"
    return ""


def _decode_others(contents: Mapping[Path, bytes], name: str) -> dict[Path, str]:
    """Decode files that are not UTF-8 with the encoding `name`, or with a detected encoding if
    `name` is "". Print a note with the encoding."""
    path, *more = contents
    where = f"{path} and {len(more):,} more files" if more else str(path)
    name = name or _recognize(where, b"\n".join(contents.values()))
    texts = {}
    for one, content in contents.items():
        try:
            texts[one] = content.decode(name)
        except UnicodeDecodeError as error:
            raise UserError(f"{one}: not valid {name} ({error})") from None
    print(
        f"note: {where}: not UTF-8, so the text was decoded with the detected encoding {name}. "
        f"Excerpt: {_example(chr(10).join(texts.values()))!r}. If the excerpt is wrong, add "
        "--encoding NAME"
    )
    return texts


def _is_damaged_utf8(content: bytes) -> bool:
    """Return whether most non-ASCII characters of a file are valid UTF-8."""
    text = content.decode(errors="replace")
    return sum(x > "\x7f" for x in text) > 2 * text.count("\ufffd")


def _recognize(where: str, content: bytes) -> str:
    """Return the encoding of a text that is not UTF-8.

    Raise UserError if the content is binary, or if the encoding is unknown or ambiguous.
    """
    if is_binary(content):
        raise UserError(f"{where}: binary file, expected text")
    matches = list(from_bytes(content, cp_isolation=ENCODINGS))
    if not matches:
        raise UserError(f"{where}: the encoding of the text is unknown; add --encoding NAME")
    likely = _likely(matches)
    if len(likely) > 1:
        examples = [f"\n  --encoding {name}: {_example(likely[name])!r}" for name in likely]
        raise UserError(
            f"{where}: not UTF-8, and several encodings are possible. Add the option next to "
            f"the correct text:{''.join(examples[:MAX_SHOWN])}"
        )
    return next(iter(likely))


def _likely(matches: Sequence[CharsetMatch]) -> dict[str, str]:
    """Return {encoding: decoded text} for the likely encodings. If several encodings produce the
    same text, the dictionary contains only the encoding that comes first in ENCODINGS."""
    clear = [x for x in matches if x.chaos <= matches[0].chaos + MAX_MORE_CHAOS]
    coherence = max((x.coherence for x in clear), default=0.0)
    return {
        next(name for name in ENCODINGS if name in match.could_be_from_charset): str(match)
        for match in clear
        if match.coherence >= coherence - MAX_LESS_COHERENCE
    }


def _example(text: str) -> str:
    """Return an excerpt of the first line that contains a non-ASCII character."""
    line = next((x for x in text.splitlines() if not x.isascii()), text.partition("\n")[0])
    first = next((i for i, x in enumerate(line) if not x.isascii()), 0)
    return line[max(0, first - 20) :][:EXAMPLE_LETTERS]


def check_encoding(name: str) -> str:
    """Return Python's name for an encoding of text files. Raise ValueError if Python does not
    support the encoding, or if the codec is not for text, such as "hex" and "zip"."""
    try:
        found = codecs.lookup(name).name
        with contextlib.suppress(UnicodeDecodeError):  # the example is not valid in all encodings
            b"Yes.\n".decode(found)
    except (LookupError, UnicodeError):
        raise ValueError(name) from None
    if found == "idna":  # converts only the names of internet hosts
        raise ValueError(name)
    return found
