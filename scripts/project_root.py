"""Make the modules of this project importable from the programs in this folder.

Every program in this folder imports this module first, so that `python scripts/NAME.py` works from
any folder. Run programs in other folders as modules from the project root, such as
`python -m benchmarks.decoder`.
"""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(ROOT))
# This variable must be set before torch is imported (see train.py).
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A notebook that starts a program may have set a backend that the program cannot load.
os.environ["MPLBACKEND"] = "agg"
