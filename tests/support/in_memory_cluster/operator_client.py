"""The operator as a client of the in-memory cluster: it looks when something that it follows has
changed, when it asked to be called again, and at every resync, and at no other time.

So a change that nothing announces to it is not seen here either. Restarts forget what it knew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from atom_operator.children import engine_container
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.constants import LABEL_DEPLOYMENT
from atom_operator.domain import ATOM_DEPLOYMENT, ATOM_PROFILE, NAMESPACE, Capacity, ObjectKey
from atom_operator.handlers.runtime import FOLLOWED
from atom_operator.integration_values import Site
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.memories import Memories
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.reconcile.rollout_train import RolloutTrain
from atom_operator.settings import OperatorSettings
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.faulty_cluster import FaultyCluster, Killed
from tests.support.operator.merged_fields import copied

_RESYNC_SECONDS = 300.0
_RETRY_SECONDS = 5.0
IMAGES: dict[Any, str] = {"amd": "registry.test/atom:1", "cpu": "registry.test/atom:1"}


_CAPACITY = Capacity(
    weights_bytes=10**9,
    kv_bytes_per_token=1024,
    num_blocks=1000,
    kv_tokens=16_000,
    max_sequences=16,
    max_model_len=2048,
    limited_by="memory",
    concurrency=(),
)


class AnsweringEngines(FakeEngines):
    """Every engine tells what it holds, whoever asks."""

    async def capacity(self, address: str) -> Capacity | None:
        return _CAPACITY


@dataclass
class OperatorClient:
    """Reconciles what there is in `cluster`; `images` and `site` are its settings."""

    cluster: InMemoryCluster
    images: dict[Any, str] = field(default_factory=lambda: dict(IMAGES))
    site: Site = field(default_factory=Site)
    running: bool = True
    passes: Counter[str] = field(default_factory=Counter)
    version: int = 0
    max_rollouts: int = OperatorSettings().rollouts.most

    def __post_init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.engines = AnsweringEngines()
        self.restart()
        self.cluster.clients.append(self.look)

    def close(self) -> None:
        self.loop.close()

    def restart(self, port: ClusterPort | None = None) -> None:
        """Another process takes over: it knows nothing, and looks at everything."""
        api, state = port or self.cluster.api, self.cluster.state
        fleet = FleetReader(api, lambda: state.time)
        settings = OperatorSettings(engine_images=self.images, site=self.site)
        decider = Decider(api, fleet, self.engines, settings)
        self.seen: dict[ObjectKey, list[Any]] = {}
        self.failed = False
        self.due: dict[ObjectKey, float] = {}
        train = RolloutTrain(self.max_rollouts, lambda key: self.due.update({key: 0.0}))
        train.expect(self.keys)
        self.reconciler = Reconciler(
            api, self.engines, decider, clock=state.now, memories=Memories(train=train)
        )
        self.reconciler.memories.profile_users.expect(self.keys)

    def die_after(self, writes: int) -> None:
        """The process dies behind that write, and the next one begins."""
        self.restart(FaultyCluster(self.cluster.api, kill_after=writes))

    def upgrade(self) -> None:
        """Another version takes over, which renders pods otherwise."""
        self.version += 1
        self.restart()

    def look(self) -> None:
        """Reconcile whoever something has happened to."""
        if not self.running:
            return
        state, there = self.cluster.state, self.keys
        for key in [key for key in self.seen if key not in there]:
            del self.seen[key]
            self._reconcile(key)  # its deletion is an event too
        for key in there:
            if (ATOM_DEPLOYMENT, *key) not in self.cluster.api.objects:
                continue  # a canary that has just been taken away
            follows = self._followed(key)
            if follows == self.seen.get(key) and self.due.get(key, 0.0) > state.time:
                continue
            self.seen[key] = follows
            self._reconcile(key)

    @property
    def keys(self) -> list[ObjectKey]:
        found = [key for key in self.cluster.api.objects if key[0] == ATOM_DEPLOYMENT]
        return [ObjectKey(namespace, name) for _, namespace, name in found]

    def _reconcile(self, key: ObjectKey) -> None:
        state = self.cluster.state
        self.passes[key.name] += 1
        try:
            with renders_as(self.version):
                outcome = self.loop.run_until_complete(self.reconciler.reconcile(key))
            self.failed, again = False, outcome.requeue_after_seconds
        except ClusterError:
            self.failed, again = True, _RETRY_SECONDS
        except Killed:
            self.restart()
            self.failed, again = True, 1.0
        seconds = min(again or _RESYNC_SECONDS, _RESYNC_SECONDS)
        self.due[key] = state.time + seconds
        state.look_after(seconds)

    def _followed(self, key: ObjectKey) -> list[Any]:
        """The versions of what watches tell about: everything that names the AtomDeployment, and
        of itself all but its status, of which only the operator writes."""
        found: list[Any] = [self._asked(key)]
        for (kind, namespace, name), item in self.cluster.api.objects.items():
            if kind in (ATOM_PROFILE, NAMESPACE):
                found.append((kind, name, item["metadata"].get("resourceVersion")))
            owner = (item["metadata"].get("labels") or {}).get(LABEL_DEPLOYMENT)
            if kind == ATOM_DEPLOYMENT and (namespace, owner) == key:  # its canary
                found.append((kind, name, item["metadata"].get("resourceVersion")))
            if kind not in FOLLOWED or namespace != key.namespace:
                continue
            labels: Mapping[str, str] = item["metadata"].get("labels") or {}
            named = labels.get(FOLLOWED[kind]) if FOLLOWED[kind] else name
            if named == key.name:
                found.append((kind, name, item["metadata"].get("resourceVersion")))
        return found

    def _asked(self, key: ObjectKey) -> Any:
        metadata = self.cluster.api.objects[ATOM_DEPLOYMENT, key.namespace, key.name]["metadata"]
        return copied({k: v for k, v in metadata.items() if k != "resourceVersion"})


def renders_as(version: int) -> AbstractContextManager[Any]:
    """Make the operator render as its n-th successor: the engine's command line is another."""
    if not version:
        return nullcontext()
    args = engine_container.engine_args
    newer = mock.Mock(side_effect=lambda plan: [*args(plan), f"--rendered-by={version}"])
    return mock.patch.object(engine_container, "engine_args", newer)
