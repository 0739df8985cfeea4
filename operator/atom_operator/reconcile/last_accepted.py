"""What stays in force while a spec is held back: the last one that was carried out, with the pods
that run.

A refusal is no reason to leave what serves alone: a Service that a user deletes is put back, a
rollout that is under way is brought to its end, and the number of replicas is still the newest
spec's. Pure; called by the Decider.
"""

from __future__ import annotations

from dataclasses import replace

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children.workload import workload_kind
from atom_operator.domain import Observed, Plan, PodRevision, Target
from atom_operator.plan.resolve_integrations import first_replicas
from atom_operator.plan.rollback import choose_target


def pods_in_force(observed: Observed) -> PodRevision | None:
    """Find what the workload asks for, as we rendered it where that is known; what was ready last
    where the workload was deleted."""
    running, recorded = observed.deployment, observed.last_ready
    if running is None or (recorded is not None and recorded.name == running.revision):
        return recorded
    return observed.running


def target_in_force(
    pods: PodRevision, observed: Observed, *, may_roll_back: bool, engine_words: str
) -> Target:
    """Choose these pods, or the last that were ready where these cannot become so."""
    running = observed.deployment
    if running is not None and running.rollback is not None:
        return Target(pods, observed.last_ready, running.rollback)
    return choose_target(pods, observed, may_roll_back=may_roll_back, engine_words=engine_words)


def plan_of_pods(
    plan: Plan, pods: PodRevision, newest: AtomDeploymentSpec | None, observed: Observed
) -> Plan | None:
    """The accepted spec's plan as it is for pods that run already; None where those are another
    kind's. `newest` is the spec that is held back, as far as it can be read."""
    kinds = {child.kind for child in observed.workloads}
    if not kinds <= {workload_kind(plan)}:
        return None
    running = observed.deployment
    budget = running.startup_budget_seconds if running else None
    return replace(
        plan,
        replicas=_replicas(plan, newest, observed),
        suspended=plan.suspended if newest is None else bool(newest.suspend),
        startup_budget_seconds=budget or plan.startup_budget_seconds,
        spec_digest=(running.spec_digest if running else pods.spec_digest) or plan.spec_digest,
        learned=observed.learned,
        origin=running.origin if running else None,
    )


def _replicas(plan: Plan, newest: AtomDeploymentSpec | None, observed: Observed) -> int:
    if newest is not None and newest.suspend:
        return 0
    scaling = newest.autoscaling if newest is not None else None
    if newest is not None and not (scaling and scaling.moves_replicas):
        return first_replicas(newest)
    return observed.deployment.desired if observed.deployment else plan.replicas
