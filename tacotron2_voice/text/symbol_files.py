"""Read symbol tables from files, which `prepare` writes next to the filelists of a corpus.

table = read_table(Path("filelists") / SYMBOLS_FILE)
"""

from pathlib import Path

from tacotron2_voice.text.symbols import SymbolTable
from tacotron2_voice.utils.files import naming, read_json

SYMBOLS_FILE = "symbols.json"  # a list of strings


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
