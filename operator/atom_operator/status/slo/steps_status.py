"""status.steps: the steps of the pods beside the measured table of their card. Pure.

`kubectl atom advise` reads it, so that the next advice for this model and card is corrected by what
was seen. Rounded, and kept while it changes little, so that a status is not written each minute.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from atom_operator.domain import Latencies

_KEPT_WITHIN_PERCENT = 5
_LEAST_PERCENT, _MOST_PERCENT = 1, 1000


def steps_status(
    latencies: Latencies | None, revision: str | None, previous: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Build the object for the status: the median over the pods; None if no pod's card has a
    measured table. While no engine of the revision answers, the last report stays."""
    is_same = previous.get("revision") == revision
    last: Mapping[str, Any] | None = previous.get("steps") if is_same else None
    if latencies is None:
        return None
    if not latencies.predicted:
        return last
    ratios = [each.steps_ratio for _, each in latencies.predicted if each.steps_ratio is not None]
    if not ratios:
        return last
    percent = min(_MOST_PERCENT, max(_LEAST_PERCENT, round(100 * median(ratios))))
    if last is not None and abs(percent - last["percentOfTable"]) < _KEPT_WITHIN_PERCENT:
        percent = last["percentOfTable"]
    return {"percentOfTable": percent, "pods": len(ratios)}
