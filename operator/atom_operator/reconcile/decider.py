"""Desired state: facts are read, pure functions decide and render. Writes nothing.

In stages, each of which reads the facts that the previous one asks for: the inputs of a plan
(facts.py) → the plan of the newest spec (planning.py) → the inputs of the choice of pods (facts.py)
→ the pods that the workload is to run (revision_in_force.py) → nodes and admission, and how these
pods replace others (roll_out.py) → everything beside them, rendered for the pods that serve
(children/render.py). Called by the reconciler, which carries it out, and by the webhook, which
reports it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atom_operator.api.v1alpha1.rollout import RolloutSpec
from atom_operator.children.beside_engines.job import made_account
from atom_operator.children.device_claim import templates_named_by
from atom_operator.children.naming import canary_name, prefill_name, with_words
from atom_operator.children.overlay import overlay_paths
from atom_operator.children.render import render
from atom_operator.children.workload import pod_revision, workload_kind
from atom_operator.cluster.claims import ClaimReader
from atom_operator.cluster.engines import EnginePort
from atom_operator.cluster.fleet import FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.prometheus import PrometheusPort
from atom_operator.cluster.template_judge import (
    AcceptedTemplates,
)
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    ChildKey,
    DeviceFindings,
    EngineView,
    FieldProblem,
    Manifest,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    RevisionInForce,
    Revisions,
    RolloutWait,
    RouteFindings,
    Supply,
    Target,
)
from atom_operator.domain.preparation import JobRequest, Waiting
from atom_operator.kinds import HTTP_ROUTE, RESOURCE_CLAIM_TEMPLATE
from atom_operator.plan.canary.known_to_gateway import is_named_by
from atom_operator.pods.prefill_state import prefill_among
from atom_operator.reconcile.canary import (
    HAS_PODS,
    CanaryLook,
    CanaryReader,
    canary_in_force,
    look_at_canary,
)
from atom_operator.reconcile.departures import Departures
from atom_operator.reconcile.disaggregation.pair import (
    Written,
    held_back,
    pair_of,
    prefill_in_force,
    prefill_to_write,
)
from atom_operator.reconcile.facts import Facts, FactsReader, Look, with_facts, with_pull_secrets
from atom_operator.reconcile.frontend import with_frontend
from atom_operator.reconcile.keep_rendering import (
    is_in_place,
    kept_rendering,
    with_budget_of,
    with_quota_limits,
)
from atom_operator.reconcile.known_plans import KnownPlans
from atom_operator.reconcile.planning import SpecLayers
from atom_operator.reconcile.prerequisites import (
    Step,
    check_claims,
    look_at_model,
)
from atom_operator.reconcile.profiles.find_profile import with_profile
from atom_operator.reconcile.revision_in_force import (
    Others,
    RollbackRules,
    held_back_plan,
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
from atom_operator.settings import OperatorSettings
from atom_operator.validation.parsing import parse_spec
from atom_operator.validation.role_pods import decode_pods


@dataclass(frozen=True, slots=True)
class Afterwards:
    """Hold the findings about the objects and pods that exist once the decision is carried out."""

    routes: RouteFindings = field(default_factory=RouteFindings)
    devices: DeviceFindings = field(default_factory=DeviceFindings)


@dataclass(frozen=True, slots=True)
class Decision:
    """Hold the desired state: a plan and its children, or the problems of the spec."""

    problems: tuple[FieldProblem, ...] = ()
    plan: Plan | None = None  # of the newest spec
    desired: Mapping[ChildKey, Manifest] | None = None
    overlay: tuple[str, ...] = ()
    supply: Supply | None = None  # read only when something depended on it
    jobs: tuple[JobRequest, ...] = ()  # that prepare the model
    waiting: Waiting | None = None  # why no pod is asked for yet
    afterwards: Afterwards = Afterwards()
    kept: frozenset[ChildKey] = frozenset()  # serve until the desired pods are ready
    canary: CanaryLook | None = None
    revisions: Revisions | None = None  # in force, where children are desired

    @property
    def waits(self) -> RolloutWait | None:
        """Return why the spec's change of the pods comes later; None if it comes now."""
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
class _Choice:
    """Hold the choice of pods to run. known: every revision whose plan is known; waits: why it is
    not the newest spec's; prefill: the pods that compute prompts for it."""

    target: Target
    run: RevisionInForce
    known: Others
    waits: RolloutWait | None = None
    prefill: Written = field(default_factory=Written)


