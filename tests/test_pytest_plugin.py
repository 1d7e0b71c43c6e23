"""The pytest plugin as a kernel repository meets it: five lines, failures like the terminal's, honest skips."""

from __future__ import annotations

import textwrap
from importlib import import_module

import pytest

pytest_plugins = "pytester"

KERNELS = """
import torch

def attend(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, unseen):
    out = torch.zeros_like(q)
    for sequence, length in enumerate(total_seqlens.tolist()):
        blocks = block_table[sequence, : -(-length // k_cache.shape[1])].long()
        k = k_cache[blocks].flatten(0, 1)[: length - unseen].double()
        v = v_cache[blocks].flatten(0, 1)[: length - unseen].double()
        group = q.shape[2] // k.shape[1]
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        scores = torch.einsum("nhd,khd->hnk", q[sequence].double(), k) * softmax_scale
        out[sequence] = torch.einsum("hnk,khd->nhd", scores.softmax(-1), v).to(q.dtype)
    return out

def good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    return attend(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, 0)

def wrong_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    return attend(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, 1)

def raising_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    raise RuntimeError("page size 4 is not supported")

def poisoning_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    torch.set_default_dtype(torch.float64)
    return attend(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale, 0)
"""
SCENARIO = """
name: small
about: Two sequences, the second one's new token opens a block.
batch: {query_lens: [1, 1], cached_lens: [2, 4]}
cache: {block_size: 4}
attention: {num_heads: 2, num_kv_heads: 1, head_dim: 16}
---
name: ragged
about: Query lengths differ, so that decode cannot take it.
batch: {query_lens: [1, 2], cached_lens: [2, 4]}
cache: {block_size: 4}
attention: {num_heads: 2, num_kv_heads: 1, head_dim: 16}
"""
FIVE_LINES = """
from pagedbench.pytest_plugin import pagedbench_scenarios
from plugin_kernels import KERNEL

@pagedbench_scenarios("small.yaml")
def test_kernel(pagedbench_check):
    pagedbench_check(KERNEL)
"""


@pytest.fixture(scope="module", autouse=True)
def everything_loaded() -> None:
    """Torch and others cannot be imported twice: they must be there before pytester notes which modules are loaded."""
    for module in ("runner.cell", "runner.outcome", "scenario.loader", "report.table", "faults.diagnosis"):
        import_module(f"pagedbench.{module}")
    import_module("pagedbench.backends.registry").backends()


@pytest.fixture
def repository(pytester: pytest.Pytester) -> pytest.Pytester:
    """A kernel repository with kernels, a file of scenarios, and no pagedbench settings."""
    pytester.makepyfile(plugin_kernels=KERNELS)
    pytester.makefile(".yaml", small=SCENARIO)
    pytester.syspathinsert()
    return pytester


def run(repository: pytest.Pytester, test: str, *arguments: str) -> pytest.RunResult:
    repository.makepyfile(test_it=textwrap.dedent(test))
    return repository.runpytest_inprocess(
        "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--pagedbench-suite=run", *arguments
    )


def test_five_lines_test_a_kernel_once_a_scenario(repository: pytest.Pytester) -> None:
    result = run(repository, FIVE_LINES.replace("KERNEL", "good_decode"), "-v", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*test_kernel?small? PASSED*", "*SKIPPED*decode cannot take prefill*"])


def test_a_failure_reads_like_the_terminals(repository: pytest.Pytester) -> None:
    result = run(repository, FIVE_LINES.replace("KERNEL", "wrong_decode"))
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "MISMATCH small plugin_kernels.py:wrong_decode:decode",
            "  accuracy: sequence *times the budget*",
            "  written in small.yaml:1:7",
            "  again: pagedbench run small.yaml --backend plugin_kernels.py:wrong_decode:decode --device cpu",
        ]
    )
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_isolated_a_kernel_that_ends_its_process_fails_its_own_test_and_no_other(repository: pytest.Pytester) -> None:
    crashing = """
import os
from pagedbench.pytest_plugin import pagedbench_scenarios
from plugin_kernels import good_decode

def abort_decode(q):
    os.abort()

@pagedbench_scenarios("small.yaml")
def test_a(pagedbench_check):
    pagedbench_check(abort_decode)

@pagedbench_scenarios("small.yaml")
def test_b(pagedbench_check):
    pagedbench_check(good_decode)
"""
    result = run(repository, crashing, "--pagedbench-isolate")
    result.assert_outcomes(failed=1, passed=1, skipped=2)
    result.stdout.fnmatch_lines(
        [
            "CRASHED small test_it.py:abort_decode:decode",
            "  abort() was called (SIGABRT), in the check accuracy",
            "  at test_it.py, line *, in abort_decode",
        ]
    )


