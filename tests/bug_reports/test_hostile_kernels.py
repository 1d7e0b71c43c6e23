"""Kernels without manners: the verdict is right, says what was done, and nothing else suffers."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pagedbench.results.record import CellRecord
from pagedbench.runner.state import changes, process_state
from pagedbench.words import ExitCode, Verdict

from .judging import Ended, judged, run_command, scenario

HOSTILE = Path(__file__).parent / "hostile.py"
SMALL = scenario(
    "small", {"query_lens": [1, 1, 1], "cached_lens": [5, 9, 12], "append": False}, {"block_size": 4}, "4/2 16 bfloat16"
)


def hostile(kernel: str, text: str = SMALL) -> CellRecord:
    return judged(f"{HOSTILE}:{kernel}", text, diagnose=False)


WRONG_FORMS = {
    "too_few_rows_decode": "returned its output in shape (2, 4, 16), needed (3, 4, 16)",
    "too_many_channels_decode": "returned its output in shape (3, 4, 32), needed (3, 4, 16)",
    "heads_first_decode": "returned its output in shape (4, 3, 16), needed (3, 4, 16)",
    "one_value_a_row_decode": "returned its output in shape (3, 4), needed (3, 4, 16)",
    "list_decode": "returned a list as its output, needed a tensor",
    "nothing_decode": "returned a NoneType as its output, needed a tensor",
    "three_things_decode": "returned 3 values as its output, needed a tensor",
    "lse_heads_first": "returned its LSE in shape (4, 3), needed (3, 4)",
    "lse_promised": "is declared to return the LSE, and returned a Tensor",
}


@pytest.mark.parametrize("kernel", WRONG_FORMS)
def test_another_form_than_the_contracts_is_named_and_not_reshaped_away(kernel: str) -> None:
    record = hostile(kernel)
    assert record.verdict is Verdict.ERROR
    assert f"{kernel} {WRONG_FORMS[kernel]}" in record.message


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("fp32_decode", "float32"), ("fp16_decode", "float16"), ("int_decode", "int32")]
)
def test_another_dtype_is_a_mismatch_however_close_the_numbers(kernel: str, dtype: str) -> None:
    record = hostile(kernel)
    assert record.verdict.is_wrong
    assert record.checks[0]["message"] == f"the output is {dtype}, needed bfloat16"


NO_FLOATS = {
    "int_decode": "the output is int32, needed bfloat16",
    "complex_decode": "the output is complex64, needed bfloat16",
    "int_lse_decode": "the LSE is int32, needed float32",
    "bool_lse_decode": "the LSE is bool, needed float32",
}


@pytest.mark.parametrize("kernel", NO_FLOATS)
def test_what_is_no_float_is_judged_once_and_not_looked_into(kernel: str) -> None:
    record = judged(f"{HOSTILE}:{kernel}", SMALL, suite="full")
    assert (record.verdict, record.message) == (Verdict.MISMATCH, NO_FLOATS[kernel])
    assert [check["check"] for check in record.checks] == ["accuracy"]
    assert (record.diagnosis, record.warnings, record.error) == ([], [], None)


@pytest.mark.parametrize("kernel", ["strided_decode", "one_buffer_decode", "lse_in_fp64", "requires_grad_decode"])
def test_odd_but_right(kernel: str) -> None:
    """Views with gaps, the same memory at every call, an LSE in fp64, a gradient that nobody asked for."""
    assert hostile(kernel).verdict is Verdict.PASS


def test_an_expanded_view_is_judged_by_what_it_shows() -> None:
    record = hostile("expanded_decode")
    assert record.verdict is Verdict.FOOTPRINT
    assert "heads 2–3: reads KV head 0 instead of 1" in record.message


CORRUPTED = {
    "into_q_decode": "q changed",
    "scales_q_in_place_decode": "q changed",
    "into_the_cache_decode": "stray write",
    "sorts_its_table_decode": "block_table[2][0]: 3 became 7",
}


@pytest.mark.parametrize("kernel", CORRUPTED)
def test_memory_that_is_not_the_kernels_to_change(kernel: str) -> None:
    """Output that lies over q or in the cache, q scaled in place, a table sorted: right numbers, and others' harm."""
    record = hostile(kernel)
    assert record.verdict is Verdict.CORRUPTED
    assert CORRUPTED[kernel] in record.message


def test_of_an_input_that_changed_it_is_no_news_that_no_fault_explains_it() -> None:
    record = judged(f"{HOSTILE}:sorts_its_table_decode", SMALL)
    (wrong,) = record.failed_checks
    assert [finding["array"] for finding in wrong["findings"]] == ["block_table"]
    assert record.diagnosis == []


def test_host_arrays_and_slots_are_a_calls_own() -> None:
    """A planner may turn lengths into page counts where they stand: no later call sees that, and no layout."""
    assert hostile("changes_host_arrays_decode").verdict is Verdict.PASS
    assert hostile("changes_slots_decode").verdict is Verdict.PASS


def test_an_exception_in_the_second_call_only_is_an_error_all_the_same() -> None:
    record = hostile("second_call_decode")
    assert record.verdict is Verdict.ERROR
    assert record.checks[0]["verdict"] == "PASS"
    assert record.message.startswith("RuntimeError: workspace already in use (hostile.py:")


def test_a_message_of_a_megabyte_is_cut() -> None:
    record = hostile("long_message_decode")
    assert record.verdict is Verdict.ERROR
    assert len(record.message) <= 1000


ORDER = (
    "chatty_decode",
    "changes_host_arrays_decode",
    "changes_slots_decode",
    "default_dtype_decode",
    "right_after_dtype",
)


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Put back what the hostile kernels change in the tests' own process."""
    monkeypatch.chdir(Path.cwd())
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    threads = torch.get_num_threads()
    yield
    torch.set_default_device(None)  # "cpu" would leave a hook in the way of every call of torch from here on
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(True)
    gc.enable()


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """One run: kernels that change the process they run in, with right ones behind them."""
    backends = [part for name in ORDER for part in ("--backend", f"{HOSTILE}:{name}")]
    return run_command(tmp_path_factory.mktemp("crowd"), SMALL, "run", "--no-timing", *backends)


@pytest.mark.slow
def test_what_a_kernel_does_to_its_process_is_no_other_kernels_fate(crowd: Ended) -> None:
    found = {record.backend.rpartition(":")[2]: record for record in crowd.records}
    assert {name: found[name].verdict for name in ORDER} == dict.fromkeys(ORDER, Verdict.PASS), crowd.err
    assert crowd.code == ExitCode.OK
    (said,) = found["default_dtype_decode"].warnings
    assert said == "the kernel leaves torch's default dtype changed, from torch.float32 to torch.float64"
    assert found["right_after_dtype"].warnings == []


SETTINGS = {
    "default_device_decode": "torch's default device changed, from cpu to meta",
    "deterministic_decode": "torch's deterministic mode changed, from 0 to 2",
    "chdir_decode": "the working directory changed",
}


@pytest.mark.parametrize("kernel", SETTINGS)
def test_settings_that_a_kernel_leaves_changed_are_said(kernel: str, restored: None) -> None:
    before = process_state()
    assert hostile(kernel).verdict is Verdict.PASS
    assert any(SETTINGS[kernel] in sentence for sentence in changes(before))


@pytest.mark.slow
def test_what_a_kernel_prints_is_neither_believed_nor_shown_as_a_result(crowd: Ended) -> None:
    assert "forged" not in crowd.out
    assert "\x1b[2J" not in crowd.out + crowd.err
