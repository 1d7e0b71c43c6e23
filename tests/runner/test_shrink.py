"""Shrinking keeps the failure and drops everything else."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pagedbench.cli.app import app
from pagedbench.layout.build import build_layout
from pagedbench.runner.shrink import reductions, shrink
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from tests.tensors.cells import docs_decode, scenario

from .conftest import Start

KERNEL = '''
import torch


def my_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):
    """Right but for its last key, which it forgets in sequences of more than one block."""
    out = torch.zeros(*q.shape[:3], v_cache.shape[-1], dtype=q.dtype, device=q.device)
    size, kv_heads = k_cache.shape[1:3]
    for b, n in enumerate(total_seqlens.tolist()):
        blocks = block_table[b, : -(-n // size)].long()
        n -= n > size
        k, v = (t[blocks].flatten(0, 1)[:n].float() for t in (k_cache, v_cache))
        k, v = (t.repeat_interleave(q.shape[2] // kv_heads, 1) for t in (k, v))
        p = torch.softmax(torch.einsum("hd,nhd->hn", q[b, 0].float(), k) * softmax_scale, -1)
        out[b, 0] = torch.einsum("hn,nhd->hd", p, v).to(q.dtype)
    return out
'''


def two_blocks(wanted: Scenario) -> bool:
    return any(c + 1 > wanted.cache.block_size for c in wanted.batch.cached_lens)


def test_what_needs_two_blocks_keeps_one_sequence_with_a_block_and_a_key() -> None:
    found = shrink(docs_decode(), two_blocks).scenario
    assert found.batch.query_lens == (1,)
    assert found.batch.cached_lens == (32,)
    assert (found.attention.num_heads, found.attention.num_kv_heads) == (1, 1)
    assert found.cache.block_table is None


def test_what_needs_a_feature_keeps_it_and_loses_the_others() -> None:
    crowded = scenario(attention={"softcap": 5.0, "sinks": (1.0,) * 4, "window_size": (9, 0), "num_splits": 3})
    found = shrink(crowded, lambda s: s.attention.softcap is not None and s.attention.num_heads > 1).scenario.attention
    assert (found.softcap, found.sinks, found.window_size, found.num_splits) == (5.0, None, (-1, -1), 0)
    assert found.num_heads == 2


def test_what_fails_always_ends_at_the_smallest_and_is_never_asked_twice_as_often() -> None:
    found = shrink(scenario((4, 1, 9), (300, 0, 70), heads=(8, 2), head_dim=128), lambda s: True)
    assert found.scenario.batch.query_lens == (1,)
    assert found.scenario.attention.head_dim == 16
    assert found.kept == found.tried < 60


def test_what_fails_only_as_it_is_stays_as_it_is() -> None:
    assert shrink(docs_decode(), lambda s: False).scenario == docs_decode()


def test_the_number_of_trials_is_kept() -> None:
    assert shrink(docs_decode(), lambda s: False, most=5).tried == 5


INTERRUPTING = """
import os
from pathlib import Path


def zero_decode(q):
    calls = Path(__file__).with_name("calls")
    calls.write_text(calls.read_text() + "." if calls.exists() else ".")
    if len(calls.read_text()) == {call}:
        os.kill(os.getppid(), {number})
        while True:
            pass
    return 0 * q
"""


@pytest.mark.parametrize(
    ("number", "call", "told"),
    [
        (signal.SIGINT, 15, ["interrupted by SIGINT: ", " kept; saved as docs-decode-shrunk.yaml"]),
        (signal.SIGTERM, 15, ["interrupted by SIGTERM: ", " kept; saved as docs-decode-shrunk.yaml"]),
        (signal.SIGTERM, 1, ["interrupted by SIGTERM: what is not shown above was not done"]),
    ],
)
def test_an_interrupted_command_saves_and_shows_the_smallest_so_far(
    start: Start, tmp_path: Path, number: signal.Signals, call: int, told: list[str]
) -> None:
    kernel = tmp_path / "kernel.py"
    kernel.write_text(INTERRUPTING.format(call=call, number=int(number)))
    run = start("shrink", "docs-decode", "-b", f"{kernel}:zero_decode", "--suite", "run")
    out, err = run.communicate(timeout=100)
    assert run.returncode == 128 + number, out + err
    assert all(words in err.splitlines()[-1] for words in told), err
    file = tmp_path / "docs-decode-shrunk.yaml"
    assert file.exists() is (call > 1)
    if call > 1:
        assert out == file.read_text()
        (small,) = load_scenarios([str(file)])
        assert small.batch.size < 3
        assert "A smaller form" in small.about


def test_an_interruption_keeps_what_was_found_and_counts_no_trial_in_hand() -> None:
    asked: list[Scenario] = []

    def interrupted_at_the_third(candidate: Scenario) -> bool:
        asked.append(candidate)
        if len(asked) == 3:
            signal.raise_signal(signal.SIGINT)
        return len(asked) == 1

    found = shrink(docs_decode(), interrupted_at_the_third)
    assert (found.tried, found.kept, found.interrupted_by) == (2, 1, signal.SIGINT)
    assert found.scenario == asked[0]


@pytest.mark.parametrize("name", ["docs-decode", "docs-varlen"])
def test_every_chain_of_reductions_ends(name: str) -> None:
    (current,) = load_scenarios([name])[:1]
    for _ in range(100):
        smaller = next(iter(reductions(current)), None)
        if smaller is None:
            return
        current = smaller
    raise AssertionError("reductions go on for ever")


def test_the_command_saves_a_file_that_loads_and_still_fails(tmp_path: Path) -> None:
    kernel, file, script = tmp_path / "kernel.py", tmp_path / "small.yaml", tmp_path / "repro.py"
    kernel.write_text(KERNEL)
    target = f"{kernel}:my_decode"
    done = CliRunner().invoke(app, ["shrink", "docs-decode", "-b", target, "-o", str(file), "--device", "cpu"])
    assert done.exit_code == 0, done.output
    (small,) = load_scenarios([str(file)])
    assert small.batch.cached_lens == (32,)
    assert build_layout(small).batch == 1
    assert CliRunner().invoke(app, ["repro", str(file), "-b", target, "-o", str(script)]).exit_code == 0
    assert "pagedbench" not in script.read_text().split('"""')[2]


def test_a_scenario_that_does_not_fail_is_not_shrunk(tmp_path: Path) -> None:
    args = ["shrink", "docs-decode", "-b", "torch:decode", "-o", str(tmp_path / "x.yaml"), "--device", "cpu"]
    assert CliRunner().invoke(app, args).exit_code == 3
    assert not (tmp_path / "x.yaml").exists()
