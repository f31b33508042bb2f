"""Tables of input symbols; a symbol's place in its table is its id, a row of the embedding.

`ENGLISH` has the 148 symbols of NVIDIA/tacotron2 in their order, which the rows of trained
embeddings follow. Its phones begin with "@", so that the ARPAbet phone B and the letter B are two
symbols. Tables for other languages are made from a corpus's texts (`table_of`) and saved with a
run.
"""

import functools
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass

from tacotron2_voice.utils.errors import UserError

PADDING = "_"  # id 0, which fills up a batch
MAX_SYMBOLS = 10_000  # Chinese written as it is has some thousands
_PUNCTUATION = "-!'(),.:;? "
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PHONES = (
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W "
    "Y Z ZH"
).split()


# A vowel comes bare and with stress 0 (none), 1 (primary) and 2 (secondary).
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
        UserError: if this is no list of 2 to MAX_SYMBOLS symbols that begins with the padding "_",
            or if a symbol is a duplicate, not a single character (or phone of the ARPAbet after an
            "@"), a control character, or not in form NFC.
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
        """Ids by symbol, without the padding: only NVIDIA's code accepts it in a text."""
        return {x: i for i, x in enumerate(self.symbols) if i or self.is_english}

    @functools.cached_property
    def is_english(self) -> bool:
        return self.symbols == tuple(symbols)

    @functools.cached_property
    def has_phones(self) -> bool:
        """Whether phones of the ARPAbet can be given in braces."""
        return any(len(symbol) > 1 for symbol in self.symbols)

    @functools.cached_property
    def spoken_ids(self) -> set[int]:
        """Ids of letters, phones, and digits, which may be tones."""
        return {i for x, i in self.ids.items() if i and (len(x) > 1 or x.isalnum())}


def _problem_of(table: object) -> str:
    """The first fault of a table's symbols; empty if there is none."""
    if not isinstance(table, list | tuple) or not 2 <= len(table) <= MAX_SYMBOLS:
        count = f"{len(table):,} of them" if isinstance(table, list | tuple) else "no list"
        return f"{count}, expected a list of 2 to {MAX_SYMBOLS:,}, the padding '_' first"
    seen: set[str] = set()
    for i, symbol in enumerate(table):
        where = f"number {i + 1}, {str(symbol)[:20]!r}"
        if not isinstance(symbol, str) or (len(symbol) != 1 and symbol not in _ARPABET):
            return f"{where}: expected one character, or a phone of the ARPAbet such as '@AA1'"
        if not can_be_symbol(symbol):
            return f"{where}: a control or no character; remove it"
        if (composed := unicodedata.normalize("NFC", symbol)) != symbol:
            return f"{where}: not in Unicode's form NFC; write {composed!r}"
        if (i == 0) != (symbol == PADDING) or symbol in seen:
            return f"{where}: expected every symbol once, and the padding '_' first"
        seen.add(symbol)
    return ""


def can_be_symbol(symbol: str) -> bool:
    """Whether this is a phone of the ARPAbet, or one character that is no control, line break or
    unassigned code point."""
    is_control = unicodedata.category(symbol[0]) in ("Cc", "Cs", "Cn", "Zl", "Zp")
    return symbol in symbols or (len(symbol) == 1 and not is_control)


ENGLISH = SymbolTable(tuple(symbols))


@functools.lru_cache(8)
def table_with(symbols: tuple[str, ...]) -> SymbolTable:
    """The table of these symbols; the English one for (), as in checkpoints without a table."""
    return SymbolTable(symbols) if symbols else ENGLISH


def table_of(characters: Iterable[str]) -> SymbolTable:
    """Make a table: the padding, then the characters of texts, sorted."""
    return SymbolTable((PADDING, *sorted(set(characters) - {PADDING})))
