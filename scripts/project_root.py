"""Make the modules of this project importable from the programs in this folder.

Every program in this folder imports this module first, so that `python scripts/NAME.py` works from
any folder. Run programs in other folders as modules from the project root, such as
`python -m benchmarks.decoder`.
"""

import os
import sys
from multiprocessing import parent_process
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(ROOT))
# Make idle threads sleep instead of spin. This variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# If a notebook starts a program, its environment may contain a Matplotlib backend that the program
# cannot load.
os.environ["MPLBACKEND"] = "agg"

from tacotron2_voice.utils.program import exit_on_interrupt  # noqa: E402

# Only the program itself, and not its child processes or the tests, ends at once on Ctrl-C.
if Path(sys.argv[0]).resolve().parent == ROOT / "scripts" and parent_process() is None:
    exit_on_interrupt()
