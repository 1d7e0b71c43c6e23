"""What the parent writes into a record of a cell: whose it is, as it was written."""

from __future__ import annotations

import yaml

from pagedbench.runner.cells import source_text
from pagedbench.scenario.loader import load_scenarios
from tests.tensors.cells import docs_decode


def test_the_text_of_a_scenario_is_its_own_document_with_the_comments_before_it() -> None:
    names = ["features-fp8", "features-fp8-blocks", "features-fp8-float16", "edge-large-scores-sinks"]
    for name in names:
        first, *_ = load_scenarios([name])
        (document,) = yaml.safe_load_all(source_text(first))
        assert document["name"] == name
    assert source_text(load_scenarios(["features-fp8"])[0]).startswith("# Blocks of 256")


def test_one_made_in_code_has_none() -> None:
    assert source_text(docs_decode()) == ""
