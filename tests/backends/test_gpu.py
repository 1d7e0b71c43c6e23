"""Every backend that this GPU machine has, on shipped scenarios and on each feature: right numbers, right cache.

A backend that refuses is skipped with its reason; what it accepts must be right, unless the scenario expects otherwise.
`pytest -k smoke tests/backends/test_gpu.py` comes first: every path on three tiny scenarios, in less than a minute.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache

import pytest
import torch

from pagedbench.backends.base import Backend
from pagedbench.backends.execute import stages
from pagedbench.backends.features import FEATURES, claim
from pagedbench.backends.probe import LINE, Trial, probe
from pagedbench.backends.registry import backends
from pagedbench.checks.base import CheckContext
from pagedbench.checks.registry import CHECKS
from pagedbench.layout.build import build_layout
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.prepare import call_spec
from pagedbench.words import AttnPath, Verdict, worst

pytestmark = pytest.mark.gpu
TARGETS = [(backend, path) for backend in backends() for path in backend.paths]
TARGET_IDS = [f"{backend.name}:{path}" for backend, path in TARGETS]


@pytest.fixture(autouse=True)
def _free_memory() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.empty_cache()


def _skip_if_not_here(backend: Backend) -> None:
    found = backend.available("cuda")
    if not found.available:
        pytest.skip(found.reason or "not available")


def _expects_otherwise(scenario: Scenario, backend: Backend, path: AttnPath) -> bool:
    return any(expected.target in {backend.name, f"{backend.name}:{path}"} for expected in scenario.expect)


# Of one dtype and head dim, so that FlashInfer compiles one kernel for all.
SMOKE = ("bfloat16", "ragged queries", "GQA, 4 heads a KV head")
SMOKE_SECONDS = 90
# Paths whose LSE is wrong for some features: see edge-one-token-each and edge-zero-keys-256.
WRONG_LSE = {("flash-attn", AttnPath.PAGED_VARLEN): ("GQA", "MQA", "a sequence without keys")}


def _works(backend: Backend, trial: Trial) -> bool:
    if trial.feature.startswith(WRONG_LSE.get((backend.name, AttnPath(trial.path)), ())):
        return trial.verdict == Verdict.MISMATCH and "LSE" in trial.message
    return trial.works


@pytest.fixture(scope="module")
def smoke() -> Iterator[Callable[[str], list[Trial]]]:
    """What each backend's process found out. They run side by side, since most of their time goes into compiling."""
    processes = {}
    for backend in backends():
        if not backend.available("cuda").available:
            continue
        features = [feature for feature in FEATURES if feature.name in SMOKE]
        todo = [
            (feature.name, path.value)
            for feature in features
            for path in feature.paths(backend)
            if claim(backend, feature, path, "cuda") is None
        ]
        command = [sys.executable, "-m", "pagedbench.backends.probe", backend.source, "cuda"]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(todo))
        process.stdin.close()
        process.stdin = None
        processes[backend.name] = process

    @cache
    def trials(name: str) -> list[Trial]:
        said, _ = processes[name].communicate(timeout=SMOKE_SECONDS)
        found = [Trial(**json.loads(line.removeprefix(LINE))) for line in said.splitlines() if line.startswith(LINE)]
        assert processes[name].returncode == 0, said[-2000:]
        return found

    yield trials
    for process in processes.values():
        process.kill()
        process.wait()


@pytest.mark.timeout(SMOKE_SECONDS + 10)
@pytest.mark.parametrize(("backend", "path"), TARGETS, ids=TARGET_IDS)
def test_smoke(backend: Backend, path: AttnPath, smoke: Callable[[str], list[Trial]]) -> None:
    _skip_if_not_here(backend)
    found = [trial for trial in smoke(backend.name) if trial.path == path.value]
    if not found:
        (feature,) = (feature for feature in FEATURES if feature.name == SMOKE[0])
        pytest.skip(claim(backend, feature, path, "cuda") or "not asked")
    assert [trial for trial in found if not _works(backend, trial)] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("backend", "path"), TARGETS, ids=TARGET_IDS)
def test_shipped_scenarios(backend: Backend, path: AttnPath) -> None:
    _skip_if_not_here(backend)
    wrong = {}
    for scenario in load_scenarios(["docs", "edge", "features"]):
        layout = build_layout(scenario)
        refused = backend.unsupported(call_spec(scenario, layout, path, "cuda"))
        ragged = path is AttnPath.DECODE and layout.uniform_query_len is None
        if refused or ragged or _expects_otherwise(scenario, backend, path):
            continue
        context = CheckContext(scenario, layout, backend, path, "cuda")
        checks = [CHECKS[name] for name in ("accuracy", "cache-update")]
        results = [check.run(context) for check in checks if check.not_applicable(context) is None]
        if worst(result.verdict for result in results) is not Verdict.PASS:
            wrong[scenario.name] = [result.message for result in results]
    assert not wrong


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", backends(), ids=lambda backend: backend.name)
def test_claims_are_true(backend: Backend) -> None:
    _skip_if_not_here(backend)
    claimed = {
        (feature.name, path.value)
        for feature in FEATURES
        for path in feature.paths(backend)
        if claim(backend, feature, path, "cuda") is None
    }
    trials = [trial for trial in probe(backend, "cuda") if (trial.feature, trial.path) in claimed]
    assert not [trial for trial in trials if not _works(backend, trial)]


@pytest.mark.parametrize(("backend", "path"), TARGETS, ids=TARGET_IDS)
def test_path_functions_do_not_synchronise(backend: Backend, path: AttnPath) -> None:
    """Planned and warmed up, a call must leave the host free: torch raises here where an operation would wait."""
    _skip_if_not_here(backend)
    (feature,) = (feature for feature in FEATURES if feature.name == "bfloat16")
    if reason := claim(backend, feature, path, "cuda"):
        pytest.skip(reason)
    context = CheckContext(feature.scenario, build_layout(feature.scenario), backend, path, "cuda")
    call = context.prepare().call
    steps = stages(backend, call, backend.plan(call))
    for step in steps:
        step.run()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in steps:
            step.run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
