"""Make the recipe's modules importable from the programs in this folder.

Every program here imports this module first, so that `python scripts/NAME.py` works from any
folder. Programs in other folders run as modules from the root: python -m benchmarks.decoder
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # set before torch is imported (see train.py)
os.environ["MPLBACKEND"] = "agg"  # the backend of a notebook may not be installed here
