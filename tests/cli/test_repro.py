"""`repro` on the command line: a file with one function, a path that is not there, and hints that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedbench.backends.base import Availability
from pagedbench.backends.registry import find_backend

from .conftest import Command

KERNEL = """
import functools

import pagedbench


@pagedbench.backend(path="decode")
def attend(q, k_cache, v_cache, block_table, cache_seqlens, softmax_scale, unrelated=3):
    return q


def tell_decode(call):
    return call.q


def named_varlen(**arguments):
    return arguments["q"]


class Attend:
    def __call__(self, q, k_cache, v_cache, factor=1.0):
        return q * factor


object_decode = Attend()
partial_decode = functools.partial(object_decode, factor=2.0)
"""


@pytest.fixture
def kernel(tmp_path: Path) -> str:
    (tmp_path / "one.py").write_text(KERNEL)
    return "one.py"


def test_a_file_without_a_name_is_taken_as_check_takes_it(command: Command, kernel: str) -> None:
    """`attend` alone is declared to be a kernel, and its argument that is none of a call's keeps its default."""
    ended = command("repro", "-b", kernel, scenarios=["right"])
    assert ended.code == 0, ended.err
    assert "from one import attend" in ended.out
    assert "softmax_scale=scale" in ended.out
    assert "unrelated" not in ended.out


@pytest.mark.parametrize("output", [(), ("-o", "script.py")])
def test_what_one_call_cannot_show_is_said(command: Command, kernel: str, output: tuple[str, ...]) -> None:
    ended = command("repro", "-b", kernel, *output, scenarios=["right"], extra="steps: 4\n")
    assert ended.code == 0, ended.err
    said = ended.err.splitlines()[-1]
    assert said.startswith("the script makes one call, the first of the scenario's 4 steps: ")
    assert "UNSTABLE" in said


def test_a_function_that_takes_everything_by_name_gets_all_that_a_script_has(command: Command, kernel: str) -> None:
    ended = command("repro", "-b", f"{kernel}:named_varlen", scenarios=["right"])
    assert ended.code == 0, ended.err
    assert "cu_seqlens_k=cu_seqlens_k" in ended.out
    assert "call=" not in ended.out


@pytest.mark.parametrize("name", ["object_decode", "partial_decode"])
def test_what_is_no_plain_function_is_imported_by_the_name_it_was_asked_for_by(
    command: Command, kernel: str, name: str
) -> None:
    ended = command("repro", "-b", f"{kernel}:{name}", scenarios=["right"])
    assert ended.code == 0, ended.err
    assert f"from one import {name}" in ended.out
    assert f"result = {name}(q=q," in ended.out


@pytest.mark.parametrize("path", ["quark", "varlen"])
def test_a_path_that_the_kernel_does_not_have_is_refused_with_the_choices(
    command: Command, kernel: str, path: str
) -> None:
    ended = command("repro", "-b", kernel, "-p", path, scenarios=["right"])
    assert ended.code == 2
    assert f"has no path '{path}'" in ended.err
    assert "hint: it has decode" in ended.err


def test_a_library_and_a_path_that_is_none(command: Command) -> None:
    ended = command("repro", "-b", "flash-attn-3", "-p", "quark", scenarios=["right"])
    assert ended.code == 2
    assert "varlen, decode" in ended.err


def test_a_function_of_the_tools_own_call_is_told_how_to_be_written(command: Command, kernel: str) -> None:
    ended = command("repro", "-b", f"{kernel}:tell_decode", scenarios=["right"])
    assert ended.code == 2
    assert "takes what it needs by name" in ended.err


@pytest.mark.parametrize("feature", ["alibi: true", "kv_dtype: float8_e4m3fn"])
def test_what_a_script_cannot_say_is_refused_with_what_to_change(
    command: Command, kernel: str, tmp_path: Path, feature: str
) -> None:
    from .conftest import SCENARIO

    text = SCENARIO.format(name="feature").replace("head_dim: 16", f"head_dim: 16, {feature}")
    (tmp_path / "feature.yaml").write_text(text)
    ended = command("repro", "-b", kernel, "feature.yaml")
    assert ended.code == 2
    assert "shrink the scenario first" not in ended.err
    assert "if it fails without:" in ended.err


def test_a_batch_that_decode_cannot_take_is_refused(command: Command, kernel: str) -> None:
    ended = command("repro", "-b", kernel, "docs-varlen")
    assert ended.code == 2
    assert "decode cannot take docs-varlen: its query lengths differ" in ended.err


@pytest.mark.parametrize("name", ["repro", "shrink"])
def test_several_scenarios_are_named(command: Command, name: str) -> None:
    ended = command(name, "features-sinks", "-b", "torch")
    assert ended.code == 2
    assert "features-sinks holds 3 scenarios" in ended.err
    named = ended.err.partition("name one: ")[2].strip().split(", ")
    assert len(named) == 3
    assert all(each.startswith("features-sinks") for each in named)


def test_what_a_library_that_is_here_cannot_take_is_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    library = find_backend("flash-attn")
    monkeypatch.setattr(library, "available", lambda device: Availability(True, "2.8.3"))
    monkeypatch.setattr(library, "unsupported", lambda spec: f"block size {spec.block_size}: needs a multiple of 256")
    ended = command("repro", "-b", "flash-attn:decode", scenarios=["right"])
    assert ended.code == 2
    assert "flash-attn:decode cannot take right: block size 4: needs a multiple of 256" in ended.err
