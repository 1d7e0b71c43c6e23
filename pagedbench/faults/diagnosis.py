"""Diagnosis: which fault of the catalogue a failing kernel behaves like, from its behaviour alone.

Every fault is a hypothesis: planted in a right kernel it is put the same questions (`probes.py`), and one that answers
otherwise anywhere is dropped, as is one that calls right most of what is wrong. What is left is named; where nothing is
left, the nearest is, or it is said that there is none.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from pagedbench.backends.base import Output
from pagedbench.checks.base import CheckContext, CheckResult
from pagedbench.checks.comparison import Comparison, Distance, compare
from pagedbench.checks.floor import ready_call
from pagedbench.checks.memory_patterns import memory_is_nan
from pagedbench.checks.steps import FAILED_STEP, at_step
from pagedbench.faults.catalogue import FAULTS, find_fault
from pagedbench.faults.effect import effect
from pagedbench.faults.evaluate import MOST_SCORES, IllegalAccessError, scores_needed
from pagedbench.faults.fault import Fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.faults.plain_sight import plain_sight
from pagedbench.faults.probes import REPEATS, Probe, Seen, probes_for, raising_probes, unsteady
from pagedbench.faults.program import program_for
from pagedbench.tensors.bits import dtype_name
from pagedbench.words import Verdict

DEADLINE_SECONDS = 20.0
# A hypothesis that explains fewer rows than this is not worth a mention.
_NEAR = 0.75
# How the check of invariance names variations that change a sequence's company and nothing else.
_BATCH_WORDS = ("alone", "batch", "order")
# Traits that a kernel may have without saying so, the one that widens budgets least first.
_UNDECLARED = {
    "sum_of_rounded_weights": "divides by the sum of weights that were rounded to {dtype}",
    "score_rounding": "rounds its scores to {dtype}",
}
_MATCHES, _RAISES = "output matches the reference if", "it raises where a kernel would if"
_HARMLESS = {"max_seqlen_q", "max_seqlen_k"}  # overridden, they leave what is right as it is
_FEW = 8  # numbers that may have few bits by chance
# Other cuts of the keys change roundings: a row that leaves its budget by more than this has another cause.
_MOST_OF_SPLITS = 10.0


@dataclass(frozen=True)
class Diagnosis:
    """A fault that explains the behaviour, or None if none could be tried.

    `score` is the share of rows explained, 1 for all of them; `how` says what agrees.
    """

    fault: str | None
    sentence: str
    score: float
    how: str


def diagnose(
    context: CheckContext, results: Sequence[CheckResult], *, deadline: float = DEADLINE_SECONDS
) -> list[Diagnosis]:
    """The faults that explain a failing cell, best first; empty if nothing failed, or if the kernel does right whatever
    it is asked here.

    Runs the cell's backend a handful of times and the catalogue on the same questions, for at most about `deadline`
    seconds.
    """
    failed = [result for result in results if result.verdict.is_wrong or result.verdict is Verdict.ERROR]
    if not failed or context.scenario.override.values.keys() - _HARMLESS:
        # A fault is a change of a right kernel, and of overridden arrays no kernel makes anything right.
        return []
    step = int(failed[0].metrics.get(FAILED_STEP, 0))
    if step and len(failed) == 1:  # the first step is right, in whatever way it was asked
        asked = _behaviour(at_step(context, step), failed, deadline) or [_of_an_earlier_step(step)]
        return [replace(guess, sentence=f"in step {step}, {guess.sentence}") for guess in asked]
    found = _behaviour(context, failed, deadline)
    if all(result.findings and all(finding.array for finding in result.findings) for result in failed):
        # Which input changed, and where, is all there is to say: that no fault explains it is no news.
        found = [diagnosis for diagnosis in found if diagnosis.fault is not None]
    if _explained(found):
        return found
    sight = _plain_sight(context, failed)
    if sight:
        return sight
    mismatch = any((result.check, result.verdict) == ("accuracy", Verdict.MISMATCH) for result in failed)
    distances = _distances(context, context.base.output) if mismatch else None
    hints = [] if distances is None else _coarse_lse(context, distances) or _undeclared(context, failed, distances)
    return [*hints, *(diagnosis for diagnosis in found if diagnosis.fault is not None)] if hints else found


def _plain_sight(context: CheckContext, failed: Sequence[CheckResult]) -> list[Diagnosis]:
    """What is so of all wrong rows, before a fault that explains only some of them is named."""
    if any(result.verdict is Verdict.NOT_WRITTEN for result in failed):
        with memory_is_nan(context):  # rows nobody wrote are then wrong, whatever memory held in the base call
            output = context.execute().output
    elif any(result.check == "accuracy" and result.verdict is not Verdict.ERROR for result in failed):
        output = context.base.output
    else:
        return []
    distances = _distances(context, output)
    sentence = None if distances is None else plain_sight(context, output.out, distances)
    return [] if sentence is None else [Diagnosis(None, sentence, 0.0, "the scenario's own call")]


def _of_an_earlier_step(step: int) -> Diagnosis:
    sentence = "asked by itself, it is right: what an earlier step left in the pool, or in the kernel, makes it wrong"
    return Diagnosis(None, sentence, 0.0, f"right numbers for the lengths of step {step}")


def _coarse_lse(context: CheckContext, distances: Comparison) -> list[Diagnosis]:
    """An LSE whose numbers all have fewer bits than fp32, beside a right output, was rounded on the way."""
    lse = context.base.output.lse
    if lse is None or not _off(distances.lse) or _off(distances.out):
        return []
    finite = lse[lse.isfinite()].float()
    for dtype in (torch.bfloat16, torch.float16):
        if len(finite) >= _FEW and torch.equal(finite.to(dtype).float(), finite):
            sentence = f"the LSE was rounded to {dtype_name(dtype)}, the output is right: the LSE is to be float32"
            return [Diagnosis(None, sentence, 1.0, f"none of {len(finite)} numbers has more bits")]
    return []


def _distances(context: CheckContext, output: Output) -> Comparison | None:
    """How far the rows of a cell are from the oracle, where output and LSE have their form."""
    attention, layout = context.scenario.attention, context.layout
    shape = (layout.total_q, attention.num_heads, attention.head_dim_v)
    formed = output.out.shape == shape and (output.lse is None or output.lse.shape == shape[:2])
    if not formed or dtype_name(output.out.dtype) != attention.dtype:
        return None
    traits = context.backend.traits_for(context.path)
    return compare(output, context.reference, layout, attention, traits, context.budget)


def _off(distance: Distance | None) -> bool:
    """Whether a row is beyond its budget."""
    return distance is not None and float(distance.ratio.max()) > 1


def _undeclared(context: CheckContext, failed: Sequence[CheckResult], found: Comparison) -> list[Diagnosis]:
    """A kernel may be right for what it does, but have not said so: then its budget was too small.

    Not so where it read wrong slots, or changed what it must not: a wider budget would only hide that.
    """
    attention, traits = context.scenario.attention, context.backend.traits_for(context.path)
    budgeted = all(result.verdict in (Verdict.MISMATCH, Verdict.UNSTABLE) for result in failed)
    if not (_off(found.out) or _off(found.lse)) or not budgeted or attention.dtype == "float32":
        return []
    for trait, what in _UNDECLARED.items():
        declared = replace(traits, **{trait: True})  # type: ignore[arg-type]
        distances = compare(context.base.output, context.reference, context.layout, attention, declared)
        if declared == traits or _off(distances.out) or _off(distances.lse):
            continue
        sentence = (
            f"output is within the budget of a kernel that {what.format(dtype=attention.dtype)}; "
            f"if that is meant, declare {trait}=True"
        )
        return [Diagnosis(None, sentence, 0.0, "judged again with the trait")]
    return []


def _behaviour(context: CheckContext, failed: Sequence[CheckResult], deadline: float) -> list[Diagnosis]:
    if scores_needed(context.prepare().call) > MOST_SCORES:
        return [Diagnosis(None, "too large to try the catalogue on: `pagedbench shrink` makes it small first", 0.0, "")]
    try:
        # A fill that shows and noise that comes and goes look alike to the check of leaks.
        if any(result.verdict in (Verdict.UNSTABLE, Verdict.LEAK) for result in failed):
            unstable = _unstable(context, failed)
            if unstable:
                return unstable
        found = _compare(context, probes_for(context), deadline)
        return found if _explained(found) else _noise(context) or found
    except Exception:  # the backend raises where it is only asked again: then that is what there is to explain
        return _raising(context, deadline)


def _raising(context: CheckContext, deadline: float) -> list[Diagnosis]:
    """What raises is explained by a fault that does on the same tables. There is no output that could match."""
    found = _compare(context, raising_probes(), deadline)
    return [replace(guess, sentence=guess.sentence.replace(_MATCHES, _RAISES)) for guess in found]


def _unstable(context: CheckContext, failed: Sequence[CheckResult]) -> list[Diagnosis]:
    """Non-determinism, and numbers that depend on the batch, have no single right answer to compare with."""
    noise = _noise(context)
    if noise:
        return noise
    only_unstable = all(result.verdict is Verdict.UNSTABLE for result in failed)
    mentioned = " ".join(finding.message for result in failed for finding in result.findings)
    if only_unstable and any(word in mentioned for word in _BATCH_WORDS):
        how = "equal calls give equal bits, another batch around a sequence does not"
        depends = "a sequence's output depends on its batch mates"
        if any(result.metrics.get("worst_ratio", 0.0) > _MOST_OF_SPLITS for result in failed):
            more = (
                "by more than roundings: it takes a row, a length or keys of another sequence, "
                "keeps something of an earlier call, or is wrong at times"
            )
            return [Diagnosis(None, f"{depends}, {more}", 0.0, how)]
        fault = find_fault("splits-by-batch")
        return [Diagnosis(fault.name, f"{depends}: {fault.sentence}", 1.0, how)]
    return []


def _noise(context: CheckContext) -> list[Diagnosis]:
    changed = unsteady(context)
    how = f"the output has other bits in {changed} of {REPEATS} equal calls"
    return [Diagnosis("noise", "the output differs between equal calls", 1.0, how)] if changed else []


def _explained(found: Sequence[Diagnosis]) -> bool:
    return bool(found) and found[0].score == 1.0


@dataclass(eq=False)
class _Suspect:
    """A hypothesis on trial: rows explained, of those asked about, and how far its numbers are from those seen.

    `everywhere`: so far it does what was seen in all rows, the right ones among them.
    `wrong`, `quiet` `(rows, num_heads)` bool: where the kernel is wrong, and where it is right though a kernel with
    the fault would not be.
    """

    fault: Fault
    explained: int = 0
    asked: int = 0
    distance: float = 0.0
    everywhere: bool = True
    wrong: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.bool))
    quiet: torch.Tensor = field(default_factory=lambda: torch.zeros(1, 1, dtype=torch.bool))

    @property
    def score(self) -> float:
        return self.explained / self.asked if self.asked else 1.0

    @property
    def explains_what_is_wrong(self) -> bool:
        """Of the wrong rows it leaves none; it may be wrong in others."""
        return self.asked > 0 and self.explained == self.asked


def _compare(context: CheckContext, probes: Sequence[Probe], deadline: float) -> list[Diagnosis]:
    until = time.monotonic() + deadline
    suspects = [_Suspect(fault) for fault in _able_to_show(context)]
    dropped: list[_Suspect] = []
    right_agrees = True
    for probe in probes:
        seen = probe.ask(context)
        right = probe.ask(_with_backend(context, None))
        wrong = _differ(probe, seen, right)
        right_agrees &= not bool(wrong.any())
        for suspect in list(suspects):
            if time.monotonic() > until:
                return _so_far(suspects) or _nearest(context, [*suspects, *dropped])
            suspect.everywhere &= _explains(context, probe, seen, right, wrong, suspect)
            if not (suspect.everywhere or suspect.explains_what_is_wrong):
                suspects.remove(suspect)
                dropped.append(suspect)
    if right_agrees:
        return []
    dropped += [suspect for suspect in suspects if not suspect.everywhere]
    suspects = [suspect for suspect in suspects if suspect.everywhere]
    suspects.sort(key=lambda suspect: suspect.distance)  # stable: the catalogue's order among those that do the same
    how = "agrees in " + ", ".join(dict.fromkeys(probe.name for probe in probes))
    return [_named(suspect, how, rank) for rank, suspect in enumerate(suspects)] or _nearest(context, dropped)


def _so_far(suspects: Sequence[_Suspect]) -> list[Diagnosis]:
    """When time is up: the hypotheses that were asked about wrong rows and were not dropped."""
    asked = sorted((s for s in suspects if s.asked and s.everywhere), key=lambda s: s.distance)
    how = "agrees as far as there was time to ask"
    return [_named(suspect, how, rank) for rank, suspect in enumerate(asked)]


def _able_to_show(context: CheckContext) -> list[Fault]:
    """The faults that do anything on this batch, and do it in every call."""
    call = ready_call(context)
    right = program_for(call)
    changed = [(fault, fault.change(right)) for fault in FAULTS]
    return [f for f, program in changed if not program.noise and not effect(right, program, context.layout).none]


def _differ(probe: Probe, seen: Seen, right: Seen) -> torch.Tensor:
    """`(parts, rows, num_heads)` where output, or LSE, is not what the right kernel's is."""
    agree = probe.agree_right or probe.agree
    return torch.stack([~agree(mine, other) for mine, other in zip(seen.parts, right.parts, strict=False)])


