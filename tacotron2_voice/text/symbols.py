"""Define tables of input symbols. The position of a symbol is its id, a row of the embedding.

`ENGLISH` has the 148 symbols of NVIDIA/tacotron2 in their order, which the rows of trained
embeddings follow. Its phones begin with "@", so that the ARPAbet phone B and the letter B are
different symbols. `table_of` makes the tables for other languages from the texts of a corpus, and
`read_table` reads them from a file. They are saved with a run.
"""

import functools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_json

SYMBOLS_FILE = "symbols.json"  # a list of strings, which `prepare` writes next to the filelists
PADDING = "_"  # id 0, which pads the texts of a batch
MAX_SYMBOLS = 10_000  # Chinese needs several thousand symbols
_PUNCTUATION = "-!'(),.:;? "
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PHONES = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W "
    "Y Z ZH"
).split()


# A vowel has four forms: without a stress mark, or with stress 0 (none), 1 (primary) or 2
# (secondary).
_STRESSES = {phone: ["", "0", "1", "2"] if phone[0] in "AEIOU" else [""] for phone in _PHONES}
_ARPABET = {f"@{phone}{stress}" for phone in _PHONES for stress in _STRESSES[phone]}

symbols: list[str] = [
    PADDING,
    *_PUNCTUATION,
    *_LETTERS,
    *(f"@{phone}{stress}" for phone in _PHONES for stress in _STRESSES[phone]),
]


@dataclass(frozen=True)
class SymbolTable:
    """Symbols in the order of their ids.

    Raises:
        UserError: if there are not 2 to MAX_SYMBOLS symbols, the first is not the padding "_", or a
            symbol is a duplicate, a control character, not in form NFC, or neither one character
            nor "@" and a phone of the ARPAbet.
    """

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if problem := _problem_of(self.symbols):
            raise UserError(f"symbols: {problem}")
        object.__setattr__(self, "symbols", tuple(self.symbols))

    def __len__(self) -> int:
        return len(self.symbols)

    @functools.cached_property
    def ids(self) -> dict[str, int]:
        """Ids by symbol. Only English texts may contain the padding as a symbol, like in NVIDIA's
        code."""
        return {x: i for i, x in enumerate(self.symbols) if i or self.is_english}

    @functools.cached_property
    def is_english(self) -> bool:
        return self.symbols == tuple(symbols)

    @functools.cached_property
    def has_phones(self) -> bool:
        """Return whether a text may contain phones of the ARPAbet in braces."""
        return any(len(symbol) > 1 for symbol in self.symbols)

    @functools.cached_property
    def spoken_ids(self) -> set[int]:
        """Return the ids of letters, phones and digits. Digits are included because they may stand
        for tones."""
        return {i for x, i in self.ids.items() if i and (len(x) > 1 or x.isalnum())}


def _problem_of(table: object) -> str:
    """Return the first problem with the symbols of a table, or ""."""
    expected = f"expected a list of 2 to {MAX_SYMBOLS:,}, with the padding '_' first"
    if not isinstance(table, list | tuple):
        return f"not a list ({expected})"
    if not 2 <= len(table) <= MAX_SYMBOLS:
        return f"{len(table):,} symbols ({expected})"
    seen: set[str] = set()
    for i, symbol in enumerate(table):
        where = f"number {i + 1}, {str(symbol)[:20]!r}"
        if not isinstance(symbol, str) or (len(symbol) != 1 and symbol not in _ARPABET):
            return f"{where}: expected one character, or a phone of the ARPAbet such as '@AA1'"
        if not can_be_symbol(symbol):
            return f"{where}: a control character (expected a printable one)"
        if (composed := unicodedata.normalize("NFC", symbol)) != symbol:
            return f"{where}: not in Unicode's form NFC (expected {composed!r})"
        if (i == 0) != (symbol == PADDING) or symbol in seen:
            return f"{where}: expected every symbol once, with the padding '_' first"
        seen.add(symbol)
    return ""


def can_be_symbol(symbol: str) -> bool:
    """Return whether this is a phone of the ARPAbet, or one character except controls, line breaks
    and unassigned code points."""
    is_control = unicodedata.category(symbol[0]) in ("Cc", "Cs", "Cn", "Zl", "Zp")
    return symbol in symbols or (len(symbol) == 1 and not is_control)


ENGLISH = SymbolTable(tuple(symbols))


@functools.lru_cache(8)
def table_with(symbols: tuple[str, ...]) -> SymbolTable:
    """Return the table of these symbols, or the English table for ()."""
    return SymbolTable(symbols) if symbols else ENGLISH


def table_of(characters: Iterable[str]) -> SymbolTable:
    """Return a table of the padding and the sorted characters of texts."""
    return SymbolTable((PADDING, *sorted(set(characters) - {PADDING})))


def read_table(path: Path) -> SymbolTable:
    """Return the table in a file. Raise UserError if it cannot be read or contains no symbol
    table."""
    symbols = read_json(
        path,
        "no such symbol table; scripts/prepare.py --hparams symbols=corpus writes it",
        "expected a list of strings",
    )
    with naming(path):
        return SymbolTable(symbols)
