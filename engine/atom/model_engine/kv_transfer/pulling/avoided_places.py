"""AvoidedPlaces: producers from which nothing is read for a while, and why.

A producer that cannot be reached, or whose cache layout differs, costs a connection for each
prompt. So the prompts of the next seconds are computed without an attempt. Used by AwaitedPages.
"""

from __future__ import annotations

import logging

from atom.model_engine.kv_transfer.channel_events import Place, PlaceLost
from atom.model_engine.kv_transfer.greeting import remedy_of
from atom.model_engine.transfer_legs import PullEnd

logger = logging.getLogger(__name__)

_AVOID_SECONDS = {PullEnd.UNREACHABLE: 5.0, PullEnd.INCOMPATIBLE: 30.0}
_MOST_AVOIDED = 1024


class AvoidedPlaces:
    def __init__(self) -> None:
        self._avoided: dict[Place, tuple[float, PullEnd]] = {}

    def reason(self, place: Place, now: float) -> PullEnd | None:
        """Return why nothing is read from a producer now, or None."""
        until, end = self._avoided.get(place, (now, PullEnd.LOST))
        return end if until > now else None

    def lost(self, lost: PlaceLost, now: float) -> PullEnd:
        """Note and log a producer that cannot be read from; returns the end of its pulls."""
        if lost.refused is not None:
            why = PullEnd.INCOMPATIBLE
            logger.warning(
                "kv transfer: the producer %s:%d cannot be read from: its %s is %r and ours %r; "
                "prompts are computed here until both engines agree: %s",
                *(*lost.place, lost.refused.field, lost.refused.mine, lost.refused.theirs),
                remedy_of(lost.refused.field),
            )
        else:
            why = PullEnd.LOST if lost.welcomed else PullEnd.UNREACHABLE
            logger.warning("kv transfer: the producer %s:%d is lost: %s", *lost.place, lost.why)
        if why in _AVOID_SECONDS:
            if len(self._avoided) >= _MOST_AVOIDED:
                self._avoided.clear()
            self._avoided[lost.place] = (now + _AVOID_SECONDS[why], why)
        return why
