"""AtomDeployments and their children: every event leads to the same reconcile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf

from atom_operator import constants
from atom_operator.handlers.runtime import Runtime

_OURS: dict[str, Any] = {constants.LABEL_DEPLOYMENT: kopf.PRESENT}


@kopf.on.event(constants.GROUP, constants.VERSION, constants.PLURAL)
async def deployment_changed(
    namespace: str | None, name: str | None, memo: Runtime, **_: Any
) -> None:
    """Created, changed or deleted, or seen for the first time after a start."""
    memo.enqueue(namespace, name)


@kopf.on.event("batch", "v1", "jobs", labels={constants.LABEL_JOB_FOR: kopf.PRESENT})
async def job_changed(
    namespace: str | None, labels: Mapping[str, str], memo: Runtime, **_: Any
) -> None:
    """A download or a look at a model went on or ended."""
    memo.enqueue(namespace, labels.get(constants.LABEL_JOB_FOR))


@kopf.on.event("apps", "v1", "deployments", labels=_OURS)
@kopf.on.event("", "v1", "services", labels=_OURS)
@kopf.on.event("", "v1", "serviceaccounts", labels=_OURS)
@kopf.on.event("", "v1", "configmaps", labels=_OURS)
@kopf.on.event("policy", "v1", "poddisruptionbudgets", labels=_OURS)
@kopf.on.event("networking.k8s.io", "v1", "networkpolicies", labels=_OURS)
@kopf.on.event("", "v1", "pods", labels=_OURS)
async def child_changed(
    namespace: str | None, labels: Mapping[str, str], memo: Runtime, **_: Any
) -> None:
    """A child drifted, made progress or is gone: its owner is reconciled."""
    memo.enqueue(namespace, labels.get(constants.LABEL_DEPLOYMENT))
