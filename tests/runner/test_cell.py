"""One cell walked in this process: which step decides it, and what its record then says."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pagedbench.backends.base import Output
from pagedbench.backends.torch_backend import TorchBackend
from pagedbench.backends.torch_schedule import Schedule
from pagedbench.checks.base import CheckContext
from pagedbench.layout.build import build_layout
from pagedbench.results.record import CellRecord
from pagedbench.runner.cell import judge, read_failure, unusual_for_a_kernel
from pagedbench.runner.protocol import Job
from pagedbench.runner.relations import Equals
from pagedbench.scenario.loader import loads
from pagedbench.tensors.call import Call
from pagedbench.timing.options import TimingOptions
from pagedbench.words import AttnPath, Verdict
from tests.tensors.cells import scenario

from .conftest import KERNELS, SCENARIO


@pytest.fixture(autouse=True)
def unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the tests' own: its address space must not be limited."""
    monkeypatch.setattr("pagedbench.runner.cell.limit_address_space", lambda need, threads: need)


def walk(backend: str = "good", text: str = "", **job: object) -> tuple[CellRecord, list[str]]:
    scenario, *others = loads(text or SCENARIO.format(name="small"))
    events: list[str] = []
    asked: dict[str, object] = {"path": "decode", "device": "cpu", "suite": "run"}
    known = backend == "torch" or ".py:" in backend
    asked["backend"] = backend if known else f"{KERNELS}:{backend}_decode"
    if others:
        scenario, asked["related"] = others[0], scenario

    def tell(event: str, **values: object) -> None:
        events.append(str(values.get("name", event)))

    return judge(Job(scenario=scenario, **{**asked, **job}), tell).record, events  # type: ignore[arg-type]


def test_a_right_cell_passes_and_every_stage_is_told() -> None:
    record, events = walk()
    assert record.verdict is Verdict.PASS
    assert record.worst_error is not None
    assert 0 < record.worst_error <= 1
    assert events[:3] == ["its preparation", "the check accuracy", "check"]
    assert record.memory is not None
    assert record.memory["need"] < record.memory["have"]


def test_a_wrong_cell_is_not_timed() -> None:
    record, events = walk("wrong", timing=TimingOptions())
    assert record.verdict is Verdict.MISMATCH
    assert record.timing is None
    assert "its timing" not in events


def test_a_right_cell_is_timed_and_looked_at_again() -> None:
    quick = TimingOptions(min_samples=3, max_samples=3, max_seconds=0.1, warmup_seconds=0.0)
    record, _ = walk(timing=quick)
    assert record.verdict is Verdict.PASS
    assert record.timing is not None
    assert record.time_us is not None
    assert record.work == {"bytes": (6 + 10 + 2) * 2 * 32 * 2 + 2 * 2 * 4 * 16 * 2, "flops": 2 * 32 * 16 * 4}


def test_fast_and_wrong_does_not_pass(tmp_path: Path) -> None:
    """A kernel that stops computing after its tenth call."""
    kernel = tmp_path / "tiring.py"
    kernel.write_text(
        KERNELS.read_text()
        + "\ncalls = 0\n\ndef tiring_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):\n"
        "    global calls\n    calls += 1\n"
        "    if calls > 10:\n        return torch.zeros_like(q)\n"
        "    return good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale)\n"
    )
    quick = TimingOptions(min_samples=30, max_samples=30, max_seconds=1.0, warmup_seconds=0.0)
    record, _ = walk(f"{kernel}:tiring_decode", timing=quick)
    assert record.verdict is Verdict.MISMATCH
    assert record.checks[-1]["check"] == "after timing"
    assert record.time_us is None


def test_an_exception_of_the_kernel_is_an_error_with_its_message_and_traceback() -> None:
    record, _ = walk("raising")
    assert record.verdict is Verdict.ERROR
    assert re.fullmatch(r"ValueError: the kernel refuses \(kernels\.py:\d+\)", record.message)
    assert record.diagnosis == [], "that no fault explains an exception is no news"
    assert record.error is not None
    assert "raising_decode" in record.error
    assert [c["check"] for c in record.checks] == ["accuracy"]


