"""Every field of the spec changed and changed back on a real API server, one object per change.

What the schema and CEL refuse is refused there; all else is reconciled, and leaves no trace.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment
from tests.support.operator.spec_mutations import Mutation, mutations

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

# Hundreds of pods are no field's meaning.
_FEW_REPLICAS = 2
_CHILDREN = "deployments,services,serviceaccounts,configmaps,poddisruptionbudgets"
_SECONDS = 150.0

Specs = dict[str, dict[str, Any]]


def affordable(mutation: Mutation) -> bool:
    return not (isinstance(mutation.value, int) and "eplicas" in mutation.path) or (
        mutation.value <= _FEW_REPLICAS
    )


def apply(cluster: LiveCluster, specs: Specs) -> str:
    """All at once; the errors of those that are refused."""
    items = []
    for name, spec in specs.items():
        item = atom_deployment(name)
        item["metadata"]["namespace"] = cluster.namespace
        items.append({**item, "spec": spec})
    manifest = {"apiVersion": "v1", "kind": "List", "items": items}
    return cluster.kubectl("apply", "--filename=-", manifest=manifest, check=False).stderr


def listed(cluster: LiveCluster, kinds: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.kubectl("get", kinds, "-o", "json").stdout)[
        "items"
    ]
    return found


def settled(cluster: LiveCluster) -> bool:
    """Every status is about the spec that is stored."""
    for item in listed(cluster, "atomd"):
        conditions = (item.get("status") or {}).get("conditions") or [{}]
        if {c.get("observedGeneration") for c in conditions} != {item["metadata"]["generation"]}:
            return False
    return True


def state(cluster: LiveCluster) -> dict[str, Any]:
    """What was rendered, but for how the last rollout went."""
    result = {}
    for item in listed(cluster, _CHILDREN):
        seen = copy.deepcopy({key: item.get(key) for key in ("spec", "data")})
        if item["kind"] == "Deployment":
            del seen["spec"]["strategy"]
        if "plan.json" in (seen["data"] or {}):
            plan = json.loads(seen["data"]["plan.json"])
            seen["data"]["plan.json"] = {**plan, "rollout": None}
        result[f"{item['kind']}/{item['metadata']['name']}"] = seen
    return result


def test_no_field_leaves_a_trace_when_it_is_changed_back(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster, log = namespaced, tmp_path / "operator.log"
    base = {**atom_deployment(replicas=0)["spec"], "engine": {"image": "localhost/atom-none:0"}}
    # One value of each: the in-memory cluster gets them all.
    changes = list({m.path: m for m in mutations() if affordable(m)}.values())
    before: Specs = {f"m{number}": base for number in range(len(changes))}
    with operator(cluster, log):
        assert apply(cluster, before) == ""
        cluster.wait("first reports", lambda: settled(cluster), _SECONDS)
        expected = state(cluster)
        assert len(expected) > 3 * len(changes)
        refused = apply(
            cluster, {name: m.of(base) for name, m in zip(before, changes, strict=True)}
        )
        cluster.wait("reports of the changes", lambda: settled(cluster), _SECONDS)
        changed = sum(item["metadata"]["generation"] > 1 for item in listed(cluster, "atomd"))
        # Some are for the API server to refuse.
        assert changed > len(changes) / 2
        assert "is invalid" in refused
        assert "Internal" not in refused
        assert apply(cluster, before) == ""
        cluster.wait("reports of the way back", lambda: settled(cluster), _SECONDS)
        cluster.wait("the state before", lambda: state(cluster) == expected, _SECONDS)
    assert "Traceback" not in log.read_text()
