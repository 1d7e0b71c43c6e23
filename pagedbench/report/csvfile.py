"""The table as CSV: one line a cell, one meaning a column, for spreadsheets. Raw samples are in the records."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from pagedbench.results.record import CellRecord

COLUMNS = (
    "scenario", "backend", "path", "device", "verdict", "message", "worst_error", "time_us", "spread_us", "gb_per_s",
    "tflop_per_s", "limit_share", "seed", "sampled_rows", "where", "time", "run",
)  # fmt: skip
ENVIRONMENT = ("gpu", "driver", "cuda", "cpu", "torch", "backend_version", "pagedbench")
# A spreadsheet takes a cell that begins like this for a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_table(records: Sequence[CellRecord]) -> str:
    """CSV after RFC 4180 with a header; a figure that there is none of is empty."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\r\n")
    writer.writerow([*COLUMNS, *ENVIRONMENT])
    for record in records:
        own = [getattr(record, name) for name in COLUMNS]
        writer.writerow([_cell(value) for value in [*own, *(record.environment.get(name) for name in ENVIRONMENT)]])
    return stream.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, (int, float)):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA) else text
