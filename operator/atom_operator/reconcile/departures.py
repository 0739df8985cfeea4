"""Whether a quota's refusal is older than the place that a pod left behind.

A refused controller retries ever more rarely, and its message stays until then: it is out of date
for a quota that one of our own pods has left meanwhile. Only earlier looks can tell, so the quota's
numbers at the last look are remembered per AtomDeployment, and lost with the process: the next
process takes the message for old at first. Called by the decider.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from atom_operator.domain import ObjectKey, Observed

# By then it was tried again in any case; the Events of many refusals are not all kept.
_TRIED = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class _Look:
    """Hold how many pods a quota counted then, and when one of them was last found gone while
    pods were refused. `refused_by`: a refusal up to then may be from before."""

    counted: int
    gone_at: datetime | None = None
    refused_by: datetime | None = None


class Departures:
    """Remembers how many pods of an AtomDeployment a quota counted, and since when no more."""

    def __init__(self) -> None:
        self._seen: dict[ObjectKey, _Look] = {}

    def are_newer(self, key: ObjectKey, observed: Observed) -> bool:
        """Return whether pods have gone since the newest refusal, as far as is known; False for a
        look without a time, which changes no memory."""
        running, now, refused = observed.deployment, observed.at, observed.refused.at
        if now is None:
            return False
        counted, before = len(observed.pods) + len(observed.leaving_charged), self._seen.get(key)
        look = _Look(counted)  # whatever is refused from now on is newer
        if running is not None and running.progress.refused_message is not None:
            if before is None or counted < before.counted:
                # Events have whole seconds, by a clock that may be ahead of ours.
                look = _Look(counted, now, max(now, refused or now))
            else:
                look = _Look(counted, before.gone_at, before.refused_by)
        self._seen[key] = look
        if look.gone_at is None or look.refused_by is None or now - look.gone_at >= _TRIED:
            return False
        return refused is None or refused <= look.refused_by

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._seen.pop(key, None)
