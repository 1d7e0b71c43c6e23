from __future__ import annotations

import numpy as np
import pytest
import torch

from pagedbench.tensors.transfer import all_to_device, numbered, to_device


def test_shapes_and_values_survive_one_transfer() -> None:
    arrays = [np.array([3, 1]), np.array([[1, 2, 3], [4, 5, 6]], dtype=np.int32), np.array([], dtype=np.int64)]
    sent = all_to_device(arrays, "cpu")
    assert [tensor.tolist() for tensor in sent] == [[3, 1], [[1, 2, 3], [4, 5, 6]], []]
    assert all(tensor.dtype is torch.int64 for tensor in sent)
    assert len({tensor.untyped_storage().data_ptr() for tensor in sent}) == 1, "one allocation"


def test_flags_become_ones_and_zeros() -> None:
    assert all_to_device([np.array([True, False])], "cpu")[0].tolist() == [1, 0]


def test_nothing_to_send() -> None:
    assert all_to_device([], "cpu") == []


def test_a_single_array_keeps_its_dtype_whatever_its_strides() -> None:
    assert torch.equal(to_device(np.arange(6, dtype=np.int16)[::2], "cpu"), torch.tensor([0, 2, 4], dtype=torch.int16))


def test_cuda_is_the_device_that_its_tensors_are_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert numbered(torch.device("cuda")) == torch.device("cuda", 1)
    assert numbered(torch.device("cuda", 0)) == torch.device("cuda", 0)
    assert numbered(torch.device("cpu")) == torch.device("cpu")
