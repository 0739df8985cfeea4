"""Whether a quota's refusal is older than the place that a pod left behind.

A controller that is refused tries again ever more rarely, and its words stand until then: of a
quota from which one of our own pods has gone meanwhile they say nothing. Only who looked before can
tell, so this is remembered per AtomDeployment while its pods are refused, and lost with the
process: its next one takes the words for old at first. Called by the decider.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from atom_operator.domain import ObjectKey, Observed

# By then it was tried again in any case; the Events of many refusals are not all kept.
_TRIED = timedelta(minutes=5)


class Departures:
    """Remembers how many pods of an AtomDeployment a quota counted, and since when no more."""

    def __init__(self) -> None:
        self._seen: dict[ObjectKey, tuple[int, datetime]] = {}

    def are_newer(self, key: ObjectKey, observed: Observed) -> bool:
        """Return whether pods have gone since the newest refusal, as far as is known; False of a
        look that has no time, which leaves what is remembered as it is."""
        running, now = observed.deployment, observed.at
        if now is None:
            return False
        if running is None or running.refused_message is None:
            self.forget(key)
            return False
        counted = len(observed.pods) + observed.leaving_charged
        before, since = self._seen.get(key, (counted, now))
        if counted < before:
            since = now
        self._seen[key] = (counted, since)
        refused = observed.refused_at
        return now - since < _TRIED and (refused is None or refused < since)

    def forget(self, key: ObjectKey) -> None:
        """Nothing is refused any more, or the AtomDeployment is gone."""
        self._seen.pop(key, None)
