"""The kill matrix: every fault of the catalogue against every check, on scenarios small enough for a CPU.

A fault is planted in an otherwise right kernel; whether it can show on a scenario is decided from what it changes
(`faults/effect.py`), and for changes of numbers alone from whether a right kernel's rounding would hide it. The faulty
kernel is ours and cannot take a process down, so that processes are for speed only.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from multiprocessing import active_children, get_context

import torch

from pagedbench.checks.base import CheckContext
from pagedbench.checks.comparison import compare
from pagedbench.checks.floor import ready_call
from pagedbench.checks.footprint import Footprint
from pagedbench.checks.registry import CHECKS
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.effect import effect
from pagedbench.faults.evaluate import IllegalAccessError, evaluate
from pagedbench.faults.fault import Fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.program import AttentionProgram, program_for
from pagedbench.faults.scenarios import LONG_CHECKS, LONG_KEYS, Trial, trials
from pagedbench.layout.build import build_layout
from pagedbench.words import Verdict

RAISED = "raised"
_PART = 10
"""Faults tried in one go by a process: few enough that all processes end at about the same time."""


class Power(str, Enum):
    """What a scenario can show of a fault."""

    SHOWS = "shows"
    BELOW_ROUNDING = "below rounding"
    EQUIVALENT = "equivalent"


@dataclass(frozen=True)
class Trialled:
    """One fault on one trial: what each check said (a verdict, or RAISED), by the check's name."""

    fault: Fault | None
    trial: Trial
    power: Power
    outcomes: dict[str, str] = field(default_factory=dict)

    @property
    def caught_by(self) -> list[str]:
        """Checks that did not let it pass."""
        harmless = {str(Verdict.PASS), str(Verdict.SKIPPED)}
        return [check for check, outcome in self.outcomes.items() if outcome not in harmless]

    @property
    def failed(self) -> bool:
        """The self-test fails here: a fault that shows went through, or the right kernel was accused."""
        if self.fault is None:
            return bool(self.caught_by)
        return self.power is Power.SHOWS and not self.caught_by


Progress = Callable[[str], None]
Results = Generator[Trialled, None, None]
"""To be closed where it is left early."""


@dataclass(frozen=True)
class Plan:
    """What is tried: trials by `lengths` (see `faults/scenarios.py`), faults by name, and how thoroughly.

    Long trials get `LONG_CHECKS`, the footprint without a search for what was read, unless `full`. `checks` limits
    all trials to some. It can be sent to a process; a fault, which holds a function, cannot.
    """

    lengths: tuple[int, ...]
    faults: tuple[str, ...]
    device: str
    full: bool = False
    checks: tuple[str, ...] | None = None

    @cached_property
    def trials(self) -> list[Trial]:
        """The trials."""
        return trials(self.lengths, self.device)

    def meant(self, trial: Trial) -> list[str | None]:
        """The right kernel (None), then the faults that the trial is for."""
        return [None, *(name for name in self.faults if not trial.only or name in trial.only)]

    @property
    def count(self) -> int:
        """How many results a run gives."""
        return sum(len(self.meant(trial)) for trial in self.trials)

    def checks_for(self, trial: Trial, *, noisy: bool = False) -> list[str]:
        """The names of the checks a trial gets; `noisy`: with a kernel that does not repeat itself."""
        known = list(CHECKS)
        if trial.long and not self.full:
            known = [*LONG_CHECKS, *(["invariance"] if noisy else [])]
        return [name for name in known if self.checks is None or name in self.checks]

    @property
    def left_out(self) -> str:
        """What long trials do without, in a sentence; empty if nothing is."""
        if self.full or not any(trial.long for trial in self.trials):
            return ""
        kept = f"{', '.join(LONG_CHECKS)} only (a noisy kernel: invariance too)"
        return f"long trials ({LONG_KEYS:,} keys and more): {kept}, nothing located"


def run_selftest(plan: Plan, progress: Progress = lambda label: None) -> Results:
    """Trial by trial, the right kernel first (`fault` None), then every fault. `progress` is called before each."""
    for trial in plan.trials:
        yield from try_all(plan, trial, context_for(trial, None, plan.device), plan.meant(trial), progress)


