"""Make the modules of this project importable from the programs in this folder.

Every program in this folder imports this module first, so that `python scripts/NAME.py` works from
any folder. Run programs in other folders as modules from the project root, such as
`python -m benchmarks.decoder`.
"""

import os
import sys
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).resolve().parents[1]

sys.path.insert(0, str(ROOT))
# Make idle threads sleep instead of spin. This variable must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# If a notebook starts a program, its environment may contain a Matplotlib backend that the program
# cannot load.
os.environ["MPLBACKEND"] = "agg"


def _hide_interrupt(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    """Exit without a traceback if Ctrl-C is pressed during the imports, which take seconds."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, traceback)


sys.excepthook = _hide_interrupt
