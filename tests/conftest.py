"""Shared test set-up: GPU tests skip where there is no GPU, and one that takes the whole of it runs alone on it."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Test processes share the cores: threads of torch that spin while they wait take the time of the others. Read once, by
# the OpenMP library that torch loads: nothing may have imported torch before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gpu_items = [item for item in items if item.get_closest_marker("gpu")]
    if not gpu_items:
        return
    import torch

    if torch.cuda.is_available():
        return
    for item in gpu_items:
        item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish() -> None:
    """What was imported is no garbage: the tool collects garbage after every cell, and need not look there."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals_as_in_a_terminal() -> Iterator[None]:
    """A shell starts what it runs in the background without Ctrl-C, and a block that was interrupted leaves a handler:
    each test, and each program that it starts, has the handlers that one in a terminal has."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def _its_share_of_the_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests run side by side: one marked `alone` (all memory, a dead context) waits for the GPU's others, and they for
    it."""
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    alone = request.node.get_closest_marker("alone") is not None
    with Path(tempfile.gettempdir(), "pagedbench-tests-gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
