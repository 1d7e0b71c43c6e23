"""Scripts of `repro` that call a library, run against stand-ins with its signatures: silent where it is right, and not
where it is wrong. What the libraries themselves say to the same scripts is for a GPU: `tests/backends/test_gpu.py`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pagedbench.backends import loading
from pagedbench.backends.registry import find_backend
from pagedbench.layout.build import build_layout
from pagedbench.runner.repro import script
from pagedbench.runner.repro_calls import library_call
from pagedbench.scenario.model import PoolLayout, Scenario
from pagedbench.words import AttnPath
from tests.tensors.cells import scenario

STAND_INS = Path(__file__).with_name("stand_ins")
TARGETS = [
    (name, path)
    for name in ("flash-attn", "flash-attn-3", "flash-attn-4", "flashinfer", "flashinfer-fa3", "flashinfer-cuda-cores")
    for path in find_backend(name).paths
]
APPENDING = [
    ("flash-attn", AttnPath.DECODE),
    ("flash-attn-3", AttnPath.DECODE),
    ("flash-attn-3", AttnPath.PAGED_VARLEN),
]
SINKS = {"sinks": (0.5, -1.0, 2.0, 0.0)}
DECODE = {
    "append": scenario((1, 1, 1), (5, 16, 40)),
    "drafts": scenario((3, 3), (5, 40)),
    "nothing appended": scenario((1, 1), (5, 40), append=False),
    "window, softcap": scenario((2, 2), (5, 40), attention={"window_size": (9, 0), "softcap": 3.0}),
    "HND": scenario((1, 1), (5, 40), cache={"layout": PoolLayout(order="HND")}),
    "sinks": scenario((1, 1), (5, 40), attention=SINKS),
}
RAGGED = {
    **DECODE,
    "ragged": scenario((4, 1, 20), (5, 40, 0)),
    "rows that see no key": scenario((4, 1), (1, 0), append=False),
    "not causal": scenario((4, 1), (9, 20), append=False, attention={"causal": False}),
    "sinks, rows that see no key": scenario((4, 1), (1, 9), append=False, attention=SINKS),
}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module with which they compute; real ones, where they are installed, come back afterwards."""
    ours = ("dense", "flash_attn_interface", "flash_attn", "flashinfer")
    hidden = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] in ours}
    monkeypatch.syspath_prepend(str(STAND_INS))
    loading.load.cache_clear()
    yield importlib.import_module("dense")
    for name in [name for name in sys.modules if name.split(".")[0] in ours]:
        del sys.modules[name]
    sys.modules.update(hidden)
    loading.load.cache_clear()


def told_by(wanted: Scenario, name: str, path: AttnPath, capsys: pytest.CaptureFixture[str]) -> tuple[object, str]:
    """The exit code and the words of a script."""
    text = script(wanted, build_layout(wanted), path, library_call(find_backend(name), wanted, path), "T")
    with pytest.raises(SystemExit) as ended:
        exec(compile(text, "repro.py", "exec"), {"__name__": "__main__"})
    return ended.value.code, capsys.readouterr().out


def cases() -> list[Any]:
    found = []
    for name, path in TARGETS:
        for what, wanted in (DECODE if path is AttnPath.DECODE else RAGGED).items():
            takes_sinks = name in ("flash-attn-3", "flash-attn-4")
            one_token = name != "flashinfer-cuda-cores" or max(wanted.batch.query_lens) == 1
            if one_token and (takes_sinks or wanted.attention.sinks is None):
                found.append(pytest.param(name, path, wanted, id=f"{name}:{path} {what}"))
    return found


@pytest.mark.parametrize(("name", "path", "wanted"), cases())
def test_a_script_says_nothing_of_a_right_library(
    name: str, path: AttnPath, wanted: Scenario, capsys: pytest.CaptureFixture[str]
) -> None:
    code, told = told_by(wanted, name, path, capsys)
    assert (code, "WRONG" in told) == (None, False), told


@pytest.mark.parametrize("fault", ["output", "lse"])
@pytest.mark.parametrize(("name", "path"), TARGETS)
def test_a_script_shows_what_is_wrong(
    name: str, path: AttnPath, fault: str, stand_ins: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins.FAULT = fault
    code, told = told_by(DECODE["append"], name, path, capsys)
    assert code == 1
    wrong = [line for line in told.splitlines() if line.endswith("WRONG")]
    assert len(wrong) == 3
    assert all(("the LSE is off by" in line) == (fault == "lse") for line in wrong), told


@pytest.mark.parametrize(("name", "path"), APPENDING)
def test_a_script_shows_an_append_that_is_missing(
    name: str, path: AttnPath, stand_ins: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_ins.FAULT = "append"
    code, told = told_by(DECODE["append"], name, path, capsys)
    assert code == 1
    assert "k_cache is not what it must be after the call  WRONG" in told


def test_arguments_have_the_names_of_the_version_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    module = importlib.import_module("flash_attn_interface")

    def older(q, k_cache, v_cache, cache_seqlens=None, block_table=None, s_aux=None):  # type: ignore[no-untyped-def]
        raise NotImplementedError

    monkeypatch.setattr(module, "flash_attn_with_kvcache", older)
    wanted = DECODE["sinks"]
    call = library_call(find_backend("flash-attn-3"), wanted, AttnPath.DECODE)
    assert "block_table=block_table" in call.expression
    assert "s_aux=sinks" in call.expression


def test_a_library_that_is_not_here_is_called_by_its_newest_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "_import", lambda name: loading.Loaded(None, f"no module {name}", True))
    for name, path in TARGETS:
        text = script(
            DECODE["append"],
            build_layout(DECODE["append"]),
            path,
            library_call(find_backend(name), DECODE["append"], path),
            "T",
        )
        compile(text, "repro.py", "exec")
