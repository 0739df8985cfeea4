"""A node counts as a place where the scheduler gives one: by taints, and by rules about other pods,
drawn and compared with the in-memory cluster's own scheduler."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from atom_operator.domain import Manifest, ObjectKey
from atom_operator.domain.placed_pods import placed_pods
from atom_operator.plan.devices.other_pods import has_rules, without_forbidden
from atom_operator.plan.eligibility import node_blockers
from atom_operator.plan.inventory import PodsAsked, survey
from atom_operator.plan.placement import placement_of
from tests.support.in_memory_cluster.cluster import InMemoryCluster
from tests.support.in_memory_cluster.node_fit import node_objections
from tests.support.in_memory_cluster.other_pods import apart, lonely, uneven
from tests.support.operator.builders_operator import gpu_node, gpu_pod

OF_NODES = "node.kubernetes.io/"
KEYS = (
    *(
        f"{OF_NODES}{name}"
        for name in (
            "disk-pressure",
            "memory-pressure",
            "pid-pressure",
            "network-unavailable",
            "out-of-service",
            "unschedulable",
            "not-ready",
            "unreachable",
        )
    ),
    "amd.com/gpu",
    "maintenance",
    "karpenter.sh/disrupted",
)
EFFECTS = ("NoSchedule", "NoExecute", "PreferNoSchedule")
TOLERATES: dict[str, Any] = {
    "nothing": lambda key, effect: [],
    "the key": lambda key, effect: [{"key": key, "operator": "Exists"}],
    "key and effect": lambda key, effect: [{"key": key, "operator": "Exists", "effect": effect}],
    "another effect": lambda key, effect: [
        {"key": key, "operator": "Exists", "effect": EFFECTS[EFFECTS.index(effect) - 1]}
    ],
    "another value": lambda key, effect: [{"key": key, "value": "x", "effect": effect}],
    "the value": lambda key, effect: [{"key": key, "value": "v", "effect": effect}],
    "everything": lambda key, effect: [{"operator": "Exists"}],
    "another key": lambda key, effect: [{"key": "other", "operator": "Exists"}],
}


@pytest.mark.parametrize("tolerates", TOLERATES)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize(("key", "cordoned"), product(KEYS, (False, True)))
def test_a_taint_closes_a_node_as_it_does_for_the_scheduler(
    key: str, cordoned: bool, effect: str, tolerates: str
) -> None:
    node = gpu_node("a", cordoned=cordoned)
    node["spec"]["taints"] = [{"key": key, "value": "v", "effect": effect}]
    pod_spec = {"tolerations": TOLERATES[tolerates](key, effect)}
    told, objected = node_blockers(node, placement_of(pod_spec)), [*node_objections(node, pod_spec)]
    assert bool(told) == bool(objected), (told, objected)


ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
LABELS = ({"app": "a"}, {"app": "b"}, {"app": "a", "tier": "x"})


def _term(draw: random.Random) -> Manifest:
    found: Manifest = {
        "topologyKey": draw.choice((ZONE, HOST)),
        "labelSelector": {"matchLabels": draw.choice(LABELS)},
    }
    if draw.random() < 0.3:
        found["namespaces"] = draw.choice((["default"], ["others"], ["default", "others"]))
    return found


def _spec(draw: random.Random) -> Manifest:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    affinity = {
        kind: {required: [_term(draw) for _ in range(draw.choice((1, 1, 2)))]}
        for kind in ("podAffinity", "podAntiAffinity")
        if draw.random() < 0.4
    }
    spread = [
        {
            "maxSkew": draw.choice((1, 2)),
            "topologyKey": draw.choice((ZONE, HOST)),
            "whenUnsatisfiable": draw.choice(("DoNotSchedule", "DoNotSchedule", "ScheduleAnyway")),
            "labelSelector": {"matchLabels": draw.choice(LABELS)},
        }
        for _ in range(draw.choice((0, 0, 1, 2)))
    ]
    return {"affinity": affinity, "topologySpreadConstraints": spread}


def _cluster(draw: random.Random) -> InMemoryCluster:
    nodes = [gpu_node(name) for name in "abcd"]
    for node in nodes:
        zone = draw.choice(("one", "two", None))
        node["metadata"]["labels"] |= {ZONE: zone} if zone else {}
    cluster = InMemoryCluster(nodes=nodes)
    for number in range(draw.randint(0, 6)):
        pod = gpu_pod(f"p{number}", draw.choice("abcd"), 0)
        pod["metadata"] |= {"labels": draw.choice(LABELS), "uid": f"u{number}"}
        pod["metadata"]["namespace"] = draw.choice(("default", "default", "others"))
        pod["spec"] |= _spec(draw) if draw.random() < 0.3 else {}
        cluster.api.put_pod(pod)
    return cluster


@pytest.mark.parametrize("hundred", range(6))
def test_rules_about_other_pods_leave_the_nodes_that_the_scheduler_takes(hundred: int) -> None:
    told = set()
    for seed in range(100 * hundred, 100 * hundred + 100):
        draw = random.Random(seed)
        cluster, pod_spec, labels = _cluster(draw), _spec(draw), draw.choice(LABELS)
        nodes = cluster.api.nodes or []
        pods = placed_pods(
            item for (kind, *_), item in cluster.api.objects.items() if kind.kind == "Pod"
        )
        asked = PodsAsked(ObjectKey("default", "chat"), None, pod_spec, labels=labels)
        supply = without_forbidden(survey(nodes, pods, asked), nodes, pods.pods, asked)
        pod = {"metadata": {"namespace": "default", "labels": labels}, "spec": pod_spec}
        for node, found in zip(nodes, supply.nodes, strict=True):
            objected = [rule(cluster.state, node, pod) for rule in (apart, lonely, uneven)]
            assert bool(found.blockers) == any(objected), (seed, found.blockers, objected)
            assert has_rules(asked, pods.pods) or not any(objected), seed
            told.add(bool(found.blockers))
    assert told == {True, False}


@pytest.mark.parametrize("field", ["namespaceSelector", "matchLabelKeys", "mismatchLabelKeys"])
def test_a_rule_that_is_not_understood_leaves_no_node_open(field: str) -> None:
    term = {"topologyKey": HOST, "labelSelector": {"matchLabels": {"app": "z"}}, field: {}}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    asked = PodsAsked(
        ObjectKey("default", "chat"), None, {"affinity": {"podAntiAffinity": required}}
    )
    nodes = [gpu_node("a")]
    supply = without_forbidden(survey(nodes, placed_pods([]), asked), nodes, (), asked)
    assert field in supply.nodes[0].blockers[0]
