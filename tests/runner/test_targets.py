"""Names on the command line become targets, and what is broken is said, not passed over or thrown."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from pagedbench.backends import registry
from pagedbench.backends.registry import BrokenBackend, find_backend
from pagedbench.errors import UsageError
from pagedbench.runner.targets import resolve

KERNELS = """
from pagedbench.backends.base import Backend, Output

class Plain(Backend):
    def decode(self, call, plan): return Output(call.q)

class Odd(Plain):
    def available(self, device): raise OSError("/x/lib.so: undefined symbol: _ZN3c105ErrorC2E")

class Empty(Backend): pass
"""


@pytest.fixture
def kernels(tmp_path: Path) -> str:
    file = tmp_path / "kernels.py"
    file.write_text(KERNELS)
    return str(file)


def test_a_class_of_a_users_own_needs_its_path_only(kernels: str) -> None:
    (target,) = resolve([f"{kernels}:Plain"], (), "cpu")
    assert (target.available, target.paths) == (True, ("decode",))


def test_a_file_is_another_when_what_it_imports_from_beside_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--resume` kept the pass of a kernel whose helper had been broken since. Packages that are installed below its
    folder, as below a home, are none of its own."""
    (tmp_path / "beside_the_kernel.py").write_text("SCALE = 1\n")
    (tmp_path / "unrelated.py").write_text("")
    (tmp_path / "kernels.py").write_text("import beside_the_kernel\n" + KERNELS)

    def identity() -> str:
        (target,) = resolve([f"{tmp_path / 'kernels.py'}:Plain"], (), "cpu")
        return target.identity

    before = identity()
    (tmp_path / "unrelated.py").write_text("A = 1\n")
    assert identity() == before
    (tmp_path / "lib" / "site-packages").mkdir(parents=True)
    installed = tmp_path / "lib" / "site-packages" / "installed_below_the_kernel.py"
    installed.write_text("")
    monkeypatch.syspath_prepend(installed.parent)
    importlib.import_module(installed.stem)
    assert identity() == before
    (tmp_path / "beside_the_kernel.py").write_text("SCALE = 2\n")
    assert identity() != before


def test_a_backend_that_cannot_say_whether_it_is_there_is_not(kernels: str) -> None:
    odd, torch = resolve([f"{kernels}:Odd", "torch"], (), "cpu")
    assert not odd.available
    assert "built for another torch" in (odd.reason or "")
    assert torch.available


def test_a_backend_without_a_path_is_no_empty_table(kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenBackend("theirs", "its entry point theirs:X cannot be loaded: it needs the module theirs")
    monkeypatch.setattr(registry, "_registered", lambda: {"theirs": broken})
    for name, words in (("theirs", "it needs the module theirs"), (f"{kernels}:Empty", "no function for any path")):
        with pytest.raises(UsageError, match=words):
            resolve([name], (), "cpu")


def test_a_backend_that_cannot_say_whether_it_is_there_is_skipped_and_listed(kernels: str) -> None:
    from pagedbench.runner.listing import describe

    assert "built for another torch" in describe(find_backend(f"{kernels}:Odd"), "cpu")["reason"]
