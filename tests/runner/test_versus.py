"""Sides timed side by side: on one pool, judged before and after, wrong ones without a time. In this process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagedbench.backends.execute import execute
from pagedbench.backends.registry import find_backend
from pagedbench.checks.base import CheckContext
from pagedbench.layout.build import build_layout
from pagedbench.results.comparison import ComparisonRecord
from pagedbench.runner.timed import timed_call, without_append
from pagedbench.runner.versus import versus
from pagedbench.runner.versus_job import VersusJob
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.inputs import random_inputs
from pagedbench.tensors.prepare import prepare
from pagedbench.timing.options import TimingOptions
from pagedbench.words import AttnPath

KERNELS = str(Path(__file__).parent / "kernels.py")
QUICK = TimingOptions(max_seconds=0.05, warmup_seconds=0.0)
TEXT = """
name: small
batch: {query_lens: [1, 1], cached_lens: [5, 9]}
cache: {block_size: 4}
attention: {num_heads: 4, num_kv_heads: 2, head_dim: 16}
"""


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return loads(TEXT)[0]


def compare(scenario: Scenario, *sides: tuple[str, str]) -> dict:
    job = VersusJob(scenario, sides, "cpu", QUICK)
    return versus(VersusJob.from_message(job.to_message()), lambda event, **values: None)


def test_both_sides_are_timed_and_paired(scenario):
    found = compare(scenario, ("torch", "varlen"), ("torch", "decode"))
    assert [side["verdict"] for side in found["sides"]] == ["PASS", "PASS"]
    assert all(side["timing"]["quantities"]["kernel"]["median"] > 0 for side in found["sides"])
    (pair,) = found["pairs"]
    assert (pair["a"], pair["b"]) == (0, 1)
    assert pair["low"] <= pair["ratio"] <= pair["high"]
    assert pair["difference"] < 0.1  # bf16 outputs of size 1, each within its budget


def test_a_small_batch_has_one_thread_as_in_a_run(scenario, monkeypatch):
    """A comparison must not show other times than a run of the same cells."""
    before, seen = torch.get_num_threads(), []
    monkeypatch.setattr(torch, "get_num_threads", lambda: seen[-1] if seen else 2)
    monkeypatch.setattr(torch, "set_num_threads", seen.append)
    found = compare(scenario, ("torch", "varlen"), ("torch", "decode"))
    assert seen == [1, 2]
    assert all(side["timing"]["placed"].startswith("1 threads ") for side in found["sides"])
    monkeypatch.undo()
    assert torch.get_num_threads() == before


def test_varlen_is_timed_in_stages(scenario):
    found = compare(scenario, ("torch", "varlen"), ("torch", "varlen"))
    assert [stage["name"] for stage in found["sides"][0]["timing"]["stages"]] == ["write", "gather", "attention"]


@pytest.mark.parametrize(
    ("path", "append", "part"),
    [("decode", True, "append"), ("paged-varlen", True, "append"), ("varlen", True, None), ("decode", False, None)],
)
def test_a_kernel_that_appends_has_its_append_timed_apart(scenario, path, append, part):
    """varlen writes in a stage of its own; where nothing is appended there is nothing to tell apart."""
    chosen = replace(scenario, batch=replace(scenario.batch, append=append))
    context = CheckContext(chosen, build_layout(chosen), find_backend("torch"), AttnPath(path), "cpu")
    found = timed_call(context, context.base.prepared).subject.part
    assert (found and found.name) == part


def test_without_append_the_same_keys_are_seen_and_nothing_is_written(scenario):
    layout = build_layout(scenario)
    prepared = prepare(scenario, layout, random_inputs(scenario, layout, "cpu"), AttnPath.DECODE, "cpu")
    torch_backend = find_backend("torch")
    whole = execute(torch_backend, prepared.call).out.clone()
    before = prepared.arena.memory.clone()
    bare = without_append(prepared.call)
    assert (bare.spec.append, bare.cache_seqlens.tolist()) == (False, [6, 10])
    assert torch.equal(execute(torch_backend, bare).out, whole)
    assert torch.equal(prepared.arena.memory, before)


def test_bytes_and_flops_are_those_of_the_batch(scenario):
    # 6 + 10 keys seen; K and V of 2 heads of 16 bf16 each; 2 tokens of Q and output of 4 heads; 2 tokens written.
    found = compare(scenario, ("torch", "decode"), ("torch", "decode"))
    per_token = 2 * 2 * 16 * 2
    assert found["work"]["bytes"] == 16 * per_token + 2 * (2 * 4 * 16 * 2) + 2 * per_token
    assert found["work"]["flops"] == 2 * (16 + 16) * 16 * 4


def test_a_wrong_side_gets_no_time_and_no_pair(scenario):
    found = compare(scenario, ("torch", "decode"), (f"{KERNELS}:wrong_decode", "decode"), ("torch", "varlen"))
    assert found["sides"][1]["timing"] is None
    assert found["sides"][1]["verdict"] == "MISMATCH"
    assert [(pair["a"], pair["b"]) for pair in found["pairs"]] == [(0, 2)]


def test_a_prefill_batch_compares_the_paths_that_can_take_it(scenario):
    ragged = replace(scenario, batch=replace(scenario.batch, query_lens=(3, 1)))
    found = compare(ragged, ("torch", "varlen"), ("torch", "paged-varlen"))
    assert [side["verdict"] for side in found["sides"]] == ["PASS", "PASS"]


def test_what_comes_back_fits_a_record(scenario):
    from pagedbench.runner.compare import facts_of

    record = ComparisonRecord("small", "cpu", facts_of(scenario))
    assert record.facts == {
        "batch": 2,
        "keys": 10,
        "query_len": 1,
        "block_size": 4,
        "placement": "shuffled",
        "num_splits": "auto",
    }


def test_variants_with_the_same_longest_sequence_have_places_of_their_own():
    """[3, 9] and [9, 9] both have 10 keys at most: the map would show one of them only."""
    from pagedbench.runner.compare import distinct_facts

    lengths = {"batch.cached_lens": [[3, 9], [9, 9]]}
    facts = list(distinct_facts(loads(TEXT, sweep=lengths)).values())
    assert [fact["batch.cached_lens"] for fact in facts] == ["[3, 9]", "[9, 9]"]
    told_by_keys = distinct_facts(loads(TEXT, sweep={"batch.cached_lens": [[3, 8], [3, 9]]}))
    assert [(fact["keys"], "batch.cached_lens" in fact) for fact in told_by_keys.values()] == [(9, False), (10, False)]
