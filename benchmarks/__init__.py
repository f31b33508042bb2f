"""Measure speed, memory and reliability. Run these benchmarks from the project's root as modules,
such as `python -m benchmarks.decoder`."""

import os

# Idle OpenMP threads sleep instead of spinning. torch reads this when it is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