def _explains(
    context: CheckContext, probe: Probe, seen: Seen, right: Seen, wrong: torch.Tensor, suspect: _Suspect
) -> bool:
    """Whether the hypothesis does what was seen. The score counts the rows that are `wrong`.

    Sights of a faulty kernel are compared with room, so that a hypothesis which differs from the right kernel by less
    than that room, or not at all in what is wrong, agrees with any kernel that is nearly right. It must itself be wrong
    in at least half of what is wrong, in output and in LSE; not in all, since of two that are rounded apart either may
    be just within the budget.
    """
    rows = wrong.any(0)
    suspect.asked += int(rows.sum())
    try:
        guess = probe.ask(_with_backend(context, suspect.fault))
    except IllegalAccessError:
        return False
    agreed = probe.agree(seen, guess)
    # A kernel need not return the LSE; a hypothesis does.
    differs = _differ(probe, guess, right)[: len(wrong)] if bool(rows.any()) else wrong
    shows = wrong & differs
    suspect.wrong = suspect.wrong | rows.cpu()
    suspect.quiet = suspect.quiet | (differs.any(0) & ~rows).cpu()
    suspect.explained += int((agreed & rows & (shows == wrong).all(0)).sum())
    suspect.distance += float((seen.values - guess.values).abs().nan_to_num(posinf=0.0).sum())
    return bool(agreed.all()) and bool((2 * shows.sum((1, 2)) >= wrong.sum((1, 2))).all())


