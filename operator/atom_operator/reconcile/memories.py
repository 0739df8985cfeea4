"""What passes remember of AtomDeployments from one to the next; all of it is lost with the process.

Owned by the runtime, which empties it at a new term, and used by the reconciler.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from atom_operator.cluster.applied import AppliedChildren
from atom_operator.cluster.optional import OptionalKinds
from atom_operator.domain import ObjectKey
from atom_operator.reconcile.contested_replicas import ContestedReplicas
from atom_operator.reconcile.device_moves import DeviceMoves
from atom_operator.reconcile.failing_writes import FailingWrites
from atom_operator.reconcile.latencies.latency_window import LatencyWindow
from atom_operator.reconcile.nodes.group_places import GroupPlaces
from atom_operator.reconcile.peers.peer_secrets import PeerSecrets
from atom_operator.reconcile.profiles.profile_users import ProfileUsers
from atom_operator.reconcile.rollout_train import RolloutTrain


@dataclass(frozen=True, slots=True)
class Memories:
    """Hold one memory for each subject."""

    optional: OptionalKinds = field(default_factory=OptionalKinds)
    applied: AppliedChildren = field(default_factory=AppliedChildren)
    train: RolloutTrain = field(default_factory=RolloutTrain)
    moves: DeviceMoves = field(default_factory=DeviceMoves)
    places: GroupPlaces = field(default_factory=GroupPlaces)
    peers: PeerSecrets = field(default_factory=PeerSecrets)
    contests: ContestedReplicas = field(default_factory=ContestedReplicas)
    failing: FailingWrites = field(default_factory=FailingWrites)
    profile_users: ProfileUsers = field(default_factory=ProfileUsers)
    latencies: LatencyWindow = field(default_factory=LatencyWindow)

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        for memory in (
            self.applied,
            self.optional,
            self.train,
            self.failing,
            self.profile_users,
            self.moves,
            self.places,
            self.peers,
            self.contests,
            self.latencies,
        ):
            memory.forget(key)
