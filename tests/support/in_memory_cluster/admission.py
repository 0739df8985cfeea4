"""What stands between a request and the store: sidecars that a webhook injects, policies that
refuse, LimitRange and ResourceQuota, in the order and the words of the API server.

Quotas count what is there each time anew, as kube-controller-manager does; a pod that ended counts
no more. Called by whoever creates pods or Jobs, and by the FakeCluster for what the operator makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.cluster.errors import RefusedError
from atom_operator.domain import POD, Manifest
from atom_operator.kinds import RESOURCE_CLAIM, Kind
from tests.support.in_memory_cluster.kinds import LIMIT_RANGE, RESOURCE_QUOTA
from tests.support.in_memory_cluster.quantities import (
    Amounts,
    limits_of,
    of_container,
    requests_of,
    text,
    thousandths,
)
from tests.support.in_memory_cluster.queue import gate
from tests.support.in_memory_cluster.state import ClusterState, is_terminal
from tests.support.operator.merged_fields import copied

_SIDES = ("requests", "limits")
_COMPUTE = ("cpu", "memory", "ephemeral-storage")
_STATED = ("cpu", "memory")  # by every container, where a quota counts them; of others by none


def create_pod(state: ClusterState, pod: Manifest, owner: Manifest | None = None) -> Manifest:
    """Create a pod as admission leaves it; raises RefusedError in the API server's words."""
    made = admitted(state, pod)
    made["status"] = {"phase": "Pending"}
    return state.create(POD, made, owner)


def admitted(state: ClusterState, pod: Manifest) -> Manifest:
    """The pod with what webhooks and LimitRanges put into it, where nobody refuses it."""
    made = copied(pod)
    for sidecar in state.sidecars:
        if all(item["name"] != sidecar["name"] for item in made["spec"]["containers"]):
            made["spec"]["containers"].append(copied(sidecar))
    _apply_limit_ranges(state, made)
    gate(state, made)
    check(state, POD, made)
    return made


def check(state: ClusterState, kind: Kind, item: Manifest) -> None:
    """Raise RefusedError where a policy or a quota stands against a new object."""
    if kind.kind in state.silent_policy:  # failurePolicy: Fail
        name, words = "a-policy.example.org", 'no endpoints available for service "policy"'
        raise RefusedError(
            f'Internal error occurred: failed calling webhook "{name}": {words}', 500
        )
    for policy in state.policies:
        words = policy(kind, item)
        if words is not None:
            name = "a-policy.example.org"
            raise RefusedError(f'admission webhook "{name}" denied the request: {words}', 403)
    for quota in _of_namespace(state, RESOURCE_QUOTA, item):
        _check_quota(state, quota, kind, item)


def update_quotas(state: ClusterState) -> None:
    """Write what each quota counts into its status, as its controller does."""
    for quota in state.all(RESOURCE_QUOTA):
        hard = quota["spec"]["hard"]
        used = _used(state, quota)
        shown = {name: text(used[name]) for name in hard}
        state.set_status(quota, {"hard": dict(hard), "used": shown})


def _of_namespace(state: ClusterState, kind: Kind, item: Manifest) -> list[Manifest]:
    namespace = item["metadata"].get("namespace", "default")
    return [found for found in state.all(kind) if found["metadata"]["namespace"] == namespace]


def _check_quota(state: ClusterState, quota: Manifest, kind: Kind, item: Manifest) -> None:
    hard = {name: thousandths(str(value)) for name, value in quota["spec"]["hard"].items()}
    resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    label = f'{resource} "{item["metadata"]["name"]}" is forbidden'
    name = quota["metadata"]["name"]
    if kind == POD and (unsaid := _unsaid(item, hard)):
        raise RefusedError(f"{label}: failed quota: {name}: must specify {unsaid}", 403)
    asked = {key: amount for key, amount in _charges(kind, item).items() if key in hard}
    used = _used(state, quota)
    over = sorted(key for key, amount in asked.items() if used[key] + amount > hard[key])
    if over:
        parts = [
            f"{title}: {','.join(f'{key}={text(values[key])}' for key in over)}"
            for title, values in (("requested", asked), ("used", used), ("limited", hard))
        ]
        raise RefusedError(f"{label}: exceeded quota: {name}, {', '.join(parts)}", 403)


