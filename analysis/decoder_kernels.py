"""The training decoder's kernels: other choices of their constants, and a model of each launch."""

import contextlib
from collections.abc import Iterator
from types import ModuleType

# What is chosen in fast_decoder/graphs.py, and the other choices; the names are for reports.
VARIANTS = {
    "as it is": {},
    "loads after the wait": {"EARLY_LOADS": False},
    "products not split": {"WARPS": 1},
    "a copy a graph": {"COPY_ONCE": False},
}

# Around one launch after another of a decoder step.
LOOPS = {
    "attention": ("lstm_step", "attention_energies", "attention_context"),
    "decoder LSTM": ("lstm_step",),
    "attention, backward": ("gradient_product", "attention_gradient", "cell_gradient"),
    "decoder LSTM, backward": ("gradient_product", "cell_gradient"),
}

# Microseconds of a launch on an H200 in (bf16, tf32, fp32), 16 clips of 120 symbols, as
# benchmarks/machine_code.py models them: not measured.
MODELLED = {
    ("attention", "lstm_step"): (3.2, 5.2, 7.5),
    ("attention", "attention_energies"): (2.7, 2.7, 3.1),
    ("attention", "attention_context"): (1.5, 1.5, 1.5),
    ("decoder LSTM", "lstm_step"): (2.6, 3.9, 5.4),
    ("attention, backward", "gradient_product"): (3.8, 5.2, 8.1),
    ("attention, backward", "attention_gradient"): (2.5, 2.5, 2.5),
    ("attention, backward", "cell_gradient"): (3.3, 3.3, 3.6),
    ("decoder LSTM, backward", "gradient_product"): (2.9, 3.7, 5.5),
    ("decoder LSTM, backward", "cell_gradient"): (1.6, 1.6, 1.6),
}
MODELLED_PRECISIONS = ("bf16", "tf32", "fp32")


@contextlib.contextmanager
def changed(module: ModuleType, constants: dict) -> Iterator[None]:
    """The module with other constants, for a while."""
    before = {name: getattr(module, name) for name in constants}
    try:
        vars(module).update(constants)
        yield
    finally:
        vars(module).update(before)
