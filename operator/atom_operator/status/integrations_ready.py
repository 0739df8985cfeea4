"""CapacityLimited and IntegrationsReady: what other systems can and cannot do for us. Pure.

Neither decides whether the model serves: they say what an autoscaler, a gateway or a monitor that
was asked for lacks, and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import ApplyReport, ChildKey, Manifest, Plan
from atom_operator.integration_values import Integrations
from atom_operator.kinds import AUTOSCALER, PROVIDERS, SCALED_OBJECT, SIDE_KINDS
from atom_operator.status.conditions import Verdict

_FAILING = "Failing"  # of a trigger, in a ScaledObject's status.health
# What the controller of an autoscaler says when it cannot work.
_WORKS = {AUTOSCALER: ("AbleToScale", "ScalingActive"), SCALED_OBJECT: ("Ready",)}


def capacity_limited(plan: Plan | None) -> Verdict:
    """True when the nodes hold fewer replicas than the autoscaler may ask for."""
    kind = ConditionType.CAPACITY_LIMITED
    scaling = plan.integrations.autoscaling if plan else None
    if scaling is None:
        return Verdict(kind, "False", Reason.NOT_AUTOSCALED, "spec.autoscaling is not set")
    if plan is not None and plan.accelerator.resource_name is None:
        message = f"at most {scaling.max_replicas} replicas, and none of them takes an accelerator"
        return Verdict(kind, "False", Reason.NO_ACCELERATORS, message)
    if scaling.limit is None:
        message = f"at most {scaling.max_replicas} replicas; what the nodes hold is not known"
        return Verdict(kind, "Unknown", Reason.ACCELERATORS_UNKNOWN, message)
    if scaling.limit.replicas >= scaling.max_replicas:
        # No numbers of nodes: every pod anywhere would change them, in each status.
        message = f"the nodes hold maxReplicas, {scaling.max_replicas}"
        return Verdict(kind, "False", Reason.ENOUGH_ACCELERATORS, message)
    missing = scaling.max_replicas - scaling.limit.replicas
    message = (
        f"maxReplicas is {scaling.max_replicas}; {scaling.limit.message}; "
        f"{missing} more would only wait, so at most {scaling.ceiling} are asked"
    )
    return Verdict(kind, "True", Reason.TOO_FEW_ACCELERATORS, message)


def integrations_ready(
    plan: Plan | None, report: ApplyReport, children: Mapping[ChildKey, Manifest]
) -> Verdict:
    """False with the first thing that is missing, refused or not working."""
    kind = ConditionType.INTEGRATIONS_READY
    if plan is None:
        return Verdict(kind, "Unknown", Reason.NOT_PLANNED, "the spec is not accepted")
    found = [*_missing(plan.integrations), *_refused(report), *_broken(children)]
    if found:
        reason = found[0][0]
        return Verdict(kind, "False", reason, "; ".join(message for _, message in found))
    for child, item in _judgements(children):
        if item.get("status") == "Unknown":
            message = f"{child.kind.kind} {child.name} has not said yet whether it works"
            return Verdict(kind, "Unknown", Reason.AUTOSCALER_NOT_READY, message)
    rendered = sorted(child.kind.kind for child in children if child.kind in SIDE_KINDS)
    if not rendered:
        return Verdict(kind, "True", Reason.NONE_ASKED_FOR, "no other system is involved")
    return Verdict(kind, "True", Reason.ALL_RENDERED, f"rendered: {', '.join(rendered)}")


def _missing(asked: Integrations) -> Iterator[tuple[Reason, str]]:
    for item in asked.missing:
        yield (
            Reason.API_NOT_SERVED,
            f"{item.field}: this cluster does not serve {item.kind.kind} "
            f"({item.kind.api_version}); install {PROVIDERS.get(item.kind, 'its CRD')}, or remove "
            "the field",
        )


def _refused(report: ApplyReport) -> Iterator[tuple[Reason, str]]:
    for refusal in report.refused_optional:
        child = f"{refusal.child.kind.kind} {refusal.child.name}"
        yield refusal.reason, f"{child}: {refusal.message}"


def _broken(children: Mapping[ChildKey, Manifest]) -> Iterator[tuple[Reason, str]]:
    for child, manifest in children.items():
        if child.kind == SCALED_OBJECT:
            yield from _failing_triggers(child, manifest)
    for child, item in _judgements(children):
        if item.get("status") == "False":
            words = f"{item.get('reason')}: {item.get('message')}"
            yield (
                Reason.AUTOSCALER_NOT_READY,
                f"{child.kind.kind} {child.name} says {item['type']}=False, {words}",
            )


def _judgements(
    children: Mapping[ChildKey, Manifest],
) -> Iterator[tuple[ChildKey, Mapping[str, Any]]]:
    """What the controllers of autoscalers say about whether they can work."""
    for child, manifest in children.items():
        wanted = _WORKS.get(child.kind, ())
        for item in (manifest.get("status") or {}).get("conditions") or ():
            if item.get("type") in wanted:
                yield child, item


def _failing_triggers(child: ChildKey, manifest: Manifest) -> Iterator[tuple[Reason, str]]:
    """KEDA counts a query that fails in status.health and goes on calling itself Ready."""
    health: Mapping[str, Any] = (manifest.get("status") or {}).get("health") or {}
    failing = [
        _trigger_name(manifest, name)
        for name, one in sorted(health.items())
        if one.get("status") == _FAILING
    ]
    if failing:
        yield (
            Reason.AUTOSCALER_NOT_READY,
            f"{child.kind.kind} {child.name}: KEDA gets no value for {', '.join(failing)}; see "
            "`kubectl describe` of it, and whether Prometheus answers",
        )


def _trigger_name(manifest: Manifest, metric: str) -> str:
    """Find the trigger behind KEDA's name of a metric: `s0-prometheus` is of the first."""
    triggers = manifest["spec"].get("triggers") or ()
    number = metric.partition("-")[0].removeprefix("s")
    if number.isdigit() and int(number) < len(triggers):
        return str(triggers[int(number)].get("name") or metric)
    return metric
