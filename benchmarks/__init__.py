"""Measure speed, memory and reliability. Run each benchmark as a module in the root folder of the
project, for example with `python -m benchmarks.decoder`."""

import os

# Make idle OpenMP threads sleep instead of spinning. The environment variable must be set before
# torch is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
