"""One version of the operator, in a process of its own, on clusters as another version left them.

    PYTHONPATH=VERSION/engine:VERSION/operator:VERSION python one_version.py < QUESTION > ANSWER

A question is JSON: `specs` by name are created and reconciled until they serve; `states` by name,
as an answer had them, are taken over and reconciled. Each answer is the state that is left. The
version is whatever PYTHONPATH names, with the in-memory cluster of its own tests; nothing else of
this checkout is imported. Pods are made here: what runs is what a Deployment's template says.
"""

from __future__ import annotations

import asyncio
import copy
import importlib
import json
import sys
from typing import Any

from atom_operator import constants, kinds
from atom_operator.domain import ATOM_DEPLOYMENT, DEPLOYMENT, POD

State = dict[str, Any]


def _builders() -> Any:
    for name in ("tests.support.operator.builders_operator", "tests.support.builders_operator"):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("this version has no builders of the operator's tests")


BUILDERS = _builders()


async def created(changes: dict[str, Any]) -> State:
    cluster = BUILDERS.FakeCluster()
    nodes = changes.pop("nodes", 0)
    cluster.nodes = [BUILDERS.gpu_node(f"node-{number}") for number in range(nodes)]
    cluster.create(ATOM_DEPLOYMENT, BUILDERS.atom_deployment(**changes))
    return await _settled(cluster)


async def taken_over(state: State) -> State:
    cluster = BUILDERS.FakeCluster(nodes=state["nodes"])
    cluster._version = state["version"]
    for kind, namespace, name, manifest in state["objects"]:
        cluster.objects[kinds.Kind(*kind), namespace, name] = manifest
    for kind, namespace, name, manager, paths in state["owned"]:
        key = (kinds.Kind(*kind), namespace, name)
        cluster.owned_fields[key, manager] = {tuple(path) for path in paths}
    return await _settled(cluster)


async def _settled(cluster: Any) -> State:
    for _ in range(4):
        await BUILDERS.reconciler(cluster).reconcile(BUILDERS.KEY)
        _run_pods(cluster)
    cluster.writes.clear()
    await BUILDERS.reconciler(cluster).reconcile(BUILDERS.KEY)
    return {
        "version": cluster._version,
        "nodes": cluster.nodes,
        "writes": cluster.writes,
        "objects": [[*key, item] for key, item in cluster.objects.items()],
        "owned": [
            [*key, manager, sorted(paths)] for (key, manager), paths in cluster.owned_fields.items()
        ],
    }


def _run_pods(cluster: Any) -> None:
    """Every Deployment has the pods of its template, and they serve; others end."""
    for (kind, namespace, name), workload in list(cluster.objects.items()):
        if kind != DEPLOYMENT or constants.LABEL_DEPLOYMENT not in workload["metadata"]["labels"]:
            continue
        spec, count = workload["spec"], workload["spec"].get("replicas", 1)
        revision = spec["template"]["metadata"]["annotations"][constants.ANNOTATION_REVISION]
        wanted = {f"{name}-{revision}-{number}" for number in range(count)}
        for key in [key for key in cluster.objects if key[0] == POD and key[2] not in wanted]:
            del cluster.objects[key]
        for pod in wanted:
            if (POD, namespace, pod) not in cluster.objects:
                _start(cluster, spec["template"], namespace, pod)
        counted = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
        workload["status"] = {
            "observedGeneration": workload["metadata"]["generation"],
            **dict.fromkeys(counted, count),
            "conditions": [
                {"type": "Available", "status": "True"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable"},
            ],
        }


def _start(cluster: Any, template: dict[str, Any], namespace: str, name: str) -> None:
    pod = copy.deepcopy(template)
    cluster._version += 1
    metadata = {**pod["metadata"], "name": name, "namespace": namespace}
    pod["metadata"] = {**metadata, "uid": f"pod-{cluster._version}"}
    pod["spec"]["nodeName"] = "node-0"
    conditions = [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Ready")]
    pod |= {"apiVersion": "v1", "kind": "Pod"}
    pod["status"] = {"phase": "Running", "conditions": conditions}
    cluster.objects[POD, namespace, name] = pod


async def _answer(question: dict[str, dict[str, Any]]) -> dict[str, State]:
    made = {name: await created(changes) for name, changes in question.get("specs", {}).items()}
    taken = {name: await taken_over(item) for name, item in question.get("states", {}).items()}
    return made | taken


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_answer(json.load(sys.stdin)))))
