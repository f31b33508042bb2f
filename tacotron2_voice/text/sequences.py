"""Convert a text to symbols and ids, and ids to a text.

ids = text_to_sequence("Good morning.", ["english_cleaners_corrected"])
sequence_to_text(ids)  # "good morning."
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence

from tacotron2_voice.text.cleaners import clean_pieces
from tacotron2_voice.text.symbols import ENGLISH, SymbolTable

PHONES = "phones"  # the cleaner that converts texts to the International Phonetic Alphabet
ARPABET_SPAN = re.compile(r"\{(.+?)\}")
IPA_SPAN = re.compile(r"(?<!\w)/(\S(?:[^/\n]*\S)?)/(?!\w)")


def clean(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[str]:
    """Clean a text and return its symbols in Unicode's form NFC, including unknown symbols.

    ARPAbet phones in braces (`{HH AH0 L OW1}`) are not cleaned if the table contains ARPAbet
    phones. IPA phones in slashes (`/hɛlˈoʊ/`) are not cleaned if the cleaners produce phones. As in
    NVIDIA's code, an underscore in English text becomes the padding symbol. If the first line of a
    text contains phones, all later lines are dropped, as in NVIDIA's code. To prevent dropped
    lines, pass one line at a time.

    Raises:
        UserError: if a cleaner is unknown, or if eSpeak cannot convert the text.
    """
    text = unicodedata.normalize("NFC", text)
    phone_span = None
    if PHONES in cleaner_names:
        phone_span = IPA_SPAN
    elif table.has_phones:
        phone_span = ARPABET_SPAN
    pieces = [text]
    if phone_span is not None:
        line = text.partition("\n")[0] if phone_span is ARPABET_SPAN else text
        # In `split`, text and phones alternate. The first and the last item are text.
        split = phone_span.split(line)
        if len(split) > 1:
            pieces = split
    pieces[::2] = clean_pieces(pieces[::2], cleaner_names, language)

    symbols: list[str] = []
    for i, piece in enumerate(pieces):
        composed = unicodedata.normalize("NFC", piece)
        if i % 2 == 1 and phone_span is ARPABET_SPAN:
            symbols += [f"@{phone}" for phone in piece.split()]
        else:
            symbols += composed
    return symbols


def text_to_sequence(
    text: str, cleaner_names: Sequence[str], table: SymbolTable = ENGLISH, language: str = ""
) -> list[int]:
    """Clean a text and return its ids, each from 0 to len(table) - 1.

    Symbols that are not in the table are dropped. `unknown_symbols` lists the dropped symbols.

    Raises:
        UserError: if a cleaner is unknown, or if eSpeak cannot convert the text.
    """
    cleaned = clean(text, cleaner_names, table, language)
    return [table.ids[symbol] for symbol in cleaned if symbol in table.ids]


def sequence_to_text(sequence: Iterable[int], table: SymbolTable = ENGLISH) -> str:
    """Convert symbol ids to a text, with ARPAbet phones in braces and the padding as "_"."""
    symbols = (table.symbols[int(i)] for i in sequence)
    text = "".join(f"{{{symbol[1:]}}}" if len(symbol) > 1 else symbol for symbol in symbols)
    return text.replace("}{", " ")


def can_be_spoken(sequence: Iterable[int], table: SymbolTable = ENGLISH) -> bool:
    """Return whether the ids contain a letter, a digit or a phone."""
    return not table.spoken_ids.isdisjoint(sequence)


def one_character_each(sequence: Iterable[int], table: SymbolTable = ENGLISH) -> str:
    """Return a string with one character per id.

    Letters become lower case. ARPAbet phones and combining marks, such as vowel signs, become "@".
    """
    characters = []
    for i in sequence:
        symbol = table.symbols[i]
        is_part_of_word = len(symbol) > 1 or unicodedata.category(symbol)[0] == "M"
        characters.append("@" if is_part_of_word else symbol.lower()[0])
    return "".join(characters)