def _with_backend(context: CheckContext, fault: Fault | None) -> CheckContext:
    """The same cell with a kernel that has the fault. It shares the inputs, which are costly to draw."""
    other = CheckContext(context.scenario, context.layout, FaultyBackend(fault), context.path, context.device)
    other.__dict__["inputs"] = context.inputs
    return other


def _named(suspect: _Suspect, how: str, rank: int) -> Diagnosis:
    """A hypothesis that survived; from the second on, one that does the same on this batch."""
    report = f"; reported as {suspect.fault.report}" if suspect.fault.report else ""
    opening = _MATCHES if rank == 0 else "which here is the same as if"
    return Diagnosis(suspect.fault.name, f"{opening} {suspect.fault.sentence}{report}", 1.0, how)


def _nearest(context: CheckContext, dropped: Sequence[_Suspect]) -> list[Diagnosis]:
    """What explains the most; of two that explain as much, the one that is wrong in the fewest rows beside it."""
    best = max(dropped, key=lambda suspect: (suspect.score, -int(suspect.quiet.sum())), default=None)
    if best is None or best.score < _NEAR or not best.explained:
        return [Diagnosis(None, "no fault of the catalogue explains it, nor comes near", 0.0, "")]
    quiet = best.quiet & ~best.wrong
    how = f"explains {best.explained} of {best.asked} wrong rows"
    where = _where(context, best.wrong, quiet) if best.explains_what_is_wrong else None
    if where is None:
        sentence = f"no fault of the catalogue explains all of it; nearest: {best.fault.sentence}"
    else:
        sentence = f"{where}, {_MATCHES} {best.fault.sentence}; elsewhere it is right"
        how += f", and would be wrong in {int(quiet.sum())} that are right"
    return [Diagnosis(best.fault.name, sentence, best.explained / (best.asked + int(quiet.sum())), how)]


