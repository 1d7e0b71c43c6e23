"""The capability matrix and its probe: what is claimed is what is tried, and a crash costs one trial."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagedbench.backends import probe as probing
from pagedbench.backends.base import Backend
from pagedbench.backends.features import FEATURES, Feature, claim
from pagedbench.backends.files import load_backend
from pagedbench.backends.probe import Todo, Trial, probe, probe_all, trials_of, try_feature
from pagedbench.backends.registry import find_backend
from pagedbench.cli.app import app
from pagedbench.words import AttnPath

BY_NAME = {feature.name: feature for feature in FEATURES}


@pytest.mark.parametrize("feature", FEATURES, ids=lambda f: f.name)
def test_torch_has_every_feature_it_claims(feature: Feature) -> None:
    torch = find_backend("torch")
    path = AttnPath.PAGED_VARLEN
    assert claim(torch, feature, path, "cpu") is None
    trial = try_feature(torch, feature, path, "cpu")
    assert trial.works, trial.message


def test_ragged_queries_are_no_question_for_decode() -> None:
    assert AttnPath.DECODE not in BY_NAME["ragged queries"].paths(find_backend("torch"))
    assert AttnPath.DECODE in BY_NAME["4 query tokens each"].paths(find_backend("torch"))


KERNEL = """
import os
from pagedbench.backends.torch_backend import TorchBackend
from pagedbench.words import AttnPath

class Mine(TorchBackend):
    name = "mine"
    paths = (AttnPath.VARLEN,)

    def unsupported(self, spec):
        return "softcap: mine has none" if spec.softcap else None

    def varlen(self, call, plan):
        if call.spec.sinks:
            os._exit(3)
        output = super().varlen(call, plan)
        if call.spec.alibi:
            output.out.zero_()
        return output
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A kernel that has softcap without claiming it, fails with ALiBi, and ends the process with sinks."""
    few = tuple(BY_NAME[name] for name in ("bfloat16", "softcap", "sinks", "ALiBi"))
    monkeypatch.setattr(probing, "FEATURES", few)
    file = tmp_path / "mine.py"
    file.write_text(KERNEL)
    return str(file)


def test_a_probe_tells_claims_from_truth(mine: str) -> None:
    trials = {trial.feature: trial for trial in probe(load_backend(mine), "cpu")}
    assert trials["bfloat16"].works
    assert trials["softcap"].works
    assert claim(load_backend(mine), BY_NAME["softcap"], AttnPath.VARLEN, "cpu") == "softcap: mine has none"
    assert trials["sinks"].verdict == "CRASHED"
    assert trials["sinks"].message == "the process exited with status 3"
    assert trials["ALiBi"].verdict == "MISMATCH"


def test_a_probe_says_which_signal_ended_its_process(mine: str) -> None:
    file = Path(mine)
    file.write_text(KERNEL.replace("os._exit(3)", "os.kill(os.getpid(), 11)"))
    trials = {trial.feature: trial for trial in probe(load_backend(mine), "cpu")}
    assert trials["sinks"].message == "the process was ended by SIGSEGV"
    assert trials["ALiBi"].verdict == "MISMATCH"


def test_backends_probed_side_by_side_keep_their_own_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    both_there = threading.Barrier(2, timeout=30)  # breaks, and fails the test, where one waits for the other's end

    def slow(backend: Backend, device: str, todo: Todo, running: object) -> Iterator[Trial]:
        both_there.wait()
        yield Trial("bfloat16", "decode", "PASS", backend.name)

    monkeypatch.setattr(probing, "_probe", slow)
    chosen = [find_backend("torch"), find_backend("transformers")]
    found = {(backend.name, trial.message) for backend, trial in probe_all(chosen, "cpu")}
    assert found == {("torch", "torch"), ("transformers", "transformers")}


def test_what_compiles_is_dealt_out_by_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    """With paths that share what is compiled in one process, and nothing twice or left out."""
    asked: list[tuple[str, Todo]] = []

    def note(backend: Backend, device: str, todo: Todo, running: object) -> Iterator[Trial]:
        asked.append((backend.name, todo))
        return iter(())

    monkeypatch.setattr(probing, "_probe", note)
    monkeypatch.setattr("os.cpu_count", lambda: 16)
    chosen = [find_backend("torch"), find_backend("flex")]
    assert list(probe_all(chosen, "cpu")) == []
    assert [name for name, _ in asked].count("torch") == 1
    pieces = [todo for name, todo in asked if name == "flex"]
    assert len(pieces) == 4
    assert sorted(one for todo in pieces for one in todo) == sorted(trials_of(find_backend("flex")))
    features = [{feature for feature, _ in todo} for todo in pieces]
    assert sum(map(len, features)) == len(set().union(*features))


def test_a_device_that_one_trial_killed_costs_no_other(mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends itself after it has told of the trial, and another goes on behind it."""
    dead = "import sys; sys.modules['__main__'].cuda_context_is_dead = lambda: True\n"  # the module that is run
    file = Path(mine)
    file.write_text(dead + KERNEL.replace("os._exit(3)", "raise RuntimeError('CUDA error: misaligned address')"))
    trials = list(probe(load_backend(mine), "cpu"))
    found = {trial.feature: (trial.verdict, trial.message) for trial in trials}
    assert len(trials) == len(found)
    assert found["sinks"] == ("ERROR", "RuntimeError: CUDA error: misaligned address")
    assert found["ALiBi"][0] == "MISMATCH"


def test_a_probe_that_is_left_ends_its_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid = tmp_path / "pid"
    stuck = KERNEL.replace(
        "os._exit(3)", f"open({str(pid)!r}, 'w').write(str(os.getpid())); __import__('time').sleep(600)"
    )
    file = tmp_path / "mine.py"
    file.write_text(stuck)
    monkeypatch.setattr(probing, "FEATURES", tuple(BY_NAME[name] for name in ("bfloat16", "sinks", "ALiBi")))
    trials = probe_all([load_backend(str(file))], "cpu")
    assert next(trials)[1].works
    while not (pid.exists() and pid.read_text()):
        time.sleep(0.05)
    trials.close()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_an_interrupted_probe_shows_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(chosen: object, device: str) -> Generator[tuple[Backend, Trial], None, None]:
        yield find_backend("torch"), Trial("softcap", "decode", "MISMATCH", "off")
        raise KeyboardInterrupt

    monkeypatch.setattr(probing, "probe_all", interrupted)
    result = CliRunner().invoke(app, ["backends", "torch", "--probe", "--device", "cpu"])
    assert result.exit_code == 130
    assert "interrupted by SIGINT: 1 of" in result.stderr
    assert "decode is claimed, and fails: MISMATCH off" in " ".join(result.stdout.split())


def test_a_backend_that_raises_when_asked_has_nothing_to_offer() -> None:
    class Odd:
        def unsupported(self, spec: object) -> None:
            raise OSError("libcuda.so.1: cannot open shared object file")

    assert "OSError" in (claim(Odd(), BY_NAME["MQA"], AttnPath.VARLEN, "cpu") or "")  # type: ignore[arg-type]


def test_a_trial_that_raises_keeps_its_message() -> None:
    class Odd(type(find_backend("torch"))):  # type: ignore[misc]
        def varlen(self, call: object, plan: object) -> None:
            raise RuntimeError("no kernel image is available")

    trial = try_feature(Odd(), BY_NAME["MQA"], AttnPath.VARLEN, "cpu")
    assert trial == Trial("MQA", "varlen", "ERROR", "RuntimeError: no kernel image is available")
