"""Compose the Plan of one AtomDeployment from accepted parts; pure.

The plan is all that rendering sees: equal plans give equal children.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.api.v1alpha1.object_metadata import ObjectMetadataSpec, ObjectsSpec
from atom_operator.domain import (
    Accelerator,
    EngineOptions,
    Evidence,
    EvidencePlan,
    FactsLookup,
    Identity,
    JobOptions,
    ModelLocation,
    ModelPlan,
    Owner,
    Plan,
    PodsPlan,
    Rollout,
    RolloutPlan,
    RolloutStrategy,
    ScalePlan,
    SpecPlan,
)
from atom_operator.integration_values import ObjectMetadata, Site, Words
from atom_operator.plan.accelerators import choose_accelerator
from atom_operator.plan.capacity import host_memory_bytes, judge_capacity
from atom_operator.plan.disk import disk_bytes
from atom_operator.plan.learning import evidence_for, learning_key
from atom_operator.plan.startup import (
    deadline_warnings,
    progress_deadline_seconds,
    startup_budget_seconds,
)


@dataclass(frozen=True, slots=True)
class Findings:
    """Hold the knowledge about model and cluster, and earlier evidence. memory_on_nodes: the memory
    sizes of the requested devices in the cluster; learned: the engines' measurements."""

    lookup: FactsLookup
    memory_on_nodes: tuple[int, ...]
    site: Site
    learned: tuple[Evidence, ...]


def build_plan(
    owner: Owner,
    spec: AtomDeploymentSpec,
    options: EngineOptions,
    model: ModelLocation,
    findings: Findings,
) -> Plan:
    """Decide everything about the children of `owner`, as for a first rollout.

    The strategy of a later rollout needs the finished pod template: plan/rollouts chooses it.
    """
    lookup, learned = findings.lookup, findings.learned
    accelerator = choose_accelerator(spec.accelerator, findings.memory_on_nodes)
    if options.model.max_model_len is None and lookup.facts is not None and lookup.pinned:
        # The engine would choose the same; saying it keeps plan and engine from drifting apart.
        longest = lookup.facts.max_position_embeddings
        options = replace(options, model=replace(options.model, max_model_len=longest))
    key = learning_key(model, options, accelerator)
    evidence = evidence_for(key, learned)
    times = evidence.startup if evidence else None
    budget = startup_budget_seconds(
        lookup.facts, model.kind, accelerator, times, options.speculative.facts
    )
    drain_seconds = options.serving.drain_seconds
    needed = progress_deadline_seconds(budget, drain_seconds)
    asked_deadline = spec.rollout.progress_deadline_seconds
    return Plan(
        identity=Identity(*owner, spec.service_account_name, objects=_objects(spec.objects)),
        spec=SpecPlan(warnings=deadline_warnings(asked_deadline, budget, drain_seconds)),
        model=ModelPlan(model, lookup.facts, evidence=EvidencePlan(key, learned)),
        engine=options,
        accelerator=accelerator,
        pods=_pods(spec, options, accelerator, model, findings),
        capacity=judge_capacity(lookup, options, accelerator, findings.site, evidence),
        scale=ScalePlan(spec.replicas),
        rollout=RolloutPlan(
            _first_rollout(accelerator),
            startup_budget_seconds=budget,
            progress_deadline_seconds=asked_deadline or needed,
        ),
    )


def _pods(
    spec: AtomDeploymentSpec,
    options: EngineOptions,
    accelerator: Accelerator,
    model: ModelLocation,
    findings: Findings,
) -> PodsPlan:
    stated, facts = spec.cache.ephemeral_storage, findings.lookup.facts
    stated_bytes = quantity_bytes(stated) if stated else None
    return PodsPlan(
        template=spec.template,
        template_removed=tuple(spec.template_remove or ()),
        user_id=findings.site.user_id,
        disk_bytes=disk_bytes(
            stated_bytes, model, facts, accelerator.type, options.serving.disk_tier
        ),
        disk_is_stated=stated is not None,
        host_bytes=host_memory_bytes(findings.lookup, options, accelerator),
        jobs=JobOptions(spec.jobs.template, spec.jobs.active_deadline_seconds),
    )


def _first_rollout(accelerator: Accelerator) -> Rollout:
    surges = accelerator.type == "cpu"
    strategy = RolloutStrategy.SURGE if surges else RolloutStrategy.IN_PLACE
    return Rollout(strategy, "there are no pods to replace yet")


def _objects(asked: ObjectsSpec | None) -> ObjectMetadata:
    if asked is None:
        return ObjectMetadata()
    kinds = {
        "Service": asked.service,
        "ServiceAccount": asked.service_account,
        "Job": asked.job,
        "PodDisruptionBudget": asked.pod_disruption_budget,
    }
    own = {kind: _words(words) for kind, words in kinds.items() if words is not None}
    return ObjectMetadata(_words(asked), own)


def _words(asked: ObjectMetadataSpec) -> Words:
    return Words(dict(asked.labels or {}), dict(asked.annotations or {}))
