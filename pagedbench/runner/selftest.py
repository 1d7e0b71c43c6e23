"""The kill matrix: every fault of the catalogue against every check, on scenarios small enough for a CPU.

A fault is planted in an otherwise right kernel; whether it can show on a scenario is decided from what it changes
(`faults/effect.py`), and for changes of numbers alone from whether a right kernel's rounding would hide it. The faulty
kernel is ours and cannot take a process down, so that processes are for speed only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing import get_context

import torch

from pagedbench.checks.base import CheckContext
from pagedbench.checks.comparison import compare
from pagedbench.checks.floor import ready_call
from pagedbench.checks.registry import CHECKS
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.effect import effect
from pagedbench.faults.evaluate import IllegalAccessError, evaluate
from pagedbench.faults.fault import Fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.program import program_for
from pagedbench.faults.scenarios import Trial, trials
from pagedbench.layout.build import build_layout
from pagedbench.words import Verdict

RAISED = "raised"


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


def run_selftest(
    chosen: Sequence[Trial],
    faults: Sequence[Fault],
    device: str,
    checks: Sequence[str] | None = None,
    progress: Progress = lambda label: None,
) -> Iterator[Trialled]:
    """Trial by trial, the right kernel first (`fault` None), then every fault. `progress` is called before each."""
    names = list(CHECKS) if checks is None else list(checks)
    for trial in chosen:
        right = context_for(trial, None, device)
        for fault in (None, *_meant(trial, faults)):
            progress(f"{trial.name} {fault.name if fault else 'right kernel'}")
            yield _try(trial, fault, planted_in(right, fault), names)


def count(chosen: Sequence[Trial], faults: Sequence[Fault]) -> int:
    """How many results a run gives."""
    return sum(1 + len(_meant(trial, faults)) for trial in chosen)


def _meant(trial: Trial, faults: Sequence[Fault]) -> list[Fault]:
    return [fault for fault in faults if not trial.only or fault.name in trial.only]


def run_in_parallel(
    lengths: Sequence[int], faults: Sequence[Fault], device: str, jobs: int, progress: Progress = lambda label: None
) -> Iterator[Trialled]:
    """The same in `jobs` processes, a trial each; `progress` is called for each fault as its trial is done.

    Faults hold functions and cannot be sent: they travel by name.
    """
    names = [fault.name for fault in faults]
    chosen = trials(lengths, device)
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
    ) as pool:
        # Costly trials first, so that none is left to run alone at the end.
        order = sorted(range(len(chosen)), key=lambda index: -sum(chosen[index].scenario.batch.cached_lens))
        futures = {pool.submit(_one_trial, tuple(lengths), device, index, names): chosen[index] for index in order}
        # As they are done, so that what an interruption leaves is all that was done.
        for future in as_completed(futures):
            trial = futures[future]
            for name, can, outcomes in future.result():
                progress(f"{trial.name} {name or 'right kernel'}")
                yield Trialled(find_fault(name) if name else None, trial, Power(can), outcomes)


def _one_trial(
    lengths: Sequence[int], device: str, index: int, names: Sequence[str]
) -> list[tuple[str | None, str, dict[str, str]]]:
    """In a process of its own: the results of one trial, as plain values."""
    results = run_selftest([trials(lengths, device)[index]], [find_fault(name) for name in names], device)
    return [(r.fault.name if r.fault else None, r.power.value, r.outcomes) for r in results]


def context_for(trial: Trial, fault: Fault | None, device: str) -> CheckContext:
    """The cell of a faulty kernel."""
    return CheckContext(trial.scenario, build_layout(trial.scenario), FaultyBackend(fault), trial.path, device)


def planted_in(right: CheckContext, fault: Fault | None) -> CheckContext:
    """The same cell with another kernel; inputs and oracle, which do not depend on the kernel, are shared."""
    context = CheckContext(right.scenario, right.layout, FaultyBackend(fault), right.path, right.device)
    context.__dict__.update(inputs=right.inputs, reference=right.reference)
    return context


def power(context: CheckContext, fault: Fault) -> Power:
    """What the scenario can show of the fault."""
    call = ready_call(context)
    right = program_for(call)
    faulty = fault.change(right)
    difference = effect(right, faulty, context.layout)
    if difference.none:
        return Power.EQUIVALENT
    if difference.indices:
        return Power.SHOWS
    try:
        exact = evaluate(faulty, call, compute=torch.float64)
    except IllegalAccessError:
        return Power.SHOWS
    traits = context.backend.traits_for(context.path)
    distance = compare(exact, context.reference, context.layout, context.scenario.attention, traits)
    worst = max(float(d.ratio.max()) for d in (distance.out, distance.lse) if d is not None and d.ratio.numel())
    return Power.SHOWS if worst > 1 else Power.BELOW_ROUNDING


def _try(trial: Trial, fault: Fault | None, context: CheckContext, checks: Sequence[str]) -> Trialled:
    can = Power.SHOWS if fault is None else power(context, fault)
    if can is Power.EQUIVALENT:
        return Trialled(fault, trial, can)
    return Trialled(fault, trial, can, {name: _outcome(name, context) for name in checks})


def _outcome(name: str, context: CheckContext) -> str:
    check = CHECKS[name]
    if check.not_applicable(context) is not None:
        return str(Verdict.SKIPPED)
    try:
        return str(check.run(context).verdict)
    except IllegalAccessError:
        return RAISED
