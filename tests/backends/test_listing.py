"""`pagedbench backends`: what is printed, and the same as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagedbench.backends.library import LibraryBackend
from pagedbench.backends.loading import Library, Loaded, sentence
from pagedbench.cli.app import app
from pagedbench.errors import UsageError
from pagedbench.report.capabilities import Ability, BackendReport, overview, print_out


def test_the_table_names_all_and_fits_100_columns() -> None:
    result = CliRunner().invoke(app, ["backends", "--device", "cpu"])
    assert result.exit_code == 0, result.output
    assert "flash-attn-3" in result.output
    assert "pagedbench[flash-attn-3]" in result.output, "brackets are no markup"
    assert max(map(len, result.output.splitlines())) <= 100


def test_one_backend_says_why_not() -> None:
    result = CliRunner().invoke(app, ["backends", "transformers", "--device", "cpu"])
    assert "softcap: transformers" in result.output
    assert "may leak from hidden" in result.output


def test_a_target_means_its_backend_which_is_listed_once() -> None:
    result = CliRunner().invoke(app, ["backends", "torch:decode", "torch", "flex:decode", "--device", "cpu", "--json"])
    assert [report["name"] for report in json.loads(result.output)] == ["torch", "flex"]


def test_a_path_alone_is_no_backend() -> None:
    result = CliRunner().invoke(app, ["backends", "decode", "--device", "cpu"])
    assert isinstance(result.exception, UsageError)
    assert result.exception.message == "'decode' names a path, no backend"


def test_json_has_what_the_table_has() -> None:
    result = CliRunner().invoke(app, ["backends", "torch", "--device", "cpu", "--json"])
    (torch,) = json.loads(result.output)
    assert torch["available"]
    assert torch["paths"] == ["varlen", "decode", "paged-varlen"]
    assert {"feature": "sinks", "path": "decode", "refused": None, "works": None, "found": "", "hint": False} in torch[
        "abilities"
    ]


def test_marks_of_a_probe(capsys: pytest.CaptureFixture[str]) -> None:
    abilities = (
        Ability("softcap", "decode", None, works=False, found="MISMATCH"),
        Ability("sinks", "decode", "sinks: none", works=True),
        Ability("3 splits", "decode", "num_splits 3: chooses it itself", works=True, hint=True),
        Ability("MQA", "decode", None, works=True),
    )
    report = BackendReport("mine", "", "1.0", True, None, None, ("decode",), {}, abilities)
    print_out(overview([report], "cuda"))
    printed = [line.rsplit(maxsplit=1) for line in capsys.readouterr().out.splitlines() if len(line.split()) > 1]
    rows = {words[0].strip(): words[1] for words in printed}
    assert (rows["softcap"], rows["sinks"], rows["3 splits"], rows["MQA"]) == ("d!", "d+", "·", "d")


IMPORT_ERRORS = [
    (OSError("/x/lib.so: undefined symbol: _ZN3c105ErrorC2E"), "built for another torch"),
    (ImportError("libcudart.so.12: cannot open shared object file: No such file"), "libcudart.so.12"),
    (RuntimeError("CUDA error: no kernel image is available for execution"), "built for another GPU"),
    (ModuleNotFoundError("No module named 'einops'", name="einops"), "needs the module einops"),
    (SystemError("initialization of _C failed"), "SystemError: initialization of _C failed"),
]


@pytest.mark.parametrize(("error", "words"), IMPORT_ERRORS)
def test_what_an_import_raises_becomes_a_sentence(error: Exception, words: str) -> None:
    assert words in sentence(error)


def test_the_lse_of_a_users_function_is_not_denied(tmp_path: Path) -> None:
    """Whether a plain function returns one shows when it is called."""
    (tmp_path / "mine.py").write_text("def my_decode(q, k_cache, v_cache): ...")
    said = json.loads(CliRunner().invoke(app, ["backends", f"{tmp_path}/mine.py:my_decode", "--json"]).output)
    assert said[0]["traits"]["LSE"] == "if the function returns one"


BROKEN = {
    "symbol": ("raise ImportError('/x.so: undefined symbol: _ZN3c10')", "built for another torch"),
    "shared": ("raise OSError('libcudart.so.13: cannot open shared object file')", "libcudart.so.13 is not there"),
    "exits": ("raise SystemExit('not on this machine')", "SystemExit: not on this machine"),
    "needs": ("import no_such_dependency", "needs the module no_such_dependency"),
    "syntax": ("def (", "SyntaxError"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_library_is_not_available_whatever_it_does(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, words = BROKEN[kind]
    (tmp_path / f"broken_{kind}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Library("broken", (f"broken_{kind}",), ("broken-dist",), "pip install x", needs_cuda=False).available("cpu")
    assert not found.available
    assert words in (found.reason or "")


def test_a_library_that_cannot_be_imported_is_not_available(monkeypatch: pytest.MonkeyPatch) -> None:
    class Odd(LibraryBackend):
        lib = Library("odd", ("odd",), ("odd-dist",), "pip install odd", needs_cuda=False)

    assert Odd().available("cpu").reason == "not installed: pip install odd"
    monkeypatch.setattr("pagedbench.backends.loading.load", lambda modules: Loaded(None, "built for another torch"))
    assert Odd().available("cpu").reason == "built for another torch"


def test_a_library_too_old_for_the_module_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch_like.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    old = Library("old", ("torch_like.attention",), ("torch",), "pip install -U torch", needs_cuda=False)
    reason = old.available("cpu").reason or ""
    assert "has no module torch_like.attention" in reason
    assert "not installed" not in reason


def test_a_library_without_a_version_of_its_own_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built_in_place.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = Library("mine", ("built_in_place.interface",), ("mine-dist",), "pip install mine").available("cpu")
    assert found.reason == "mine needs a CUDA GPU"


DEADLY = {
    "segfaults": ("import ctypes; ctypes.string_at(0)", "segmentation fault (SIGSEGV)"),
    "leaves": ("import os; print('bye'); os._exit(0)", "exited with status 0"),
}


@pytest.mark.parametrize(("code", "words"), DEADLY.values(), ids=DEADLY)
def test_a_library_that_ends_the_process_is_listed_and_the_rest_too(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers" / "__init__.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = CliRunner().invoke(app, ["backends", "transformers", "torch", "--device", "cpu", "--json"])
    broken, torch = json.loads(result.stdout)
    assert words in broken["reason"]
    assert torch["available"]


def test_what_a_library_prints_at_its_import_is_no_part_of_the_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "transformers.py").write_text("print('welcome!')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = CliRunner().invoke(app, ["backends", "transformers", "--device", "cpu", "--json"])
    assert json.loads(result.stdout)[0]["name"] == "transformers"


def test_a_backend_named_twice_is_described_once() -> None:
    result = CliRunner().invoke(app, ["backends", "torch", "torch", "--device", "cpu", "--json"])
    assert len(json.loads(result.stdout)) == 1
