"""DeploymentNews: which events of AtomDeployments ask for a reconcile.

Those of a version that no reconcile has read or written. What comes while its AtomDeployment is
being reconciled is judged at the end of that: watches are often faster than the answer to the
status that they show. Told by kopf's handler, through the runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atom_operator.cluster.known_deployments import KnownDeployments
from atom_operator.domain import ObjectKey
from atom_operator.handlers.deployments import DeploymentEvent


class DeploymentNews:
    """Call `tell` for every event that is newer than `known`."""

    def __init__(self, known: KnownDeployments, tell: Callable[[DeploymentEvent], None]) -> None:
        self._known = known
        self._tell = tell
        self._held_back: dict[ObjectKey, list[DeploymentEvent]] = {}

    def hear(self, event: DeploymentEvent) -> None:
        """Report an event now, at the end of the running reconcile, or never."""
        held = self._held_back.get(event.key)
        if held is not None:
            held.append(event)
        elif self._known.is_news(event.key, event.version):
            self._tell(event)

    @contextmanager
    def reconciling(self, key: ObjectKey) -> Iterator[None]:
        """Hold back events while the AtomDeployment is being reconciled, by one reconcile at a
        time."""
        self._held_back[key] = []
        try:
            yield
        finally:
            for event in self._held_back.pop(key):
                self.hear(event)
