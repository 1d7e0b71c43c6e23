from __future__ import annotations

from itertools import pairwise

import pytest

from pagedbench.backends.base import Output, Traits
from pagedbench.checks.base import CheckResult
from pagedbench.checks.steps import Steps
from pagedbench.errors import ScenarioError
from pagedbench.layout.steps import step_layouts
from pagedbench.scenario.loader import loads
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.call import Call
from pagedbench.words import AttnPath, Verdict
from tests.checks.kernels import Plain, Tamper, context
from tests.tensors.cells import DOCS_TABLE, scenario


def judged(tamper: Tamper | None = None, path: AttnPath = AttnPath.DECODE, steps: int = 4) -> CheckResult:
    return Steps().run(context(scenario(steps=steps), Plain(tamper), path))


@pytest.mark.parametrize("path", [AttnPath.DECODE, AttnPath.VARLEN])
def test_a_right_kernel_decodes_on(path: AttnPath) -> None:
    result = judged(path=path)
    assert result.verdict is Verdict.PASS
    assert result.message == "4 steps, output and cache right after each"


def test_each_step_sees_the_key_that_the_one_before_wrote() -> None:
    layouts = step_layouts(scenario(steps=4))
    assert [layout.cache_seqlens.tolist() for layout in layouts] == [
        [30, 32, 70],
        [31, 33, 71],
        [32, 34, 72],
        [33, 35, 73],
    ]
    for before, after in pairwise(layouts):
        assert (before.block_table == after.block_table).all()
        ends = after.cu_seqlens_k[1:] - 2
        assert after.read_slots[ends].tolist() == before.write_slots.tolist()


def test_a_fault_in_a_later_step_names_the_step() -> None:
    def wrong_output(call: Call, output: Output) -> None:
        output.out += call.cache_seqlens[0].item() == 32

    def stray_write(call: Call, output: Output) -> None:
        if call.cache_seqlens[0] == 31:
            call.k_cache[call.block_table[2, 0], 5] = 0

    result = judged(wrong_output)
    assert result.verdict is Verdict.MISMATCH
    assert result.message.startswith("step 3 of 4: sequence")
    assert result.findings[0].message == result.message, "or reports say it twice"
    assert not result.findings[1].message.startswith("step")
    result = judged(stray_write)
    assert result.verdict is Verdict.CORRUPTED
    assert result.message.startswith("step 2 of 4: stray write")


def test_a_kernel_that_may_leak_from_the_tail_is_not_handed_nan_in_a_block_that_it_opens() -> None:
    """As flex does: a block is loaded whole, and what stands behind the last key is multiplied by 0."""

    def loads_whole_blocks(call: Call, output: Output) -> None:
        for sequence, length in enumerate(call.total_seqlens.tolist()):
            column, used = divmod(length - 1, call.spec.block_size)
            behind = call.v_cache[call.block_table[sequence, column], used + 1 :]
            output.out[sequence] += (0 * behind.float()).sum()

    leaky = Plain(loads_whole_blocks, Traits(out=True, nan_regions={"tail.v": "may-leak"}))
    assert Steps().run(context(scenario(steps=4), leaky, AttnPath.DECODE)).verdict is Verdict.PASS
    assert judged(loads_whole_blocks).verdict is Verdict.NON_FINITE


def test_padding_rows_stay_as_they_are() -> None:
    wanted = scenario((1, 1), (5, 0), padding_rows=1, cache={"trash_block": True}, steps=3)
    assert [layout.cache_seqlens.tolist() for layout in step_layouts(wanted)] == [[5, 0], [6, 0], [7, 0]]
    assert Steps().run(context(wanted, Plain())).verdict is Verdict.PASS


def test_a_table_without_room_for_the_last_step_is_refused() -> None:
    cache = {"block_table": DOCS_TABLE, "num_blocks": 8, "max_blocks_per_seq": 4}
    with pytest.raises(ScenarioError, match="block_table"):
        step_layouts(scenario(cache=cache, steps=5))


@pytest.mark.parametrize(
    ("wanted", "reason"),
    [(scenario(), "the scenario has one step"), (scenario(steps=3, append=False), "nothing is appended")],
)
def test_it_does_not_apply_to_a_single_step(wanted: Scenario, reason: str) -> None:
    assert Steps().not_applicable(context(wanted, Plain())) == reason


def test_a_scenario_whose_last_step_does_not_fit_is_refused_when_it_is_loaded() -> None:
    text = """
name: too-far
about: The second block is full after 32 more tokens.
batch: {query_lens: [1], cached_lens: [32]}
cache: {block_size: 32, num_blocks: 4, max_blocks_per_seq: 2, block_table: [[0, 1]]}
attention: {num_heads: 2, num_kv_heads: 1, head_dim: 16}
steps: STEPS
"""
    assert loads(text.replace("STEPS", "32"))[0].steps == 32
    with pytest.raises(ScenarioError, match="max_blocks_per_seq"):
        loads(text.replace("STEPS", "33"))
