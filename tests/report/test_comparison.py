"""The comparison's table, map, CSV and Markdown."""

from __future__ import annotations

import csv
import io
from dataclasses import replace

from rich.console import Console

from pagedbench.report.comparison import render, to_csv, to_markdown
from pagedbench.results.comparison import ComparisonRecord
from tests.report.comparisons import comparison


def shown(records, **options) -> str:
    console = Console(width=100, file=io.StringIO(), color_system=None)
    console.print(render(records, **options))
    return console.file.getvalue()


def test_a_comparison_names_both_times_the_ratio_and_its_interval():
    text = shown([comparison(300, 100, name="docs")])
    assert "3.00× faster" in text
    assert "[2.94, 3.06]" in text
    assert "NVIDIA H200 · cold L2 · 32/8 heads, head dim 128 · bfloat16 · flash-attn-3 1.0" in text


def test_of_one_pair_no_interval_is_told_which_would_call_it_exact():
    record = comparison(300, 100, name="docs", pairs=1)
    for one in record.sides:
        kernel = one.timing["quantities"]["kernel"]
        kernel["samples"] = kernel["samples"][:1]
    text = shown([record])
    assert "too few samples to tell (1 pair), 3.00×" in text
    assert "±" not in text
    assert "[" not in text.partition("NVIDIA")[0]
    assert "±" in shown([comparison(300, 100, name="docs")])


def test_a_slower_side_reads_as_slower():
    assert "3.00× slower" in shown([comparison(100, 300)])


def test_stages_stand_with_their_shares():
    record = comparison(300, 100, stages={"write": 3, "gather": 197, "attention": 100})
    assert "gather 197 µs (66%), attention 100 µs (33%)" in " ".join(shown([record]).split())


def test_layers_give_the_time_of_a_step():
    assert "4.80 ms" in shown([comparison(300, 150)], layers=32)  # 32 layers of 150 us


def test_launch_bound_rows_are_marked_and_explained():
    text = shown([comparison(300, 50)])
    assert "100 µs!" in text
    assert "! launch-bound: the host takes longer to start the call than the device to do it" in text
    assert "launch-bound" not in shown([comparison(300, 200)])


def test_a_map_alone_counts_what_is_launch_bound_since_no_row_is_there_to_be_marked():
    text = " ".join(shown([comparison(300, 50, batch=2**i, keys=k) for i in range(9) for k in range(1, 6)]).split())
    assert "45 of 90 times are launch-bound: the host takes longer" in text
    assert "!" not in text


def test_a_skipped_side_says_why_and_gets_no_time():
    text = shown([comparison(None, 100)])
    assert "SKIPPED" in text
    assert "flash-attn-3:varlen SKIPPED: cannot" in text


def test_a_grid_becomes_a_map_with_ties_marked():
    grid = [
        comparison(v, 10, batch=b, keys=k)
        for b, k, v in [(1, 128, 8), (1, 4096, 10), (4, 128, 20), (4, 4096, 30), (16, 128, None)]
    ]
    lines = [line.split() for line in shown(grid).splitlines()]
    assert ["batch", "128", "4k"] in lines
    assert ["1", "A", "1.25", "="] in lines
    assert ["4", "B", "2.00", "B", "3.00"] in lines
    assert ["16", "(B)", "–"] in lines


def test_a_map_too_wide_for_the_terminal_is_cut_into_parts_and_loses_no_column():
    text = shown([comparison(20, 10, batch=b, keys=1100 + k) for b in (1, 4) for k in range(60)])
    headed = [line.split() for line in text.splitlines() if line.split()[:1] == ["batch"]]
    assert [column for line in headed for column in line[1:]] == [str(1100 + k) for k in range(60)]
    assert text.count("B 2.00") == 120
    assert "…" not in text.partition("flash-attn-3:")[0]
    assert max(map(len, text.splitlines())) <= 100


def test_a_map_over_keys_says_that_its_bare_numbers_are_keys():
    assert "; columns are keys" in shown([comparison(20, 10, batch=1, keys=k) for k in (128, 4096)])
    over_blocks = shown([comparison(20, 10, block_size=size) for size in (16, 32)])
    assert "block size 16" in over_blocks
    assert "columns are" not in over_blocks


