"""status.sleep: which pods sleep for want of requests, and that requests wake them up. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.domain import EngineOptions, SleepCounts


def sleep_status(
    counts: SleepCounts | None, engine: EngineOptions | None, previous: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Build the object for the status; None if pods do not sleep. While no engine answers, the last
    report stays."""
    if engine is not None and engine.serving.sleep_idle_seconds is None:
        return None
    if counts is None:
        return previous.get("sleep")
    return {"asleepPods": counts.asleep, "wakes": counts.wakes}
