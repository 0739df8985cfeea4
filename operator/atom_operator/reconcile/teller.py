"""Writes the Events of a pass: flips of conditions and single happenings.

Losing an Event is not worth a failed pass. Called by the reconciler.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import EVENT, Owner
from atom_operator.status.events import Happening, event, event_name, happenings

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Teller:
    """Writes Events through `port`, at the time of `clock`."""

    port: ClusterPort
    clock: Callable[[], datetime]

    async def announce(
        self, owner: Owner, previous: Mapping[str, Any], status: Mapping[str, Any]
    ) -> None:
        """Write Events for the conditions that flipped."""
        found = happenings(previous.get("conditions") or (), status["conditions"])
        await self.tell(owner, found)

    async def tell(self, owner: Owner, found: Iterable[Happening], *, once: bool = False) -> None:
        """Write Events. `once`: an Event that exists is not counted up."""
        for happening in found:
            name = event_name(owner, happening)
            try:
                existing = await self.port.get(EVENT, owner.key.namespace, name)
                if once and existing is not None:
                    continue
                await self.port.apply(EVENT, event(owner, happening, existing, self.clock()))
            except ClusterError as error:
                _logger.warning("event %s of %s/%s: %s", happening.reason, *owner.key, error)
