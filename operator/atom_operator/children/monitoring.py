"""Objects for the Prometheus operator: the scrape of the pods, and the alerts about them. Pure.

Every series carries the AtomDeployment's name, copied from the pods' label, so that one Prometheus
can tell any number of them apart. docs/runbooks has a page for each alert.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.autoscaling.latency_signal import latency_ratio
from atom_operator.children.series import Selector, selector_of
from atom_operator.domain import (
    STEPS_FASTER,
    STEPS_SLOWER,
    EngineOptions,
    Identity,
    Manifest,
    ObjectKey,
    Plan,
)
from atom_operator.integration_values import Integrations, Labels, PodMonitoring
from atom_operator.kinds import POD_MONITOR, PROMETHEUS_RULE

RUNBOOKS = "docs/runbooks"
_SATURATED = 0.95
_SLOW_FIRST_TOKEN_SECONDS = 10
_LOST_TRANSFERS = 0.1  # of the prompts that a prefill pod computed
_FEW_HITS = 0.02  # of the tokens that a full tier was asked for
_UNREAD_HITS = 0.5  # of the tokens that a tier has


def pod_monitor(identity: Identity, selected: dict[str, str], wanted: PodMonitoring) -> Manifest:
    """Render the scrape of /metrics of every pod that serves HTTP, which the labels `selected`
    select."""
    metadata = naming.metadata(identity, identity.key.name)
    found = {"apiVersion": POD_MONITOR.api_version, "kind": POD_MONITOR.kind, "metadata": metadata}
    return _monitor(found, wanted, selected, [constants.LABEL_DEPLOYMENT])


def frontend_monitor(identity: Identity, wanted: PodMonitoring) -> Manifest:
    """Scrapes /metrics of the frontend's pods. Their series have no AtomDeployment's label: alerts
    and autoscalers count replicas and requests by it, of which these compute none."""
    name, component = naming.frontend_name(identity.key), constants.FRONTEND_COMPONENT
    found = naming.component_head(identity, POD_MONITOR, name, component)
    copied = [constants.LABEL_INSTANCE, constants.LABEL_COMPONENT]
    return _monitor(found, wanted, naming.frontend_labels(identity.key.name), copied)


def _monitor(
    found: Manifest, wanted: PodMonitoring, selected: dict[str, str], copied: list[str]
) -> Manifest:
    """Complete the head of a monitor of pods: which are `selected`, and which of their labels every
    series gets."""
    metadata = {**found["metadata"], "labels": {**wanted.labels, **found["metadata"]["labels"]}}
    endpoint = {
        "port": constants.ENGINE_PORT_NAME,
        "path": "/metrics",
        "interval": wanted.interval,
    }
    spec = {
        "selector": {"matchLabels": selected},
        "podTargetLabels": copied,
        "podMetricsEndpoints": [endpoint],
    }
    return {**found, "metadata": metadata, "spec": spec}


def prometheus_rule(plan: Plan, labels: Labels) -> Manifest:
    """Render the alerts of one AtomDeployment."""
    metadata = naming.metadata(plan.identity, plan.identity.key.name)
    metadata["labels"] = {**labels, **metadata["labels"]}
    group = f"{plan.identity.key.namespace}.{plan.identity.key.name}.atom"
    return {
        "apiVersion": PROMETHEUS_RULE.api_version,
        "kind": PROMETHEUS_RULE.kind,
        "metadata": metadata,
        "spec": {"groups": [{"name": group, "rules": alerts(plan)}]},
    }


def alerts(plan: Plan) -> list[dict[str, Any]]:
    """Build alerts on symptoms that a user of the model notices, and on their causes."""
    of = selector_of(plan.identity.key)
    what = f"{plan.identity.key.namespace}/{plan.identity.key.name}"
    base = plan.integrations.monitoring.runbooks
    found = [
        *_outages(plan, of, what),
        *_overload(plan.engine, plan.integrations, of, what),
        *_speed(plan.integrations, of, what),
        *_tiers(plan, of, what),
        *_transfers(plan, of, what),
    ]
    return [_alert(plan.identity.key, base, item) for item in found]


class _Alert(NamedTuple):
    """Hold the differences between the alerts of one deployment."""

    name: str
    severity: str
    duration: str
    expression: str
    summary: str


def _outages(plan: Plan, of: Selector, what: str) -> list[_Alert]:
    ready = f"sum({of('atom:ready')}) == 0"
    scaling = plan.integrations.autoscaling
    if scaling is None or scaling.min_replicas > 0:  # at zero replicas silence is as it should be
        ready = f"{ready} or absent({of('atom:ready')})"
    steps = f"sum(rate({of('atom:engine_steps_total')}[5m])) == 0"
    none = _Alert("AtomNoReplicaReady", "critical", "10m", ready, f"no replica of {what} serves")
    return [
        *(() if plan.scale.suspended else (none,)),
        _Alert(
            "AtomReplicaNotReady",
            "warning",
            _minutes(plan.rollout.startup_budget_seconds),
            f"{of('atom:ready')} == 0",
            f"a replica of {what} has not become ready within its start-up budget",
        ),
        _Alert(
            "AtomNoProgress",
            "critical",
            "5m",
            f"sum({of('atom:requests_running')}) > 0 and {steps}",
            f"requests run on {what}, and no step is made",
        ),
    ]


def _overload(
    engine: EngineOptions, integrations: Integrations, of: Selector, what: str
) -> list[_Alert]:
    scaling = integrations.autoscaling
    told = scaling.targets.waiting if scaling else None
    waiting = told or max(1, engine.scheduler.max_num_seqs // 10)
    buckets = f"sum by (le) (rate({of('atom:time_to_first_token_seconds_bucket')}[5m]))"
    return [
        _Alert(
            "AtomKvCacheSaturated",
            "warning",
            "10m",
            f"avg({of('atom:kv_cache_usage_ratio')}) > {_SATURATED:g}",
            f"the KV cache of {what} is full; requests wait or are preempted",
        ),
        _Alert(
            "AtomRequestsWaiting",
            "warning",
            "10m",
            f"avg({of('atom:requests_waiting')}) > {waiting}",
            f"more than {waiting} requests per replica of {what} wait",
        ),
        _Alert(
            "AtomPreemptions",
            "warning",
            "15m",
            f"sum(rate({of('atom:preemptions_total')}[10m])) > 0.1",
            f"{what} computes requests again that it had put back for lack of KV cache",
        ),
        _Alert(
            "AtomSlowFirstToken",
            "warning",
            "15m",
            f"histogram_quantile(0.95, {buckets}) > {_SLOW_FIRST_TOKEN_SECONDS}",
            f"first tokens of {what} take more than {_SLOW_FIRST_TOKEN_SECONDS} seconds (p95)",
        ),
    ]


def _speed(integrations: Integrations, of: Selector, what: str) -> list[_Alert]:
    ratio = of("atom:step_seconds_ratio")
    found = [
        _Alert(
            "AtomStepsOffPrediction",
            "warning",
            "10m",
            f"{ratio} > {STEPS_SLOWER:.3g} or {ratio} < {STEPS_FASTER:.3g}",
            f"steps of a replica of {what} part by a third from what the card's table predicts",
        )
    ]
    if integrations.slo is not None:
        found.append(
            _Alert(
                "AtomSloMissed",
                "warning",
                "10m",
                f"{latency_ratio(of, integrations.slo)} > 1",
                f"requests of {what} would miss its targets of latency (spec.slo)",
            )
        )
    return found


def _tiers(plan: Plan, of: Selector, what: str) -> list[_Alert]:
    """Return the alerts about the KV cache below the device, if spec.cache.kv asks for one."""
    if not plan.engine.serving.host_tier_bytes:
        return []
    errors, computed = of("atom:kv_offload_errors_total"), of("atom:kv_offload_computed_total")
    asked = of("atom:kv_offload_queries_total").removesuffix("}") + ',tier="host"}'
    found = f"sum(rate({of('atom:kv_offload_hits_total')}[30m]))"
    passed_over = f"sum(rate({computed}[30m]))"
    usage = of("atom:kv_offload_usage_ratio")
    return [
        _Alert(
            "AtomKvTierFails",
            "warning",
            "5m",
            f"sum by (tier, kind) (increase({errors}[10m])) > 0",
            f"pages of the KV cache's tiers of {what} cannot be used, and are computed again",
        ),
        _Alert(
            "AtomKvTierMisses",
            "info",
            "30m",
            f"min(max by (tier) ({usage})) > {_SATURATED:g}"
            f" and ({found} + {passed_over}) / sum(rate({asked}[30m])) < {_FEW_HITS:g}",
            f"the KV cache's tiers of {what} are full, and have hardly any prompt that returns",
        ),
        _Alert(
            "AtomKvTierTooSlow",
            "info",
            "30m",
            f"{passed_over} / {found} > {_UNREAD_HITS:g}",
            f"{what} computes most tokens that the KV cache's tiers have, as reading takes longer",
        ),
    ]


def _transfers(plan: Plan, of: Selector, what: str) -> list[_Alert]:
    """Return the alert about pages that do not reach decode pods, if the pods decode."""
    transfer = plan.engine.serving.transfer
    if transfer is None or transfer.computes_prompts:
        return []
    legs = of("atom:kv_transfer_requests_total")
    lost = legs.removesuffix("}") + ',result=~"recomputed|failed"}'
    return [
        _Alert(
            "AtomKvTransfersFail",
            "warning",
            "10m",
            f"sum(rate({lost}[5m])) / sum(rate({legs}[5m])) > {_LOST_TRANSFERS:g}",
            f"decode pods of {what} compute prompts whose KV pages did not arrive",
        )
    ]


def _alert(key: ObjectKey, base: str | None, alert: _Alert) -> dict[str, Any]:
    """Write an alert of an AtomDeployment. base: the URL of the site's runbooks."""
    annotations = {"summary": alert.summary, "runbook": f"{RUNBOOKS}/{alert.name}.md"}
    if base is not None:
        annotations["runbook_url"] = f"{base.rstrip('/')}/{alert.name}.md"
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.duration,
        "labels": {
            "severity": alert.severity,
            "namespace": key.namespace,
            "atomdeployment": key.name,
        },
        "annotations": annotations,
    }


def _minutes(seconds: int) -> str:
    return f"{-(-seconds // 60)}m"
