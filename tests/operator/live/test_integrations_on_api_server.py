"""What is rendered for other systems, against their real schemas on a real API server.

No controller of theirs runs: accepted objects, ownership of fields and pruning are what is shown.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.cluster.client import ApiCluster
from atom_operator.cluster.fleet import FleetReader
from atom_operator.constants import FIELD_MANAGER
from atom_operator.domain import ObjectKey
from atom_operator.integration_values import (
    FORBIDDEN_BY_DEFAULT,
    Site,
    SiteAddresses,
    TemplateFeature,
)
from atom_operator.kinds import OPTIONAL_KINDS, SIDE_KINDS
from atom_operator.reconcile.decider import Decider
from atom_operator.reconcile.reconciler import Reconciler
from atom_operator.settings import OperatorSettings
from tests.support.cluster import upstream_crds
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment
from tests.support.operator.fake_engines import FakeEngines
from tests.support.operator.status_shown import ABSENT

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator", "served")]

# Groups, roles, a gateway and a dashboard, and an autoscaler: what `make test` gives a server.
_DAILY = (
    "autoscaling-mi300x", "gateway-and-monitoring", "llama-405b-multi-node",
    "qwen3-8b-prefill-decode",
)  # fmt: skip
EXAMPLES = [
    pytest.param(path, id=path.stem, marks=() if path.stem in _DAILY else pytest.mark.whole)
    for path in sorted((ROOT / "examples").glob("*.yaml"))
]
SITE = Site(
    addresses=SiteAddresses(
        prometheus="http://prometheus.test:9090", operator_namespace="atom-system"
    ),
    engine_tensor_parallel=16,
    engine_multi_node=True,
    engine_architectures=("DeepseekV3ForCausalLM",),
    template_forbidden=FORBIDDEN_BY_DEFAULT - {TemplateFeature.HOST_PATH},
)
# A group of nodes is too large for any cluster of ours; everything else at once.
EVERYTHING: dict[str, Any] = {
    "replicas": 0,  # no pod is needed for this
    "gateway": {
        "inferencePool": {"name": "picker"},
        "httpRoute": {"parentRefs": [{"name": "gate"}], "hostnames": ["chat.test"]},
    },
    "monitoring": {"podMonitor": {}, "alerts": {}, "dashboard": {}},
    "networkPolicy": {},
}


@pytest.fixture(scope="module")
def served(live_cluster: LiveCluster) -> None:
    """The upstream CRDs are there."""
    upstream_crds.install(live_cluster)


@pytest.fixture
async def worker(
    namespaced: LiveCluster, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Reconciler]:
    """A reconciler as the operator has it, with the real client."""
    monkeypatch.setenv("KUBECONFIG", namespaced.kubeconfig)
    cluster = ApiCluster.connect((namespaced.namespace,))
    settings = OperatorSettings(
        engine_images={"amd": "localhost/atom-none:0", "cpu": "localhost/atom-none:0"}, site=SITE
    )
    engines = FakeEngines()
    decider = Decider(cluster, FleetReader(cluster, time.monotonic), engines, settings)
    yield Reconciler(cluster, engines, decider, clock=lambda: datetime.now(UTC))
    await cluster.close()


def apply(cluster: LiveCluster, manifest: dict[str, Any]) -> ObjectKey:
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)
    return ObjectKey(cluster.namespace, manifest["metadata"]["name"])


def example(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def verdict(cluster: LiveCluster, key: ObjectKey, kind: str) -> dict[str, Any]:
    found = cluster.get("atomd", key.name)
    assert found is not None
    conditions = {item["type"]: item for item in found["status"]["conditions"]}
    return dict(conditions.get(kind, ABSENT))


def owned(cluster: LiveCluster, key: ObjectKey) -> dict[str, str]:
    """Of every optional object of an AtomDeployment, what a write of ours would change; its
    resourceVersion changes too when its own controller, where one runs, writes a status.
    """
    names = ",".join(f"{kind.plural}.{kind.group}" for kind in OPTIONAL_KINDS)
    selector = f"--selector=serving.atom.dev/deployment={key.name}"
    flags = (selector, "--output=yaml", "--show-managed-fields")
    listed = yaml.safe_load(cluster.kubectl("get", names, *flags).stdout)
    return {
        item["kind"]: _written(item["metadata"])
        for item in listed["items"]
        # KEDA gives its HorizontalPodAutoscaler the ScaledObject's labels.
        if item["metadata"]["ownerReferences"][0]["kind"] == "AtomDeployment"
    }


def _written(metadata: dict[str, Any]) -> str:
    ours = [item for item in metadata["managedFields"] if item["manager"] == FIELD_MANAGER]
    return str([(metadata.get("generation"), item["time"]) for item in ours])


@pytest.mark.parametrize("path", EXAMPLES)
async def test_everything_of_an_example_is_accepted(
    namespaced: LiveCluster, worker: Reconciler, path: Path
) -> None:
    key = apply(namespaced, example(path))
    for _ in range(2):  # the autoscaler comes once its target exists
        await worker.reconcile(key)
    assert verdict(namespaced, key, "Accepted")["status"] == "True"
    ready = verdict(namespaced, key, "IntegrationsReady")
    if not {kind.kind for kind in SIDE_KINDS} & owned(namespaced, key).keys():
        assert ready == ABSENT, "the example asks for nothing of other systems"
    elif "httpRoute" in (example(path)["spec"].get("gateway") or {}):
        assert ready["message"].endswith("does not exist"), "a Gateway is its users' to make"
    elif {"frontend", "disaggregation"} & example(path)["spec"].keys():
        assert f"Deployment {key.name}-frontend" in ready["message"], "no pod runs here"
    else:
        assert ready["status"] == "True", ready["message"]
    assert verdict(namespaced, key, "Progressing")["reason"] != "ApplyRefused"
    groups = path.stem.startswith("llama-405b")
    workload = namespaced.get("leaderworkerset" if groups else "deployment", key.name)
    assert workload is not None


async def test_a_second_pass_changes_no_object_and_unasked_ones_go(
    namespaced: LiveCluster, worker: Reconciler
) -> None:
    scaling = {"maxReplicas": 3, "minReplicas": 0, "activationQuery": "sum(queue)"}
    key = apply(namespaced, atom_deployment(**EVERYTHING, autoscaling=scaling))
    for _ in range(2):
        await worker.reconcile(key)
    before = owned(namespaced, key)
    assert set(before) == {
        "NetworkPolicy",
        "InferencePool",
        "HTTPRoute",
        "PodMonitor",
        "PrometheusRule",
        "ScaledObject",
    }
    await worker.reconcile(key)
    assert owned(namespaced, key) == before
    hpa = {"maxReplicas": 3, "method": "HPA"}
    apply(namespaced, atom_deployment(replicas=0, autoscaling=hpa))
    await worker.reconcile(key)
    assert set(owned(namespaced, key)) == {"HorizontalPodAutoscaler"}
    apply(namespaced, atom_deployment(replicas=0))
    await worker.reconcile(key)
    assert owned(namespaced, key) == {}


async def test_the_number_of_replicas_is_handed_over_without_a_reset(
    namespaced: LiveCluster, worker: Reconciler
) -> None:
    def replicas() -> int:
        found = namespaced.get("deployment", "chat")
        assert found is not None
        return int(found["spec"]["replicas"])

    image = {"engine": {"image": "localhost/atom-none:0"}}
    key = apply(namespaced, atom_deployment(replicas=3, **image))
    await worker.reconcile(key)
    assert replicas() == 3
    scaling = {"maxReplicas": 5, "method": "HPA"}
    apply(namespaced, atom_deployment(replicas=3, autoscaling=scaling, **image))
    await worker.reconcile(key)
    assert replicas() == 3
    namespaced.kubectl("scale", "deployment/chat", "--replicas=5")  # as an autoscaler does
    for _ in range(2):
        await worker.reconcile(key)
    assert replicas() == 5
    apply(namespaced, atom_deployment(replicas=2, **image))
    await worker.reconcile(key)
    assert replicas() == 2


def test_a_policy_that_is_deleted_comes_back_at_once(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster = namespaced
    settings = {"ATOM_OPERATOR_RESYNC_SECONDS": "3600"}  # so that only an event can be the cause
    apply(cluster, atom_deployment(replicas=0, networkPolicy={}, engine={"image": "a/b:c"}))
    with operator(cluster, tmp_path / "operator.log", settings):
        cluster.wait("policy", lambda: cluster.get("networkpolicy", "chat"))
        cluster.wait("status", lambda: (cluster.get("atomd", "chat") or {}).get("status"))
        cluster.kubectl("delete", "networkpolicy", "chat")
        cluster.wait("policy that came back", lambda: cluster.get("networkpolicy", "chat"))