def test_too_few_samples_are_no_tie_and_the_marks_that_occur_are_explained():
    grid = [comparison(32, 10, batch=b, keys=k, pairs=n) for b, k, n in [(1, 128, 100), (1, 4096, 6), (4, 128, 2)]]
    text = shown([*grid, comparison(None, 10, batch=4, keys=4096)])
    lines = [line.split() for line in text.splitlines()]
    assert ["1", "B", "3.20", "?"] in lines
    assert ["4", "?", "(B)"] in lines
    assert "? too few samples to tell, a letter in brackets: only this side has a time" in text
    assert "no difference shown" not in text
    assert "too few samples to tell (6 pairs), 3.20×" in " ".join(text.split())
    assert "decode wins 1 of 3 cells; decode by 3.2× ± 0.1 at batch;" in " ".join(text.split())
    assert "2 with too few samples to tell." in " ".join(text.split())


def test_too_few_samples_stand_in_csv_and_markdown():
    few = comparison(32, 10, pairs=6)
    row = next(csv.DictReader(io.StringIO(to_csv([few]))))
    assert (row["compared"], row["pairs"]) == ("too few samples", "6")
    assert "too few samples to tell (6 pairs), 3.20×" in to_markdown([few])


def test_nothing_is_wider_than_a_hundred_columns():
    grid = [comparison(30, 10, name=f"scenario-with-a-long-name[batch.spec={b}q1s{k}]", batch=b, keys=k)
            for b in (1, 64) for k in (128, 131072)]  # fmt: skip
    assert max(len(line) for line in shown(grid, layers=80).splitlines()) <= 100


def test_csv_has_a_line_a_side_and_the_grids_facts_as_columns():
    rows = list(csv.DictReader(io.StringIO(to_csv([comparison(300, 100, keys=128), comparison(None, 50, keys=256)]))))
    assert [(r["side"], r["keys"], r["verdict"]) for r in rows] == [
        ("flash-attn-3:varlen", "128", "PASS"),
        ("flash-attn-3:decode", "128", "PASS"),
        ("flash-attn-3:varlen", "256", "SKIPPED"),
        ("flash-attn-3:decode", "256", "PASS"),
    ]
    assert (rows[0]["kernel_us"], rows[0]["ratio"], rows[0]["compared"]) == ("300.0", "3.0", "slower")
    assert rows[2]["kernel_us"] == ""


def test_markdown_begins_with_the_conclusion():
    text = to_markdown([comparison(300, 100, name="a|b")])
    assert text.startswith("**decode is 3.0× ± 0.1 as fast on a|b.**")
    assert "| a\\|b | flash-attn-3:decode | PASS | 100" in text


def test_records_survive_json():
    record = comparison(300, 100, keys=128)
    assert ComparisonRecord.from_json(record.to_json()) == record


def test_scenarios_that_are_no_variants_of_each_other_make_no_map():
    text = shown([comparison(300, 100, name="docs", keys=71), comparison(100, 300, name="long", keys=8192)])
    assert "crossover" not in text
    assert "decode is 3.0× ± 0.1 as fast on docs." in text
    assert "varlen is 3.0× ± 0.1 as fast on long." in text


def test_notes_that_differ_in_numbers_only_are_told_once_with_their_count():
    records = [comparison(300, 100, name=f"batch[keys={keys}]", batch=1, keys=keys) for keys in (128, 1024)]
    for number, record in enumerate(records):
        for one in record.sides:
            assert one.timing is not None
            one.timing["warnings"] = [f"kernel: {number + 7}% of the samples are outliers"]
    text = shown(records)
    assert text.count("of the samples are outliers") == 1
    assert "and 3 more like this" in text


def test_an_interval_that_is_not_symmetric_is_told_by_its_ends():
    record = comparison(300, 100)
    record.pairs = [replace(record.pairs[0], low=2.5, high=9.0)]
    assert "3.0× [2.5, 9.0] as fast" in shown([record])
