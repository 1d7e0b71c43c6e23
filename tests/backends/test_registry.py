"""How a person names a backend, and that nothing broken breaks the rest."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from pagedbench.backends import registry
from pagedbench.backends.base import Availability, Backend
from pagedbench.backends.registry import backends, find_backend, parse_target, presence
from pagedbench.errors import UsageError
from pagedbench.words import AttnPath

OWN = {
    "torch", "torch-varlen", "triton", "flash-attn", "flash-attn-3", "flash-attn-4", "flashinfer", "transformers",
    "vllm-flash-attn", "flex",
}  # fmt: skip


def test_every_library_is_listed_and_says_why_not() -> None:
    names = {b.name for b in backends()}
    assert names >= OWN
    for backend in backends():
        for device in ("cpu", "cuda"):
            answer = backend.available(device)
            assert answer.available or answer.reason, (backend.name, device)


def test_torch_is_first_and_available() -> None:
    assert backends()[0].name == "torch"
    assert backends()[0].available("cpu").available


@pytest.mark.parametrize(
    ("text", "backend", "path"),
    [
        ("decode", None, AttnPath.DECODE),
        ("paged-varlen", None, AttnPath.PAGED_VARLEN),
        ("torch", "torch", None),
        ("torch:decode", "torch", AttnPath.DECODE),
        ("torch:paged-varlen", "torch", AttnPath.PAGED_VARLEN),
    ],
)
def test_targets(text: str, backend: str | None, path: AttnPath | None) -> None:
    target = parse_target(text)
    assert (target.backend.name if target.backend else None, target.path) == (backend, path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flash-atn", "did you mean flash-attn?"),
        ("torch:decod", "did you mean decode?"),
        ("nothing-like-it", "there are torch"),
        ("missing.py:f", "no file"),
    ],
)
def test_unknown_targets_name_what_is_near(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_target(text)
    assert words in f"{error.value.message} {error.value.hint}"


def test_a_file_may_carry_a_path(tmp_path: Path) -> None:
    file = tmp_path / "kernels.py"
    file.write_text("def decode(q, k_cache): ...\ndef other_varlen(q, k): ...\n")
    assert parse_target(f"{file}:decode").path is None, "a function of that name wins over the path"
    assert parse_target(f"{file}:varlen").path is AttnPath.VARLEN
    target = parse_target(f"{file}:other_varlen:varlen")
    assert target.backend is not None
    assert target.backend.paths == (AttnPath.VARLEN,)


def test_a_broken_entry_point_is_listed_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [EntryPoint("broken", "no_such_module:Backend", registry.ENTRY_POINTS)]
    monkeypatch.setattr(registry, "entry_points", lambda group: entries)
    monkeypatch.setattr(registry, "_registered", registry._registered.__wrapped__)
    broken = find_backend("broken")
    assert "no_such_module" in (broken.available("cpu").reason or "")
    assert find_backend("torch").available("cpu").available


def test_an_entry_point_that_exits_does_not_take_the_others_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wants_out.py").write_text("import sys; sys.exit('no GPU')")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "entry_points", lambda group: [EntryPoint("out", "wants_out:X", group)])
    monkeypatch.setattr(registry, "_registered", registry._registered.__wrapped__)
    assert "SystemExit: no GPU" in (find_backend("out").available("cpu").reason or "")
    assert find_backend("torch").available("cpu").available


class CannotSay(Backend):
    def available(self, device: str) -> Availability:
        raise ValueError("no such thing")


def test_what_fails_when_it_is_asked_is_not_said_to_be_an_import() -> None:
    assert presence(CannotSay(), "cpu").reason == "it cannot say whether it is there: ValueError: no such thing"


def test_an_entry_point_may_be_a_plain_function(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("theirs", "tests.backends.test_registry:their_decode", registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry])
    monkeypatch.setattr(registry, "_registered", registry._registered.__wrapped__)
    theirs = find_backend("theirs")
    assert (theirs.name, theirs.source, theirs.paths) == ("theirs", "theirs", (AttnPath.DECODE,))


def their_decode(q: object, k_cache: object) -> None: ...


@pytest.mark.parametrize("written", ["kernel:my_decode", "kernel.py::my_decode"])
def test_a_file_written_otherwise_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kernel.py").write_text("def my_decode(q): ...\n")
    with pytest.raises(UsageError) as error:
        parse_target(written)
    assert error.value.hint == "did you mean kernel.py:my_decode?"


@pytest.mark.parametrize("written", ["kernel.py", "torch"])
def test_a_colon_with_nothing_behind_it_is_not_proposed_again(written: str) -> None:
    with pytest.raises(UsageError, match="nothing stands behind the colon") as error:
        parse_target(f"{written}:")
    assert (error.value.hint or "").startswith(f"write {written}, or {written}:NAME")
