"""What should be: surroundings are read, pure functions decide and render. Writes nothing.

reconcile/planning.py makes the plan; this finds out what it depends on, keeps what runs as it is
where nothing asks for more, and chooses the rollout. Called by the reconciler, which carries it
out, and by the webhook, which tells.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.children.beside_engines.job import inspection_job, made_account, weights_job
from atom_operator.children.device_claim import templates_named_by
from atom_operator.children.naming import canary_name
from atom_operator.children.overlay import overlay_paths
from atom_operator.children.render import render
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
    Measured,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    PodRevision,
    RevisionInForce,
    Revisions,
    RolloutWait,
    RouteFindings,
    Supply,
    Target,
)
from atom_operator.domain.preparation import JobRequest, Waiting
from atom_operator.kinds import HTTP_ROUTE, OPTIONAL_KINDS, RESOURCE_CLAIM_TEMPLATE
from atom_operator.plan.canary.known_to_gateway import is_named_by
from atom_operator.plan.learning import evidence_for, learn
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
    is_in_place,
    kept_rendering,
    with_budget_of,
    without_own_evidence,
)
from atom_operator.reconcile.planning import Surroundings, model_key, plan_spec, wants_nodes
from atom_operator.reconcile.prerequisites import (
    Step,
    account_secrets,
    asked_by_others,
    check_claims,
    evidence_of_others,
    fetch_weights,
    known_pull_secrets,
    look_at_model,
)
from atom_operator.reconcile.revision_in_force import (
    Others,
    RollbackRules,
    held_back_plan,
    made_from,
    pods_in_force,
    revision_of,
    revision_that_serves,
    revision_to_run,
    revisions_there,
    specs_to_remember,
    with_rollout,
    with_thresholds,
)
from atom_operator.reconcile.roll_out import RolloutChooser
from atom_operator.reconcile.rollout_turn import (
    ALONE,
    AskedRollout,
    Turns,
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
    plan: Plan | None = None  # of the newest spec
    desired: Mapping[ChildKey, Manifest] | None = None
    overlay: tuple[str, ...] = ()
    supply: Supply | None = None  # read only when something depended on it
    jobs: tuple[JobRequest, ...] = ()  # that prepare the model
    waiting: Waiting | None = None  # why no pod is asked for yet
    routes: RouteFindings = field(default_factory=RouteFindings)  # of what exists afterwards
    devices: DeviceFindings = field(default_factory=DeviceFindings)  # of the pods afterwards
    kept: frozenset[ChildKey] = frozenset()  # serve until what is desired is ready
    canary: CanaryLook | None = None
    revisions: Revisions | None = None  # in force, where children are desired

    @property
    def waits(self) -> RolloutWait | None:
        """Return why what is asked of the pods comes later; None where it comes now."""
        return self.revisions.waits if self.revisions is not None else None

    @property
    def run(self) -> Plan | None:
        """Return the plan of the pods that the workload runs."""
        return self.revisions.run.plan if self.revisions is not None else self.plan

    @property
    def serving(self) -> Plan | None:
        """Return the plan of the pods that serve."""
        return self.revisions.serving.plan if self.revisions is not None else self.plan


@dataclass(frozen=True, slots=True)
class _Look:
    """Hold what one decision is about: the spec, and what is there."""

    owner: Owner
    spec: AtomDeploymentSpec
    around: Surroundings
    observed: Observed
    engines: EngineView
    rollout: AskedRollout


@dataclass(frozen=True, slots=True)
class _Facts:
    """Hold what was read for the choice of a revision. shared: warnings about what other
    AtomDeployments ask for too; refused: why the new pods would not be admitted."""

    shared: tuple[str, ...]
    weights: Step
    pull_secrets: tuple[str, ...]
    measured: Measured | None
    others: Others
    refused: RolloutWait | None


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
        look = _Look(owner, laid.spec, around, observed, engines, asked)
        return replace(await self._decide(look), canary=canary)

    async def _decide(self, look: _Look) -> Decision:
        owner, spec, around = look.owner, look.spec, look.around
        plan = plan_spec(owner, spec, around)
        if isinstance(plan, tuple):
            return Decision(problems=plan)
        if refused := await self._judge_template(plan, look.observed):
            return Decision(problems=(refused,))
        model = await look_at_model(self.port, plan)
        if model.waiting is not None:
            if made_account(plan) is not None:
                plan = replace(plan, pull_secrets=await self._pull_secrets(plan, look))
            return Decision(plan=plan, jobs=_jobs(model), waiting=model.waiting)
        found = await self._found_out(spec, plan, model, look.engines)
        if found:
            plan = plan_spec(owner, spec, replace(around, **found))
            if isinstance(plan, tuple):
                return Decision(problems=plan, jobs=_jobs(model))
        decision = await self._ask_for_pods(plan, look)
        return replace(decision, jobs=(*_jobs(model), *decision.jobs))

    async def keep_last_accepted(
        self, key: ObjectKey, parent: Manifest, observed: Observed, engines: EngineView
    ) -> Decision:
        """The children to look after while the spec is held back; none where none was carried out
        before."""
        pods, record = pods_in_force(observed), observed.accepted
        accepted = parse_spec(record.asked) if record is not None else ()
        if pods is None or record is None or isinstance(accepted, tuple):
            return Decision()
        owner = Owner(key, parent["metadata"]["uid"])
        names = revisions_there(observed)
        others = await self._revisions(owner, names, record.asked, observed, EngineView())
        if pods.name not in others:
            return Decision()
        in_force, newest = others[pods.name].plan, parse_spec(parent.get("spec") or {})
        if not {child.kind for child in observed.workloads} <= {workload_kind(in_force)}:
            return Decision()
        readable = None if isinstance(newest, tuple) else newest
        plan = held_back_plan(in_force, readable, pods, observed)
        if not plan.suspended and await check_claims(self.port, self.fleet, plan) is not None:
            # No more pods than can share a claim.
            plan = held_back_plan(in_force, None, pods, observed)
        canary = canary_in_force(key, parent, observed)
        asked = RevisionInForce(pods, replace(plan, canary=canary))
        rules = RollbackRules(accepted.rollout.auto_rollback is not False, engines.words)
        target, run = revision_to_run(asked, others, observed, rules, waits=True)
        decision = await self._carry_out(target, run, others, accepted.rollout, observed)
        # What a kind's CRD took with it cannot be kept up; the rest can.
        desired = {
            child: manifest
            for child, manifest in (decision.desired or {}).items()
            if child.kind not in observed.unserved
        }
        kept = decision.kept
        if canary is not None and canary.state.phase in HAS_PODS:
            kept |= {ChildKey(ATOM_DEPLOYMENT, canary.name)}
        return Decision(desired=desired, kept=kept)

    async def _judge_template(self, plan: Plan, observed: Observed) -> FieldProblem | None:
        """Nothing is asked about pods as we render them, nor about what was carried out
        before."""
        running = observed.deployment
        carried_out = observed.accepted.asked if observed.accepted is not None else {}
        found = None
        if plan.is_overlaid and (running is None or running.spec_digest != plan.spec_digest):
            pods = pod_revision(plan)
            found = await judge_template(self.port, plan.key, pods, self.templates)
        jobs = plan.jobs.template
        if found is None and jobs and (carried_out.get("jobs") or {}).get("template") != jobs:
            job = weights_job(plan) or inspection_job(plan)
            found = await judge_job(self.port, plan.key, job, self.templates)
        return found

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

    async def _ask_for_pods(self, plan: Plan, look: _Look) -> Decision:
        """The children of a plan, its rollout chosen; none when it is sure not to fit."""
        overlay = (*overlay_paths(plan.template or {}), *plan.template_removed)
        if not plan.may_start:
            return Decision(plan=plan, overlay=overlay)
        unshareable = await check_claims(self.port, self.fleet, plan)
        if unshareable is not None:
            return Decision(problems=(unshareable,))
        rollout, observed = look.rollout, look.observed
        rules = RollbackRules(rollout.spec.auto_rollback is not False, look.engines.words)
        fresh = RevisionInForce(pod_revision(plan), plan)
        asked = kept_rendering(
            observed,
            with_budget_of(observed, fresh),
            spec_seen=rollout.is_seen,
            may_roll_back=rules.may_roll_back,
        )
        asked = with_origin(asked, observed, spec_seen=rollout.is_seen)
        facts = await self._facts(asked, fresh.pods, look)
        asked = with_facts(asked, facts, observed)
        decision = Decision(plan=asked.plan, overlay=overlay, jobs=_jobs(facts.weights))
        if facts.weights.waiting is not None and not is_in_place(observed, asked.pods):
            return replace(decision, waiting=facts.weights.waiting)
        due = is_due(observed, asked.pods) and pods_in_force(observed) is not None
        defaults = asked.plan.origin.follows if asked.plan.origin is not None else ()
        refused = facts.refused
        if refused is not None:
            refused = replace(refused, defaults=defaults)
        waits = (refused or rollout.begin(defaults)) if due else None
        target, run = revision_to_run(asked, facts.others, observed, rules, waits=waits is not None)
        known = {**facts.others, asked.pods.name: asked}
        done = await self._carry_out(target, run, known, rollout.spec, observed)
        if done.revisions is not None:
            final = done.revisions.run.plan
            revisions = replace(done.revisions, waits=waits)
            decision = replace(decision, plan=with_rollout(asked.plan, final), revisions=revisions)
        return replace(decision, supply=done.supply, desired=done.desired, kept=done.kept)

    async def _facts(self, asked: RevisionInForce, fresh: PodRevision, look: _Look) -> _Facts:
        """Read what the choice of a revision depends on."""
        plan, observed = asked.plan, look.observed
        spec = fresh.template["spec"]
        names = [name for name in revisions_there(observed) if name != asked.pods.name]
        refused = None
        if is_due(observed, asked.pods):
            refused = await self._refusal(plan, observed, asked.pods)
        return _Facts(
            shared=await asked_by_others(self.port, self.fleet, plan.key, spec),
            weights=await fetch_weights(self.port, self.engines, plan, observed.at),
            pull_secrets=await self._pull_secrets(plan, look),
            measured=look.engines.of(asked.pods.name).measured,
            others=await self._revisions(look.owner, names, plan.asked, observed, look.engines),
            refused=refused,
        )

    async def _pull_secrets(self, plan: Plan, look: _Look) -> tuple[str, ...]:
        site, is_seen = self.settings.site, look.rollout.is_seen
        return await account_secrets(self.port, plan, look.observed, site, spec_seen=is_seen)

    async def _revisions(
        self,
        owner: Owner,
        names: Iterable[str],
        newest: Mapping[str, Any],
        observed: Observed,
        engines: EngineView,
    ) -> dict[str, RevisionInForce]:
        """The revisions of these names whose spec is written down, each with the plan of that."""
        found = {}
        for name in names:
            made = made_from(observed, name, newest)
            if made is None:
                continue
            around = await self._surroundings(owner.key, made.spec, observed, engines.of(name))
            revision = revision_of(owner, name, made, observed, around)
            if revision is not None:
                secrets = known_pull_secrets(observed, owner.key)
                plan = replace(revision.plan, pull_secrets=secrets)
                found[name] = replace(revision, plan=plan)
        return found

    async def _refusal(
        self, plan: Plan, observed: Observed, wanted: PodRevision
    ) -> RolloutWait | None:
        """Return why groups wait. While new ones are refused no strategy keeps old groups, nor old
        pods of another kind that hold what new ones need."""
        if wanted.nodes == 1 and not (observed.deployment and observed.deployment.in_groups):
            return None
        refused = await refusal_of_rollout(self.port, plan, observed, wanted)
        if refused is None:
            return None
        return RolloutWait(f"its pods would be refused: {refused}", is_refused=True)

    async def _carry_out(
        self,
        target: Target,
        run: RevisionInForce,
        others: Others,
        asked: RolloutSpec,
        observed: Observed,
    ) -> Decision:
        """Choose how the target's pods replace others, and draw everything from what serves."""
        plan, supply = await self.rollouts.choose(run, asked, observed)
        run = replace(run, plan=plan)
        serving = revision_that_serves(run, others, observed)
        beside = with_frontend(with_rollout(serving.plan, plan), observed.children)
        serving = replace(serving, plan=beside)
        run = replace(run, plan=with_thresholds(plan, beside))
        target = replace(target, specs=specs_to_remember(target, observed))
        return Decision(
            revisions=Revisions(run, serving),
            supply=supply,
            desired=render(run.plan, target, serving),
            kept=_kept(run.plan, serving, observed),
        )

    @property
    def rollouts(self) -> RolloutChooser:
        return RolloutChooser(self.port, self.fleet, self.departures)

    async def supply(self, plan: Plan, template: Manifest) -> Supply | None:
        """Return what the nodes have for pods that need devices; None where nodes cannot be read,
        or for cpu."""
        return await self.rollouts.supply(plan, template)


def with_facts(asked: RevisionInForce, facts: _Facts, observed: Observed) -> RevisionInForce:
    """The asked revision with what was read for it."""
    plan = replace(
        asked.plan,
        warnings=(*asked.plan.warnings, *facts.shared),
        pull_secrets=facts.pull_secrets,
        capacity=without_own_evidence(asked.plan.capacity, asked.pods),
    )
    learned = learn(asked.plan, facts.measured, observed.learned)
    return replace(asked, plan=replace(plan, learned=learned))


def _kept(plan: Plan, serving: RevisionInForce, observed: Observed) -> frozenset[ChildKey]:
    """Name what serves while another kind takes over, what pods before these get their devices by,
    and a canary that the route as it is still names."""
    changing = observed.retiring(workload_kind(plan)) if plan.changes_kind else ()
    names = templates_named_by((observed.running, observed.last_ready, serving.pods))
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
