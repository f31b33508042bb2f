"""Read tables of symbols from files, which `prepare` writes beside the filelists of a corpus.

table = read_table(Path("filelists") / SYMBOLS_FILE)
"""

from pathlib import Path

from tacotron2_voice.text.symbols import SymbolTable
from tacotron2_voice.utils.files import naming, read_json

SYMBOLS_FILE = "symbols.json"  # a list of strings


def read_table(path: Path) -> SymbolTable:
    """Read the table in a file. UserError if it cannot be read or holds no table of symbols."""
    symbols = read_json(
        path,
        "no such table of symbols; scripts/prepare.py --hparams symbols=corpus makes it "
        "beside the filelists, or name a .json by symbols=",
        "expected a list of strings, as prepare.py --hparams symbols=corpus writes it; "
        "name that file, or leave symbols= out for English",
    )
    with naming(path):
        return SymbolTable(symbols)
