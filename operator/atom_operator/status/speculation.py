"""status.speculation: how the drafts of the latest revision's pods do. Pure.

Rounded, so that a status is not written for every token; what engines count exactly is in their
/metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.domain import DraftCounts


def speculation_status(
    drafts: DraftCounts | None, revision: str | None, previous: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Build the object for the status; None if nothing was drafted. While no engine of the revision
    answers, the last report stays."""
    if drafts is None:
        return previous.get("speculation") if previous.get("revision") == revision else None
    if not drafts.drafts or not drafts.tokens:
        return None
    return {
        "acceptedPercent": round(100 * drafts.accepted / drafts.tokens),
        "tokensPerStep": round(1 + drafts.accepted / drafts.drafts, 1),
    }
