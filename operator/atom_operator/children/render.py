"""Plan → the whole desired state, in the order in which it is created. Pure."""

from __future__ import annotations

from atom_operator.children.config import plan_config_map
from atom_operator.children.disruption import disruption_budget
from atom_operator.children.ready_revision import ready_revision
from atom_operator.children.service import service, service_account
from atom_operator.children.workload import deployment, pod_revision
from atom_operator.domain import (
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    ChildKey,
    Kind,
    Manifest,
    Plan,
    Target,
)


def render(plan: Plan, target: Target | None = None) -> dict[ChildKey, Manifest]:
    """Every child that should exist; `target` is what to run where that is not the plan's own pods.

    What a pod needs comes first, so that the first pod already finds it. Raises OverlayError when
    spec.template cannot be merged.
    """
    target = target or Target(pod_revision(plan))
    ready = target.last_ready
    manifests: tuple[tuple[Kind, Manifest | None], ...] = (
        (SERVICE_ACCOUNT, service_account(plan)),
        (CONFIG_MAP, plan_config_map(plan)),
        (SERVICE, service(plan)),
        (DISRUPTION_BUDGET, disruption_budget(plan)),
        (CONTROLLER_REVISION, ready_revision(plan, ready) if ready else None),
        (DEPLOYMENT, deployment(plan, target.pods, target.rollback)),
    )
    return {
        ChildKey(kind, str(manifest["metadata"]["name"])): manifest
        for kind, manifest in manifests
        if manifest is not None
    }
