"""The self-test fails for what it should fail for."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing import active_children
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from pagedbench.cli.app import app
from pagedbench.faults.catalogue import FAULTS, find_fault
from pagedbench.faults.scenarios import Trial, trials
from pagedbench.report.kill_matrix import record, summary, table
from pagedbench.runner.selftest import Plan, Power, Trialled, context_for, run_in_parallel, try_all

FIRST = trials()[:1]


def result(power: Power, outcomes: dict[str, str], fault: str | None = "split-lost") -> Trialled:
    return Trialled(find_fault(fault) if fault else None, FIRST[0], power, outcomes)


@pytest.mark.parametrize(
    ("trialled", "failed"),
    [
        (result(Power.SHOWS, {"accuracy": "PASS", "footprint": "FOOTPRINT"}), False),
        (result(Power.SHOWS, {"accuracy": "PASS", "footprint": "SKIPPED"}), True),
        (result(Power.SHOWS, {"accuracy": "raised"}), False),
        (result(Power.BELOW_ROUNDING, {"accuracy": "PASS"}), False),
        (result(Power.EQUIVALENT, {}), False),
        (result(Power.SHOWS, {"accuracy": "PASS"}, None), False),
        (result(Power.SHOWS, {"accuracy": "MISMATCH"}, None), True),
    ],
)
def test_a_miss_and_an_accused_right_kernel_are_failures(trialled: Trialled, failed: bool) -> None:
    assert trialled.failed is failed


def test_an_index_fault_is_invisible_to_the_cache_check_and_a_write_fault_to_nobody() -> None:
    plan = Plan((), ("key-twice", "append-one-slot-late", "scale-1-percent"), "cpu", checks=CHECKED)
    found = {r.fault.name if r.fault else "right": r for r in tried(plan, FIRST[0])}
    assert found["right"].caught_by == []
    assert found["key-twice"].caught_by == ["accuracy", "footprint"]
    assert found["append-one-slot-late"].caught_by == ["accuracy", "cache-update", "footprint"]
    assert found["scale-1-percent"].caught_by == ["accuracy"]


CHECKED = ("accuracy", "cache-update", "footprint")


def tried(plan: Plan, trial: Trial) -> list[Trialled]:
    """One trial alone."""
    return list(try_all(plan, trial, context_for(trial, None, plan.device), plan.meant(trial), lambda label: None))


def test_a_change_of_numbers_that_rounding_hides_is_no_miss() -> None:
    calm = replace(FIRST[0].scenario, attention=replace(FIRST[0].scenario.attention, softcap=1e4, sinks=None))
    plan = Plan((), ("softcap-ignored",), "cpu", checks=("accuracy",))
    (_, found) = tried(plan, Trial(calm, FIRST[0].path))
    assert found.power is Power.BELOW_ROUNDING
    assert not found.failed


def test_long_trials_are_added_by_length() -> None:
    assert [t.scenario.name for t in trials([70, 1000])].count("keys-1000") == 1


def test_long_trials_get_the_checks_that_find_their_faults_unless_all_are_asked_for() -> None:
    plan = Plan((70, 8192), ("last-key-missed",), "cpu")
    by_name = {trial.scenario.name: trial for trial in plan.trials}
    assert plan.checks_for(by_name["keys-8192"]) == ["accuracy", "cache-update", "footprint", "leaks"]
    assert "invariance" in plan.checks_for(by_name["keys-70"])
    assert plan.left_out == (
        "long trials (8,192 keys and more): accuracy, cache-update, footprint, leaks only "
        "(a noisy kernel: invariance too), nothing located"
    )
    full = replace(plan, full=True)
    assert "invariance" in full.checks_for(by_name["keys-8192"])
    assert full.left_out == ""
    assert replace(plan, lengths=(70,)).left_out == ""


def test_a_long_trial_catches_a_lost_key_without_looking_where() -> None:
    plan = Plan((8192,), ("last-key-missed",), "cpu", checks=("footprint",))
    (trial,) = [trial for trial in plan.trials if trial.long]
    right, lost = tried(plan, trial)
    assert right.caught_by == []
    assert lost.outcomes == {"footprint": "FOOTPRINT"}


def test_a_long_trial_catches_noise_too() -> None:
    plan = Plan((8192,), ("noise",), "cpu")
    (trial,) = [trial for trial in plan.trials if trial.long]
    right, noisy = tried(plan, trial)
    assert not right.failed
    assert noisy.caught_by == ["invariance"]


def test_processes_share_a_trial_and_give_what_one_gives() -> None:
    names = tuple(fault.name for fault in FAULTS[:12])  # two parts a trial
    plan = Plan((), names, "cpu", checks=("accuracy",))
    made = {(r.trial.name, r.fault.name if r.fault else None): r.outcomes for r in run_in_parallel(plan, 2)}
    assert len(made) == plan.count
    alone = {(r.trial.name, r.fault.name if r.fault else None): r.outcomes for r in tried(plan, plan.trials[0])}
    assert {key: made[key] for key in alone} == alone


def test_a_run_that_is_left_early_leaves_no_process_behind() -> None:
    before = set(active_children())
    made = run_in_parallel(Plan((), tuple(fault.name for fault in FAULTS), "cpu", checks=("accuracy",)), 2)
    next(made)
    begun = time.monotonic()
    made.close()
    while set(active_children()) - before and time.monotonic() - begun < 10:
        time.sleep(0.01)
    assert set(active_children()) <= before


def test_the_matrix_is_at_most_100_columns_and_its_summary_names_what_failed() -> None:
    missed = result(Power.SHOWS, {"accuracy": "PASS", "footprint": "PASS"})
    hidden = Trialled(find_fault("int32-overflow"), FIRST[0], Power.EQUIVALENT, {})
    results = [result(Power.SHOWS, {}, None), missed, hidden]
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(
        table(results, ["accuracy", "cache-update", "unwritten", "steps", "footprint", "leaks", "invariance"])
    )
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 100
    assert "0 of 1" in text
    lines = summary(results)
    assert "MISSED: split-lost on decode:decode" in lines
    assert any("int32-overflow cannot show" in line for line in lines)
    assert record(missed)["failed"] is True


def test_the_command_proves_one_fault_and_writes_its_records(tmp_path: Path) -> None:
    file = tmp_path / "matrix.jsonl"
    done = CliRunner().invoke(app, ["selftest", "--fault", "block-tail-dropped", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "1 of 1" in done.output
    records = [json.loads(line) for line in file.read_text().splitlines()]
    assert {r["fault"] for r in records} == {None, "block-tail-dropped"}
    assert sum(r["power"] == "shows" and r["fault"] is not None for r in records) == 1


def test_the_catalogue_can_be_listed_without_running_anything() -> None:
    done = CliRunner().invoke(app, ["selftest", "--list"])
    assert done.exit_code == 0
    assert "block-id-16-bits: block ids are cut to 16 bits" in " ".join(done.output.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_shows_its_table_and_exits_by_the_signal(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    missed = result(Power.SHOWS, {"accuracy": "PASS"})

    def interrupted(plan: Plan, progress: object) -> Iterator[Trialled]:
        yield missed
        signal.raise_signal(number)

    monkeypatch.setattr("pagedbench.runner.selftest.run_selftest", interrupted)
    handler = signal.getsignal(signal.SIGTERM)
    try:
        done = CliRunner().invoke(app, ["selftest", "--fault", "split-lost", "--jobs", "1"])
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert done.exit_code == 128 + number, done.output
    assert "MISSED: split-lost" in done.output
    count = Plan((), ("split-lost",), "cpu").count
    assert f"interrupted by {number.name}: 1 of {count} pairs were tried" in done.output
