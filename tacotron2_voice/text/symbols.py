"""Define tables of input symbols. A symbol's id is the symbol's index in the table and in the
embedding.

`ENGLISH` contains the 148 symbols of NVIDIA/tacotron2 in the same order as the rows of trained
embeddings. The phones in `ENGLISH` begin with "@", so that the ARPAbet phone B and the letter B are
different symbols. For other languages, `table_of` makes a table from the texts of a corpus, and
`read_table` reads a table from a file. Each run stores its symbol table.
"""

import functools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import naming, read_json

SYMBOLS_FILE = "symbols.json"  # file with the list of symbols, written next to the filelists
PADDING = "_"  # symbol with id 0, which pads the texts of a batch
MAX_SYMBOLS = 10_000  # maximum number of symbols; Chinese needs several thousand symbols
_PUNCTUATION = "-!'(),.:;? "
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PHONES = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W "
    "Y Z ZH"
).split()


# A vowel has four forms: without a digit, and with one of the stress digits 0 (no stress), 1
# (primary stress) and 2 (secondary stress).
_STRESSES = {phone: ["", "0", "1", "2"] if phone[0] in "AEIOU" else [""] for phone in _PHONES}
_ARPABET = [f"@{phone}{stress}" for phone in _PHONES for stress in _STRESSES[phone]]

symbols: list[str] = [PADDING, *_PUNCTUATION, *_LETTERS, *_ARPABET]


@dataclass(frozen=True)
class SymbolTable:
    """Symbols in the order of their ids.

    Raises:
        UserError: if there are fewer than 2 or more than MAX_SYMBOLS symbols, if the first symbol is
            not the padding "_", or if a symbol is invalid. A symbol must be unique, in Unicode form
            NFC, and either a printable character or "@" followed by an ARPAbet phone.
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
        """Return {symbol: id}. Only the dict of the English table contains the padding symbol "_",
        because NVIDIA's code accepts this symbol in texts."""
        return {x: i for i, x in enumerate(self.symbols) if i or self.is_english}

    @functools.cached_property
    def is_english(self) -> bool:
        return self.symbols == tuple(symbols)

    @functools.cached_property
    def has_phones(self) -> bool:
        """Return whether the table contains ARPAbet phones, so that texts may contain phones in
        braces."""
        return any(len(symbol) > 1 for symbol in self.symbols)

    @functools.cached_property
    def spoken_ids(self) -> set[int]:
        """Return the ids of letters, phones and digits. Digits are included because some languages
        write tones as digits."""
        return {i for x, i in self.ids.items() if i and (len(x) > 1 or x.isalnum())}


def _problem_of(table: object) -> str:
    """Return a message about the first problem in a symbol table, or "" if there is no problem."""
    expected = f"expected a list of 2 to {MAX_SYMBOLS:,} symbols, with the padding '_' first"
    if not isinstance(table, list | tuple):
        return f"not a list ({expected})"
    if not 2 <= len(table) <= MAX_SYMBOLS:
        return f"{len(table):,} symbols ({expected})"
    seen: set[str] = set()
    for i, symbol in enumerate(table):
        where = f"number {i + 1}, {str(symbol)[:20]!r}"
        if not isinstance(symbol, str) or (len(symbol) != 1 and symbol not in _ARPABET):
            return f"{where}: neither one character nor an ARPAbet phone such as '@AA1'"
        if not can_be_symbol(symbol):
            return f"{where}: not a printable character"
        if (composed := unicodedata.normalize("NFC", symbol)) != symbol:
            return f"{where}: not in Unicode's form NFC (expected {composed!r})"
        if (i == 0) != (symbol == PADDING):
            return f"{where}: the padding '_' must be the first symbol"
        if symbol in seen:
            return f"{where}: this symbol occurs twice"
        seen.add(symbol)
    return ""


def can_be_symbol(symbol: str) -> bool:
    """Return whether a string is a symbol of the English table or a single printable character.

    Control characters, line breaks and unassigned code points are not printable.
    """
    is_control = unicodedata.category(symbol[0]) in ("Cc", "Cs", "Cn", "Zl", "Zp")
    return symbol in symbols or (len(symbol) == 1 and not is_control)


ENGLISH = SymbolTable(tuple(symbols))


@functools.lru_cache(8)
def table_with(symbols: tuple[str, ...]) -> SymbolTable:
    """Return a table of these symbols, or the English table if `symbols` is empty."""
    return SymbolTable(symbols) if symbols else ENGLISH


def table_of(characters: Iterable[str]) -> SymbolTable:
    """Return a table that contains the padding, followed by the sorted characters."""
    return SymbolTable((PADDING, *sorted(set(characters) - {PADDING})))


def read_table(path: Path) -> SymbolTable:
    """Read a symbol table from a JSON file. Raise UserError if the file contains no valid symbol
    table."""
    symbols = read_json(
        path,
        "no such symbol table; scripts/prepare.py --hparams symbols=corpus writes it",
        "expected a list of strings",
    )
    with naming(path):
        return SymbolTable(symbols)
