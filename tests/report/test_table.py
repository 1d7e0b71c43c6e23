"""What a person sees: at most 100 columns, every failure placed, every skip explained, nothing taken for markup."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pagedbench.report.figures import duration, three_digits
from pagedbench.report.table import finding_line, render
from pagedbench.results.record import CellRecord, CheckDict
from pagedbench.words import Verdict


def shown(records: list[CellRecord], width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    console.print(render(records))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def record(verdict: Verdict = Verdict.PASS, **values: object) -> CellRecord:
    base: dict[str, object] = {"scenario": "docs-decode", "backend": "torch", "path": "decode", "device": "cpu"}
    return CellRecord(**{**base, "verdict": verdict, **values})  # type: ignore[arg-type]


def failed_check(**values: object) -> CheckDict:
    check = {
        "check": "accuracy",
        "verdict": "MISMATCH",
        "message": "sequence 1, query token 0, head 3: error 0.3 is 9 times the budget",
        "findings": [],
        "metrics": {},
        "warnings": [],
    }
    return {**check, **values}  # type: ignore[typeddict-item, return-value]


def test_a_row_holds_the_cell_its_verdict_and_its_figures() -> None:
    text = shown([record(worst_error=0.68, time_us=12.7, spread_us=0.1, gb_per_s=3620.4, tflop_per_s=1.25)])
    row = next(line for line in text.splitlines() if line.startswith("docs-decode"))
    for cell in ("torch", "decode", "PASS", "0.68", "12.7 ±0.100 µs", "3,620", "1.25"):
        assert cell in row


def test_columns_of_speed_are_left_out_when_nothing_was_timed() -> None:
    assert "GB/s" not in shown([record()])


def test_no_line_is_wider_than_100_columns() -> None:
    long = record(
        scenario="edge-padding[attention.dtype=float16,cache.block_size=192,cache.padding=num_blocks]",
        backend="my_folder/my_other_folder/my_kernel.py:my_decode_function",
        path="paged-varlen",
        verdict=Verdict.NOT_WRITTEN,
        worst_error=123456.0,
        time_us=1234567.0,
        spread_us=1000.0,
        gb_per_s=3620.4,
        tflop_per_s=588.0,
        message="word " * 60,
    )
    lines = shown([long]).splitlines()
    assert max(len(line) for line in lines) <= 100
    assert "NOT WRITTEN" in "\n".join(lines)


def test_brackets_in_names_are_not_markup() -> None:
    assert "edge[bold]x" in shown([record(scenario="edge[bold]x", message="[red]x")])


def test_a_failure_is_placed_explained_and_diagnosed() -> None:
    text = shown(
        [
            record(
                Verdict.MISMATCH,
                checks=[failed_check()],
                message=failed_check()["message"],
                diagnosis=[{"sentence": "output matches the reference if the last key is missed"}],
            )
        ]
    )
    assert "MISMATCH docs-decode torch:decode" in text
    assert "accuracy: sequence 1, query token 0, head 3" in text
    assert "diagnosis: output matches the reference if the last key is missed" in text


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_failure_hangs_below_its_first_words_at_every_width(width: int) -> None:
    text = shown([record(Verdict.MISMATCH, message="word " * 60)], width)
    lines = [line for line in text.splitlines() if "word" in line]
    assert all(line.startswith("    word") for line in lines[1:])
    assert max(map(len, lines)) in range(width - 8, width + 1)


def test_a_check_shows_up_to_three_findings_of_different_sequences() -> None:
    sequences = [4, 4, 1, 0, 2]
    findings = [{"message": f"sequence {b}, finding {i}", "sequence": b} for i, b in enumerate(sequences)]
    failed = {**failed_check(), "message": findings[0]["message"], "findings": findings}
    text = shown([record(Verdict.MISMATCH, checks=[failed], message=failed["message"])])
    told = [line.strip() for line in text.splitlines() if "finding" in line]
    assert told == [
        "accuracy: sequence 4, finding 0",
        "· sequence 1, finding 2",
        "· sequence 0, finding 3 (and 2 more)",
    ]


def test_a_finding_names_the_places_that_its_sentence_does_not() -> None:
    line = finding_line({"message": "sequence 1 misses key 96", "sequence": 1, "physical_block": 12})
    assert line == "sequence 1 misses key 96 (physical block 12)"


STACK = """Fatal Python error: Segmentation fault

Thread 0x00007f15aa (most recent call first):
  File "<python>/lib/python3.11/threading.py", line 3 in wait
  File "helper.py", line 4 in other

Current thread 0x00007f15df (most recent call first):
  File "<python>/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "kernels.py", line 40 in gather
  File "kernels.py", line 52 in my_decode
  File "pagedbench/backends/user.py", line 117 in __call__
