"""Records as Parquet, for those who keep many: flat columns as they are, nested ones as JSON, raw samples as a list.

Needs pandas and pyarrow, which are imported here alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pagedbench.errors import UsageError
from pagedbench.results.record import CellRecord
from pagedbench.results.store import whole_file

SAMPLES = "kernel_samples_ns"


def write_parquet(records: Sequence[CellRecord], file: Path) -> None:
    """Write the records, whole or not at all. Raises UsageError without pyarrow, or if the file cannot be written."""
    try:
        import pandas as pd
        import pyarrow as pa  # noqa: F401  pandas would say less plainly that it is missing
    except ImportError as error:
        raise UsageError("Parquet needs pyarrow", 'pip install "pagedbench[parquet]"') from error

    frame = pd.DataFrame([_flat(record) for record in records])
    with whole_file(file) as name:
        frame.to_parquet(name, index=False)


def _flat(record: CellRecord) -> dict[str, Any]:
    """One row: what the record's line holds, nested values as JSON text, the kernel's samples apart."""
    data: dict[str, Any] = json.loads(record.to_json())
    kernel = ((record.timing or {}).get("quantities") or {}).get("kernel") or {}
    row = {name: json.dumps(v) if isinstance(v, (dict, list)) else v for name, v in data.items()}
    return {**row, SAMPLES: [float(sample) for sample in kernel.get("samples", ())]}
