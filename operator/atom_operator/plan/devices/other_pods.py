"""What pods on nodes hold against a pod that needs a place: affinity, anti-affinity, spread. Pure.

A pod that serves and is evicted for a place that the scheduler does not give serves no more, so
these rules are judged before an eviction, as kube-scheduler's InterPodAffinity and
PodTopologySpread do; a rule that is not understood leaves no node open. A rollout is chosen by what
pods of others hold against its new ones: its own old pods go. Called by reconcile/device_moves.py
and where supply is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from atom_operator.domain import Manifest, Supply
from atom_operator.domain.placed_pods import PlacedPod, PlacedPods
from atom_operator.plan.eligibility import node_blockers
from atom_operator.plan.inventory import PodsAsked, makes_room
from atom_operator.plan.placement import Placement, Requirement, requirements_of

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_HOST = "kubernetes.io/hostname"
# Fields of a term by which it is about pods that its selector alone does not name.
_NOT_JUDGED = ("namespaceSelector", "matchLabelKeys", "mismatchLabelKeys")


@dataclass(frozen=True, slots=True)
class _Rules:
    """Hold a pod's rules about others, each as the manifest has it."""

    near: Sequence[Mapping[str, Any]]
    apart: Sequence[Mapping[str, Any]]
    spread: Sequence[Mapping[str, Any]]

    @property
    def not_judged(self) -> str | None:
        """Name a field that the operator does not judge; None if it knows all of them."""
        terms = [*self.near, *self.apart]
        found = [name for term in terms for name in _NOT_JUDGED if term.get(name) is not None]
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class _Others:
    """Hold the pods on nodes with the labels of their nodes."""

    pods: Sequence[PlacedPod]
    labels: Mapping[str, Mapping[str, str]]  # of each node
    # Those that keep the pod away which is asked for, with the topology keys of their rules.
    keeping_off: Sequence[tuple[PlacedPod, str]]

    def domain(self, node: str, key: str) -> str | None:
        """Return the value of a topology key on a node."""
        return self.labels.get(node, {}).get(key)


def without_forbidden(
    supply: Supply, nodes: Iterable[Manifest], pods: Sequence[PlacedPod], asked: PodsAsked
) -> Supply:
    """Add to each node the objections of other pods' rules and of the pod's own."""
    rules = _rules(asked.pod_spec)
    known = list(nodes)
    others = _others(known, pods, asked)
    eligible = _eligible(known, asked.placement)
    found = []
    for node in supply.nodes:
        words = [*_held_against(node.name, rules, others, asked)]
        uneven = _uneven(node.name, rules, others, asked, eligible)
        blockers = (*node.blockers, *words, *((uneven,) if uneven is not None else ()))
        found.append(replace(node, blockers=blockers))
    return replace(supply, nodes=tuple(found))


def with_own_rules(
    supply: Supply, nodes: Iterable[Manifest], pods: PlacedPods, asked: PodsAsked
) -> Supply:
    """The supply, with the rule by which the pods that are there, those of the AtomDeployment too,
    keep a spare pod off a node that is open otherwise, and how many old ones have to go for it."""
    known = list(nodes)
    beside = without_forbidden(supply, known, pods.pods, asked)
    own = pods.of(asked.key)
    old = {id(pod) for pod in own if makes_room(pod, asked) and not pod.ends}
    later = supply  # as it is beside others' pods
    if len(old) < len(own):
        staying = [pod for pod in pods.pods if id(pod) not in old]
        later = without_forbidden(supply, known, staying, asked)
    rules, others = _rules(asked.pod_spec), _others(known, pods.pods, asked)
    found = []
    for node, now, then in zip(supply.nodes, beside.nodes, later.nodes, strict=True):
        rule = next(iter(now.blockers[len(node.blockers) :]), None)
        holders = 0
        if rule is not None and then.blockers == node.blockers:
            # Affinity to pods of its own ends with the last of them, wherever they are.
            near = not rules.near or _is_near_all(node.name, rules.near, others, asked)
            holders = 1 if near else len(old)
        found.append(replace(node, own_rule=rule, rule_holders=holders))
    return replace(supply, nodes=tuple(found))


def has_rules(asked: PodsAsked, pods: Sequence[PlacedPod]) -> bool:
    """Return whether required rules of a pod about others, or of these about it, are to be
    judged."""
    rules = _rules(asked.pod_spec)
    own = bool(rules.near or rules.apart or rules.spread)
    return own or next(_keeping_off(pods, asked), None) is not None


def _rules(pod_spec: Mapping[str, Any]) -> _Rules:
    affinity = pod_spec.get("affinity") or {}
    near, apart = (
        (affinity.get(name) or {}).get(_REQUIRED) or ()
        for name in ("podAffinity", "podAntiAffinity")
    )
    spread = pod_spec.get("topologySpreadConstraints") or ()
    kept = [item for item in spread if item.get("whenUnsatisfiable") == "DoNotSchedule"]
    return _Rules(near, apart, kept)


def _others(nodes: Iterable[Manifest], pods: Sequence[PlacedPod], asked: PodsAsked) -> _Others:
    labels = {str(node["metadata"]["name"]): _labels(node) for node in nodes}
    return _Others(pods, labels, tuple(_keeping_off(pods, asked)))


def _labels(node: Manifest) -> Mapping[str, str]:
    metadata = node["metadata"]
    return {_HOST: str(metadata["name"]), **(metadata.get("labels") or {})}


