"""Read Praat TextGrids.

for start, end, text in read_textgrid(Path("book/chapter1.TextGrid"), tier="sentences"):
    ...
"""

import re
from pathlib import Path

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.files import read_bytes

# Matches the number of intervals or points in a tier, in the long and the short TextGrid format.
TEXTGRID_SIZE = re.compile(
    rb'(?:intervals|points): size = (\d+)|"(?:IntervalTier|TextTier)"\s+"(?:[^"]|"")*"'
    rb"\s+[-\d.]+\s+[-\d.]+\s+(\d+)"
)


def read_textgrid(path: Path, tier: str) -> list[tuple[float, float, str]]:
    from praatio import textgrid
    from praatio.utilities.errors import PraatioException

    if read_bytes(path).startswith(b"ooBinaryFile"):
        raise UserError(
            f"{path}: binary TextGrid, expected text. In Praat, save the TextGrid as a text file"
        )
    try:
        grid = textgrid.openTextgrid(
            str(path), includeEmptyIntervals=True, duplicateNamesMode="rename"
        )
    except UnicodeDecodeError:
        raise UserError(f"{path}: neither UTF-8 nor UTF-16. Save the file as UTF-8") from None
    except (PraatioException, ValueError, IndexError, OSError) as error:
        raise UserError(f"{path}: not a valid Praat TextGrid ({error})") from None
    # praatio accepts a truncated file, so compare the number of intervals and points with the
    # header. Remove zero bytes first, because the file may be in UTF-16.
    content = path.read_bytes().replace(b"\0", b"")
    sizes = TEXTGRID_SIZE.findall(content)
    num_expected = sum(int(size) for pair in sizes for size in pair if size)
    num_found = sum(len(grid.getTier(name).entries) for name in grid.tierNames)
    if num_found < num_expected:
        raise UserError(
            f"{path}: contains {num_found:,} intervals and points, but its header states "
            f"{num_expected:,}, so the end of the file is missing"
        )
    tiers = [x for x in grid.tierNames if isinstance(grid.getTier(x), textgrid.IntervalTier)]
    if not tiers:
        raise UserError(f"{path}: contains no interval tier (expected a tier with the texts)")
    if not tier and len(tiers) == 1:
        tier = tiers[0]
    if tier not in tiers:
        raise UserError(
            f"{path}: contains the tiers {', '.join(tiers)}. Choose the tier that contains the "
            "sentences with --tier"
        )
    return [(start, end, text) for start, end, text in grid.getTier(tier).entries if text]


def is_textgrid(text: str) -> bool:
    """Return whether a text file begins like a TextGrid. Praat can save TextGrids as .txt files."""
    return text.lstrip("\ufeff").startswith('File type = "ooTextFile"')
