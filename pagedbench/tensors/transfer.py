"""Index arrays from the host to a device, many in one transfer: small ones cost as much as big ones.

A transfer does not wait for the device; the driver has taken the bytes when the call returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def numbered(device: torch.device) -> torch.device:
    """The device as its tensors name it: `cuda` is the current one, say `cuda:0`."""
    return torch.device("cuda", torch.cuda.current_device()) if str(device) == "cuda" else device


def to_device(array: NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """A tensor with the values of an array, in its shape and dtype. On a CPU it may share the array's memory."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def all_to_device(arrays: Sequence[NDArray[Any]], device: torch.device | str) -> list[torch.Tensor]:
    """Integer arrays as int64 tensors of their shapes, views of one allocation."""
    if not arrays:
        return []
    packed = np.concatenate([array.reshape(-1) for array in arrays]).astype(np.int64, copy=False)
    parts = torch.split_with_sizes(to_device(packed, device), [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
