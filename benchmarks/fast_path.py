"""Whether the fast decoder is here: training works without its folder, measuring it does not."""

from pathlib import Path

# Its file, not its folder: a folder of compiled files that were left over is no fast decoder.
IS_HERE = (Path(__file__).resolve().parents[1] / "fast_decoder" / "__init__.py").is_file()
MISSING = "the folder fast_decoder/, which this program measures, is missing"