def test_a_kernel_that_does_not_implement_a_case_is_told_where_that_is_declared(tmp_path: Path) -> None:
    kernel = tmp_path / "partial.py"
    kernel.write_text("def my_decode(q):\n    raise NotImplementedError('page size 32 must be 64')\n")
    record, _ = walk(f"{kernel}:my_decode")
    assert record.verdict is Verdict.ERROR
    assert record.message.startswith("NotImplementedError: page size 32 must be 64 (partial.py:2); ")
    assert "unsupported= of @pagedbench.backend" in record.message


def test_an_exception_that_cannot_be_shown_does_not_hide_itself() -> None:
    record, _ = walk("unspeakable")
    said = r"Unspeakable: its message cannot be shown, that raises ZeroDivisionError \(kernels\.py:\d+\)"
    assert re.fullmatch(said, record.message)
    assert [(c["check"], c["verdict"]) for c in record.checks] == [("accuracy", "ERROR")]


def test_a_kernel_that_exits_is_an_error_and_not_the_end() -> None:
    assert walk("exiting")[0].verdict is Verdict.ERROR


def test_decode_cannot_take_prefill() -> None:
    ragged = SCENARIO.format(name="ragged").replace("[1, 1]", "[3, 1]")
    record, _ = walk("torch", ragged)
    assert record.verdict is Verdict.SKIPPED
    assert record.message == "decode cannot take prefill: its query lengths differ, 1 to 3"


def test_what_does_not_fit_is_skipped_with_need_and_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pagedbench.runner.cell.available_bytes", lambda device: 1 << 20)
    record, _ = walk()
    assert record.verdict is Verdict.SKIPPED
    assert "of memory, 0.0 GiB are free" in record.message


def test_a_missing_path_is_skipped() -> None:
    record, _ = walk(path="varlen")
    assert record.verdict is Verdict.SKIPPED
    assert "varlen" in record.message


def test_the_figure_of_a_cell_is_that_of_the_step_that_is_wrong(tmp_path: Path) -> None:
    kernel = tmp_path / "later.py"
    kernel.write_text(
        KERNELS.read_text() + "\ndef later_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale):\n"
        "    out = good_decode(q, k_cache, v_cache, block_table, total_seqlens, softmax_scale)\n"
        "    return out + (total_seqlens[0] == 8)\n"
    )
    record, _ = walk(f"{kernel}:later_decode", SCENARIO.format(name="small") + "steps: 3\n")
    assert record.verdict is Verdict.MISMATCH
    assert record.message.startswith("step 3 of 3: sequence")
    assert record.worst_error is not None
    assert record.worst_error > 1


def test_a_scenario_that_asks_for_repeats_gets_them() -> None:
    record, _ = walk(text=SCENARIO.format(name="small") + "repeats: 3\n")
    assert [c["message"] for c in record.checks if c["check"] == "repeats"] == ["3 calls, all right, the same bits"]


def test_a_scenario_that_asks_for_a_graph_has_the_replay_checked_by_run_too() -> None:
    text = SCENARIO.format(name="small") + "graph: {capture_lens: [9, 9]}\n"
    record, _ = walk(text=text)
    (replay,) = [c for c in record.checks if c["check"] == "graph-replay"]
    assert (replay["verdict"], replay["message"]) == ("SKIPPED", "CUDA graphs need a CUDA device")
    record, _ = walk(text=text, suite="full")
    assert [c["check"] for c in record.checks].count("graph-replay") == 1