def _where(context: CheckContext, wrong: torch.Tensor, quiet: torch.Tensor) -> str | None:
    """What the query tokens have in common that are wrong, and none has in which the fault would show and does not: the
    branch of a kernel, or the tile, that has it. None where the two are not told apart so simply."""
    layout = context.layout
    if len(wrong) != layout.total_q or not bool(quiet.any()):
        return None
    lengths = torch.from_numpy(layout.query_lens).long()
    sequence = torch.from_numpy(layout.row_sequence())
    token = torch.arange(layout.total_q) - torch.from_numpy(layout.cu_seqlens_q).long()[sequence]
    keys = torch.from_numpy(layout.total_seqlens).long()[sequence]
    there, elsewhere = wrong.any(1), quiet.any(1)
    for values, above, below in (
        (token, "from query token {} of a sequence on", "before query token {} of a sequence"),
        (lengths[sequence], "in sequences of {} or more query tokens", "in sequences of fewer than {} query tokens"),
        (keys, "in sequences of {} or more keys", "in sequences of fewer than {} keys"),
    ):
        bad, good = values[there], values[elsewhere]
        if int(bad.min()) > int(good.max()):
            return above.format(int(bad.min()))
        if int(bad.max()) < int(good.min()):
            if values is keys and int(bad.max()) == 0:
                return "in sequences without keys"
            return below.format(int(bad.max()) + 1)
    return None
