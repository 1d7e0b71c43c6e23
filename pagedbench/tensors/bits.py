"""Dtypes by name, and tensors seen as bits.

Whatever copies or compares cache contents does it on integer views: NaN equals NaN of the same bits, −0 is not 0, and
dtypes that torch cannot index (fp8) need no special case.
"""

from __future__ import annotations

import torch

_INTEGER_OF_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

LARGE = {torch.float16: 6.0e4, torch.bfloat16: 1e30, torch.float32: 1e30, torch.float8_e4m3fn: 448.0}
"""A finite value that drowns any real one. Squares and sums of it need not be finite: it must never be read."""


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a scenario's name for it (`"bfloat16"`)."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype of torch")
    return dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as scenarios write it."""
    return str(dtype).removeprefix("torch.")


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """A view of any floating tensor, whatever its strides, as integers of the same size."""
    return tensor.view(_INTEGER_OF_SIZE[tensor.element_size()])
