"""Autoscaling numbers: load per replica from the planned capacity, replicas that the nodes hold.

Pure. A replica is full when its KV cache is: the number of requests that it holds follows from the
plan and a typical request's length, so it need not be found out by overload.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atom_operator.api.v1alpha1.integration_fields import AutoscalingSpec
from atom_operator.domain import Capacity, EngineOptions, NodeSupply, Observed, Plan, Supply
from atom_operator.domain.options import KvTransfer
from atom_operator.integration_values import ReplicaLimit, ScalingTargets, Slo
from atom_operator.kinds import AUTOSCALER, SCALED_OBJECT
from atom_operator.plan.room import bounded_by, needed_text, places_with_ours

_TYPICAL_CONTEXT_TOKENS = 4096
# A new replica takes minutes to load: it is asked for before the running ones are full.
_TARGET_PERCENT = 80
_NAMED_NODES = 8


def targets_of_role(slo: Slo | None, transfer: KvTransfer | None) -> Slo | None:
    """Return the targets that pods of a role decide: prefill pods the time to a first token, decode
    pods the time between two tokens. None if no target is left; all of undivided pods."""
    if slo is None or transfer is None:
        return slo
    if transfer.computes_prompts:
        own = replace(slo, itl_seconds=None)
    else:
        own = replace(slo, ttft_seconds=None)
    return own if own.ttft_seconds is not None or own.itl_seconds is not None else None


def scaling_targets(
    asked: AutoscalingSpec,
    options: EngineOptions,
    capacity: Capacity | None,
    slo: Slo | None = None,
) -> ScalingTargets:
    """Return the scaling targets; requested values win. Without capacity (no plan, no measurement)
    only shares are known. slo: latencies that take the place of the numbers of requests, of the
    pods' role (`targets_of_role`)."""
    transfer = options.serving.transfer
    if transfer is not None and transfer.computes_prompts:
        return _prefill_targets(asked, options, slo)
    usage = asked.target_kv_usage_percent or _TARGET_PERCENT
    if slo is not None:
        return ScalingTargets(
            concurrency=asked.target_concurrency,
            kv_usage_percent=usage,
            waiting=asked.target_waiting_requests,
            slo=slo,
        )
    concurrency = asked.target_concurrency
    if concurrency is None and capacity is not None:
        held = sequences_held(asked, options, capacity)
        concurrency = max(1, held * _TARGET_PERCENT // 100)
    waiting = max(1, (concurrency or 10) // 10)
    return ScalingTargets(
        concurrency=concurrency,
        kv_usage_percent=usage,
        waiting=asked.target_waiting_requests or waiting,
    )


def _prefill_targets(
    asked: AutoscalingSpec, options: EngineOptions, slo: Slo | None
) -> ScalingTargets:
    """Return the targets of pods that compute prompts for others: the time to a first token, or the
    prompts that wait."""
    waiting = asked.target_waiting_requests
    if waiting is None and slo is None:
        waiting = _prompts(asked, options)
    return ScalingTargets(None, None, waiting, slo)


def _prompts(asked: AutoscalingSpec, options: EngineOptions) -> int:
    """Return how many typical prompts one step computes: with more waiting, a prompt waits for a
    step that it is no part of."""
    tokens = asked.typical_context_tokens or _TYPICAL_CONTEXT_TOKENS
    return max(1, options.scheduler.max_num_batched_tokens // tokens)


def sequences_held(asked: AutoscalingSpec, options: EngineOptions, capacity: Capacity) -> int:
    """Return the number of requests of the typical length that one replica holds at the same
    time."""
    context = min(asked.typical_context_tokens or _TYPICAL_CONTEXT_TOKENS, capacity.max_model_len)
    blocks = -(-context // options.cache.block_size)
    copies = options.data_parallel  # a sequence is on one of them
    held = capacity.kv_tokens // options.cache.block_size // copies // blocks
    each = min(options.scheduler.max_num_seqs, held)
    return each * copies


def replica_limit(supply: Supply, running: int) -> ReplicaLimit:
    """Return the replicas that the nodes hold together, and never fewer than have a place already:
    an autoscaler that is given less stops replicas that serve.

    `running`: replicas that have their nodes now, where pods may have moved since the supply was
    read. A node that takes no new pod keeps the ones it has. Of a group every pod needs its own
    place.
    """
    counted = [(node, places_with_ours(node, supply)) for node in supply.nodes]
    held = [(node.name, _holds(node, supply, counts)) for node, counts in counted]
    total = max(running, sum(count for _, count in held) // supply.pods_per_replica)
    places = [f"{name} {count}" for name, count in held if count]
    rest = len(places) - _NAMED_NODES
    more = f" and {rest} more nodes" if rest > 0 else ""
    where = f": {', '.join(places[:_NAMED_NODES])}{more}" if places else ""
    open_nodes = [counts for node, counts in counted if not node.blockers]
    bounds = {bounded_by(counts, supply) for counts in open_nodes}
    scarce = [name for name in supply.demand if name in bounds and name != supply.resource]
    also = f" and {needed_text(supply, scarce)}" if scarce else ""
    what = f"{supply.devices} {supply.resource}{also} per pod"
    words = f"the nodes hold {total} replicas ({what}){where}"
    return ReplicaLimit(total, words, supply.node_autoscaler)


def leave_to_autoscaler(
    plan: Plan, supply: Supply | None, observed: Observed, *, kept_replicas: int = 0
) -> Plan:
    """Add the nodes' limit to the plan's autoscaler, and the fewest replicas that a rollout keeps.
    Once the workload exists, the number of replicas is no longer ours. Unchanged if no autoscaler
    is requested."""
    scaling, running = plan.integrations.autoscaling, observed.deployment
    if scaling is None:
        return plan
    if supply is not None:
        placed = sum(pod.placement.scheduled for pod in observed.pods) // supply.pods_per_replica
        # A spare pod of a rollout is no replica more.
        kept = min(placed, running.desired) if running is not None else 0
        scaling = replace(scaling, limit=replica_limit(supply, kept))
    if kept_replicas:
        scaling = replace(scaling, kept_replicas=kept_replicas)
    stands = running is not None and running.desired == 0 and not running.others.autoscaled
    # KEDA wakes a workload that may have no replicas; none wakes a suspended one.
    begins = stands and scaling.min_replicas > 0 and not plan.scale.suspended
    first = max(plan.scale.replicas, scaling.min_replicas) if begins else plan.scale.replicas
    replicas = min(first, scaling.ceiling)
    scale = replace(
        plan.scale,
        replicas=replicas,
        # An autoscaler leaves a workload of no replicas alone: it gets one that has its fewest.
        owns_replicas=running is None or plan.scale.suspended or (begins and replicas > 0),
        autoscaler_stands=any(
            child.kind in (AUTOSCALER, SCALED_OBJECT) for child in observed.children
        ),
    )
    integrations = replace(plan.integrations, autoscaling=scaling)
    return replace(plan, integrations=integrations, scale=scale)


def _holds(node: NodeSupply, supply: Supply, counts: Mapping[str, int]) -> int:
    """Count the places for our pods on a node: those that they have, and free ones."""
    if node.blockers or not supply.devices:
        return node.placed
    # What our own pods hold is there for them and their successors.
    return min(counts.values(), default=1)
