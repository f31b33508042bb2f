"""Run programs of this project as stages of a larger program.

run_stage("train.py", "-o", "runs/mine", "--resume")
"""

from project_root import ROOT

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

from tacotron2_voice.utils.errors import UserError
from tacotron2_voice.utils.program import STAGE_VARIABLE

# Exit codes of a program after Ctrl-C. The code is 130 if the program handles the signal, and
# -SIGINT if the signal ends the program.
STOPPED = (130, -signal.SIGINT)


def run_stage(*command: object, threads: str | None = None, advice: str = "") -> None:
    """Run a program of this project, and print its command first.

    Args:
        command: path of the program, relative to the project folder, and its arguments.
        threads: number of CPU threads for the program; None: the same number as in this process.
        advice: what the user can do if the program fails, for the error message.

    Raises:
        UserError: if the program fails or is stopped.
    """
    program, *arguments = map(str, command)
    print("\n$ python", program, shlex.join(arguments), flush=True)
    environment = {**os.environ, STAGE_VARIABLE: "1"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    # Let idle threads spin, because waking a sleeping thread takes a long time compared with a
    # short matrix product.
    environment.setdefault("GOMP_SPINCOUNT", "100000")
    process = subprocess.Popen([sys.executable, ROOT / program, *arguments], env=environment)
    while process.returncode is None:
        # Ignore Ctrl-C here. The started program also receives Ctrl-C, and saves its work before it
        # exits.
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
    if process.returncode in STOPPED:
        same = shlex.join(["python", *sys.argv])
        raise UserError(f"{program} was stopped. To continue, run: {same}")
    if process.returncode != 0:
        raise UserError(f"{program} failed; see the message above{advice}")


def is_outdated(result: Path, source: Path) -> bool:
    """Return whether a result is missing or older than the file that the result was made from."""
    return not result.exists() or result.stat().st_mtime < source.stat().st_mtime
