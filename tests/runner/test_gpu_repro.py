"""Scripts of `repro` on a GPU: silent of every library where it is right, and not of its known faults."""

from __future__ import annotations

import pytest

from pagedbench.backends.base import Backend
from pagedbench.backends.registry import find_backend
from pagedbench.layout.build import build_layout
from pagedbench.runner.repro import script
from pagedbench.runner.repro_calls import library_call
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import PoolLayout, Scenario
from pagedbench.tensors.prepare import call_spec
from pagedbench.words import AttnPath
from tests.tensors.cells import scenario

pytestmark = pytest.mark.gpu
NAMES = (
    "flash-attn", "flash-attn-3", "fa3-fwd", "flash-attn-4", "torch-varlen", "flashinfer", "flashinfer-fa3",
    "flashinfer-cuda-cores",
)  # fmt: skip
TARGETS = [(name, path) for name in NAMES for path in AttnPath]
HND = {"block_size": 256, "layout": PoolLayout(order="HND")}
SHAPES = {
    "decode": scenario((1, 1, 1), (5, 300, 0), head_dim=64, cache={"block_size": 256}),
    "drafts": scenario((3, 3), (5, 300), head_dim=64, cache={"block_size": 256}),
    "ragged": scenario((4, 1, 20), (5, 300, 0), head_dim=64, cache={"block_size": 256}),
    "window": scenario((2, 2), (5, 300), head_dim=64, cache={"block_size": 256}, attention={"window_size": (99, 0)}),
    "HND": scenario((1, 1), (5, 300), head_dim=64, cache=HND),
    "softcap": scenario((2, 2), (5, 300), head_dim=64, cache={"block_size": 256}, attention={"softcap": 2.0}),
    "no key seen": scenario((4, 1), (1, 9), head_dim=64, append=False, cache={"block_size": 256}),
    "sinks": scenario(
        (1, 1), (5, 300), head_dim=64, cache={"block_size": 256}, attention={"sinks": (0.5, -1.0, 2.0, 0.0)}
    ),
}
FAULTS = [
    ("edge-one-token-each", "flash-attn", AttnPath.PAGED_VARLEN),
    ("edge-zero-keys-256", "flash-attn", AttnPath.PAGED_VARLEN),
    ("features-sinks-empty-rows", "flash-attn-3", AttnPath.VARLEN),
    ("features-sinks-empty-rows", "flash-attn-3", AttnPath.PAGED_VARLEN),
    ("features-window-blocks-away", "flash-attn-3", AttnPath.DECODE),
    ("features-window-blocks-away", "flash-attn-3", AttnPath.PAGED_VARLEN),
    ("features-window-blocks-away", "flash-attn-4", AttnPath.PAGED_VARLEN),
]


def told_by(
    wanted: Scenario, backend: Backend, path: AttnPath, capsys: pytest.CaptureFixture[str]
) -> tuple[object, str]:
    """The exit code and the words of a script; skips where the call cannot be made."""
    found = backend.available("cuda")
    if not found.available or path not in backend.paths:
        pytest.skip(found.reason or f"no {path}")
    layout = build_layout(wanted)
    if path is AttnPath.DECODE and layout.uniform_query_len is None:
        pytest.skip("decode cannot take prefill")
    if reason := backend.unsupported(call_spec(wanted, layout, path, "cuda")):
        pytest.skip(reason)
    text = script(wanted, layout, path, library_call(backend, wanted, path), "T")
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "repro.py", "exec"), {"__name__": "__main__"})
    return ended.value.code, capsys.readouterr().out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("name", "path"), TARGETS)
def test_a_script_says_nothing_of_a_right_library(
    name: str, path: AttnPath, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if (name, path, shape) == ("flash-attn", AttnPath.PAGED_VARLEN, "decode"):
        pytest.skip("its LSE is wrong: edge-one-token-each")
    code, told = told_by(SHAPES[shape], find_backend(name), path, capsys)
    assert (code, "WRONG" in told) == (None, False), told


@pytest.mark.parametrize(("name", "target", "path"), FAULTS)
def test_a_script_shows_a_known_fault_of_a_library(
    name: str, target: str, path: AttnPath, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = told_by(load_scenarios([name])[0], find_backend(target), path, capsys)
    assert (code, "WRONG" in told) == (1, True), told
    if name != "features-window-blocks-away":
        assert any("the LSE is off" in line for line in told.splitlines() if line.endswith("WRONG")), told
