"""Masks beside other features, and over several query tokens: the shipped scenarios catch what mixes them up."""

from __future__ import annotations

from pathlib import Path

import pytest

from pagedbench.runner.cell import judge
from pagedbench.runner.protocol import Job
from pagedbench.scenario.loader import load_scenarios
from pagedbench.scenario.model import Scenario
from pagedbench.words import Verdict

KERNELS = Path(__file__).parent / "masked_kernels.py"
SOFTCAP = load_scenarios(["features-softcap-masked"])
WINDOW = load_scenarios(["features-speculative-window"])


def verdict(kernel: str, scenario: Scenario, path: str) -> Verdict:
    job = Job(scenario, f"{KERNELS}:{kernel}", path, "cpu", "quick", diagnose=False)
    return judge(job, lambda event, **values: None).record.verdict


@pytest.mark.parametrize("scenario", SOFTCAP, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("path", ["decode", "paged-varlen"])
def test_a_softcap_after_the_mask_shows(scenario: Scenario, path: str) -> None:
    ending = path.replace("-", "_")
    assert verdict(f"right_softcap_{ending}", scenario, path) is Verdict.PASS
    assert verdict(f"after_mask_{ending}", scenario, path).is_wrong


@pytest.mark.parametrize("scenario", WINDOW, ids=lambda scenario: scenario.name)
def test_a_window_wrong_for_the_second_query_token_alone_shows(scenario: Scenario) -> None:
    assert verdict("right_softcap_decode", scenario, "decode") is Verdict.PASS
    assert verdict("WindowOfSecondToken", scenario, "decode").is_wrong