def try_all(
    plan: Plan, trial: Trial, right: CheckContext, names: Sequence[str | None], progress: Progress
) -> Iterator[Trialled]:
    """One trial, whose right kernel's cell is `right`, with the faults `names`."""
    program = right_program(right)
    for name in names:
        progress(f"{trial.name} {name or 'right kernel'}")
        fault = find_fault(name) if name else None
        can = Power.SHOWS if fault is None else power(right, fault, program)
        noisy = fault is not None and fault.change(program).noise > 0
        checks = [] if can is Power.EQUIVALENT else plan.checks_for(trial, noisy=noisy)
        context = planted_in(right, fault)
        located = plan.full or not trial.long
        yield Trialled(fault, trial, can, {check: _outcome(check, context, located) for check in checks})


def run_in_parallel(plan: Plan, jobs: int, progress: Progress = lambda label: None) -> Results:
    """The same in `jobs` processes, a trial and some faults at a time; `progress` is called for each as it is done."""
    before = set(active_children())
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_begin)
    try:
        # As they are done, so that what an interruption leaves is all that was done.
        for future in as_completed([pool.submit(_one_part, plan, *part) for part in _parts(plan)]):
            index, results = future.result()
            trial = plan.trials[index]
            for name, can, outcomes in results:
                progress(f"{trial.name} {name or 'right kernel'}")
                yield Trialled(find_fault(name) if name else None, trial, Power(can), outcomes)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - before:
            process.terminate()


def _parts(plan: Plan) -> list[tuple[int, tuple[str | None, ...]]]:
    """Trials, by their number, each with some of its faults: costly trials first, so that none is left to run alone."""
    order = sorted(range(len(plan.trials)), key=lambda index: -plan.trials[index].slots)
    parts = []
    for index in order:
        names = plan.meant(plan.trials[index])
        parts += [(index, tuple(names[start : start + _PART])) for start in range(0, len(names), _PART)]
    return parts


def _begin() -> None:
    """A process of the pool: one thread, and Ctrl-C is its parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _one_part(
    plan: Plan, index: int, names: Sequence[str | None]
) -> tuple[int, list[tuple[str | None, str, dict[str, str]]]]:
    """In a process of its own: the results of one part, as plain values."""
    trial = plan.trials[index]
    results = try_all(plan, trial, _right_kernel(plan, index), names, lambda label: None)
    return index, [(r.fault.name if r.fault else None, r.power.value, r.outcomes) for r in results]


@lru_cache(maxsize=1)
def _right_kernel(plan: Plan, index: int) -> CheckContext:
    """The cell of a trial, kept from one of its parts to the next: its inputs and its oracle are made once."""
    return context_for(plan.trials[index], None, plan.device)


def context_for(trial: Trial, fault: Fault | None, device: str) -> CheckContext:
    """The cell of a faulty kernel."""
    return CheckContext(trial.scenario, build_layout(trial.scenario), FaultyBackend(fault), trial.path, device)


def planted_in(right: CheckContext, fault: Fault | None) -> CheckContext:
    """The same cell with another kernel; inputs and oracle, which do not depend on the kernel, are shared."""
    context = CheckContext(right.scenario, right.layout, FaultyBackend(fault), right.path, right.device)
    context.__dict__.update(inputs=right.inputs, reference=right.reference)
    return context


def right_program(right: CheckContext) -> AttentionProgram:
    """What a right kernel does in the cell."""
    return program_for(ready_call(right))


def power(context: CheckContext, fault: Fault, right: AttentionProgram) -> Power:
    """What the scenario can show of the fault; `right` is the right kernel's program."""
    faulty = fault.change(right)
    difference = effect(right, faulty, context.layout)
    if difference.none:
        return Power.EQUIVALENT
    if difference.indices:
        return Power.SHOWS
    try:
        exact = evaluate(faulty, ready_call(context), compute=torch.float64)
    except IllegalAccessError:
        return Power.SHOWS
    traits = context.backend.traits_for(context.path)
    distance = compare(exact, context.reference, context.layout, context.scenario.attention, traits)
    worst = max(float(d.ratio.max()) for d in (distance.out, distance.lse) if d is not None and d.ratio.numel())
    return Power.SHOWS if worst > 1 else Power.BELOW_ROUNDING


def _outcome(name: str, context: CheckContext, located: bool) -> str:
    check = CHECKS[name] if located or name != "footprint" else Footprint(located=False)
    if check.not_applicable(context) is not None:
        return str(Verdict.SKIPPED)
    try:
        return str(check.run(context).verdict)
    except IllegalAccessError:
        return RAISED
