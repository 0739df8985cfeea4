"""Inputs of decisions: read here, first for a plan, then for the choice of a revision.

Reads only. The second reading depends on the plan that was made from the first: which records of
other pods to read, which weights to look for, whether new pods would be refused. Called by the
Decider; roll_out.py reads the inputs of a rollout, once the pods to run are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.children.beside_engines.job import inspection_job, weights_job
from atom_operator.children.workload import pod_revision
from atom_operator.cluster.claims import ClaimReader
from atom_operator.cluster.engines import EnginePort
from atom_operator.cluster.fleet import Age, FleetReader
from atom_operator.cluster.port import ClusterPort
from atom_operator.cluster.template_judge import (
    AcceptedTemplates,
    judge_job,
    judge_template,
    takes_image_volumes,
)
from atom_operator.domain import (
    CONFIG_MAP,
    EngineView,
    FieldProblem,
    InspectedConfig,
    Measured,
    ObjectKey,
    Observed,
    Owner,
    Plan,
    PodRevision,
    RevisionInForce,
    RolloutWait,
)
from atom_operator.kinds import OPTIONAL_KINDS
from atom_operator.plan.learning import evidence_for, learn
from atom_operator.plan.quota import limits_asked
from atom_operator.reconcile.keep_rendering import limited, without_own_evidence
from atom_operator.reconcile.known_plans import KnownPlans
from atom_operator.reconcile.planning import ModelKnown, Surroundings, model_key, wants_nodes
from atom_operator.reconcile.prerequisites import (
    Step,
    account_secrets,
    asked_by_others,
    evidence_of_others,
    fetch_weights,
    known_pull_secrets,
)
from atom_operator.reconcile.revision_in_force import (
    Others,
    RollbackRules,
    made_from,
    revision_of,
    revisions_there,
)
from atom_operator.reconcile.rollout_turn import AskedRollout, is_due
from atom_operator.reconcile.successors import refusal_of_rollout
from atom_operator.settings import OperatorSettings


@dataclass(frozen=True, slots=True)
class Look:
    """Hold the subject of one decision: the spec, and the observed state."""

    owner: Owner
    spec: AtomDeploymentSpec
    around: Surroundings
    observed: Observed
    engines: EngineView
    rollout: AskedRollout
    rules: RollbackRules


@dataclass(frozen=True, slots=True)
class Facts:
    """Hold the inputs of the choice of a revision. shared: warnings about resources that other
    AtomDeployments request too; refused: why the new pods would not be admitted."""

    shared: tuple[str, ...]
    weights: Step
    pull_secrets: tuple[str, ...]
    measured: Measured | None
    others: Others
    refused: RolloutWait | None


@dataclass(frozen=True, slots=True)
class FactsReader:
    """Read facts through `port` and `fleet`, and downloads' progress from `engines`."""

    port: ClusterPort
    claims: ClaimReader
    fleet: FleetReader
    engines: EnginePort
    settings: OperatorSettings
    templates: AcceptedTemplates
    plans: KnownPlans

    async def overlay_problem(self, plan: Plan, observed: Observed) -> FieldProblem | None:
        """Return the API server's problem with the overlay. It is not asked about pods as we render
        them, nor about pods that were carried out before."""
        running = observed.deployment
        carried_out = (
            observed.records.accepted.asked if observed.records.accepted is not None else {}
        )
        found = None
        if plan.pods.is_overlaid and (
            running is None or running.notes.spec_digest != plan.spec.digest
        ):
            pods = pod_revision(plan)
            found = await judge_template(self.port, plan.identity.key, pods, self.templates)
        jobs = plan.pods.jobs.template
        if found is None and jobs and (carried_out.get("jobs") or {}).get("template") != jobs:
            job = weights_job(plan) or inspection_job(plan)
            found = await judge_job(self.port, plan.identity.key, job, self.templates)
        return found

    async def surroundings(
        self, key: ObjectKey, spec: AtomDeploymentSpec, observed: Observed, engines: EngineView
    ) -> Surroundings:
        return Surroundings(
            images=self.settings.engine_images,
            nodes=(await self.fleet.nodes(Age.KNOWN) or ()) if wants_nodes(spec) else (),
            devices=await self.fleet.devices(Age.KNOWN) if spec.accelerator.claim else None,
            served=frozenset(OPTIONAL_KINDS) - observed.unserved,
            site=self.settings.site,
            image_volumes=not spec.model.source.startswith("oci://")
            or await takes_image_volumes(self.port, key, self.templates),
            known=ModelKnown(
                config_text=await self._config_text(key, spec),
                inspected=observed.records.inspected,
                measured=engines.measured.capacity if engines.measured else None,
                learned=observed.records.learned,
            ),
        )

    async def found_out(self, look: Look, plan: Plan, model: Step) -> ModelKnown:
        """Return the knowledge of the model with that which only some plans lack."""
        known_before = look.around.known
        if model.config is not None:
            inspected = InspectedConfig(model_key(look.spec), model.config)
            return replace(known_before, inspected=inspected)
        known = evidence_for(plan.model.evidence.key, plan.model.evidence.learned)
        if plan.model.facts is None or known is not None or look.engines.measured is not None:
            return known_before
        others = await evidence_of_others(self.port, plan.identity.key, plan.model.evidence.key)
        if others is None:
            return known_before
        return replace(known_before, learned=(others, *plan.model.evidence.learned))

    async def _config_text(self, key: ObjectKey, spec: AtomDeploymentSpec) -> str | None:
        """Return the text at spec.model.configRef; None if there is no such ConfigMap or key."""
        reference = spec.model.config_ref
        if reference is None:
            return None
        found = await self.port.get(CONFIG_MAP, key.namespace, reference.name)
        text = ((found or {}).get("data") or {}).get(reference.key)
        return None if text is None else str(text)

    async def admitted(
        self, asked: RevisionInForce, observed: Observed
    ) -> tuple[RevisionInForce, RolloutWait | None]:
        """Return the revision with the limits that a ResourceQuota asks for, and why its pods would
        be refused nevertheless; None if they would not be."""
        if not is_due(observed, asked.pods):
            return asked, None
        refused = await self._refusal(asked.plan, observed, asked.pods)
        more = limited(asked, limits_asked(refused.words if refused is not None else None))
        if more.pods.name == asked.pods.name:
            return asked, refused
        return more, await self._refusal(more.plan, observed, more.pods)

    async def facts(
        self,
        asked: RevisionInForce,
        fresh: PodRevision,
        look: Look,
        refused: RolloutWait | None,
    ) -> Facts:
        """Read the inputs of the choice of a revision."""
        plan, observed = asked.plan, look.observed
        spec = fresh.template["spec"]
        names = [name for name in revisions_there(observed) if name != asked.pods.name]
        return Facts(
            shared=await asked_by_others(
                self.port, self.claims, self.fleet, plan.identity.key, spec
            ),
            weights=await fetch_weights(self.port, self.engines, plan, observed.at),
            pull_secrets=await self.pull_secrets(plan, look),
            measured=look.engines.of(asked.pods.name).measured,
            others=await self.revisions(look.owner, names, plan.spec.asked, observed, look.engines),
            refused=refused,
        )

    async def pull_secrets(self, plan: Plan, look: Look) -> tuple[str, ...]:
        """Return the pull secrets of the ServiceAccount that we make for this plan."""
        site, is_seen = self.settings.site, look.rollout.is_seen
        return await account_secrets(
            self.port, plan.identity, look.observed, site, spec_seen=is_seen
        )

    async def revisions(
        self,
        owner: Owner,
        names: Iterable[str],
        newest: Mapping[str, Any],
        observed: Observed,
        engines: EngineView,
    ) -> dict[str, RevisionInForce]:
        """Return the revisions of these names whose spec is written down, each with the plan of
        that."""
        found = {}
        for name in names:
            made = made_from(observed, name, newest)
            if made is None:
                continue
            around = await self.surroundings(owner.key, made.spec, observed, engines.of(name))
            image, around = made.image(around), made.surroundings(around)
            if image is None:
                continue
            plan = self.plans.plan_in_force(owner, made.spec, image, around)
            revision = None if plan is None else revision_of(name, plan, observed)
            if revision is not None:
                secrets = known_pull_secrets(observed, owner.key)
                found[name] = replace(revision, plan=with_pull_secrets(revision.plan, secrets))
        return found

    async def _refusal(
        self, plan: Plan, observed: Observed, wanted: PodRevision
    ) -> RolloutWait | None:
        """Return why groups wait. While new ones are refused no strategy keeps old groups, nor old
        pods of another kind that hold resources that the new ones need."""
        if wanted.nodes == 1 and not (observed.deployment and observed.deployment.in_groups):
            return None
        refused = await refusal_of_rollout(self.port, plan, observed, wanted)
        if refused is None:
            return None
        return RolloutWait(f"its pods would be refused: {refused}", is_refused=True)


def with_facts(asked: RevisionInForce, facts: Facts, observed: Observed) -> RevisionInForce:
    """Return the requested revision with its facts."""
    before = with_pull_secrets(asked.plan, facts.pull_secrets)
    evidence = before.model.evidence
    learned = learn(before.capacity, evidence, facts.measured, observed.records.learned)
    plan = replace(
        before,
        spec=replace(before.spec, warnings=(*before.spec.warnings, *facts.shared)),
        model=replace(before.model, evidence=replace(evidence, learned=learned)),
        capacity=without_own_evidence(before.capacity, asked.pods),
    )
    return replace(asked, plan=plan)


def with_pull_secrets(plan: Plan, names: tuple[str, ...]) -> Plan:
    """Return the plan whose own ServiceAccount has these pull secrets."""
    return replace(plan, identity=replace(plan.identity, pull_secrets=names))
