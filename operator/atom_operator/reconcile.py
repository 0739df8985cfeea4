"""The one level-based function: read, decide, apply, observe, report.

The same for a created, changed, resumed or drifted AtomDeployment: it looks at what is there now
and never at what happened. Takes the cluster and the clock as parameters; knows no kopf. Called by
the work queue; a crash anywhere in it is repaired by the next call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from atom_operator.admission.parsing import parse_spec
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.atomdeployment import RolloutSpec
from atom_operator.children import naming
from atom_operator.children.overlay import OverlayError, overlay_paths
from atom_operator.children.render import render
from atom_operator.children.workload import pod_revision
from atom_operator.cluster.applied import AppliedChildren
from atom_operator.cluster.apply import apply_children
from atom_operator.cluster.engines import EnginePort, ask_engines
from atom_operator.cluster.errors import ClusterError
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.jobs import ensure_jobs
from atom_operator.cluster.observe import describe, observe
from atom_operator.cluster.optional import OptionalKinds
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.replicas import give_up_replicas
from atom_operator.constants import Reason
from atom_operator.continuity import (
    as_it_runs,
    is_in_place,
    with_budget_of,
    without_own_evidence,
)
from atom_operator.decide import Surroundings, decide, model_key, wants_nodes
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    EVENT,
    ApplyReport,
    ChildKey,
    EngineView,
    FieldProblem,
    InspectedConfig,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    Supply,
)
from atom_operator.kinds import OPTIONAL_KINDS, Kind
from atom_operator.plan.integrations import asked_kinds
from atom_operator.plan.inventory import shortage, survey
from atom_operator.plan.learning import evidence_for, learn
from atom_operator.plan.rollback import choose_target
from atom_operator.plan.rollout import RolloutQuestion, choose_rollout, needs_supply
from atom_operator.plan.scaling import leave_to_autoscaler
from atom_operator.preparation import JobRequest, Waiting
from atom_operator.prepare import (
    Step,
    check_claims,
    evidence_of_others,
    fetch_weights,
    look_at_model,
)
from atom_operator.settings import OperatorSettings
from atom_operator.status.capacity import measured_before
from atom_operator.status.events import event, event_name, happenings
from atom_operator.status.rollup import Situation, roll_up

_logger = logging.getLogger(__name__)
# Nothing announces that a quota was raised, a conflicting object deleted, a ConfigMap of the user's
# created or a node's device freed: look again after a while.
_LOOK_AGAIN_SECONDS = 30.0
# A loading engine tells how far it is only when it is asked.
_LOADING_SECONDS = 10.0
# An engine that serves and yet says nothing to us may never do so (a network policy): asked ever
# more rarely, after as long again as it has been silent.
_MOST_SILENT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the queue needs to know: when to look again without an event."""

    requeue_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """What should be: a plan and its children, or the problems of the spec."""

    problems: tuple[FieldProblem, ...] = ()
    plan: Plan | None = None
    desired: Mapping[ChildKey, Manifest] | None = None
    overlay: tuple[str, ...] = ()
    supply: Supply | None = None  # read only when something depended on it
    jobs: tuple[JobRequest, ...] = ()  # that prepare the model
    waiting: Waiting | None = None  # why no pod is asked for yet


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Brings one AtomDeployment at a time to what its spec says."""

    port: ClusterPort
    fleet: FleetReader
    engines: EnginePort
    settings: OperatorSettings
    clock: Callable[[], datetime]
    optional: OptionalKinds = field(default_factory=OptionalKinds)
    applied: AppliedChildren = field(default_factory=AppliedChildren)

    async def reconcile(self, key: ObjectKey) -> Outcome:
        """One pass. Raises ClusterError when the cluster did not let it finish."""
        parent = await self.port.get(ATOM_DEPLOYMENT, key.namespace, key.name)
        if parent is None or parent["metadata"].get("deletionTimestamp"):
            self.applied.forget(key)
            self.optional.forget(key)
            return Outcome()  # garbage collection removes the children through their owner
        look = await self.optional.begin(key, optional_kinds(parent))
        observed = await observe(self.port, key, parent["metadata"]["uid"], look.kinds)
        known = measured_before(parent.get("status") or {})
        engines = await ask_engines(self.engines, observed, known)
        decision = await self.decide(key, parent, observed, engines)
        report, observed = await self._carry_out(key, decision, observed)
        await self._ensure_jobs(key, parent, decision)
        self.optional.remember(key, look, observed.children)
        await self._report(key, parent, decision, report, observed, engines)
        return Outcome(_look_again(decision, report, observed, engines, self.clock()))

    async def decide(
        self, key: ObjectKey, parent: Manifest, observed: Observed, engines: EngineView
    ) -> Decision:
        """What should be; `observed` says which of the optional kinds are not served."""
        spec, owner = parse_spec(parent.get("spec") or {}), Owner(key, parent["metadata"]["uid"])
        if isinstance(spec, tuple):
            return Decision(problems=spec)
        around = Surroundings(
            images=self.settings.engine_images,
            config_text=await self._config_text(owner.key, spec),
            nodes=(await self.fleet.known_nodes() or ()) if wants_nodes(spec) else (),
            served=frozenset(OPTIONAL_KINDS) - observed.unserved,
            site=self.settings.site,
            measured=engines.measured.capacity if engines.measured else None,
            inspected=observed.inspected,
            learned=observed.learned,
        )
        plan = decide(owner, spec, around)
        if isinstance(plan, tuple):
            return Decision(problems=plan)
        look = await look_at_model(self.port, plan)
        if look.waiting is not None:
            return Decision(plan=plan, jobs=_jobs(look), waiting=look.waiting)
        found = await self._found_out(spec, plan, look, engines)
        if found:
            plan = decide(owner, spec, replace(around, **found))
            if isinstance(plan, tuple):
                return Decision(problems=plan, jobs=_jobs(look))
        decision = await self._render(plan, spec.rollout, observed, engines, _is_seen(parent))
        return replace(decision, jobs=(*_jobs(look), *decision.jobs))

    async def _found_out(
        self, spec: AtomDeploymentSpec, plan: Plan, look: Step, engines: EngineView
    ) -> dict[str, Any]:
        """Surroundings that are read only for plans that lack them."""
        if look.config is not None:
            return {"inspected": InspectedConfig(model_key(spec), look.config)}
        known = evidence_for(plan.learning_key, plan.learned)
        if plan.facts is None or known is not None or engines.measured is not None:
            return {}
        others = await evidence_of_others(self.port, plan)
        return {"learned": (others, *plan.learned)} if others is not None else {}

    async def _config_text(self, key: ObjectKey, spec: AtomDeploymentSpec) -> str | None:
        """What spec.model.configRef points at; None when there is no such ConfigMap or key."""
        reference = spec.model.config_ref
        if reference is None:
            return None
        found = await self.port.get(CONFIG_MAP, key.namespace, reference.name)
        text = ((found or {}).get("data") or {}).get(reference.key)
        return None if text is None else str(text)

    async def _render(
        self,
        plan: Plan,
        asked: RolloutSpec,
        observed: Observed,
        engines: EngineView,
        spec_seen: bool,
    ) -> Decision:
        """The children of a plan, its rollout chosen; none when it is sure not to fit."""
        overlay = overlay_paths(plan.template or {})
        if not plan.may_start:
            return Decision(plan=plan, overlay=overlay)
        may_roll_back = asked.auto_rollback is not False
        claim = await check_claims(self.port, self.fleet, plan)
        if claim.problem is not None:
            return Decision(problems=(claim.problem,))
        try:
            plan, wanted = with_budget_of(observed, plan, pod_revision(plan))
            plan, wanted = as_it_runs(
                observed, plan, wanted, spec_seen=spec_seen, may_roll_back=may_roll_back
            )
            weights = await fetch_weights(self.port, self.engines, plan)
        except OverlayError as error:
            return Decision(problems=(FieldProblem("spec.template", str(error)),))
        plan = replace(
            plan,
            learned=learn(plan, engines.of(wanted.name).measured, observed.learned),
            capacity=without_own_evidence(plan.capacity, wanted),
        )
        if weights.waiting is not None and not is_in_place(observed, wanted):
            return Decision(
                plan=plan, overlay=overlay, jobs=_jobs(weights), waiting=weights.waiting
            )
        target = choose_target(
            wanted,
            observed,
            may_roll_back=may_roll_back,
            engine_words=engines.words,
        )
        question = RolloutQuestion(
            asked=asked.strategy or "Auto",
            accelerator=plan.accelerator,
            revision=target.pods.name,
            running=observed.deployment,
            unschedulable=_unschedulable(observed),
            leaving=observed.leaving,
            supply=None,
            one_node_claim=claim.one_node,
        )
        scaled = plan.integrations.autoscaling is not None
        if needs_supply(question) or question.unschedulable is not None or scaled:
            question = replace(
                question,
                supply=await self.supply(plan, target.pods.template["spec"], target.pods.name),
            )
        plan = replace(plan, rollout=choose_rollout(question))
        plan = leave_to_autoscaler(plan, question.supply, started=observed.deployment is not None)
        return Decision(
            plan=plan,
            desired=render(plan, target),
            overlay=overlay,
            supply=question.supply,
            jobs=_jobs(weights),
        )

    async def supply(
        self, plan: Plan, pod_spec: Mapping[str, Any], revision: str | None = None
    ) -> Supply | None:
        """What the nodes have for such pods; None where nodes cannot be read, or for cpu."""
        resource = plan.accelerator.resource_name
        if resource is None:
            return None
        nodes, pods = await self.fleet.nodes(), await self.fleet.pods()
        if nodes is None or pods is None:
            return None
        supply = survey(nodes, pods, plan.key, resource, pod_spec, revision)
        return replace(supply, pods_per_replica=plan.engine.nodes)

    async def _carry_out(
        self, key: ObjectKey, decision: Decision, observed: Observed
    ) -> tuple[ApplyReport, Observed]:
        if decision.desired is None:
            return ApplyReport(), observed
        await give_up_replicas(self.port, key, decision.desired, observed.children)
        report, children = await apply_children(
            self.port, key, decision.desired, observed.children, self.applied
        )
        return report, describe(children, observed.pods)

    async def _ensure_jobs(self, key: ObjectKey, parent: Manifest, decision: Decision) -> None:
        """A spec that is not accepted says nothing about Jobs: those that run go on."""
        if decision.plan is None:
            return
        metadata = parent["metadata"]
        seen = (parent.get("status") or {}).get("observedGeneration")
        changed = seen is not None and seen != metadata.get("generation")
        await ensure_jobs(
            self.port, key, metadata["uid"], decision.jobs, self.clock(), prune=changed
        )

    async def _report(
        self,
        key: ObjectKey,
        parent: Manifest,
        decision: Decision,
        report: ApplyReport,
        observed: Observed,
        engines: EngineView,
    ) -> None:
        """One write, and none when nothing changed."""
        situation = Situation(
            generation=parent["metadata"].get("generation", 1),
            problems=decision.problems,
            overlay=decision.overlay,
            plan=decision.plan,
            report=report,
            observed=observed,
            selector=naming.selector_text(key.name, decision.plan),
            url=naming.service_url(key),
            engines=_of_the_spec(engines, observed),
            shortage=shortage(decision.supply) if decision.supply else None,
            waiting=decision.waiting,
        )
        previous: Mapping[str, Any] = parent.get("status") or {}
        status = roll_up(situation, previous, self.clock())
        if status != previous:
            await self.port.apply_status(key, status)
            ready = status["conditions"][-1]
            _logger.info(
                "%s/%s: Ready=%s %s: %s", *key, ready["status"], ready["reason"], ready["message"]
            )
            await self._announce(Owner(key, parent["metadata"]["uid"]), previous, status)

    async def _announce(
        self, owner: Owner, previous: Mapping[str, Any], status: Mapping[str, Any]
    ) -> None:
        """Events for the conditions that flipped; losing one is not worth a failed reconcile."""
        for happening in happenings(previous.get("conditions") or (), status["conditions"]):
            name = event_name(owner, happening)
            try:
                existing = await self.port.get(EVENT, owner.key.namespace, name)
                await self.port.apply(EVENT, event(owner, happening, existing, self.clock()))
            except ClusterError as error:
                _logger.warning("event %s of %s/%s: %s", happening.reason, *owner.key, error)


def _jobs(step: Step) -> tuple[JobRequest, ...]:
    return (step.job,) if step.job is not None else ()


def _of_the_spec(engines: EngineView, observed: Observed) -> EngineView:
    """What counts as measured: nothing while another revision than the spec's runs."""
    running = observed.deployment
    if running is None or running.rollback is not None:
        return engines.of(None)
    return engines.of(running.revision)