def _unsaid(pod: Manifest, hard: Mapping[str, int]) -> str:
    """Which limits or requests a container does not name though the quota counts them."""
    lacking: dict[str, list[str]] = {}
    for container in _containers(pod):
        for side in _SIDES:
            given = of_container(container, side)
            for resource in _STATED:
                names = {f"{side}.{resource}"} | ({resource} if side == "requests" else set())
                if names & hard.keys() and resource not in given:
                    name = sorted(names & hard.keys())[0]
                    lacking.setdefault(name, []).append(container["name"])
    return "; ".join(f"{name} for: {','.join(sorted(of))}" for name, of in sorted(lacking.items()))


def _used(state: ClusterState, quota: Manifest) -> Amounts:
    used, namespace = Counter[str](), quota["metadata"]["namespace"]
    for (kind, item_namespace, _), item in state.api.objects.items():
        if item_namespace == namespace:
            used.update(_charges(kind, item) if _is_charged(state, kind, item) else {})
    return used


def _is_charged(state: ClusterState, kind: Kind, item: Manifest) -> bool:
    """A pod that ended is not, nor one that is still there long after it should be gone: once its
    grace has passed a second time, as the quota's controller has it."""
    if kind != POD:
        return True
    ends = item["metadata"].get("deletionTimestamp")
    grace = item["metadata"].get("deletionGracePeriodSeconds", 0)
    return not is_terminal(item) and (ends is None or state.seconds_since(ends) <= grace)


def _charges(kind: Kind, item: Manifest) -> dict[str, int]:
    suffix = f".{kind.group}" if kind.group else ""
    charges = {f"count/{kind.plural}{suffix}": 1000}
    if kind == RESOURCE_CLAIM:
        for request in item["spec"]["devices"]["requests"]:
            name = f"{request['exactly']['deviceClassName']}.deviceclass.resource.k8s.io/devices"
            charges[name] = charges.get(name, 0) + 1000 * request["exactly"]["count"]
        return charges
    if kind != POD:
        return {**charges, kind.plural: 1000}
    requests, limits = requests_of(item["spec"]), limits_of(item["spec"])
    charges |= {f"requests.{name}": amount for name, amount in requests.items()}
    charges |= {name: amount for name, amount in requests.items() if name in _COMPUTE}
    charges |= {f"limits.{name}": amount for name, amount in limits.items()}
    return {**charges, "pods": 1000}


def _apply_limit_ranges(state: ClusterState, pod: Manifest) -> None:
    for limit_range in _of_namespace(state, LIMIT_RANGE, pod):
        for rule in limit_range["spec"]["limits"]:
            if rule.get("type") != "Container":
                continue
            for container in _containers(pod):
                _default(container, rule)
                for words in _violations(container, rule):
                    name = pod["metadata"]["name"]
                    raise RefusedError(f'pods "{name}" is forbidden: {words}', 403)


def _containers(pod: Manifest) -> list[Manifest]:
    return [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]


def _default(container: Manifest, rule: Mapping[str, Any]) -> None:
    resources = container.setdefault("resources", {})
    limits = resources.setdefault("limits", {})
    requests = resources.setdefault("requests", {})
    for name, value in limits.items():
        requests.setdefault(name, value)
    for name, value in (rule.get("default") or {}).items():
        limits.setdefault(name, value)
    for name, value in (rule.get("defaultRequest") or rule.get("default") or {}).items():
        requests.setdefault(name, value)


def _violations(container: Manifest, rule: Mapping[str, Any]) -> Iterator[str]:
    limits, requests = of_container(container, "limits"), of_container(container, "requests")
    for name, value in (rule.get("max") or {}).items():
        if name not in limits:
            yield f"maximum {name} usage per Container is {value}.  No limit is specified"
        elif limits[name] > thousandths(str(value)):
            given = text(limits[name])
            yield f"maximum {name} usage per Container is {value}, but limit is {given}"
    for name, value in (rule.get("min") or {}).items():
        if requests[name] < thousandths(str(value)):
            given = text(requests[name])
            yield f"minimum {name} usage per Container is {value}, but request is {given}"
