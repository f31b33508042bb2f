"""What every program sets before torch is imported. Programs import this first.

An idle OpenMP thread waits for the next product at full speed, by default for a fifth of a second.
Where a machine has other work too, threads then mostly wait for one another: one step of the
decoder took 72 ms so, and 7 ms where they sleep. OpenMP reads the setting when torch loads it.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # unless the user has set it
