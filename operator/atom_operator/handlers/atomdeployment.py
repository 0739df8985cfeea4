"""AtomDeployments and Jobs: every event leads to the same reconcile.

What changes about children and pods is announced by the informers, which follow them anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import kopf

from atom_operator import constants
from atom_operator.handlers.runtime import Runtime


@kopf.on.event(constants.GROUP, constants.VERSION, constants.PLURAL)
async def deployment_changed(
    namespace: str | None, name: str | None, body: Mapping[str, Any], memo: Runtime, **_: Any
) -> None:
    """Created, changed or deleted, or seen for the first time after a start."""
    seen = (body.get("status") or {}).get("observedGeneration")
    memo.enqueue(namespace, name, urgent=seen != body["metadata"].get("generation"))


@kopf.on.event("batch", "v1", "jobs", labels={constants.LABEL_JOB_FOR: kopf.PRESENT})
async def job_changed(
    namespace: str | None, labels: Mapping[str, str], memo: Runtime, **_: Any
) -> None:
    """A download or a look at a model went on or ended."""
    memo.enqueue(namespace, labels.get(constants.LABEL_JOB_FOR))
