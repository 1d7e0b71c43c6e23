"""A validated document to a `Scenario`: defaults filled in, short forms resolved, fields that contradict each other
refused. The three large sections have modules of their own beside this one."""

from __future__ import annotations

from pagedbench.scenario.document import (
    DistributionSection,
    EqualsSection,
    ExpectSection,
    InputsSection,
    OverrideSection,
    ScenarioDocument,
)
from pagedbench.scenario.matrix import Variant
from pagedbench.scenario.model import (
    LARGEST,
    Attention,
    Batch,
    Distribution,
    Equals,
    Expectation,
    Inputs,
    Override,
    Scenario,
)
from pagedbench.scenario.not_yet import refuse_not_yet
from pagedbench.scenario.refusals import Refusals, describe, nearest
from pagedbench.scenario.resolve_attention import resolve_attention
from pagedbench.scenario.resolve_batch import resolve_batch
from pagedbench.scenario.resolve_cache import resolve_cache
from pagedbench.words import AttnPath

# What a sample can be: as good as no normal one is further from the mean than 6 deviations.
_LARGEST_SAMPLE = {"normal": 6.0, "uniform": 1.0, "constant": 1.0}
_OUTCOMES = ("skip", "raises", "fail")


def resolve(document: ScenarioDocument, variant: Variant, refusals: Refusals) -> Scenario | None:
    """The scenario of a document; None where something is refused (noted in `refusals`)."""
    batch = resolve_batch(document.batch, refusals)
    attention = resolve_attention(document.attention, refusals)
    expect = tuple(_expectations(document.expect, refusals))
    override = _override(document.override, refusals)
    if batch is None or attention is None:
        return None
    cache = resolve_cache(document.cache, batch, attention, refusals)
    capture_lens = _capture_lens(document, batch, refusals)
    _check_numbers(document.inputs, attention, refusals)
    if document.steps > 1 and not batch.append:
        refusals.add("steps", f"{document.steps} steps with append: false", "append: true")
    if cache is None or refusals.problems:
        return None
    scenario = Scenario(
        name=document.name + variant.suffix,
        about=document.about,
        batch=batch,
        cache=cache,
        attention=attention,
        inputs=_inputs(document.inputs),
        steps=document.steps,
        repeats=document.repeats,
        graph_capture_lens=capture_lens,
        override=override,
        expect=expect,
        equals=_equals(document.equals),
        variant=variant.values,
        origin=variant.origin,
    )
    refuse_not_yet(scenario, refusals)
    return None if refusals.problems else scenario


def _inputs(section: InputsSection) -> Inputs:
    def resolved(one: DistributionSection) -> Distribution:
        return Distribution(one.distribution, float(one.scale), float(one.offset))

    return Inputs(
        section.seed,
        resolved(section.q),
        resolved(section.k),
        resolved(section.v),
        section.identical_rows,
        section.poison,
    )


def _check_numbers(section: InputsSection, attention: Attention, refusals: Refusals) -> None:
    """Numbers must fit the dtype that they are stored in: beyond it they are inf before any kernel has seen them.

    fp8 takes the nearest number that it has, so that only the fp32 in which numbers are drawn limits it.
    """
    for name, dtype in (("q", attention.q_dtype), ("k", attention.kv_dtype), ("v", attention.kv_dtype)):
        one: DistributionSection = getattr(section, name)
        spread = _LARGEST_SAMPLE[one.distribution] * abs(one.scale)
        reach, limit = abs(one.offset) + spread, dtype if dtype in LARGEST else "float32"
        if reach >= LARGEST[limit]:
            times = f"{_LARGEST_SAMPLE[one.distribution]:g} · " if one.distribution == "normal" else ""
            found = f"{one.distribution} numbers up to |offset| + {times}|scale| = {reach:.4g}"
            field = f"inputs.{name}.{'scale' if spread >= abs(one.offset) else 'offset'}"
            refusals.add(field, found, f"less than {LARGEST[limit]:.5g}, the largest {limit}")


def _capture_lens(document: ScenarioDocument, batch: Batch, refusals: Refusals) -> tuple[int, ...] | None:
    """Cached lengths at capture; padding rows have none then, either."""
    if document.graph is None:
        return None
    live = batch.size - batch.padding_rows
    lens = document.graph.capture_lens
    if len(lens) != live:
        refusals.add("graph.capture_lens", f"{len(lens):,} lengths", f"{live:,}, one a sequence")
    return tuple(lens) + (0,) * batch.padding_rows


def _override(section: OverrideSection | None, refusals: Refusals) -> Override:
    if section is None:
        return Override()
    table = section.block_table
    if table is not None and len({len(row) for row in table}) > 1:
        refusals.add("override.block_table", "rows of different lengths", "rows of one length")
    given = {name: getattr(section, name) for name in section.model_fields_set if name != "oracle"}
    values = {name: _frozen(value) for name, value in sorted(given.items()) if value is not None}
    return Override(values, section.oracle)


def _frozen(value: object) -> object:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def _equals(section: EqualsSection | None) -> Equals | None:
    return None if section is None else Equals(section.variant, section.within)


def _expectations(sections: dict[str, ExpectSection], refusals: Refusals) -> list[Expectation]:
    found: list[Expectation] = []
    for target, section in sections.items():
        reasons = [(outcome, because) for outcome in _OUTCOMES if (because := getattr(section, outcome)) is not None]
        field = f"expect.{target}"
        if len(reasons) != 1:
            given = f"{len(reasons)} outcomes" if reasons else "no outcome"
            refusals.add(field, given, "exactly one of skip, raises, fail, with the reason")
            continue
        problem = _target_problem(target)
        if problem:
            refusals.add(field, describe(target), "BACKEND or BACKEND:PATH", problem, at_key=True)
            continue
        outcome, because = reasons[0]
        found.append(Expectation(target, outcome, because))  # type: ignore[arg-type]
    return found


def _target_problem(target: str) -> str | None:
    """What is wrong with the name of a target. A backend in a file is `file.py:function`, with or without a path."""
    paths = [str(path) for path in AttnPath]
    backend, *rest = target.split(":")
    function = 1 if backend.endswith(".py") else 0
    tail = rest[function:]
    if not backend or len(rest) < function or len(tail) > 1:
        return f"paths are {', '.join(paths)}"
    if tail and tail[0] not in paths:
        return nearest(tail[0], paths) or f"paths are {', '.join(paths)}"
    return None