@dataclass(frozen=True, slots=True)
class Decider:
    """Decide with reads through `port` and `fleet`, and with downloads' progress from `engines`."""

    port: ClusterPort
    fleet: FleetReader
    engines: EnginePort
    settings: OperatorSettings
    templates: AcceptedTemplates = field(default_factory=AcceptedTemplates)
    departures: Departures = field(default_factory=Departures)
    plans: KnownPlans = field(default_factory=KnownPlans)
    prometheus: PrometheusPort | None = None
    claims: ClaimReader | None = None  # of one pass

    async def decide(
        self,
        key: ObjectKey,
        parent: Manifest,
        observed: Observed,
        engines: EngineView,
        turns: Turns = ALONE,
    ) -> Decision:
        """Return the desired state; `observed` lists the optional kinds that are not served."""
        if self.claims is None:
            once = replace(self, claims=ClaimReader(self.port))
            return await once.decide(key, parent, observed, engines, turns)
        reader = CanaryReader(self.port, self.engines, self.prometheus)
        canary = await look_at_canary(reader, key, parent, observed)
        if isinstance(canary, tuple):
            return Decision(problems=canary)
        laid = await with_profile(self.port, key.namespace, canary.spec, self.settings)
        if isinstance(laid, tuple):
            return Decision(problems=laid)
        around = await self.facts.surroundings(key, laid.spec, observed, engines)
        layers = SpecLayers(laid.profile, laid.own, laid.default)
        around = replace(around, layers=layers, canary=canary.canary)
        begin = begins(laid.spec.rollout, observed, turns)
        owner = Owner(key, parent["metadata"]["uid"])
        asked = AskedRollout(laid.spec.rollout, begin, is_seen=_is_seen(parent))
        rules = RollbackRules(laid.spec.rollout.auto_rollback is not False, engines.words)
        look = Look(owner, laid.spec, around, observed, engines, asked, rules)
        return replace(await self._decide(look), canary=canary)

    async def _decide(self, look: Look) -> Decision:
        owner, spec, around = look.owner, look.spec, look.around
        plan = self.plans.plan_spec(owner, spec, around)
        if isinstance(plan, tuple):
            return Decision(problems=plan)
        if refused := await self.facts.overlay_problem(plan, look.observed):
            return Decision(problems=(refused,))
        model = await look_at_model(self.port, plan)
        if model.waiting is not None:
            if made_account(plan.identity, plan.model.location) is not None:
                plan = with_pull_secrets(plan, await self.facts.pull_secrets(plan, look))
            return Decision(plan=plan, jobs=_jobs(model), waiting=model.waiting)
        found = await self.facts.found_out(look, plan, model)
        if found != around.known:
            plan = self.plans.plan_spec(owner, spec, replace(around, known=found))
            if isinstance(plan, tuple):
                return Decision(problems=plan, jobs=_jobs(model))
        decision = await self._ask_for_pods(plan, look)
        return replace(decision, jobs=(*_jobs(model), *decision.jobs))

    async def keep_last_accepted(
        self, key: ObjectKey, parent: Manifest, observed: Observed, engines: EngineView
    ) -> Decision:
        """Return the decision while the spec is held back: the children to keep; empty if none was
        carried out before."""
        if self.claims is None:
            once = replace(self, claims=ClaimReader(self.port))
            return await once.keep_last_accepted(key, parent, observed, engines)
        pods, record = observed.pods_in_force, observed.records.accepted
        accepted = parse_spec(record.asked) if record is not None else ()
        if pods is None or record is None or isinstance(accepted, tuple):
            return Decision()
        owner = Owner(key, parent["metadata"]["uid"])
        names = revisions_there(observed)
        others = await self.facts.revisions(owner, names, record.asked, observed, EngineView())
        if pods.name not in others:
            return Decision()
        in_force, newest = others[pods.name].plan, parse_spec(parent.get("spec") or {})
        if not {child.kind for child in observed.workloads} <= {workload_kind(in_force.engine)}:
            return Decision()
        readable = None if isinstance(newest, tuple) else decode_pods(newest)
        plan = held_back_plan(in_force, readable, pods, observed)
        suspended = plan.scale.suspended
        if not suspended and await check_claims(self.reads, self.fleet, plan) is not None:
            # No more pods than can share a claim.
            plan = held_back_plan(in_force, None, pods, observed)
        canary = canary_in_force(key, parent, observed)
        asked = RevisionInForce(pods, replace(plan, canary=canary))
        rules = RollbackRules(accepted.rollout.auto_rollback is not False, engines.words)
        target, run = revision_to_run(asked, others, observed, rules, waits=True)
        choice = _Choice(target, run, others, prefill=_held_back_prefill(plan, observed))
        decision = await self._carry_out(choice, accepted.rollout, observed)
        # What a kind's CRD took with it cannot be kept up; the rest can.
        desired = {
            child: manifest
            for child, manifest in (decision.desired or {}).items()
            if child.kind not in observed.unserved
        }
        kept = decision.kept
        if canary is not None and canary.state.phase in HAS_PODS:
            kept |= {ChildKey(ATOM_DEPLOYMENT, canary.name)}
        return Decision(desired=desired, kept=kept, revisions=decision.revisions)

    async def _ask_for_pods(self, plan: Plan, look: Look) -> Decision:
        """Return the children of a plan, its rollout chosen; none if it is sure not to fit."""
        overlay = (*overlay_paths(plan.pods.template or {}), *plan.pods.template_removed)
        if not plan.capacity.may_start:
            return Decision(plan=plan, overlay=overlay)
        unshareable = await check_claims(self.reads, self.fleet, plan)
        if unshareable is not None:
            return Decision(problems=(unshareable,))
        observed = look.observed
        fresh = RevisionInForce(pod_revision(plan), plan)
        asked, refused = await self.facts.admitted(_asked_revision(fresh, look), observed)
        facts = await self.facts.facts(asked, fresh.pods, look, refused)
        asked = with_facts(asked, facts, observed)
        decision = Decision(plan=asked.plan, overlay=overlay, jobs=_jobs(facts.weights))
        if facts.weights.waiting is not None and not is_in_place(observed, asked.pods):
            return replace(decision, waiting=facts.weights.waiting)
        choice = _choose(asked, facts, look)
        done = await self._carry_out(choice, look.rollout.spec, observed)
        final = done.run or choice.run.plan
        return replace(
            done,
            plan=with_rollout(asked.plan, final),
            overlay=overlay,
            jobs=decision.jobs,
        )

    async def _carry_out(self, choice: _Choice, asked: RolloutSpec, observed: Observed) -> Decision:
        """Choose how the target's pods replace others, and render everything for the serving
        pods."""
        plan, supply = await self.rollouts.choose(choice.run, asked, observed)
        return replace(_drawn(choice, plan, observed), supply=supply)

    @property
    def reads(self) -> ClaimReader:
        return self.claims or ClaimReader(self.port)

    @property
    def facts(self) -> FactsReader:
        return FactsReader(
            self.port, self.reads, self.fleet, self.engines,
            self.settings, self.templates, self.plans,
        )  # fmt: skip

    @property
    def rollouts(self) -> RolloutChooser:
        return RolloutChooser(self.port, self.reads, self.fleet, self.departures)

    async def supply(self, plan: Plan, template: Manifest) -> Supply | None:
        """Return the nodes' supply for pods that need devices; None if nodes cannot be read, or for
        cpu."""
        return await self.rollouts.supply(plan, template)