"""


@pytest.mark.parametrize("verdict", [Verdict.CRASHED, Verdict.TIMED_OUT])
def test_a_lost_worker_is_shown_with_its_last_words_and_the_place_in_the_users_code(verdict: Verdict) -> None:
    text = shown([record(verdict, message="it ended, in the check accuracy", stderr=f"loading\nblock 9\n{STACK}")])
    assert "it ended, in the check accuracy\n  stderr: block 9\n  at kernels.py, line 40, in gather\n" in text


def test_a_kernel_that_hangs_is_shown_with_the_place_where_it_does() -> None:
    """The stacks that a worker prints shortly before its time is over: the main thread's comes last."""
    stacks = STACK.replace("Fatal Python error: Segmentation fault", "Timeout (0:00:04.000885)!")
    stacks = stacks.replace("Current thread", "Thread")
    text = shown([record(Verdict.TIMED_OUT, message="no answer within 5 s", stderr=stacks)])
    assert "no answer within 5 s\n  at kernels.py, line 40, in gather\n" in text


def test_a_stack_without_the_users_code_names_no_place() -> None:
    ours = 'Current thread 0x00007f15df (most recent call first):\n  File "pagedbench/a.py", line 1 in f\n'
    text = shown([record(Verdict.TIMED_OUT, stderr=f'{ours}  File "kernels.py", line 2 in g')])
    assert "at kernels.py" not in text
    assert "stderr" not in text


def test_a_frame_that_the_kept_output_begins_with_is_not_the_kernels_word() -> None:
    """The stacks of many threads are longer than what is kept of the output, whose outer blanks are stripped."""
    cut = f'File "<python>/lib/threading.py", line 331 in wait\n\n{STACK}'
    assert "stderr" not in shown([record(Verdict.CRASHED, message="it ended", stderr=cut)])


def test_a_reason_with_other_numbers_is_not_said_to_be_the_same() -> None:
    skips = [record(Verdict.SKIPPED, scenario=f"s{i}", message=f"lengths differ, 1 to {i}") for i in (3, 5, 3)]
    text = " ".join(shown(skips).split())
    assert text.count("lengths differ") == 1
    same, _, others = text.partition("with other numbers:")
    assert "s3" in same
    assert "s5" not in same.partition("SKIPPED lengths differ")[2]
    assert "s5" in others


def test_skips_are_grouped_by_reason_and_count_as_nothing_else() -> None:
    skips = [record(Verdict.SKIPPED, scenario=f"s{i}", message="not installed") for i in range(5)]
    text = shown([*skips, record()])
    assert text.count("not installed") == 1
    assert "and 2 more" in text
    assert "6 cells: 1 PASS, 5 SKIPPED" in text


def test_a_sampled_reference_is_marked_and_explained() -> None:
    text = shown([record(worst_error=0.5, sampled_rows=64, total_rows=4096)])
    assert "0.50*" in text
    assert "* checked on a seeded sample of the rows" in text


def test_checks_that_ran_are_listed_and_those_that_do_not_apply_are_no_pass() -> None:
    applied = failed_check(verdict="PASS")
    silent = failed_check(check="graph-replay", verdict="SKIPPED", message="needs CUDA")
    text = shown([record(checks=[applied, silent]), record(checks=[applied, silent])])
    assert "checks: accuracy (2)" in text
    assert "not applicable: graph-replay: needs CUDA" in text


def test_no_cells_is_said() -> None:
    assert "0 cells: nothing was run" in shown([])


@pytest.mark.parametrize(
    ("microseconds", "spread", "text"),
    [
        (12.7, 0.1, "12.7 ±0.100 µs"),
        (0.5, None, "0.500 µs"),
        (1630.0, 12.0, "1.63 ±0.012 ms"),
        (2.5e6, None, "2.50 s"),
        (0.0, None, "0.000 µs"),
        (None, None, "–"),
    ],
)
def test_durations(microseconds: float | None, spread: float | None, text: str) -> None:
    assert duration(microseconds, spread) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3620.4, "3,620"), (99.99, "100"), (12.34, "12.3"), (1.234, "1.23"), (0.0123, "0.012"), (2e-5, "2e-05"),
        (1.8e308, "inf"), (1.7e308, "1.70e+308"), (1234567.0, "1,234,567"),
    ],
)  # fmt: skip
def test_three_digits(value: float, text: str) -> None:
    assert three_digits(value) == text


def test_whose_lse_was_not_judged_is_said_and_not_of_batches_without_rows() -> None:
    def of(name: str, **metrics: float) -> CellRecord:
        judged = failed_check(verdict="PASS", metrics={"rows": 3.0, "worst_ratio": 0.2, **metrics})
        return record(backend=name, checks=[judged])

    records = [of("silent"), of("telling", worst_lse_ratio=0.1), of("empty", rows=0.0)]
    assert "LSE not judged, since none is returned: silent:decode\n" in shown(records)
