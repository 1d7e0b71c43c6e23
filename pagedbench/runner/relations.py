"""In the worker: what a scenario asks of its cells beside the suite: `repeats`, `equals` and `graph`.

The first two are checks that no suite has, since they say something only where a scenario asks.
"""

from __future__ import annotations

from collections.abc import Collection

import torch

from pagedbench.backends.base import Output
from pagedbench.checks.accuracy import judge
from pagedbench.checks.answers import copied
from pagedbench.checks.base import Check, CheckContext, CheckResult
from pagedbench.checks.registry import CHECKS, suite
from pagedbench.errors import nearest
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.bits import bits
from pagedbench.tensors.prepare import call_spec
from pagedbench.words import Verdict


def checks_of(suite_name: str, scenario: Scenario, related: Scenario | None) -> list[Check]:
    """The checks of a suite, then those that the scenario itself asks for."""
    chosen = suite(suite_name)
    if scenario.graph_capture_lens is not None and CHECKS["graph-replay"] not in chosen:
        chosen.append(CHECKS["graph-replay"])
    return chosen + asked_by(scenario, related)


def asked_by(scenario: Scenario, related: Scenario | None) -> list[Check]:
    """The checks that no suite has."""
    asked: list[Check] = []
    if scenario.repeats > 1:
        asked.append(Repeats())
    if scenario.equals is not None:
        asked.append(Equals(related))
    return asked


def mistyped_targets(scenario: Scenario, known: Collection[str]) -> list[str]:
    """A warning for each target of `expect` that is no backend but nearly one: what it says would never be asked.

    A backend that is merely not there is none: files are shared.
    """
    names = {e.target.partition(":")[0] for e in scenario.expect}
    hints = {name: nearest(name, known) for name in sorted(names) if name not in known and not name.endswith(".py")}
    return [f"expect: there is no backend '{name}', {hint}" for name, hint in hints.items() if hint]


class Repeats:
    """The call made `repeats` times on fresh memory: every one right, and the same bits where that is declared."""

    name = "repeats"
    about = "As many calls as the scenario's `repeats`, each judged, and compared with the first."

    def not_applicable(self, context: CheckContext) -> str | None:
        """Applies wherever the scenario asks."""
        return None

    def run(self, context: CheckContext) -> CheckResult:
        """Make the calls that are left after the first."""
        wanted = context.scenario.repeats
        same_bits = context.backend.traits_for(context.path).repeatable
        first = copied(context.base.output)
        for number in range(2, wanted + 1):
            output = context.execute().output
            result = judge(context, output, context.layout, context.reference, self.name)
            if result.verdict is not Verdict.PASS:
                return result.opened_by(f"call {number} of {wanted}")
            if same_bits and not _equal_bits(first, output):
                gap = _largest_gap(first, output)
                message = (
                    f"call {number} of {wanted} differs from the first by up to {gap:.3g}, and must not in any bit"
                )
                return CheckResult(self.name, Verdict.UNSTABLE, message)
        return CheckResult(
            self.name, Verdict.PASS, f"{wanted} calls, all right{', the same bits' if same_bits else ''}"
        )


class Equals:
    """The output of this variant against that of another one, which it must equal."""

    name = "equals"
    about = "The output of this variant against the one that `equals` names."

    def __init__(self, related: Scenario | None) -> None:
        self.related = related

    def not_applicable(self, context: CheckContext) -> str | None:
        """Only where the other variant can be run, too."""
        if self.related is None:
            return "the variant that it must equal is not part of this run"
        spec = call_spec(self.related, build_layout(self.related), context.path, context.device)
        reason = context.backend.unsupported(spec)
        return f"{self.related.name} is not supported: {reason}" if reason else None

    def run(self, context: CheckContext) -> CheckResult:
        """Run the other variant, and hold its output against this one's: bit by bit, or by this one's row budgets."""
        assert self.related is not None, "not_applicable says so"
        assert context.scenario.equals is not None, "asked_by says so"
        layout = build_layout(self.related)
        other = CheckContext(self.related, layout, context.backend, context.path, context.device).execute().output
        repeatable = context.backend.traits_for(context.path).repeatable  # else no two of its calls have equal bits
        if context.scenario.equals.within == "budget" or not repeatable:
            result = judge(context, other, context.layout, context.reference, self.name)
            return result.opened_by(f"against {self.related.name}")
        own = context.base.output
        if own.out.shape != other.out.shape:
            return CheckResult(self.name, Verdict.MISMATCH, f"{self.related.name} has an output of another shape")
        if _equal_bits(own, other):
            return CheckResult(self.name, Verdict.PASS, f"the same bits as {self.related.name}")
        gap = _largest_gap(own, other)
        return CheckResult(self.name, Verdict.MISMATCH, f"differs from {self.related.name} by up to {gap:.3g}")


def _equal_bits(one: Output, other: Output) -> bool:
    if not torch.equal(bits(one.out), bits(other.out)):
        return False
    return one.lse is None or other.lse is None or torch.equal(bits(one.lse), bits(other.lse))


def _largest_gap(one: Output, other: Output) -> float:
    pairs = [(one.out, other.out)]
    if one.lse is not None and other.lse is not None:
        pairs.append((one.lse, other.lse))
    gaps = [(a.double() - b.double()).abs().nan_to_num(nan=torch.inf, posinf=torch.inf) for a, b in pairs]
    # Infinities of one sign are equal, though their difference is NaN.
    return max(float(torch.where(a == b, 0.0, gap).max()) for (a, b), gap in zip(pairs, gaps, strict=True))
