"""How numbers are written in tables: three significant digits, times in the unit that suits them. Plain text only."""

from __future__ import annotations

import math


def duration(microseconds: float | None, spread: float | None = None) -> str:
    """A time in the unit that suits it, with its spread in the same: `12.7 ±0.1 µs`."""
    if microseconds is None:
        return "–"
    scale, unit = next((s, u) for s, u in ((1e6, "s"), (1e3, "ms"), (1.0, "µs"), (0.0, "µs")) if microseconds >= s)
    scale = scale or 1.0
    value = three_digits(microseconds / scale)
    return f"{value} {unit}" if spread is None else f"{value} ±{three_digits(spread / scale)} {unit}"


def three_digits(value: float | None) -> str:
    """Three significant digits, without an exponent where one can do without: 0.0123, 1.23, 12.3, 1,234; inf."""
    if value is None:
        return "–"
    if value != 0 and abs(value) < 1e-3:
        return f"{value:.0e}"
    if 1e7 <= abs(value) < math.inf:
        return f"{value:.2e}"
    for limit, digits in ((99.95, 0), (9.995, 1), (0.9995, 2), (0.0, 3)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    raise AssertionError("unreachable: every number is at least 0 in size")


def of_budget(share: float) -> str:
    """An error as a share of its budget: two decimals while it is of that order, then three digits; inf."""
    return f"{share:.2f}" if share < 10 else three_digits(share)
