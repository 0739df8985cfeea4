"""CapacityLimited and IntegrationsReady: what other systems can and cannot do for us. Pure.

They report why a requested autoscaler, gateway or monitor does not work, in the words of its
controller, and the remedy. If callers use a route that does not work, Ready reports it too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from atom_operator.constants import ConditionType, Reason
from atom_operator.domain import DEPLOYMENT, ApplyReport, ChildKey, Manifest, Plan, RouteFindings
from atom_operator.integration_values import Autoscaling, HttpRoute, Integrations
from atom_operator.kinds import (
    AUTOSCALER,
    PROVIDERS,
    ROLE,
    ROLE_BINDING,
    SCALED_OBJECT,
    SIDE_KINDS,
)
from atom_operator.status.conditions import Verdict
from atom_operator.status.verdicts_of_others import ForeignVerdict, verdicts_of_others

_PICKER_RIGHTS = "; spec.gateway.prefixAware takes endpointPicker.rights of the operator's chart"
_FAILING = "Failing"  # of a trigger, in a ScaledObject's status.health


def capacity_limited(plan: Plan | None) -> Verdict | None:
    """Judge: True if the nodes hold fewer replicas than the autoscaler may request; None without an
    autoscaler."""
    kind = ConditionType.CAPACITY_LIMITED
    scaling = plan.integrations.autoscaling if plan else None
    if scaling is None:
        return None
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
    told = f"maxReplicas is {scaling.max_replicas}; {scaling.limit.message}"
    over = scaling.ceiling - scaling.limit.replicas
    if over > 0 and scaling.ceiling > scaling.min_replicas:
        message = f"{told}; {_bringing_nodes(scaling, over)}"
    elif over:
        why = f"minReplicas is {scaling.min_replicas}, so {scaling.ceiling} are the most"
        message = f"{told}; {why} all the same, and {over} of them would wait"
    else:
        missing = scaling.max_replicas - scaling.limit.replicas
        so = f"so at most {scaling.ceiling} are asked"
        message = f"{told}; {missing} more would only wait, {so}"
    return Verdict(kind, "True", Reason.TOO_FEW_ACCELERATORS, message)


def _bringing_nodes(scaling: Autoscaling, over: int) -> str:
    """Describe how many requested replicas have no place yet, and why."""
    if scaling.pending_replicas is not None:
        why = f"spec.autoscaling.pendingReplicas is {scaling.pending_replicas}"
    else:
        found = scaling.limit.node_autoscaler if scaling.limit is not None else None
        why = f"nodes show {found}, which adds nodes for Pending pods"
    return f"{why}, so {scaling.ceiling} are asked for at most, and {over} of them would be Pending"


def integrations_ready(
    plan: Plan | None,
    report: ApplyReport,
    children: Mapping[ChildKey, Manifest],
    around: RouteFindings,
) -> Verdict | None:
    """Judge: False with the first object that is missing, refused or not working; None if no other
    system is involved."""
    kind = ConditionType.INTEGRATIONS_READY
    rendered = sorted(child.kind.kind for child in children if child.kind in SIDE_KINDS)
    if plan is None and not rendered:
        return None
    if plan is None:
        return Verdict(kind, "Unknown", Reason.NOT_PLANNED, "the spec is not accepted")
    said = tuple(verdicts_of_others(children))
    if plan.scale.suspended:  # an autoscaler that scales nothing is as it should be
        said = tuple(item for item in said if item.child.kind not in (AUTOSCALER, SCALED_OBJECT))
        children = {key: item for key, item in children.items() if key.kind != SCALED_OBJECT}
    found = [
        *_missing(plan.integrations),
        *_refused(report),
        *_unreachable(said, around),
        *_broken(said, children),
        *((Reason.ROUTES_COLLIDE, str(item)) for item in around.collisions),
    ]
    if found:
        reason = found[0][0]
        return Verdict(kind, "False", reason, "; ".join(message for _, message in found))
    for item in said:
        if item.status == "Unknown":
            message = f"{item.child.kind.kind} {item.child.name} has not said yet whether it works"
            return Verdict(kind, "Unknown", item.reason, message)
    if around.unanswered_gateways:
        names = ", ".join(around.unanswered_gateways)
        message = f"HTTPRoute: no controller has taken it up for Gateway {names} yet"
        return Verdict(kind, "Unknown", Reason.ROUTE_NOT_READY, message)
    if plan.integrations.frontend is not None:  # whose kind is that of engines, too
        rendered = [DEPLOYMENT.kind, *rendered]
    if not rendered:
        return None
    return Verdict(kind, "True", Reason.ALL_RENDERED, f"rendered: {', '.join(rendered)}")


def callers_meet(
    route: HttpRoute | None, children: Mapping[ChildKey, Manifest], around: RouteFindings
) -> str | None:
    """Return why callers cannot reach a serving model through its Gateway; None if they can."""
    if route is None:
        return None
    found = [*_unreachable(tuple(verdicts_of_others(children)), around)]
    lost = [item for item in around.collisions if not item.is_ours]
    words = [message for _, message in found]
    if not words and lost and route.matches == {"All"}:
        words = [str(lost[0])]
    return "; ".join(words) or None


def _unreachable(
    said: Iterable[ForeignVerdict], around: RouteFindings
) -> Iterator[tuple[Reason, str]]:
    for gateway in around.missing_gateways:
        yield Reason.ROUTE_NOT_READY, f"spec.gateway.httpRoute: Gateway {gateway} does not exist"
    for item in said:
        if item.for_callers and item.status == "False":
            yield item.reason, item.words


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
        needs = _PICKER_RIGHTS if refusal.child.kind in (ROLE, ROLE_BINDING) else ""
        yield refusal.reason, f"{child}: {refusal.message}{needs}"


def _broken(
    said: Iterable[ForeignVerdict], children: Mapping[ChildKey, Manifest]
) -> Iterator[tuple[Reason, str]]:
    for child, manifest in children.items():
        if child.kind == SCALED_OBJECT:
            yield from _failing_triggers(child, manifest)
    for item in said:
        if item.status == "False" and not item.for_callers:
            yield item.reason, item.words


def _failing_triggers(child: ChildKey, manifest: Manifest) -> Iterator[tuple[Reason, str]]:
    """Yield the failing triggers: KEDA counts them in status.health and still reports Ready."""
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