def _asked_revision(fresh: RevisionInForce, look: Look) -> RevisionInForce:
    """Return the pods that the newest spec requests: its present ones, if only this version of the
    operator would render them otherwise."""
    observed, rollout = look.observed, look.rollout
    kept = kept_rendering(
        observed,
        with_budget_of(observed, with_quota_limits(observed, fresh)),
        spec_seen=rollout.is_seen,
        may_roll_back=look.rules.may_roll_back,
    )
    return with_origin(kept, observed, spec_seen=rollout.is_seen)


def _choose(asked: RevisionInForce, facts: Facts, look: Look) -> _Choice:
    """Choose the pods that the workload is to run."""
    observed = look.observed
    pair = pair_of(asked.plan, observed)
    there = observed.pods_in_force
    due = is_due(observed, asked.pods)
    defaults = asked.plan.spec.origin.follows if asked.plan.spec.origin is not None else ()
    refused = facts.refused
    if refused is not None:
        refused = replace(refused, defaults=defaults)
    waits = None
    if (due or pair.changes_prefill) and not pair.is_midway:
        waits = refused or look.rollout.begin(defaults if due else ())
    waits = waits or pair.waits_for_prefill(asked.pods, there)
    target, run = revision_to_run(
        asked, facts.others, observed, look.rules, waits=waits is not None
    )
    runs_asked = run.pods.name == asked.pods.name
    prefill = prefill_to_write(pair, asked.plan, run.plan, waits, runs_asked=runs_asked)
    return _Choice(target, run, {**facts.others, asked.pods.name: asked}, waits, prefill)


