"""Leads callers to the frontend as long as a pod of it is ready. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atom_operator.children import naming
from atom_operator.domain import DEPLOYMENT, ChildKey, Manifest, Plan


def with_frontend(plan: Plan, children: Mapping[ChildKey, Manifest]) -> Plan:
    """Return the plan with whether its frontend takes requests. Until it does, and whenever none of
    its pods is ready, the engine pods take them as they do without one."""
    if plan.integrations.frontend is None:
        return plan
    found = children.get(ChildKey(DEPLOYMENT, naming.frontend_name(plan.identity.key)))
    ready = ((found or {}).get("status") or {}).get("readyReplicas") or 0
    return replace(plan, rollout=replace(plan.rollout, frontend_serves=ready > 0))
