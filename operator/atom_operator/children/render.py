"""Plan → the whole desired state, in the order in which it is created. Pure."""

from __future__ import annotations

from atom_operator.children.config import plan_config_map
from atom_operator.children.disruption import disruption_budget
from atom_operator.children.service import service, service_account
from atom_operator.children.workload import deployment
from atom_operator.domain import (
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    ChildKey,
    Kind,
    Manifest,
    Plan,
)


def render(plan: Plan) -> dict[ChildKey, Manifest]:
    """Every child that should exist; raises OverlayError when spec.template cannot be merged.

    What a pod needs comes first, so that the first pod already finds it.
    """
    manifests: tuple[tuple[Kind, Manifest | None], ...] = (
        (SERVICE_ACCOUNT, service_account(plan)),
        (CONFIG_MAP, plan_config_map(plan)),
        (SERVICE, service(plan)),
        (DISRUPTION_BUDGET, disruption_budget(plan)),
        (DEPLOYMENT, deployment(plan)),
    )
    return {
        ChildKey(kind, str(manifest["metadata"]["name"])): manifest
        for kind, manifest in manifests
        if manifest is not None
    }
