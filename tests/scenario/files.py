"""Scenario texts for tests: one valid file, and ways to change one field of it."""

from __future__ import annotations

import json

VALID = """\
name: small
batch: {query_lens: [1, 1], cached_lens: [3, 20]}
cache: {block_size: 16}
attention: {num_heads: 4, num_kv_heads: 2, head_dim: 64}
"""


def scenario_text(**sections: object) -> str:
    """The valid scenario with whole sections replaced or added, one a line (JSON is YAML)."""
    base: dict[str, object] = {
        "name": "small",
        "batch": {"query_lens": [1, 1], "cached_lens": [3, 20]},
        "cache": {"block_size": 16},
        "attention": {"num_heads": 4, "num_kv_heads": 2, "head_dim": 64},
    }
    return "".join(f"{name}: {json.dumps(value)}\n" for name, value in (base | sections).items())


def attention_text(**fields: object) -> str:
    """The valid scenario with these attention fields beside its heads; a field given as None is null in the file."""
    return scenario_text(attention={"num_heads": 4, "num_kv_heads": 2, "head_dim": 64, **fields})
