"""What should be: surroundings are read, pure functions decide and render. Writes nothing.

reconcile/planning.py makes the plan; this finds out what it depends on, keeps what runs as it is
where nothing asks for more, and chooses the rollout. Called by the reconciler, which carries it
out, and by the webhook, which tells.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.children.beside_engines.job import inspection_job, weights_job
from atom_operator.children.device_claim import templates_named_by
from atom_operator.children.naming import canary_name
from atom_operator.children.overlay import overlay_paths
from atom_operator.children.render import plan_of, render
from atom_operator.children.workload import pod_revision, workload_kind
from atom_operator.cluster.engines import EnginePort
from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.prometheus import PrometheusPort
from atom_operator.cluster.template_judge import (
    AcceptedTemplates,
    judge_job,
    judge_template,
    takes_image_volumes,
)
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    ChildKey,
    DeviceFindings,
    EngineView,
    FieldProblem,
    InspectedConfig,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    PodRevision,
    RolloutStrategy,
    RouteFindings,
    Supply,
    Target,
)
from atom_operator.domain.preparation import JobRequest, Waiting
from atom_operator.kinds import HTTP_ROUTE, OPTIONAL_KINDS, RESOURCE_CLAIM_TEMPLATE
from atom_operator.plan.canary.known_to_gateway import is_named_by
from atom_operator.plan.devices.claimed_devices import supply_of
from atom_operator.plan.inventory import PodsAsked, pods_asked
from atom_operator.plan.learning import evidence_for, learn
from atom_operator.plan.own_pods import own_pods
from atom_operator.plan.quota import refusal_of_new_pods
from atom_operator.plan.rollback import choose_target
from atom_operator.plan.rollout import (
    RolloutQuestion,
    begun,
    choose_rollout,
    gives_up_first,
    is_changing,
    needs_supply,
    stops_serving_pods,
)
from atom_operator.plan.scaling import leave_to_autoscaler
from atom_operator.reconcile.canary import (
    HAS_PODS,
    CanaryLook,
    CanaryReader,
    canary_in_force,
    look_at_canary,
)
from atom_operator.reconcile.departures import Departures
from atom_operator.reconcile.find_profile import with_profile
from atom_operator.reconcile.frontend import with_frontend
from atom_operator.reconcile.keep_rendering import (
    as_it_runs,
    engine_image,
    is_in_place,
    with_budget_of,
    without_own_evidence,
)
from atom_operator.reconcile.last_accepted import plan_of_pods, pods_in_force, target_in_force
from atom_operator.reconcile.planning import (
    Surroundings,
    model_key,
    plan_in_force,
    plan_spec,
    wants_nodes,
)
from atom_operator.reconcile.prerequisites import (
    Step,
    account_secrets,
    asked_by_others,
    check_claims,
    claim_not_shared,
    evidence_of_others,
    fetch_weights,
    look_at_model,
    volume_places,
)
from atom_operator.reconcile.rollout_turn import (
    ALONE,
    AskedRollout,
    RolloutWait,
    Turns,
    as_before,
    begins,
    is_due,
    with_origin,
)
from atom_operator.reconcile.successors import refusal_of_rollout
from atom_operator.settings import OperatorSettings
from atom_operator.validation.parsing import parse_spec


@dataclass(frozen=True, slots=True)
class Decision:
    """Hold what should be: a plan and its children, or the problems of the spec."""

    problems: tuple[FieldProblem, ...] = ()
    plan: Plan | None = None
    desired: Mapping[ChildKey, Manifest] | None = None
    overlay: tuple[str, ...] = ()
    supply: Supply | None = None  # read only when something depended on it
    jobs: tuple[JobRequest, ...] = ()  # that prepare the model
    waiting: Waiting | None = None  # why no pod is asked for yet
    routes: RouteFindings = field(default_factory=RouteFindings)  # of what exists afterwards
    devices: DeviceFindings = field(default_factory=DeviceFindings)  # of the pods afterwards
    kept: frozenset[ChildKey] = frozenset()  # serve until what is desired is ready
    canary: CanaryLook | None = None
    waits: RolloutWait | None = None  # for which what is asked of the pods comes later


@dataclass(frozen=True, slots=True)
class Decider:
    """Reads through `port` and `fleet`, and asks `engines` how a download goes on."""

    port: ClusterPort
    fleet: FleetReader
    engines: EnginePort
    settings: OperatorSettings
    templates: AcceptedTemplates = field(default_factory=AcceptedTemplates)
    departures: Departures = field(default_factory=Departures)
    prometheus: PrometheusPort | None = None

    async def decide(
        self,
        key: ObjectKey,
        parent: Manifest,
        observed: Observed,
        engines: EngineView,
        turns: Turns = ALONE,
    ) -> Decision:
        """Return what should be; `observed` says which of the optional kinds are not served."""
        reader = CanaryReader(self.port, self.engines, self.prometheus)
        canary = await look_at_canary(reader, key, parent, observed)
        if isinstance(canary, tuple):
            return Decision(problems=canary)
        laid = await with_profile(self.port, key.namespace, canary.spec, self.settings)
        if isinstance(laid, tuple):
            return Decision(problems=laid)
        around = await self._surroundings(key, laid.spec, observed, engines)
        around = replace(around, profile=laid.profile, canary=canary.canary)
        around = replace(around, own=laid.own, profile_default=laid.default)
        begin = begins(laid.spec.rollout, observed, turns)
        owner = Owner(key, parent["metadata"]["uid"])
        asked = AskedRollout(laid.spec.rollout, begin, is_seen=_is_seen(parent))
        decision = await self._decide(owner, laid.spec, around, observed, engines, asked=asked)
        return replace(decision, canary=canary)

    async def _decide(
        self,
        owner: Owner,
        spec: AtomDeploymentSpec,
        around: Surroundings,
        observed: Observed,
        engines: EngineView,
        *,
        asked: AskedRollout,
    ) -> Decision:
        plan = plan_spec(owner, spec, around)
        if isinstance(plan, tuple):
            return Decision(problems=plan)
        if refused := await self._judge_template(plan, observed):
            return Decision(problems=(refused,))
        look = await look_at_model(self.port, plan)
        if look.waiting is not None:
            return Decision(plan=plan, jobs=_jobs(look), waiting=look.waiting)
        found = await self._found_out(spec, plan, look, engines)
        if found:
            plan = plan_spec(owner, spec, replace(around, **found))
            if isinstance(plan, tuple):
                return Decision(problems=plan, jobs=_jobs(look))
        decision = await self._render(plan, asked, observed, engines)
        return replace(decision, jobs=(*_jobs(look), *decision.jobs))

    async def keep_last_accepted(
        self, key: ObjectKey, parent: Manifest, observed: Observed, engines: EngineView
    ) -> Decision:
        """The children to look after while the spec is held back; none where none was carried out
        before."""
        pods, accepted = pods_in_force(observed), parse_spec(observed.accepted_spec or {})
        image = engine_image(pods) if pods else None
        if pods is None or image is None or isinstance(accepted, tuple):
            return Decision()
        around = await self._surroundings(key, accepted, observed, EngineView())
        around = replace(around, profile=observed.accepted_profile)
        plan = plan_in_force(Owner(key, parent["metadata"]["uid"]), accepted, image, around)
        newest = parse_spec(parent.get("spec") or {})
        readable = None if isinstance(newest, tuple) else newest
        plan = plan and plan_of_pods(plan, pods, readable, observed)
        runs = plan is not None and not plan.suspended
        if plan and runs and await check_claims(self.port, self.fleet, plan) is not None:
            plan = plan_of_pods(plan, pods, None, observed)  # no more pods than can share a claim
        if plan is None:
            return Decision()
        canary = canary_in_force(key, parent, observed)
        plan = replace(plan, canary=canary)
        may_roll_back = accepted.rollout.auto_rollback is not False
        target = target_in_force(
            pods, observed, may_roll_back=may_roll_back, engine_words=engines.words
        )
        plan, _ = await self._roll_out(plan, accepted.rollout, target, observed)
        # What a kind's CRD took with it cannot be kept up; the rest can.
        desired = {
            child: manifest
            for child, manifest in render(plan, target).items()
            if child.kind not in observed.unserved
        }
        kept = _kept(plan, observed)
        if canary is not None and canary.state.phase in HAS_PODS:
            kept |= {ChildKey(ATOM_DEPLOYMENT, canary.name)}
        return Decision(desired=desired, kept=kept)

    async def _judge_template(self, plan: Plan, observed: Observed) -> FieldProblem | None:
        """Nothing is asked about pods as we render them, nor about what was carried out
        before."""
        running, carried_out = observed.deployment, observed.accepted_spec or {}
        found = None
        if plan.is_overlaid and (running is None or running.spec_digest != plan.spec_digest):
            pods = pod_revision(plan)
            found = await judge_template(self.port, plan.key, pods, self.templates)
        jobs = plan.jobs.template
        if found is None and jobs and (carried_out.get("jobs") or {}).get("template") != jobs:
            job = weights_job(plan) or inspection_job(plan)
            found = await judge_job(self.port, plan.key, job, self.templates)
        return found

    async def _with_pull_secrets(self, plan: Plan, observed: Observed, *, spec_seen: bool) -> Plan:
        site = self.settings.site
        found = await account_secrets(self.port, plan, observed, site, spec_seen=spec_seen)
        return replace(plan, pull_secrets=found)

    async def _surroundings(
        self, key: ObjectKey, spec: AtomDeploymentSpec, observed: Observed, engines: EngineView
    ) -> Surroundings:
        return Surroundings(
            images=self.settings.engine_images,
            config_text=await self._config_text(key, spec),
            nodes=(await self.fleet.nodes(Age.KNOWN) or ()) if wants_nodes(spec) else (),
            devices=await self.fleet.devices(Age.KNOWN) if spec.accelerator.claim else None,
            served=frozenset(OPTIONAL_KINDS) - observed.unserved,
            site=self.settings.site,
            measured=engines.measured.capacity if engines.measured else None,
            image_volumes=not spec.model.source.startswith("oci://")
            or await takes_image_volumes(self.port, key, self.templates),
            inspected=observed.inspected,
            learned=observed.learned,
        )

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
        """Return what spec.model.configRef points at; None when there is no such ConfigMap or
        key."""
        reference = spec.model.config_ref
        if reference is None:
            return None
        found = await self.port.get(CONFIG_MAP, key.namespace, reference.name)
        text = ((found or {}).get("data") or {}).get(reference.key)
        return None if text is None else str(text)

    async def _render(
        self,
        plan: Plan,
        rollout: AskedRollout,
        observed: Observed,
        engines: EngineView,
    ) -> Decision:
        """The children of a plan, its rollout chosen; none when it is sure not to fit."""
        overlay = (*overlay_paths(plan.template or {}), *plan.template_removed)
        if not plan.may_start:
            return Decision(plan=plan, overlay=overlay)
        asked, spec_seen = rollout.spec, rollout.is_seen
        may_roll_back = asked.auto_rollback is not False
        unshareable = await check_claims(self.port, self.fleet, plan)
        if unshareable is not None:
            return Decision(problems=(unshareable,))
        pods = pod_revision(plan)
        pod_spec = pods.template["spec"]
        shared = await asked_by_others(self.port, self.fleet, plan.key, pod_spec)
        plan = replace(plan, warnings=(*plan.warnings, *shared))
        plan, wanted = with_budget_of(observed, plan, pods)
        plan, wanted = as_it_runs(
            observed, plan, wanted, spec_seen=spec_seen, may_roll_back=may_roll_back
        )
        plan = with_origin(plan, observed, wanted, spec_seen=spec_seen)
        weights = await fetch_weights(self.port, self.engines, plan, observed.at)
        plan = await self._with_pull_secrets(plan, observed, spec_seen=spec_seen)
        plan = replace(
            plan,
            learned=learn(plan, engines.of(wanted.name).measured, observed.learned),
            capacity=without_own_evidence(plan.capacity, wanted),
        )
        decision = Decision(plan=plan, overlay=overlay, jobs=_jobs(weights))
        if weights.waiting is not None and not is_in_place(observed, wanted):
            return replace(decision, waiting=weights.waiting)
        words, waits = engines.words, await self._waits(plan, rollout, observed, wanted)
        before = as_before(plan, observed, may_roll_back=may_roll_back, engine_words=words)
        if waits is not None and before is not None:
            decision = replace(decision, waits=waits)
            plan, target = before
        else:
            target = choose_target(
                wanted, observed, may_roll_back=may_roll_back, engine_words=words
            )
        plan, supply = await self._roll_out(plan, asked, target, observed)
        kept = _kept(plan, observed)
        plan = with_frontend(plan, observed.children)
        desired = render(plan, target)
        return replace(decision, plan=plan, supply=supply, desired=desired, kept=kept)

    async def _waits(
        self, plan: Plan, rollout: AskedRollout, observed: Observed, wanted: PodRevision
    ) -> RolloutWait | None:
        """Return what the change of pods that serve waits for. While new ones are refused no
        strategy keeps old groups, nor old pods of another kind that hold what new ones need."""
        if not is_due(observed, wanted):
            return None
        defaults = plan.origin.follows if plan.origin is not None else ()
        if wanted.nodes > 1 or (observed.deployment and observed.deployment.in_groups):
            refused = await refusal_of_rollout(self.port, plan, observed, wanted)
            if refused is not None:
                words = f"its pods would be refused: {refused}"
                return RolloutWait(words, is_refused=True, defaults=defaults)
        return rollout.begin(defaults)

    async def _roll_out(
        self,
        plan: Plan,
        asked: RolloutSpec,
        target: Target,
        observed: Observed,
    ) -> tuple[Plan, Supply | None]:
        """The plan with its rollout and number of replicas, and what of the nodes they follow."""
        plan = plan_of(plan, target)
        kind = workload_kind(plan)
        own, retiring = observed.workload_of(kind), observed.retiring(kind)
        pod_spec, namespace = target.pods.template["spec"], plan.key.namespace
        question = RolloutQuestion(
            asked=asked.strategy or "Auto",
            accelerator=plan.accelerator,
            revision=target.pods.name,
            running=own,
            retiring=max(retiring.values(), key=lambda state: state.ready, default=None),
            pods=own_pods(observed, target.pods.name),
            supply=None,
            claim_not_shared=await claim_not_shared(self.port, self.fleet, namespace, pod_spec),
            in_groups=plan.engine.nodes > 1,
            refusal=refusal_of_new_pods(observed, own, target.pods),
            refusal_is_old=self.departures.are_newer(plan.key, observed),
        )
        scaled = plan.integrations.autoscaling is not None
        supply: Supply | None = None
        now = needs_supply(question) or question.pods.unschedulable is not None
        if now or (scaled and plan.accelerator.resource_name is not None):
            volumes = await volume_places(self.port, namespace, pod_spec)
            asked_pods = pods_asked(plan, target.pods.template, target.pods.name, observed, volumes)
            supply = await self._survey(plan, asked_pods, Age.RECENT if now else Age.KNOWN)
        rollout = choose_rollout(replace(question, supply=supply))
        if now and stops_serving_pods(question, rollout):
            # The pods are observed by a watch: in an older picture one of ours that has gone since
            # still holds what the new one is about to take.
            supply = await self._survey(plan, asked_pods, Age.NOW)
            rollout = choose_rollout(replace(question, supply=supply))
        if gives_up_first(question, rollout):
            refused = await refusal_of_rollout(self.port, plan, observed, target.pods)
            rollout = choose_rollout(replace(question, supply=supply, inadmissible=refused))
        rollout = begun(rollout, question, observed, plan.engine.nodes)
        surges = rollout.strategy is RolloutStrategy.SURGE and not plan.suspended
        changes_kind = surges and is_changing(question)
        plan = replace(plan, rollout=rollout, changes_kind=changes_kind)
        bound = supply if plan.accelerator.resource_name is not None else None
        return leave_to_autoscaler(plan, bound, observed), supply

    async def supply(self, plan: Plan, template: Manifest) -> Supply | None:
        """Return what the nodes have for pods that need devices; None where nodes cannot be read,
        or for cpu."""
        if plan.accelerator.resource_name is None:
            return None
        volumes = await volume_places(self.port, plan.key.namespace, template["spec"])
        return await self._survey(plan, pods_asked(plan, template, volumes=volumes), Age.RECENT)

    async def _survey(self, plan: Plan, asked: PodsAsked, age: Age) -> Supply | None:
        """Read the supply of the cluster; None where it cannot be read."""
        nodes, pods = await asyncio.gather(self.fleet.nodes(age), self.fleet.pods(age))
        if nodes is None or pods is None:
            return None
        picture = await self.fleet.devices(age) if plan.accelerator.claim else None
        return supply_of(plan, nodes, pods, picture, asked)


def _kept(plan: Plan, observed: Observed) -> frozenset[ChildKey]:
    """Name what serves while another kind takes over, what pods before these get their devices by,
    and a canary that the route as it is still names."""
    changing = observed.retiring(workload_kind(plan)) if plan.changes_kind else ()
    names = templates_named_by((observed.running, observed.last_ready))
    kept = [ChildKey(RESOURCE_CLAIM_TEMPLATE, name) for name in names]
    canary = canary_name(plan.key)
    if is_named_by(observed.children.get(ChildKey(HTTP_ROUTE, plan.key.name)), canary):
        kept.append(ChildKey(ATOM_DEPLOYMENT, canary))
    return frozenset((*changing, *(child for child in kept if child in observed.children)))


def _jobs(step: Step) -> tuple[JobRequest, ...]:
    return (step.job,) if step.job is not None else ()


def _is_seen(parent: Manifest) -> bool:
    """Return whether an operator has reported on this very spec."""
    generation = (parent.get("status") or {}).get("observedGeneration")
    return generation is not None and generation == parent["metadata"].get("generation")
