"""A replica over several nodes: the LeaderWorkerSet, and how its pods find each other. Pure.

One group of pods is one replica; the leader serves HTTP. Rendezvous is torch.distributed's: the
variables of torchrun's environment, from those that the LeaderWorkerSet controller injects
(LWS_LEADER_ADDRESS, LWS_WORKER_INDEX; https://lws.sigs.k8s.io). A group is all or nothing: when one
pod restarts, every pod of it is created again, because the others wait in collectives for ever.
"""

from __future__ import annotations

from typing import Any

from atom_operator import constants
from atom_operator.domain import (
    EngineOptions,
    Manifest,
    Rollout,
    RolloutPlan,
    RolloutStrategy,
)
from atom_operator.kinds import LEADER_WORKER_SET

RENDEZVOUS_PORT = 29_500  # torch.distributed's own default
# In a volume of the pod's, which a container that is started again finds as it left it. A worker
# whose leader has gone ends, and is started again before its pod is deleted; the next leader then
# has the name of the one before, and would take it for its own until it is killed.
_JOINED_FILE = "/tmp/atom-node-started"
_WORKER_INDEX_LABEL = "leaderworkerset.sigs.k8s.io/worker-index"


def group_environment(engine: EngineOptions) -> dict[str, dict[str, Any]]:
    """Render torch.distributed's variables of one pod; none without groups. Ranks of a pod follow
    from NODE_RANK and LOCAL_WORLD_SIZE."""
    if engine.nodes == 1:
        return {}
    index = {"fieldRef": {"fieldPath": f"metadata.labels['{_WORKER_INDEX_LABEL}']"}}
    return {
        # The controller puts its variables first, so that this one may refer to them.
        "MASTER_ADDR": {"value": "$(LWS_LEADER_ADDRESS)"},
        "MASTER_PORT": {"value": str(RENDEZVOUS_PORT)},
        "NNODES": {"value": str(engine.nodes)},
        "NODE_RANK": {"valueFrom": index},
        "LOCAL_WORLD_SIZE": {"value": str(engine.devices_per_pod)},
        "WORLD_SIZE": {"value": str(engine.devices)},
        "ATOM_JOIN_ONCE": {"value": _JOINED_FILE},
    }


def group_annotations(rollout: RolloutPlan) -> dict[str, str]:
    """Render the annotation by which the operator keeps the deadline that the controller of groups
    has not."""
    return {constants.ANNOTATION_DEADLINE: str(rollout.progress_deadline_seconds)}


def group_arguments(engine: EngineOptions) -> list[str]:
    """Return the flags that place one pod's engine in its group, from `group_environment`; empty
    without groups."""
    if engine.nodes == 1:
        return []
    return [
        "--nnodes", "$(NNODES)", "--node-rank", "$(NODE_RANK)",
        "--master-addr", "$(MASTER_ADDR)", "--master-port", "$(MASTER_PORT)",
    ]  # fmt: skip


def leader_worker_set(
    engine: EngineOptions, rollout: RolloutPlan, template: Manifest, metadata: dict[str, Any]
) -> Manifest:
    """Render the groups, without their number. `template` is the finished pod template of every
    pod."""
    spec: dict[str, Any] = {
        "leaderWorkerTemplate": {
            "size": engine.nodes,
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": with_role(template, constants.ROLE_LEADER),
            "workerTemplate": _worker(template),
        },
        # Every group its own headless Service, by its leader's name. One that they share would have
        # the LeaderWorkerSet's name, which our own Service has: the controller then makes none, and
        # no worker finds a leader that is not Ready without it.
        "networkConfig": {"subdomainPolicy": "UniquePerReplica"},
        "rolloutStrategy": {
            "type": "RollingUpdate",
            "rollingUpdateConfiguration": _steps(rollout.chosen),
        },
        # Workers join the rendezvous that the leader opens; it needs no readiness of theirs.
        "startupPolicy": "LeaderCreated",
    }
    return {
        "apiVersion": LEADER_WORKER_SET.api_version,
        "kind": LEADER_WORKER_SET.kind,
        "metadata": metadata,
        "spec": spec,
    }


def with_role(template: Manifest, role: str) -> Manifest:
    """Return the template with a label that distinguishes leaders from workers."""
    metadata = template["metadata"]
    labels = {**metadata.get("labels", {}), constants.LABEL_ROLE: role}
    return {**template, "metadata": {**metadata, "labels": labels}}


def _worker(template: Manifest) -> Manifest:
    """Render a worker, which has no HTTP server: whether it lives shows in the leader, which needs
    all ranks."""
    worker = with_role(template, constants.ROLE_WORKER)
    containers = [
        _without_probes(item) if item["name"] == constants.ENGINE_CONTAINER else item
        for item in template["spec"]["containers"]
    ]
    return {**worker, "spec": {**template["spec"], "containers": containers}}


def _without_probes(container: Manifest) -> Manifest:
    dropped = ("startupProbe", "readinessProbe", "livenessProbe", "ports")
    return {name: value for name, value in container.items() if name not in dropped}


def _steps(rollout: Rollout) -> dict[str, Any]:
    """Return how many groups may be away; never one more: `choose_rollout` asks for no spare
    group."""
    everything = rollout.strategy is RolloutStrategy.RECREATE
    return {"maxSurge": 0, "maxUnavailable": "100%" if everything else rollout.unavailable}
