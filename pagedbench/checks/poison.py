"""The poison of an ordinary call: the scenario's, but for what the backend declares.

NaN that is declared to leak would fail every check with one known fact, and hide all others. There a call holds the
largest sensible number instead, whose weight of zero leaves nothing; the check of leaks tries NaN in these places.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal

from pagedbench.backends.base import Traits
from pagedbench.layout.regions import Region
from pagedbench.scenario.model import Poison
from pagedbench.tensors.fill import Fill, FillValue

Side = Literal["K", "V"]
SIDES: tuple[Side, Side] = ("K", "V")


def declared_leaks(traits: Traits) -> frozenset[tuple[Region, Side]]:
    """Where `Traits.nan_regions` permits NaN to show."""
    return frozenset(
        (region, side)
        for region in Region
        for side in SIDES
        if "may-leak"
        in (traits.nan_regions.get(name) for name in (f"{region.name.lower()}.{side.lower()}", region.name.lower()))
    )


def poison_for(traits: Traits, kind: Poison) -> Fill:
    """The scenario's poison for a backend with these traits. Equal arguments give the very same mappings."""
    return _spared(kind, declared_leaks(traits))


@lru_cache
def _spared(kind: Poison, spared: frozenset[tuple[Region, Side]]) -> Fill:
    fill = Fill.poison(kind)
    if kind not in ("nan", "inf"):
        return fill
    large: FillValue = "large"
    k, v = ({region: large for region, side in spared if side == wanted and region in fill.k} for wanted in SIDES)
    return Fill({**fill.k, **k} if k else fill.k, {**fill.v, **v} if v else fill.v)