def _drawn(choice: _Choice, plan: Plan, observed: Observed) -> Decision:
    """Render the workload by `plan`, which has its rollout, and everything else by the revision
    that serves."""
    run = replace(choice.run, plan=plan)
    serving = revision_that_serves(run, choice.known, observed)
    beside = with_frontend(with_rollout(serving.plan, plan), observed.children)
    serving = replace(serving, plan=beside)
    run = replace(run, plan=with_thresholds(plan, beside))
    target = replace(choice.target, specs=specs_to_remember(choice.target, observed))
    desired, kept = render(run.plan, target, serving), _kept(run.plan, serving, observed)
    prefill, key = choice.prefill, run.plan.identity.key
    child = ChildKey(ATOM_DEPLOYMENT, prefill_name(key))
    if prefill.manifest is not None:
        desired[child] = with_words(run.plan.identity, prefill.manifest)
    elif prefill.is_kept:
        kept |= {child}
    return Decision(
        revisions=Revisions(run, serving, choice.waits),
        desired=desired,
        kept=kept,
    )


def _held_back_prefill(plan: Plan, observed: Observed) -> Written:
    seen = prefill_among(observed.children)
    if seen is None:
        return prefill_in_force(plan)
    return Written(held_back(plan.identity, seen, suspended=plan.scale.suspended))


def _kept(plan: Plan, serving: RevisionInForce, observed: Observed) -> frozenset[ChildKey]:
    """Name the children to keep: old workloads while another kind takes over, templates of claims
    that older pods use, and a canary that the existing route still names."""
    changing = observed.retiring(workload_kind(plan.engine)) if plan.rollout.changes_kind else ()
    names = templates_named_by(
        (observed.records.running, observed.records.last_ready, serving.pods)
    )
    kept = [ChildKey(RESOURCE_CLAIM_TEMPLATE, name) for name in names]
    canary = canary_name(plan.identity.key)
    if is_named_by(observed.children.get(ChildKey(HTTP_ROUTE, plan.identity.key.name)), canary):
        kept.append(ChildKey(ATOM_DEPLOYMENT, canary))
    return frozenset((*changing, *(child for child in kept if child in observed.children)))


def _jobs(step: Step) -> tuple[JobRequest, ...]:
    return (step.job,) if step.job is not None else ()


def _is_seen(parent: Manifest) -> bool:
    """Return whether an operator has reported on this very spec."""
    generation = (parent.get("status") or {}).get("observedGeneration")
    return generation is not None and generation == parent["metadata"].get("generation")
