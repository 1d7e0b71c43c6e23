"""The picture: what it shows is what was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pagedbench.checks.footprint_locate import Reads
from pagedbench.errors import PagedbenchError
from pagedbench.faults.catalogue import find_fault
from pagedbench.faults.kernel import FaultyBackend
from pagedbench.layout.build import build_layout
from pagedbench.report.footprint_drawing import write_picture
from pagedbench.report.footprint_plot import footprint_matrix, footprint_svg, save_footprint
from tests.checks.kernels import context
from tests.tensors.cells import docs_decode, scenario


def test_each_field_says_what_happened_to_the_slot() -> None:
    """Keys in slots 4, 5, 6, 0: read, missed, twice, and one of the future; slot 7 is a stranger."""
    wanted = np.array([[[True, True, True, False]]])
    reads = Reads(wanted, np.array([[[1.0, 0.0, 2.0, 1.0]]]), {7: np.array([[1.0]])})
    assert footprint_matrix(reads, [4, 5, 6, 0], 8, 0).tolist() == [[4, 0, 0, 0, 1, 2, 3, 4]]


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_a_picture_is_written(tmp_path: Path, suffix: str) -> None:
    layout = build_layout(docs_decode())
    reads = Reads(np.ones((1, 1, 31), bool), np.ones((1, 1, 31)))
    file = tmp_path / f"footprint.{suffix}"
    save_footprint(file, layout, 0, reads, layout.read_slots[:31].tolist())
    assert file.stat().st_size > 1000


def test_a_failing_cell_gets_its_picture_as_svg_and_a_right_one_none() -> None:
    picture = footprint_svg(context(docs_decode(), FaultyBackend(find_fault("block-skipped"))))
    assert picture is not None
    assert "<svg" in picture
    assert footprint_svg(context(docs_decode(), FaultyBackend())) is None


@pytest.mark.parametrize(
    ("name", "written", "begins"),
    [
        ("a.png", "a.png", b"\x89PNG"),
        ("a", "a.png", b"\x89PNG"),
        ("a.pdf", "a.pdf", b"%PDF"),
        ("a.svg", "a.svg", b"<?xml"),
    ],
)
def test_the_picture_of_a_record_is_written_in_the_form_asked_for(
    tmp_path: Path, name: str, written: str, begins: bytes
) -> None:
    svg = footprint_svg(context(docs_decode(), FaultyBackend(find_fault("block-skipped"))))
    assert svg is not None
    file = write_picture(svg, tmp_path / name)
    assert file.name == written
    assert file.read_bytes().startswith(begins)


def test_a_picture_that_cannot_be_drawn_again_is_written_as_what_it_is(tmp_path: Path) -> None:
    assert write_picture("<svg/>", tmp_path / "old.png").name == "old.svg"


def test_a_huge_pool_is_refused(tmp_path: Path) -> None:
    layout = build_layout(scenario((1,), (5000,)))
    with pytest.raises(PagedbenchError, match="shows nothing"):
        save_footprint(tmp_path / "a.png", layout, 0, Reads(np.ones((1, 1, 1), bool), np.ones((1, 1, 1))), [0])
