"""Measure speed, memory and reliability. Run the benchmarks as modules from the root of the
project, for example `python -m benchmarks.decoder`."""

import os

# Make idle OpenMP threads sleep instead of spin. Must be set before torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