def test_an_exception_of_the_kernel_keeps_its_message_and_place(repository: pytest.Pytester) -> None:
    result = run(repository, FIVE_LINES.replace("KERNEL", "raising_decode"))
    result.stdout.fnmatch_lines(["ERROR small *", "*page size 4 is not supported*", "*in raising_decode*"])


def test_the_kernel_may_come_from_the_command_line(repository: pytest.Pytester) -> None:
    test = """
    def test_kernel(pagedbench_check):
        records = pagedbench_check(scenario="small.yaml")
        assert records[0].worst_error < 1
    """
    options = (
        "--pagedbench-backend",
        "plugin_kernels.py:good_decode",
        "--pagedbench-backend",
        "plugin_kernels.py:wrong_decode",
    )
    result = run(repository, test, *options)
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["FAILED*test_kernel?plugin_kernels.py:wrong_decode?*"])


def test_the_id_does_not_name_a_kernel_that_the_test_may_not_use(repository: pytest.Pytester) -> None:
    test = FIVE_LINES.replace("KERNEL", "wrong_decode")
    result = run(repository, test, "--pagedbench-backend", "plugin_kernels.py:good_decode")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines(["FAILED*::test_kernel?small?*"])


NOTHING_JUDGED = """
import pytest

def test_passes(pagedbench_check):
    pass

def test_fails(pagedbench_check):
    assert False, "by itself"

def test_skips(pagedbench_check):
    pytest.skip("by itself")

def test_calls(pagedbench_check):
    pagedbench_check(scenario="small.yaml")
"""


def test_a_marked_test_without_the_fixture_is_an_error_that_says_so(repository: pytest.Pytester) -> None:
    marked = """
from pagedbench.pytest_plugin import pagedbench_scenarios

@pagedbench_scenarios("small.yaml")
def test_nothing():
    pass
"""
    result = run(repository, marked, "--pagedbench-backend", "plugin_kernels.py:good_decode")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*is marked with scenarios and judges no kernel*"])


def test_a_test_that_passes_and_judged_nothing_is_an_error_that_says_so(repository: pytest.Pytester) -> None:
    result = run(repository, NOTHING_JUDGED, "--pagedbench-backend", "plugin_kernels.py:good_decode")
    result.assert_outcomes(passed=2, failed=1, skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*ERROR at teardown of test_passes*", "the test passed, and judged no kernel*"])
    assert result.ret != 0


def test_what_a_kernel_leaves_changed_is_told_and_undone(repository: pytest.Pytester) -> None:
    test = """
    import plugin_kernels, torch
    def test_kernel(pagedbench_check):
        pagedbench_check(plugin_kernels.poisoning_decode, "small.yaml")
        assert torch.get_default_dtype() is torch.float32
    """
    result = run(repository, test)
    result.assert_outcomes(passed=1)
    told = "*small plugin_kernels.py:poisoning_decode:decode: the kernel leaves torch's default dtype changed*"
    result.stdout.fnmatch_lines([told])


def test_a_function_within_a_test_is_a_kernel_too(repository: pytest.Pytester) -> None:
    test = """
    import plugin_kernels
    def test_kernel(pagedbench_check):
        def my_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
            return plugin_kernels.good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale)
        pagedbench_check(my_decode, "small.yaml")
    """
    run(repository, test).assert_outcomes(passed=1)


def test_nothing_to_test_is_a_failure_that_says_what_is_missing(repository: pytest.Pytester) -> None:
    result = run(repository, "def test_kernel(pagedbench_check):\n    pagedbench_check()")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["which kernel? pass it to pagedbench_check*"])


def test_an_unknown_scenario_is_an_error_with_the_nearest_name(repository: pytest.Pytester) -> None:
    result = run(repository, FIVE_LINES.replace("KERNEL", "good_decode").replace("small.yaml", "docs-decod"))
    assert result.ret != 0
    result.stdout.fnmatch_lines(["*docs-decod*", "*docs-decode*"])


def test_an_expected_failure_is_an_xfail(repository: pytest.Pytester) -> None:
    expect = "expect: {'plugin_kernels.py:wrong_decode': {fail: reads one key less}}\n---"
    repository.makefile(".yaml", small=SCENARIO.replace("---", expect))
    test = FIVE_LINES.replace("KERNEL", "wrong_decode")
    run(repository, test).assert_outcomes(xfailed=1, skipped=1)


def test_the_limit_on_address_space_does_not_outlast_a_cell(repository: pytest.Pytester) -> None:
    test = """
    import resource, plugin_kernels
    def test_kernel(pagedbench_check):
        before = resource.getrlimit(resource.RLIMIT_AS)
        pagedbench_check(plugin_kernels.good_decode, "small.yaml")
        assert resource.getrlimit(resource.RLIMIT_AS) == before
    """
    run(repository, test).assert_outcomes(passed=1)
