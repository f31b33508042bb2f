"""Compute matrix products in a given precision, with oneDNN where oneDNN is faster."""

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

empty = torch.empty  # tests replace `new` with a function that fills tensors with NaN


def new(like: Tensor, *shape: int) -> Tensor:
    """Return an uninitialized tensor of shape `shape` with the dtype and device of `like`."""
    return empty(*shape, dtype=like.dtype, device=like.device)


@functools.cache
def onednn_multiplies(device: str, dtype: torch.dtype) -> bool:
    """Return whether oneDNN's matrix products are available and correct.

    PyTorch's operators for matrix products with oneDNN are meant only for torch.compile and may
    change, so this function checks once that the results are correct. Without oneDNN, PyTorch uses
    MKL, which packs the weight again for every small product. On two cores of an AMD EPYC, the
    product of [16, 1536] and [1536, 4096] takes 2.0 ms with MKL and 0.5 ms with oneDNN.
    """
    if device != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    x = torch.arange(-6, 6, dtype=dtype).view(6, 2).T
    weight = torch.arange(-20, 22, dtype=dtype).view(6, 7).T
    bias = torch.arange(7, dtype=dtype)
    try:
        multiply = torch.ops.mkldnn._linear_pointwise
        results = [multiply(x, weight, bias, "none", [], "")]
        for matrix in (weight, weight.contiguous()):
            packed = torch.ops.mkldnn._reorder_linear_weight(matrix, 2)
            results.append(multiply(x.contiguous(), packed, bias, "none", [], ""))
            results.append(multiply(x.contiguous(), bias.repeat(2, 1), packed, None, "add"))
    except (AttributeError, RuntimeError, TypeError):
        return False
    expected = (x.float() @ weight.float().T + bias.float()).to(dtype)
    return all(torch.allclose(result, expected, rtol=1e-2) for result in results)


def product(x: Tensor, weight: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """Return F.linear(x, weight, bias) for a large x [rows, in], with operands in `dtype`.

    The result [rows, out] has the dtype of `x`.
    """
    a = x.to(dtype)
    b = weight.to(dtype)
    c = None if bias is None else bias.to(dtype)
    if x.numel() and onednn_multiplies(x.device.type, dtype):  # oneDNN rejects empty matrices
        a = _dense(a)
        b = _dense(b)  # copy slices, because a product with a slice is 200 times slower
        return torch.ops.mkldnn._linear_pointwise(a, b, c, "none", [], "").to(x.dtype)
    return F.linear(a, b, c).to(x.dtype)


def weight_gradient(doutputs: Tensor, inputs: Tensor, dtype: torch.dtype) -> Tensor:
    """Return doutputs.T @ inputs, computed as the transpose of inputs.T @ doutputs.

    oneDNN copies the left matrix of a product if this matrix is transposed, so the smaller matrix,
    `inputs`, is on the left.
    """
    return product(inputs.T, doutputs.T, dtype).T


def product_by(weight: Tensor, rows: int, dtype: torch.dtype) -> Callable:
    """Return a function of x [rows, in] and total [rows, out] that returns total + x @ weight.T.

    Use this function to multiply many float32 or float64 matrices by the same weight. The operands
    are converted to `dtype`.
    """
    operand = weight.to(dtype)
    half = dtype.itemsize < 4
    if onednn_multiplies(weight.device.type, dtype):
        packed = torch.ops.mkldnn._reorder_linear_weight(_dense(operand), rows)
        multiply = torch.ops.mkldnn._linear_pointwise
        if half:
            return lambda x, total: total + multiply(x.to(dtype), packed, None, "none", [], "")
        return lambda x, total: multiply(x, total.contiguous(), packed, None, "add")
    operand = operand.T
    if half:
        return lambda x, total: total + torch.mm(x.to(dtype), operand)
    return lambda x, total: torch.addmm(total, x, operand)


def _dense(x: Tensor) -> Tensor:
    """Return the matrix if it or its transpose is contiguous, otherwise a contiguous copy."""
    return x if x.T.is_contiguous() else x.contiguous()


def flat(x: Tensor) -> Tensor:
    """Reshape [T, B, dim] to [T * B, dim]."""
    return x.flatten(0, 1)
