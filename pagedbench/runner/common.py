"""In the worker: what jobs on one scenario have in common, made once: the layout, the inputs, the oracle's answer, and
the plans of a backend.

Jobs come scenario by scenario, so one scenario's are kept at a time. Nothing is handed on after a kernel was found
wrong: it may have written where it must not, and the next one would be accused of that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from pagedbench.backends.base import Backend
from pagedbench.backends.execute import Plans
from pagedbench.checks.base import CheckContext
from pagedbench.layout.batch import BatchLayout
from pagedbench.layout.build import build_layout
from pagedbench.scenario.model import Scenario
from pagedbench.words import AttnPath


@dataclass
class Common:
    """The last scenario's. `_made` holds `inputs` and `reference`, once a context made them; `_plans` are those of the
    backend named with them."""

    _scenario: Scenario | None = None
    _layout: BatchLayout | None = None
    _made: dict[str, Any] | None = None
    _plans: tuple[str, Plans] | None = None

    def known(self, scenario: Scenario) -> tuple[Scenario, BatchLayout]:
        """The scenario and its layout, the same objects for every job on it, as what is kept by identity needs.

        Whatever was kept of another scenario is let go first.
        """
        if self._scenario is None or self._layout is None or self._scenario != scenario:
            self.forget()
            self._scenario, self._layout = scenario, build_layout(scenario)
        return self._scenario, self._layout

    def context(self, scenario: Scenario, backend: Backend, path: AttnPath, device: str) -> CheckContext:
        """A context for one side of the scenario, with what earlier ones made."""
        known = self.known(scenario)
        if self._plans is None or self._plans[0] != backend.source:
            self._plans = (backend.source, {})
        context = CheckContext(*known, backend, path, device, self._plans[1])
        context.__dict__.update(self._made or {})
        return context

    def keep(self, context: CheckContext) -> None:
        """Hand on what a context made, after its kernel was found right."""
        if context.layout is not self._layout or context.scenario.override.values:  # its oracle depends on the path
            return
        self._made = {name: context.__dict__[name] for name in ("inputs", "reference") if name in context.__dict__}

    def held_bytes(self, device: str) -> int:
        """Memory of the kept inputs on `device`: a job's need counts them as its own."""
        inputs = (self._made or {}).get("inputs")
        tensors = (inputs.q, inputs.k, inputs.v) if inputs is not None else ()
        return sum(tensor.nbytes for tensor in tensors if tensor.device.type == torch.device(device).type)

    def forget(self) -> None:
        """Keep nothing."""
        self._scenario = self._layout = None
        self.forget_values()

    def forget_values(self) -> None:
        """Keep the layout only: integers that no kernel was handed."""
        self._made = self._plans = None


LAST = Common()
"""This process's."""
