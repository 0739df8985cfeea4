"""Random search in tests: fixed seeds in the daily run, fresh ones and more examples in
`make test-long`, which sets ATOM_TEST_SEEDS=fresh.

What a long run finds becomes an example of its test, so that the daily one has it too.
"""

from __future__ import annotations

import os

FRESH_SEEDS = os.environ.get("ATOM_TEST_SEEDS") == "fresh"
_MORE = 20


def examples(daily: int) -> int:
    """How many examples a property is held to."""
    return daily * _MORE if FRESH_SEEDS else daily
