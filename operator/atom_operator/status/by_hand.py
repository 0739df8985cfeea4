"""Edits of a workload by people or programs past its AtomDeployment, in words. Pure.

They are reported and not undone: a pause may be a user's decision, and a field that we do not set
is not ours to remove. Called by the roll-up.
"""

from __future__ import annotations

from atom_operator.domain import DEPLOYMENT, DeploymentState, Plan

_PAUSED = "spec.paused"
_REPLICAS = "spec.replicas"
_NAMED_FIELDS = 4


def paused(deployment: DeploymentState, name: str) -> str | None:
    """Return why a change does not reach the pods; None where the Deployment is not paused."""
    if not deployment.progress.paused:
        return None
    return (
        f"{DEPLOYMENT.kind} {name} is paused{_by(deployment, _PAUSED)}: no pod is replaced until "
        f"`kubectl rollout resume deployment/{name}`"
    )


def edited(deployment: DeploymentState) -> str:
    """Describe other managers' fields in the workload, to be appended to a message; empty for
    none."""
    found: dict[str, list[str]] = {}
    for edit in deployment.others.edits:
        if edit.path not in (_PAUSED, _REPLICAS):
            found.setdefault(edit.manager, []).append(edit.path)
    return "".join(f"; {manager} also set {_some(paths)}" for manager, paths in found.items())


def scaled_to_zero(deployment: DeploymentState, plan: Plan | None) -> str | None:
    """Name the manager that removed all replicas of the spec; None if the spec requests none."""
    if deployment.desired or plan is None:
        return None
    scaling = plan.integrations.autoscaling
    least = (
        plan.scale.replicas if scaling is None or plan.scale.owns_replicas else scaling.min_replicas
    )
    if not least:
        return None
    return (
        f"the {DEPLOYMENT.kind} was scaled to 0{_by(deployment, _REPLICAS)}, and the spec asks for "
        f"at least {least}; an autoscaler leaves 0 alone: "
        f"`kubectl scale deployment/{plan.identity.key.name} --replicas={least}`"
    )


def _by(deployment: DeploymentState, path: str) -> str:
    managers = [edit.manager for edit in deployment.others.edits if edit.path == path]
    return f" by {', '.join(managers)}" if managers else ""


def _some(paths: list[str]) -> str:
    rest = len(paths) - _NAMED_FIELDS
    return ", ".join(paths[:_NAMED_FIELDS]) + (f" and {rest} more fields" if rest > 0 else "")