def _is_seen(parent: Manifest) -> bool:
    """Whether an operator has reported on this very spec."""
    generation = (parent.get("status") or {}).get("observedGeneration")
    return generation is not None and generation == parent["metadata"].get("generation")


def _unschedulable(observed: Observed) -> str | None:
    messages = (pod.unschedulable_message for pod in observed.pods)
    return next((message for message in messages if message), None)


def _look_again(
    decision: Decision,
    report: ApplyReport,
    observed: Observed,
    engines: EngineView,
    now: datetime,
) -> float | None:
    """Seconds until the next look at what no event announces."""
    if any(not pod.ready and pod.address for pod in observed.pods):
        return _LOADING_SECONDS
    if decision.waiting is not None:
        return _LOOK_AGAIN_SECONDS if decision.waiting.failed else _LOADING_SECONDS
    waits_for_config = (
        decision.plan is not None and decision.plan.capacity.reason is Reason.MODEL_CONFIG_NOT_FOUND
    )
    stuck = _unschedulable(observed) is not None
    waits = bool(report.refused) or waits_for_config or stuck
    if waits or _depends_on_others(decision, report):
        return _LOOK_AGAIN_SECONDS
    return _ask_again(observed, now) if engines.measured is None else None


def _ask_again(observed: Observed, now: datetime) -> float | None:
    """When to ask engines that serve for what they have not told yet; None where none serves."""
    serving = [pod for pod in observed.pods if pod.ready and pod.address]
    if not serving:
        return None
    times = [(now - pod.ready_since).total_seconds() for pod in serving if pod.ready_since]
    return min(max(_LOOK_AGAIN_SECONDS, min(times, default=0.0)), _MOST_SILENT_SECONDS)


def optional_kinds(parent: Manifest) -> frozenset[Kind]:
    """The kinds beyond the usual ones that the object asks for."""
    spec = parse_spec(parent.get("spec") or {})
    return frozenset() if isinstance(spec, tuple) else frozenset(asked_kinds(spec))


def _depends_on_others(decision: Decision, report: ApplyReport) -> bool:
    """Free devices bound an autoscaler, and nobody announces a CRD that somebody installs."""
    if any(problem.reason is Reason.API_NOT_SERVED for problem in decision.problems):
        return True
    asked = decision.plan.integrations if decision.plan else None
    unfinished = asked is not None and bool(asked.autoscaling or asked.missing)
    return unfinished or bool(report.refused_optional)
