"""spec.template against a real API server: what it refuses is not accepted in its words, what
`kubectl apply` keeps of it, and what the merge makes is what it makes of a strategic merge patch.

No pod runs.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import pytest

from atom_operator.children.overlay import merge_pod_template
from atom_operator.children.workload import pod_template
from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.fleet import FleetReader
from atom_operator.domain import ObjectKey
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.settings import OperatorSettings
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.operator.builders_operator import atom_deployment, plan
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.overlays import overlay, said_to_kubectl

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

IMAGES: dict[Any, str] = {"cpu": "localhost/atom-none:0"}


@pytest.fixture
async def worker(
    namespaced: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reconciler]:
    """A reconciler as the operator has it, with the real client."""
    monkeypatch.setenv("KUBECONFIG", namespaced.kubeconfig)
    cluster = ApiCluster.connect((namespaced.namespace,))
    settings = OperatorSettings(engine_images=IMAGES)
    engines = FakeEngines()
    decider = Decider(cluster, FleetReader(cluster, time.monotonic), engines, settings)
    yield Reconciler(cluster, engines, decider, clock=lambda: datetime.now(UTC))
    await cluster.close()


async def accepted(cluster: LiveCluster, worker: Reconciler, **spec: Any) -> dict[str, Any]:
    """The Accepted condition of `chat`, without replicas, after a pass."""
    manifest = atom_deployment(replicas=0, **spec)
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)
    await worker.reconcile(ObjectKey(cluster.namespace, "chat"))
    found = cluster.get("atomd", "chat")
    assert found is not None
    assert found["status"]["observedGeneration"] == found["metadata"]["generation"]
    return dict(found["status"]["conditions"][0])


def pod_spec(cluster: LiveCluster) -> dict[str, Any]:
    found = cluster.get("deployment", "chat")
    assert found is not None
    return dict(found["spec"]["template"]["spec"])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a range": (
        {"hostname": "-"},
        "spec.template.spec.hostname: Invalid value",
    ),
    "a word": ({"dnsPolicy": "Sometimes"}, 'spec.template.spec.dnsPolicy: Unsupported value: "So'),
    "a typo": (
        {"containers": [{"name": "engine", "livenesProbe": {}}]},
        "spec.containers[0].livenesProbe: is no field of a pod; did you mean livenessProbe?",
    ),
    "a mount of nothing": (
        {"containers": [{"name": "engine", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]},
        "volumeMounts[0].name: Not found",
    ),
    "no handler": (
        {"containers": [{"name": "engine", "livenessProbe": {"$patch": "delete"}}]},
        "livenessProbe: Required value: must specify a handler type",
    ),
}


async def test_a_refused_template_is_told_in_the_words_of_who_refuses_it(
    namespaced: LiveCluster, worker: Reconciler
) -> None:
    for name, (spec, words) in REFUSED.items():
        told = await accepted(namespaced, worker, template={"spec": spec})
        assert (told["status"], told["reason"]) == ("False", "InvalidSpec"), name
        assert words in told["message"], name
        assert namespaced.get("deployment", "chat") is None, name
    told = await accepted(namespaced, worker, template={"spec": {"dnsPolicy": "Default"}})
    assert told["status"] == "True", told


async def test_a_claim_takes_the_place_of_a_volume_and_paths_survive_an_apply(
    namespaced: LiveCluster, worker: Reconciler
) -> None:
    claim = {"name": "cache", "persistentVolumeClaim": {"claimName": "big"}}
    told = await accepted(namespaced, worker, template={"spec": {"volumes": [claim]}})
    assert told["status"] == "True", told
    assert claim in pod_spec(namespaced)["volumes"]
    paths = ["spec.securityContext.runAsUser", "spec.containers[engine].livenessProbe"]
    told = await accepted(namespaced, worker, templateRemove=paths)
    assert (told["status"], told["reason"]) == ("True", "OverlayInEffect")
    found = pod_spec(namespaced)
    assert "runAsUser" not in found["securityContext"]
    assert "livenessProbe" not in found["containers"][0]


async def test_who_paused_and_who_edited_a_workload_is_told(
    namespaced: LiveCluster, worker: Reconciler
) -> None:
    await accepted(namespaced, worker)
    variable = {"name": "FOO", "value": "bar"}
    edit = {"spec": {"template": {"spec": {"containers": [{"name": "engine", "env": [variable]}]}}}}
    namespaced.kubectl("patch", "deployment", "chat", "--patch", json.dumps(edit))
    namespaced.kubectl("scale", "deployment", "chat", "--replicas=0")
    namespaced.kubectl("rollout", "restart", "deployment/chat")
    namespaced.kubectl("rollout", "pause", "deployment/chat")
    await worker.reconcile(ObjectKey(namespaced.namespace, "chat"))
    found = namespaced.get("atomd", "chat")
    assert found is not None
    told = {item["type"]: item["message"] for item in found["status"]["conditions"]}["Progressing"]
    assert "kubectl-patch also set spec.template.spec.containers[engine].env[FOO]" in told
    assert "is paused by kubectl-rollout" in told
    assert "restartedAt" not in told


@pytest.mark.slow
def test_the_api_server_merges_generated_overlays_alike(namespaced: LiveCluster) -> None:
    """Patches that it refuses are refused for what comes of our merge, too."""
    base = pod_template(plan())
    named = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "base"}}
    namespaced.kubectl("create", "--filename=-", manifest={**named, "template": base})
    accepted_ones = 0
    for seed in range(300):
        asked = overlay(random.Random(seed), base)
        patch = json.dumps({"template": said_to_kubectl(asked, base)})
        flags = ("--dry-run=server", "--output=json")
        theirs = namespaced.kubectl(
            "patch", "podtemplate", "base", "--type=strategic", "--patch", patch, *flags,
            check=False,
        )  # fmt: skip
        merged = {
            **named,
            "metadata": {"name": "made"},
            "template": merge_pod_template(base, asked),
        }
        ours = namespaced.kubectl(
            "create", "--filename=-", "--validate=ignore", *flags, manifest=merged, check=False
        )
        assert bool(theirs.returncode) == bool(ours.returncode), (seed, theirs.stderr, ours.stderr)
        if theirs.returncode == 0:
            accepted_ones += 1
            left, right = json.loads(theirs.stdout), json.loads(ours.stdout)
            assert left["template"] == right["template"], (seed, asked)
    assert accepted_ones > 20
