"""ProfileStatuses: writes into AtomProfiles how many AtomDeployments take them, and how many wait.

Counted by ProfileUsers in one term. Nothing is written before every AtomDeployment was looked at,
nor a status that is there already: a term begins without a write. Run by the leader.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import ATOM_PROFILE
from atom_operator.reconcile.profiles.profile_users import ProfileUsers, Uses

_logger = logging.getLogger(__name__)
_PERIOD_SECONDS = 5.0  # a train of rollouts moves slower than that


class ProfileStatuses:
    """Keeps the statuses of one term."""

    def __init__(self, port: ClusterPort, users: ProfileUsers) -> None:
        self._port = port
        self._users = users
        self._has_listed = False

    async def run(self) -> None:
        """Write until cancelled. Losing a status is not worth an error: it is tried again when a
        count changes, and in the next term."""
        self._has_listed = False
        while True:
            await asyncio.sleep(_PERIOD_SECONDS)
            try:
                await self.write()
            except ClusterError as error:
                _logger.warning("statuses of AtomProfiles: %s", error)

    async def write(self) -> None:
        """Write the statuses whose counts have changed; at first look at every profile, of which
        some may have lost all users. Raises ClusterError."""
        if not self._users.are_complete:
            return
        names = dict.fromkeys(self._users.take_changed())
        if not self._has_listed:
            found = await self._port.list_everywhere(ATOM_PROFILE) or ()
            names |= dict.fromkeys(str(each["metadata"]["name"]) for each in found)
            self._has_listed = True
        for name in names:
            manifest = await self._port.get(ATOM_PROFILE, "", name)
            if manifest is None:
                continue
            status = profile_status(self._users.uses_of(name))
            if status != manifest.get("status"):
                await self._port.apply_profile_status(name, status)


def profile_status(uses: Uses) -> Mapping[str, Any]:
    """Build the status of an AtomProfile."""
    return {"deployments": uses.deployments, "waiting": uses.waiting}
