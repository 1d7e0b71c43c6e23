"""What the tests of the runner share: the kernels, and the command line as a user starts it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

KERNELS = Path(__file__).parent / "kernels.py"
SCENARIO = """
name: {name}
batch: {{query_lens: [1, 1], cached_lens: [5, 9]}}
cache: {{block_size: 4}}
attention: {{num_heads: 4, num_kv_heads: 2, head_dim: 16}}
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Callable[..., Path]:
    """Writes a file with one small decode batch a name."""

    def write(*names: str, extra: str = "") -> Path:
        file = tmp_path / "scenarios.yaml"
        file.write_text("---".join(SCENARIO.format(name=name) + extra for name in names))
        return file

    return write


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Starts `pagedbench` with the arguments, in the test's folder."""

    def run(*arguments: object) -> subprocess.Popen[str]:
        # A shell without job control ignores SIGINT for what it has in the background, these tests, too: a child would
        # inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return subprocess.Popen(
                [sys.executable, "-m", "pagedbench", *map(str, arguments)],
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)

    return run