def test_an_expectation_of_a_mistyped_backend_is_said_so_and_one_of_an_absent_backend_is_not() -> None:
    text = SCENARIO.format(name="small") + "expect: {torhc: {fail: it is wrong}, someone-elses: {skip: too old}}\n"
    record, _ = walk(text=text)
    assert [w for w in record.warnings if "expect" in w] == ["expect: there is no backend 'torhc', did you mean torch?"]


@pytest.mark.parametrize("within", ["bitwise", "budget"])
def test_variants_that_must_be_equal_are_compared(within: str) -> None:
    matrix = f"matrix: {{cache.padding: [-1, 0]}}\nequals: {{variant: cache.padding=-1, within: {within}}}\n"
    record, _ = walk(text=SCENARIO.format(name="small") + matrix)
    assert record.scenario == "small[cache.padding=0]"
    equals = next(c for c in record.checks if c["check"] == "equals")
    assert equals["verdict"] == "PASS", equals


@pytest.mark.parametrize(("repeatable", "verdict"), [(True, Verdict.MISMATCH), (False, Verdict.PASS)])
def test_equal_bits_are_not_asked_of_a_kernel_that_declares_none(repeatable: bool, verdict: Verdict) -> None:
    """A kernel that adds up by atomics: its LSE has other last bits in every call."""
    calls = itertools.count()

    class Atomics(TorchBackend):
        traits = replace(TorchBackend.traits, repeatable=repeatable)

        def decode(self, call: Call, plan: Schedule) -> Output:
            right = super().decode(call, plan)
            assert right.lse is not None
            return Output(right.out, right.lse * (1 + 2.0**-22 * next(calls)))

    matrix = "matrix: {cache.padding: [-1, 0]}\nequals: {variant: cache.padding=-1, within: bitwise}\n"
    first, second = loads(SCENARIO.format(name="small") + matrix)
    found = Equals(first).run(CheckContext(second, build_layout(second), Atomics(), AttnPath.DECODE, "cpu"))
    assert found.verdict is verdict
    if repeatable:
        gap = re.search(r"by up to (\S+)", found.message)
        assert gap is not None
        assert float(gap[1]) > 0, "it is in the LSE"


@pytest.mark.parametrize(
    ("error", "verdict", "spent"),
    [
        (MemoryError(), Verdict.ERROR, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), Verdict.ERROR, True),
        (torch.OutOfMemoryError("CUDA out of memory"), Verdict.ERROR, True),
        (RuntimeError("CUDA error: an illegal memory access was encountered\nmore"), Verdict.CRASHED, True),
        (ValueError("block size"), Verdict.ERROR, False),
    ],
)
def test_what_an_exception_means(error: Exception, verdict: Verdict, spent: bool) -> None:
    failure = read_failure(error)
    assert failure.verdict is verdict
    assert failure.worker_is_spent is spent
    assert "\n" not in failure.message


def test_an_exceptions_text_cannot_steer_the_terminal() -> None:
    error = ValueError("\x1b[31mred\x1b[0m \x1b]0;a title\x07and \x00 \x1b7 [bold] µ")
    assert read_failure(error).message == "ValueError: red and \ufffd \ufffd7 [bold] µ"


def test_an_error_that_left_a_dead_cuda_context_is_a_crash_however_its_library_words_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def dead() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    error = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", dead)
    assert (read_failure(error).verdict, read_failure(error).worker_is_spent) == (Verdict.CRASHED, True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    assert (read_failure(error).verdict, read_failure(error).worker_is_spent) == (Verdict.ERROR, False)


def test_what_is_unusual_of_a_scenario_stands_beside_an_exception_of_a_kernel() -> None:
    plain = scenario()
    assert unusual_for_a_kernel(plain) == ""
    nothing_new = replace(plain, batch=replace(plain.batch, append=False))
    assert unusual_for_a_kernel(nothing_new) == "; here nothing is appended: k_new and v_new are None"
    narrow = scenario(head_dim=32, head_dim_v=16)
    assert unusual_for_a_kernel(narrow) == "; here V has head dim 16 beside K's 32"
