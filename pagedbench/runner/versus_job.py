"""The request for a comparison, as parent and worker share it. No torch: the parent makes it."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass

from pagedbench.runner.protocol import Message
from pagedbench.scenario.model import Scenario
from pagedbench.timing.options import TimingOptions


@dataclass(frozen=True)
class VersusJob:
    """Sides `(backend, path)` to be compared on a scenario."""

    scenario: Scenario
    sides: tuple[tuple[str, str], ...]
    device: str
    timing: TimingOptions

    def to_message(self) -> Message:
        """The request for it."""
        return {"do": "versus", "job": base64.b64encode(pickle.dumps(self)).decode()}

    @staticmethod
    def from_message(message: Message) -> VersusJob:
        """The job of a request."""
        job = pickle.loads(base64.b64decode(message["job"]))
        if not isinstance(job, VersusJob):
            raise TypeError("the request holds no comparison")
        return job
