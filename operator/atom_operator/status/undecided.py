"""The status of an AtomDeployment whose pass was cut off by the API server. Pure.

Nothing is known of the newest spec, so the status of the previous one no longer counts for it:
Ready is False, in the API server's words. Observed values stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import ConditionStatus
from atom_operator.status.conditions import Verdict, stamp
from atom_operator.status.kstatus import kstatus_verdicts

_ALWAYS = 8  # conditions that are there whatever is asked for
_OF_KSTATUS = (ConditionType.RECONCILING.value, ConditionType.STALLED.value)
_OF_OTHERS = "what runs goes on; the API server's error has to be mended"


def tells_of_failure(previous: Mapping[str, Any]) -> bool:
    """Return whether a status reports failing writes."""
    found = previous.get("conditions") or ()
    return any(each.get("reason") == Reason.APPLY_FAILED.value for each in found)


def undecided_status(
    previous: Mapping[str, Any], generation: int, words: str, now: datetime, *, is_late: bool
) -> dict[str, Any]:
    """Return the status to write; `is_late`: the same has failed for long."""
    before = {each["type"]: each for each in previous.get("conditions") or ()}
    told = {verdict.type: verdict for verdict in _verdicts(before, words, is_late=is_late)}
    always = (*list(ConditionType)[:_ALWAYS], ConditionType.READY)
    for kind in always:
        if kind not in told and kind.value not in before:
            told[kind] = Verdict(kind, "Unknown", Reason.NOT_PLANNED, "see Ready")
    new = {each["type"]: each for each in stamp(told.values(), before.values(), generation, now)}
    # Which of the two is reported is decided again.
    kept = {kind: each for kind, each in before.items() if kind not in _OF_KSTATUS}
    found = {**kept, **new}
    conditions = [found[kind.value] for kind in ConditionType if kind.value in found]
    return {**previous, "observedGeneration": generation, "conditions": conditions}


def _verdicts(
    before: Mapping[str, Mapping[str, Any]], words: str, *, is_late: bool
) -> Iterator[Verdict]:
    reason = Reason.APPLY_FAILED if is_late else Reason.ROLLING_OUT
    status: ConditionStatus = "False" if is_late else "True"
    progressing = Verdict(ConditionType.PROGRESSING, status, reason, words)
    yield progressing
    if is_late:
        message = f"{words}; {_OF_OTHERS}"
        yield Verdict(ConditionType.DEGRADED, "True", reason, message)
    ready = Verdict(ConditionType.READY, "False", reason, words)
    said = before.get(ConditionType.SUSPENDED.value, {}).get("status")
    suspended = Verdict(ConditionType.SUSPENDED, "True", Reason.SUSPENDED, "")
    yield from kstatus_verdicts(ready, progressing, suspended if said == "True" else None)
    yield ready
