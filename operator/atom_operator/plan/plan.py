"""Compose the Plan of one AtomDeployment from accepted parts; pure.

The plan is all that rendering sees: equal plans give equal children.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.api.v1alpha1.object_metadata import ObjectMetadataSpec, ObjectsSpec
from atom_operator.domain import (
    EngineOptions,
    Evidence,
    FactsLookup,
    JobOptions,
    ModelLocation,
    Owner,
    Plan,
    Rollout,
    RolloutStrategy,
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
    """Hold what is known of the model, of the cluster and from before. memory_on_nodes: the memory
    sizes of the asked devices in the cluster; learned: what engines have measured."""

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

    The strategy of a later rollout needs the finished pod template: plan/rollout.py chooses it.
    """
    lookup, learned = findings.lookup, findings.learned
    accelerator = choose_accelerator(spec.accelerator, findings.memory_on_nodes)
    if options.max_model_len is None and lookup.facts is not None and lookup.pinned:
        # The engine would choose the same; saying it keeps plan and engine from drifting apart.
        options = replace(options, max_model_len=lookup.facts.max_position_embeddings)
    key = learning_key(model, options, accelerator)
    evidence = evidence_for(key, learned)
    times = evidence.startup if evidence else None
    budget = startup_budget_seconds(
        lookup.facts, model.kind, accelerator, times, options.draft_facts
    )
    needed = progress_deadline_seconds(budget, options.drain_seconds)
    asked_deadline = spec.rollout.progress_deadline_seconds
    return Plan(
        key=owner.key,
        uid=owner.uid,
        replicas=spec.replicas,
        model=model,
        engine=options,
        accelerator=accelerator,
        facts=lookup.facts,
        capacity=judge_capacity(lookup, options, accelerator, findings.site, evidence),
        rollout=Rollout(
            RolloutStrategy.SURGE if accelerator.type == "cpu" else RolloutStrategy.IN_PLACE,
            "there are no pods to replace yet",
        ),
        startup_budget_seconds=budget,
        progress_deadline_seconds=asked_deadline or needed,
        warnings=deadline_warnings(asked_deadline, budget, options.drain_seconds),
        template=spec.template,
        own_account=spec.service_account_name,
        user_id=findings.site.user_id,
        disk_bytes=disk_bytes(
            quantity_bytes(stated) if (stated := spec.cache.ephemeral_storage) else None,
            model,
            lookup.facts,
            accelerator.type,
        ),
        host_bytes=host_memory_bytes(lookup, options, accelerator),
        disk_is_stated=spec.cache.ephemeral_storage is not None,
        objects=_objects(spec.objects),
        jobs=JobOptions(spec.jobs.template, spec.jobs.active_deadline_seconds),
        template_removed=tuple(spec.template_remove or ()),
        learning_key=key,
        learned=learned,
    )


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
