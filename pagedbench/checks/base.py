"""What a check is: the context it works in and the result it gives. The checks themselves are one file each.

A check never decides on its own what a row may see or what a slot is for: that is the layout's. It never looks at the
clock. It makes as many calls as it needs through `CheckContext.execute`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch

from pagedbench.backends.base import Backend, Output
from pagedbench.backends.execute import Plans, execute
from pagedbench.checks.budget import RowBudget, row_budget
from pagedbench.checks.poison import poison_for
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.variants import same_slots
from pagedbench.oracle.as_given import as_given
from pagedbench.oracle.reference import Reference, reference
from pagedbench.scenario.model import Scenario
from pagedbench.tensors.inputs import LogicalInputs, random_inputs
from pagedbench.tensors.prepare import Fill, Prepared, image_of, prepare, small_image_of
from pagedbench.words import AttnPath, Verdict


@dataclass(frozen=True)
class Finding:
    """One thing that a check found, at the place where it is worst; absent coordinates do not apply.

    `message` is a whole sentence for a person. Coordinates are indices from 0; `key` is the logical position in the
    sequence, `logical_block` its column of the block table, `physical_block` the id that stands there. `array` is the
    name of an input that changed.
    """

    message: str
    sequence: int | None = None
    query_token: int | None = None
    head: int | None = None
    key: int | None = None
    logical_block: int | None = None
    physical_block: int | None = None
    array: str | None = None


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check. `message` is one line; `findings` are worst first; `metrics` are plain numbers.

    A check that does not apply is SKIPPED with the reason as `message`. `warnings` stand beside any verdict (BLIND).
    `final`: what came back is nothing that another check could look at, or a diagnosis explain.
    """

    check: str
    verdict: Verdict
    message: str = ""
    findings: tuple[Finding, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    final: bool = False

    def opened_by(self, words: str) -> CheckResult:
        """The same result of one of several executions, with `words` that say of which; also before the finding that
        the message repeats, so that reports see it does."""
        message = f"{words}: {self.message}"
        findings = [replace(f, message=message) if f.message == self.message else f for f in self.findings]
        return replace(self, message=message, findings=tuple(findings))


@dataclass(frozen=True)
class Execution:
    """What a backend did with one prepared call: its output, and the memory it was given, changed by the append."""

    prepared: Prepared
    output: Output


@dataclass
class CheckContext:
    """A cell under test. `inputs`, `reference` and `base` are made once, on first use, and shared by all checks, as are
    `plans`."""

    scenario: Scenario
    layout: BatchLayout
    backend: Backend
    path: AttnPath
    device: str
    plans: Plans = field(default_factory=dict)

    @cached_property
    def inputs(self) -> LogicalInputs:
        """The scenario's random queries, keys and values."""
        return random_inputs(self.scenario, self.layout, self.device)

    @cached_property
    def reference(self) -> Reference:
        """The oracle's answer for `inputs`, or for the batch that an override taken at its word describes."""
        inputs, layout = self.inputs, self.layout
        if self.scenario.override.values and self.scenario.override.oracle == "as-given":
            inputs, layout = as_given(self.scenario, layout, inputs, self.path, self.device, self.poison)
        seed = self.scenario.inputs.seed
        return reference(inputs, layout, self.scenario.attention, device=self.device, seed=seed)

    @cached_property
    def budget(self) -> RowBudget:
        """How far the backend's rows may be from `reference`."""
        return row_budget(self.reference, self.scenario.attention, self.backend.traits_for(self.path))

    @cached_property
    def base(self) -> Execution:
        """One execution of the scenario as it stands."""
        return self.execute()

    @cached_property
    def poison(self) -> Fill:
        """What stands where no row looks: the scenario's poison, finite where the backend declares that NaN leaks."""
        return poison_for(self.backend.traits_for(self.path), self.scenario.inputs.poison)

    @cached_property
    def _image(self) -> tuple[Fill, torch.Tensor | None]:
        """The memory of the scenario's own call, which most checks begin with, and its fill: another path of a backend,
        which is handed this one's image, may declare other leaks."""
        return self.poison, image_of(self.scenario, self.layout, self.inputs, self.poison, self.device)

    def prepare(
        self,
        *,
        inputs: LogicalInputs | None = None,
        layout: BatchLayout | None = None,
        fill: Fill | None = None,
        image: torch.Tensor | None = None,
    ) -> Prepared:
        """A fresh call on fresh memory: the scenario's, with other numbers, another placement or another fill.

        `image` is such a call's, where there is one already; the scenario's own is known.
        """
        poison, placed = self.poison, layout or self.layout
        chosen = fill or poison
        own = inputs is None and chosen.k is poison.k and chosen.v is poison.v and self._has_own_slots(placed, chosen)
        return prepare(
            self.scenario,
            placed,
            self.inputs if inputs is None else inputs,
            self.path,
            self.device,
            fill=chosen,
            image=self._image[1] if own and self._image[0] is poison else image,
        )

    def prepare_variant(self, layout: BatchLayout, inputs: LogicalInputs | None = None) -> Prepared:
        """A fresh call on a variant of the batch that every cell of the scenario runs: the next cell's is a copy."""
        numbers = self.inputs if inputs is None else inputs
        if numbers is self.inputs and self._has_own_slots(layout, self.poison):
            return self.prepare(layout=layout)
        image = small_image_of(self.scenario, layout, numbers, self.poison, self.device)
        return self.prepare(layout=layout, inputs=numbers, image=image)

    def _has_own_slots(self, layout: BatchLayout, fill: Fill) -> bool:
        """Whether every slot holds under a layout what it holds under the context's own."""
        return layout is self.layout or (same_slots(layout, self.layout) and not fill.follows_table)

    def execute(
        self,
        prepared: Prepared | None = None,
        *,
        inputs: LogicalInputs | None = None,
        layout: BatchLayout | None = None,
        fill: Fill | None = None,
    ) -> Execution:
        """Run the backend on a prepared call, or on one made from the arguments of `prepare`."""
        ready = prepared or self.prepare(inputs=inputs, layout=layout, fill=fill)
        return Execution(ready, execute(self.backend, ready.call, self.plans))


class Check(Protocol):
    """One check: a name as printed, a sentence for the README, and the work."""

    name: str
    about: str

    def not_applicable(self, context: CheckContext) -> str | None:
        """Why this check says nothing about this cell, or None."""

    def run(self, context: CheckContext) -> CheckResult:
        """Judge the cell."""
