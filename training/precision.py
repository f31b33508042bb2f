"""Define the training precisions, and check that a device supports them.

The setting `precision` in hparams.py selects the precision.
"""

from typing import Any

import torch

# Maps each precision to the dtype of autocast; None: no autocast. With tf32, a GPU may round the
# inputs of float32 matrix products.
AUTOCAST_DTYPES = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
PRECISIONS = tuple(AUTOCAST_DTYPES)
CAPABILITY_OF_BF16 = (8, 0)  # lowest compute capability of GPUs that support bf16 and tf32
CPUS_OF_BF16 = {"avx512_bf16", "amx_bf16"}  # CPU features for bfloat16 multiplication


def describe_precision(precision: str, capability: tuple[int, int] | None) -> str:
    """Return a warning if the device does not support `precision` in hardware, otherwise "".

    Args:
        capability: the GPU's compute capability; None for a CPU.
    """
    if precision == "fp32":
        return ""
    if capability is None:
        return _on_a_cpu(precision)
    if precision == "fp16" or capability >= CAPABILITY_OF_BF16:
        return ""
    meaning = {
        "tf32": "has no effect on this GPU; use precision=fp32",
        "bf16": "is emulated on this GPU and therefore slow; use precision=fp16 or fp32",
    }[precision]
    return f"precision={precision} {meaning}. bf16 and tf32 need compute capability 8.0"


def _on_a_cpu(precision: str) -> str:
    # Older PyTorch versions lack `torch.cpu.get_capabilities`.
    features: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    if precision == "bf16" and any(features.get(name) for name in CPUS_OF_BF16):
        return ""
    meaning = {
        "tf32": "has no effect on a CPU, which trains in fp32",
        "bf16": (
            "is faster only on CPUs with bfloat16 instructions (AMX or AVX512_BF16), which this "
            "CPU lacks"
        ),
        "fp16": (
            "is for GPUs: CPUs are slow in float16, and on CPUs, PyTorch does not support all "
            "operations in float16"
        ),
    }[precision]
    return f"precision={precision} {meaning}; use precision=fp32 here"
