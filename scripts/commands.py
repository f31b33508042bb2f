"""Run programs of this project as the stages of another program.

run_stage("train.py", "-o", "runs/mine", "--resume")
"""

from project_root import ROOT

import contextlib
import os
import shlex
import subprocess
import sys

from tacotron2_voice.utils.errors import UserError


def run_stage(*command: object, threads: str | None = None) -> None:
    """Print a command that runs a program of this project, and run it.

    Args:
        command: the program, from the project's folder, and its arguments.
        threads: CPU threads of the program; None: as in this process.

    Raises:
        UserError: if the program fails or is stopped.
    """
    program, *arguments = map(str, command)
    print("\n$ python", program, shlex.join(arguments), flush=True)
    environment = dict(os.environ)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = threads
    # The matrix products are so short that sleeping threads would wake up too late.
    environment.setdefault("GOMP_SPINCOUNT", "100000")
    process = subprocess.Popen([sys.executable, ROOT / program, *arguments], env=environment)
    while process.returncode is None:
        # Ctrl-C also reaches the program, which then saves.
        with contextlib.suppress(KeyboardInterrupt):
            process.wait()
    if process.returncode != 0:
        raise UserError(f"stopped in {program}; run the same command again to continue")
