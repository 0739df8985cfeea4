"""What goes on being looked after while a spec is held back: everything of the last one that was
carried out, with the pods that run.

A refusal is no reason to leave what serves alone: a Service that somebody deletes is put back, and
the number of replicas is still the spec's. Pure; called by the Decider.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children.render import render
from atom_operator.children.workload import workload_kind
from atom_operator.domain import (
    WORKLOAD_KINDS,
    ChildKey,
    Manifest,
    Observed,
    Plan,
    PodRevision,
    Supply,
    Target,
)
from atom_operator.plan.scaling import leave_to_autoscaler


def pods_in_force(observed: Observed) -> PodRevision | None:
    """What the workload asks for, as we rendered it where that is known; what was ready last where
    somebody has deleted the workload."""
    running, recorded = observed.deployment, observed.last_ready
    if running is None or (recorded is not None and recorded.name == running.revision):
        return recorded
    return observed.running


def replicas_in_force(spec: AtomDeploymentSpec | None, observed: Observed) -> int | None:
    """The newest spec's number where that has one; None where the plan's own stands."""
    if spec is not None and spec.autoscaling is None:
        return spec.replicas
    return observed.deployment.desired if observed.deployment else None


def keep_up(
    plan: Plan, observed: Observed, replicas: int | None, supply: Supply | None
) -> Mapping[ChildKey, Manifest] | None:
    """The children of `plan`, which is the last accepted spec's; None where nothing of it ran or
    something else runs. `supply` bounds its autoscaler."""
    pods, running = pods_in_force(observed), observed.deployment
    kinds = {child.kind for child in observed.children if child.kind in WORKLOAD_KINDS}
    if pods is None or not kinds <= {workload_kind(plan)}:
        return None
    budget = running.startup_budget_seconds if running else None
    plan = replace(
        plan,
        replicas=plan.replicas if replicas is None else replicas,
        rollout=(running.rollout if running else None) or plan.rollout,
        startup_budget_seconds=budget or plan.startup_budget_seconds,
        spec_digest=(running.spec_digest if running else pods.spec_digest) or plan.spec_digest,
        learned=observed.learned,
    )
    plan = leave_to_autoscaler(plan, supply, started=running is not None)
    rollback = running.rollback if running else None
    return render(plan, Target(pods, observed.last_ready, rollback))
