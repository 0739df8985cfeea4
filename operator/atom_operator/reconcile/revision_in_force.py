"""The revision in force with its own plan: which pods the workload runs, and which of them serve.

One value answers both in every situation: outside a window, before a turn, after a rollback, while
a spec is held back, and after an upgrade of the operator. Pods always come with the plan of the
spec that they were made for, so that no object beside them refers to pods that do not exist. Pure;
the Decider reads the inputs of these functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children.overlay import OverlayError
from atom_operator.children.workload import pod_revision
from atom_operator.domain import (
    DeploymentState,
    Observed,
    Plan,
    PodRevision,
    RevisionInForce,
    ScalePlan,
    SpecRecord,
    Target,
)
from atom_operator.plan.resolve_integrations import first_replicas
from atom_operator.plan.rollouts.rollback import choose_target
from atom_operator.plan.spec_digest import spec_in_force
from atom_operator.reconcile.keep_rendering import engine_image, without_own_evidence
from atom_operator.reconcile.planning import Surroundings
from atom_operator.validation.parsing import parse_spec

Others = Mapping[str, RevisionInForce]  # by revision, those whose spec is known
_MOST_WITHOUT_PODS = 3  # whose specs are remembered: as many as the ReplicaSets of a Deployment


@dataclass(frozen=True, slots=True)
class RollbackRules:
    """State whether failing pods are replaced by the last ready ones, with the report of the engine
    that does not serve yet."""

    may_roll_back: bool
    engine_words: str


def revisions_there(observed: Observed) -> tuple[str, ...]:
    """Name every revision that runs, serves or is gone back to after a failure."""
    pods, recorded = observed.pods_in_force, observed.records.last_ready
    names = [each.name for each in (pods, recorded) if each is not None]
    names += [pod.revision for pod in observed.pods if pod.revision is not None]
    return tuple(dict.fromkeys([*names, *observed.serving]))


# --- the plan of pods that run --------------------------------------------------------------------


def record_of(observed: Observed, revision: str) -> SpecRecord | None:
    """Return the spec that these pods were made for; None if no record exists."""
    known, running = observed.records.specs.get(revision), observed.deployment
    if known is not None or observed.records.accepted is None:
        return known
    asked_for = running.revision if running is not None else None
    if running is None and observed.records.last_ready is not None:
        asked_for = observed.records.last_ready.name  # the workload was deleted
    if asked_for != revision:
        return None
    pods = observed.pods_in_force
    return replace(
        observed.records.accepted, image=engine_image(pods) if pods is not None else None
    )


@dataclass(frozen=True, slots=True)
class MadeFrom:
    """Hold the spec that pods were made for, and that spec with the newest fields that no pod
    notices."""

    record: SpecRecord
    spec: AtomDeploymentSpec

    def image(self, around: Surroundings) -> str | None:
        own = self.record.image or self.spec.engine.image
        return own or around.images.get(self.spec.accelerator.type)

    def surroundings(self, around: Surroundings) -> Surroundings:
        """Return the surroundings with the profile that the pods were made with."""
        return replace(around, layers=replace(around.layers, profile=self.record.profile))


def made_from(observed: Observed, revision: str, newest: Mapping[str, object]) -> MadeFrom | None:
    """Return the spec that these pods were made from; None if no record exists, or none that can be
    read."""
    record = record_of(observed, revision)
    if record is None:
        return None
    for raw in (spec_in_force(newest, record.asked), record.asked):
        spec = parse_spec(raw)
        if not isinstance(spec, tuple):
            return MadeFrom(record, spec)
    return None


def revision_of(name: str, plan: Plan, observed: Observed) -> RevisionInForce | None:
    """Return the pods of a revision with the plan of their spec; None if it renders no pods any
    more."""
    running = observed.deployment
    if running is not None and running.revision == name and running.notes.rollback is None:
        budget = running.notes.startup_budget_seconds or plan.rollout.startup_budget_seconds
        plan = replace(plan, rollout=replace(plan.rollout, startup_budget_seconds=budget))
    pods = _pods_named(name, plan, observed)
    if pods is None:
        return None
    verdict = without_own_evidence(plan.capacity, pods)
    return RevisionInForce(pods, replace(plan, capacity=verdict))


def _pods_named(name: str, plan: Plan, observed: Observed) -> PodRevision | None:
    """Find the pods by their record, else as this version renders them, else as they are in the
    cluster, where the API server has added its defaults."""
    recorded, live = observed.records.last_ready, observed.records.running
    if recorded is not None and recorded.name == name:
        return recorded
    try:
        rendered = pod_revision(plan)
    except OverlayError:
        rendered = None
    if live is not None and live.name == name and (rendered is None or rendered.name != name):
        return live
    return replace(rendered, name=name) if rendered is not None else None


def held_back_plan(
    plan: Plan, newest: AtomDeploymentSpec | None, pods: PodRevision, observed: Observed
) -> Plan:
    """Return the plan of pods that run while the newest spec is held back: of the newest, if
    readable, only the number of replicas counts."""
    running = observed.deployment
    scale = replace(
        plan.scale,
        replicas=_replicas(plan.scale, newest, observed),
        suspended=plan.scale.suspended if newest is None else bool(newest.suspend),
    )
    spec = replace(
        plan.spec,
        digest=(running.notes.spec_digest if running else pods.spec_digest) or plan.spec.digest,
        origin=running.notes.origin if running else None,
    )
    evidence = replace(plan.model.evidence, learned=observed.records.learned)
    return replace(plan, scale=scale, spec=spec, model=replace(plan.model, evidence=evidence))


def _replicas(scale: ScalePlan, newest: AtomDeploymentSpec | None, observed: Observed) -> int:
    if newest is not None and newest.suspend:
        return 0
    scaling = newest.autoscaling if newest is not None else None
    if newest is not None and not (scaling and scaling.moves_replicas):
        return first_replicas(newest)
    return observed.deployment.desired if observed.deployment else scale.replicas


# --- which revision is in force -------------------------------------------------------------------


def target_in_force(pods: PodRevision, observed: Observed, rules: RollbackRules) -> Target:
    """Choose the given pods, or the last ready ones if these cannot become ready."""
    running = observed.deployment
    if running is not None and running.notes.rollback is not None:
        return Target(pods, observed.records.last_ready, running.notes.rollback)
    return _target(pods, observed, rules)


def revision_to_run(
    asked: RevisionInForce,
    others: Others,
    observed: Observed,
    rules: RollbackRules,
    *,
    waits: bool,
) -> tuple[Target, RevisionInForce]:
    """Choose the pods that the workload is to run: the requested ones, the running ones while the
    change `waits`, or the last ready ones if it failed."""
    pods = observed.pods_in_force
    if not waits or pods is None:
        target = _target(asked.pods, observed, rules)
        return target, _run(target, asked, others, asked.plan)
    target = target_in_force(pods, observed, rules)
    marks = _marks_of(observed.deployment, asked.plan) if observed.deployment else asked.plan
    return target, _run(target, replace(asked, plan=marks), others, marks)


def _marks_of(running: DeploymentState, plan: Plan) -> Plan:
    """Return the plan with the marks that the workload has now."""
    spec = replace(
        plan.spec,
        digest=running.notes.spec_digest or plan.spec.digest,
        default_image=running.notes.default_image,
        origin=running.notes.origin,
    )
    budget = running.notes.startup_budget_seconds or plan.rollout.startup_budget_seconds
    return replace(plan, spec=spec, rollout=replace(plan.rollout, startup_budget_seconds=budget))


def _target(pods: PodRevision, observed: Observed, rules: RollbackRules) -> Target:
    return choose_target(
        pods, observed, may_roll_back=rules.may_roll_back, engine_words=rules.engine_words
    )


def _run(target: Target, asked: RevisionInForce, others: Others, marks: Plan) -> RevisionInForce:
    """Return the target's pods with their plan. Its workload is marked with the spec that it
    was last written for: the next look knows by that which question was answered, and which
    revision failed."""
    if target.pods.name == asked.pods.name:
        return replace(asked, pods=target.pods)
    other = others.get(target.pods.name)
    if other is None:  # from an operator that did not write the specs of pods down
        nodes = replace(asked.plan.engine, nodes=target.pods.nodes)
        return RevisionInForce(target.pods, replace(marks, engine=nodes))
    plan, budget = with_newest(other.plan, asked.plan), marks.rollout.startup_budget_seconds
    plan = replace(
        plan,
        spec=replace(marks.spec, asked=plan.spec.asked, warnings=plan.spec.warnings),
        rollout=replace(plan.rollout, startup_budget_seconds=budget),
    )
    return RevisionInForce(target.pods, plan)


def revision_that_serves(
    run: RevisionInForce, others: Others, observed: Observed
) -> RevisionInForce:
    """Choose the revision that callers meet: the one that the workload is to run as soon as a pod
    of it serves, until then the one that most of the pods that serve are of."""
    serving = observed.serving
    known = {**others, run.pods.name: run}
    there = sorted((name for name in serving if name in known), key=lambda name: -serving[name])
    found = run
    if run.pods.name not in serving and there:
        other = known[there[0]]
        found = replace(other, plan=with_newest(other.plan, run.plan))
    names = tuple(dict.fromkeys(known[name].plan.engine.serving.served_name for name in there))
    return replace(found, also_served=names)


def specs_to_remember(target: Target, observed: Observed) -> dict[str, SpecRecord]:
    """Return the specs of existing pods, of a rollback's target, and of every revision that the
    workload asked for since it was last complete, except those of the pods to run: a ReplicaSet of
    such a revision can make pods until its controller has taken them back, also between this look
    and the write that follows it. Of those without a pod the newest ones are kept."""
    running, records = observed.deployment, observed.records
    there = [pod.revision for pod in observed.pods if pod.revision is not None]
    if target.last_ready is not None:
        there.append(target.last_ready.name)
    if running is not None and running.revision is not None:
        there.append(running.revision)
    if running is not None and not running.complete:
        gone = [name for name in records.specs if name not in there]
        there += gone[-_MOST_WITHOUT_PODS:]
    found = {
        name: record_of(observed, name)
        for name in dict.fromkeys([*there, *observed.serving])
        if name != target.pods.name
    }
    return {name: record for name, record in found.items() if record is not None}


def with_newest(plan: Plan, newest: Plan) -> Plan:
    """Return a plan of other pods with that which only the newest plan knows."""
    scale, own, theirs = newest.scale, plan.identity, newest.identity
    secrets = theirs.pull_secrets if theirs.own_account is None else own.pull_secrets
    inspected = newest.model.inspected or plan.model.inspected
    evidence = replace(plan.model.evidence, learned=newest.model.evidence.learned)
    return replace(
        plan,
        identity=replace(own, pull_secrets=secrets),
        spec=replace(plan.spec, warnings=newest.spec.warnings),
        model=replace(plan.model, inspected=inspected, evidence=evidence),
        scale=replace(plan.scale, replicas=scale.replicas, suspended=scale.suspended),
        canary=newest.canary,
    )


def with_rollout(plan: Plan, rolled: Plan) -> Plan:
    """Return the plan with how the workload is replaced and how many replicas it has. The bound of
    an autoscaler is the workload's, its thresholds are this plan's."""
    same_kind = (plan.engine.nodes > 1) == (rolled.engine.nodes > 1)
    scaling, bounded = plan.integrations.autoscaling, rolled.integrations.autoscaling
    if scaling is not None and bounded is not None:
        scaling = replace(scaling, limit=bounded.limit)
    chosen, changes_kind = rolled.rollout.chosen, rolled.rollout.changes_kind and same_kind
    return replace(
        plan,
        integrations=replace(plan.integrations, autoscaling=scaling),
        rollout=replace(plan.rollout, chosen=chosen, changes_kind=changes_kind),
        scale=replace(rolled.scale, suspended=plan.scale.suspended),
    )


def with_thresholds(plan: Plan, serving: Plan) -> Plan:
    """Return the workload's plan whose autoscaler aims at the load that the pods which serve can
    take."""
    scaling, theirs = plan.integrations.autoscaling, serving.integrations.autoscaling
    if scaling is None or theirs is None or scaling.targets == theirs.targets:
        return plan
    scaling = replace(scaling, targets=theirs.targets)
    return replace(plan, integrations=replace(plan.integrations, autoscaling=scaling))