def _eligible(nodes: Iterable[Manifest], placement: Placement) -> frozenset[str]:
    """Return the nodes whose domains count for spread: by selector and affinity, whatever their
    taints."""
    where = replace(placement, tolerations=())
    return frozenset(
        str(node["metadata"]["name"])
        for node in nodes
        if not node_blockers({**node, "spec": {}, "status": _READY}, where)
    )


_READY = {"conditions": [{"type": "Ready", "status": "True"}]}


def _held_against(node: str, rules: _Rules, others: _Others, asked: PodsAsked) -> Iterator[str]:
    if rules.not_judged is not None:
        yield f"{rules.not_judged} of the pod's affinity is not judged by the operator"
        return
    for pod, key in others.keeping_off:
        domain = others.domain(pod.node, key)
        if domain is not None and domain == others.domain(node, key):
            yield f"anti-affinity of pod {pod.namespace}/{pod.name}"
            return
    for term in rules.apart:
        if _near(term, node, others, asked.key.namespace):
            yield f"required pod anti-affinity ({term.get('topologyKey')})"
            return
    if rules.near and not _is_near_all(node, rules.near, others, asked):
        keys = ", ".join(str(term.get("topologyKey")) for term in rules.near)
        yield f"required pod affinity ({keys})"


def _keeping_off(pods: Sequence[PlacedPod], asked: PodsAsked) -> Iterator[tuple[PlacedPod, str]]:
    """Yield the pods whose anti-affinity is against the pod that is asked for, with the topology
    key."""
    for pod in pods:
        for term in pod.apart:
            if _is_against(term, pod, asked):
                yield pod, str(term.get("topologyKey"))


def _is_against(term: Mapping[str, Any], pod: PlacedPod, asked: PodsAsked) -> bool:
    """Return whether a term of a pod's anti-affinity names the pod that is asked for. No field
    makes a term name a pod that its selector does not select."""
    if not _selects(term.get("labelSelector"), asked.labels):
        return False
    if any(term.get(name) is not None for name in _NOT_JUDGED):
        return True
    return asked.key.namespace in (term.get("namespaces") or [pod.namespace])


def _near(term: Mapping[str, Any], node: str, others: _Others, namespace: str) -> bool:
    """Return whether a pod that the term names is in the node's domain."""
    key = str(term.get("topologyKey"))
    domain = others.domain(node, key)
    return domain is not None and any(
        others.domain(pod.node, key) == domain and _is_named(term, pod, namespace)
        for pod in others.pods
    )


def _is_near_all(
    node: str, terms: Sequence[Mapping[str, Any]], others: _Others, asked: PodsAsked
) -> bool:
    """Return whether pods that all terms name are in each of the node's domains. The first pod of
    several that want to be near each other may go to any node that has the keys."""
    namespace = asked.key.namespace
    keys = [str(term.get("topologyKey")) for term in terms]
    if any(others.domain(node, key) is None for key in keys):
        return False
    named = [pod for pod in others.pods if all(_is_named(t, pod, namespace) for t in terms)]
    if not any(others.domain(pod.node, key) is not None for pod in named for key in keys):
        own = (
            namespace in (term.get("namespaces") or [namespace])
            and _selects(term.get("labelSelector"), asked.labels)
            for term in terms
        )
        return all(own)
    return all(
        any(others.domain(pod.node, key) == others.domain(node, key) for pod in named)
        for key in keys
    )


def _is_named(term: Mapping[str, Any], pod: PlacedPod, namespace: str) -> bool:
    namespaces = term.get("namespaces") or [namespace]
    return pod.namespace in namespaces and _selects(term.get("labelSelector"), pod.labels)


def _uneven(
    node: str, rules: _Rules, others: _Others, asked: PodsAsked, eligible: frozenset[str]
) -> str | None:
    """Return the spread constraint that one more pod on the node would break."""
    for rule in rules.spread:
        key, domains = str(rule.get("topologyKey")), Counter[str]()
        for name in eligible:
            domain = others.domain(name, key)
            if domain is not None:
                domains[domain] += 0
        selector = _with_keys(rule, asked.labels)
        for pod in others.pods:
            counted = pod.namespace == asked.key.namespace and not pod.ends
            domain = others.domain(pod.node, key) if pod.node in eligible else None
            if counted and domain is not None and _selects(selector, pod.labels):
                domains[domain] += 1
        own = others.domain(node, key)
        fewest = min(domains.values(), default=0)
        if len(domains) < int(rule.get("minDomains") or 1):
            fewest = 0
        more = int(_selects(selector, asked.labels))
        if own is None or domains[own] + more - fewest > int(rule.get("maxSkew") or 1):
            return f"topologySpreadConstraints ({key}, DoNotSchedule)"
    return None


def _with_keys(rule: Mapping[str, Any], labels: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the selector of a spread constraint, with the pod's own values of matchLabelKeys."""
    selector: Mapping[str, Any] | None = rule.get("labelSelector")
    keys = [key for key in rule.get("matchLabelKeys") or () if key in labels]
    if selector is None or not keys:
        return selector
    own = {key: labels[key] for key in keys}
    return {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), **own}}


def _selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Judge a LabelSelector: none selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted: Iterable[Requirement] = requirements_of(selector.get("matchExpressions") or ())
    equal = (selector.get("matchLabels") or {}).items() <= labels.items()
    return equal and all(item.matches(labels) for item in wanted)
