"""spec.frontend runs servers without an engine, to which the Service leads while one is ready."""

from __future__ import annotations

from typing import Any

import pytest

from atom_operator.children.render import render
from atom_operator.constants import LABEL_DEPLOYMENT, Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
    ChildKey,
    Kind,
)
from atom_operator.kinds import NETWORK_POLICY, POD_MONITOR
from atom_operator.plan.spec_digest import spec_digest
from atom_operator.validation.rules import validate
from tests.support.in_memory_cluster.rollouts import finish_rollout
from tests.support.operator.builders_operator import (
    KEY,
    cluster_with,
    condition,
    parsed,
    plan,
    reconciler,
)
from tests.support.operator.fake_cluster import FakeCluster

ASKED: dict[str, Any] = {"frontend": {}}
AMD: dict[str, Any] = {"accelerator": {"type": "amd", "product": "MI300X"}}


def rendered(kind: Kind, name: str, **changes: Any) -> Any:
    return render(plan(**{**ASKED, **changes}))[ChildKey(kind, name)]


def pod(**changes: Any) -> Any:
    return rendered(DEPLOYMENT, "chat-frontend", **changes)["spec"]["template"]


def container(**changes: Any) -> Any:
    (found,) = pod(**changes)["spec"]["containers"]
    return found


def selected(cluster: FakeCluster, service: str = "chat") -> Any:
    return cluster.find(SERVICE, service)["spec"]["selector"]


def pods_of(cluster: FakeCluster, deployment: str) -> Any:
    return cluster.find(DEPLOYMENT, deployment)["spec"]["template"]["metadata"]["labels"]


def let_be_ready(cluster: FakeCluster, ready: int) -> None:
    """What the controller of Deployments says of the frontend."""
    told = {"type": "Available", "status": str(ready > 0), "reason": "R", "message": "as told"}
    frontend = cluster.find(DEPLOYMENT, "chat-frontend")
    frontend["status"] = {"readyReplicas": ready, "conditions": [told]}
    cluster.touch(frontend)


async def reconciled(cluster: FakeCluster) -> None:
    """Two looks: the second sees what the first has made."""
    for _ in range(2):
        await reconciler(cluster).reconcile(KEY)


def test_its_metrics_are_scraped_beside_the_engines_and_count_as_no_replica() -> None:
    monitor = rendered(POD_MONITOR, "chat-frontend", monitoring={"podMonitor": {}})["spec"]
    labels, ports = pod()["metadata"]["labels"], container()["ports"]
    assert monitor["selector"]["matchLabels"].items() <= labels.items()
    assert monitor["podMetricsEndpoints"][0]["port"] in {port["name"] for port in ports}
    assert set(monitor["podTargetLabels"]) <= set(labels)
    engines = rendered(POD_MONITOR, "chat", monitoring={"podMonitor": {}})["spec"]
    assert not engines["selector"]["matchLabels"].items() <= labels.items()
    assert engines["podTargetLabels"] == [LABEL_DEPLOYMENT]
    assert LABEL_DEPLOYMENT not in monitor["podTargetLabels"]
    assert ChildKey(POD_MONITOR, "chat-frontend") not in render(plan(**ASKED))


async def test_the_service_leads_to_it_while_a_pod_of_it_is_ready() -> None:
    cluster = cluster_with(**ASKED, replicas=2)
    await reconciled(cluster)
    finish_rollout(cluster)
    let_be_ready(cluster, 0)
    await reconciled(cluster)
    engines, frontend = pods_of(cluster, "chat"), pods_of(cluster, "chat-frontend")
    assert selected(cluster).items() <= engines.items()
    assert condition(cluster, "Ready")["status"] == "True"
    said = condition(cluster, "IntegrationsReady")
    assert (said["status"], said["reason"]) == ("False", Reason.FRONTEND_NOT_READY)
    assert "chat-frontend" in said["message"]
    assert "as told" in said["message"]

    let_be_ready(cluster, 1)
    await reconciled(cluster)
    assert selected(cluster).items() <= frontend.items()
    assert not selected(cluster).items() <= engines.items()
    assert selected(cluster, "chat-workers").items() <= engines.items()
    assert condition(cluster, "IntegrationsReady")["status"] == "True"

    let_be_ready(cluster, 0)
    await reconciled(cluster)
    assert selected(cluster).items() <= engines.items()


async def test_it_goes_with_the_field_and_the_service_leads_to_the_engines_before() -> None:
    cluster = cluster_with(**ASKED, replicas=2, networkPolicy={})
    await reconciled(cluster)
    finish_rollout(cluster)
    let_be_ready(cluster, 2)
    await reconciled(cluster)
    own = {(kind, "chat-frontend") for kind in (DEPLOYMENT, DISRUPTION_BUDGET, NETWORK_POLICY)}
    own.add((SERVICE, "chat-workers"))
    assert all(name in cluster.names(kind) for kind, name in own)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", frontend=None)
    await reconciled(cluster)
    finish_rollout(cluster)  # pods without the secret of replicas
    await reconciled(cluster)
    assert not any(name in cluster.names(kind) for kind, name in own)
    assert selected(cluster).items() <= pods_of(cluster, "chat").items()


async def test_its_pods_are_no_replicas_of_the_model() -> None:
    cluster = cluster_with(**ASKED, replicas=2)
    await reconciled(cluster)
    finish_rollout(cluster)
    await reconciled(cluster)
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    frontend = pods_of(cluster, "chat-frontend")
    assert LABEL_DEPLOYMENT not in frontend
    workload = cluster.find(DEPLOYMENT, "chat")["spec"]
    assert not workload["selector"]["matchLabels"].items() <= frontend.items()


async def test_a_suspended_model_has_no_pods_of_it() -> None:
    cluster = cluster_with(**ASKED, suspend=True)
    await reconciled(cluster)
    assert cluster.find(DEPLOYMENT, "chat-frontend")["spec"]["replicas"] == 0


def test_its_pods_ask_for_no_device_and_run_where_any_pod_may() -> None:
    engine = rendered(DEPLOYMENT, "chat", **AMD)["spec"]["template"]["spec"]
    assert "amd.com/gpu" in engine["containers"][0]["resources"]["limits"]
    spec = pod(**AMD)["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"cpu": "4", "memory": "4Gi"}
    assert "affinity" not in spec
    assert "initContainers" not in spec
    assert "shm" not in {volume["name"] for volume in spec["volumes"]}
    limited = container(frontend={"memory": "3Gi"})["resources"]
    assert limited["requests"]["memory"] == limited["limits"]["memory"] == "3Gi"


def test_what_the_template_says_of_engines_holds_for_it() -> None:
    template = {
        "metadata": {"labels": {"team": "search"}},
        "spec": {
            "nodeSelector": {"pool": "models"},
            "containers": [{"name": "engine", "env": [{"name": "HTTPS_PROXY", "value": "p"}]}],
        },
    }
    made = pod(template=template)
    assert made["metadata"]["labels"]["team"] == "search"
    assert made["spec"]["nodeSelector"] == {"pool": "models"}
    assert {"name": "HTTPS_PROXY", "value": "p"} in container(template=template)["env"]


def test_what_is_taken_out_of_engines_is_not_in_it() -> None:
    taken = ["spec.volumes", "spec.containers[engine].volumeMounts", "spec.containers[engine].env"]
    spec = pod(templateRemove=taken)["spec"]
    (container,) = spec["containers"]
    assert spec["volumes"] == container["volumeMounts"] == container["env"] == []


def test_it_is_told_what_belongs_to_text_and_where_engines_are() -> None:
    words = ["--tool-call-parser", "hermes", "--enable-sleep-mode"]
    words += ["--sleep-queue", "--chat-template", "t.jinja"]
    changes: dict[str, Any] = {
        "engine": {"extraArgs": words, "maxModelLen": 512, "apiKeySecretRef": {"name": "key"}},
        "rollout": {"handover": True},
    }
    args = container(**changes)["args"]
    assert args[-4:] == ["--tool-call-parser", "hermes", "--chat-template", "t.jinja"]
    assert args[args.index("--max-model-len") + 1] == "512"
    assert "--api-key-file" in args
    assert "--handover-url" not in args
    service = rendered(SERVICE, "chat-workers")
    assert service["spec"]["clusterIP"] == "None"
    url = args[args.index("--worker-urls") + 1]
    name = f"{service['metadata']['name']}.{service['metadata']['namespace']}.svc"
    assert url == f"http://{name}:{service['spec']['ports'][0]['port']}"
    engine = rendered(DEPLOYMENT, "chat", **changes)["spec"]["template"]["spec"]["containers"][0]
    handed = engine["args"][engine["args"].index("--handover-url") + 1]
    assert handed == url, "what a pod hands over goes to a pod"


def test_it_and_the_engines_know_each_other_by_one_secret() -> None:
    for name in ("chat", "chat-frontend"):
        spec = rendered(DEPLOYMENT, name)["spec"]["template"]["spec"]
        args, mounts = spec["containers"][0]["args"], spec["containers"][0]["volumeMounts"]
        folder = args[args.index("--handover-secret-file") + 1]
        (mounted,) = [each["name"] for each in mounts if each["mountPath"] == folder]
        (volume,) = [each for each in spec["volumes"] if each["name"] == mounted]
        assert volume["secret"] == {"secretName": "chat-peers"}


def test_the_network_policy_admits_it_to_the_engines_and_callers_to_it() -> None:
    policies = {
        name: rendered(NETWORK_POLICY, name, networkPolicy={})["spec"]
        for name in ("chat", "chat-frontend")
    }
    labels = pod()["metadata"]["labels"]
    assert policies["chat-frontend"]["podSelector"]["matchLabels"].items() <= labels.items()
    (callers,) = policies["chat-frontend"]["ingress"]
    assert callers in policies["chat"]["ingress"]
    admitted = [
        peer["podSelector"].get("matchLabels") or {}
        for rule in policies["chat"]["ingress"]
        for peer in rule["from"]
        if "podSelector" in peer and "namespaceSelector" not in peer
    ]
    assert any(peer and peer.items() <= labels.items() for peer in admitted)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"gateway": {"prefixAware": True}}, "spec.frontend"),
        ({"gateway": {"inferencePool": {"name": "mine"}}}, "spec.frontend"),
        ({"engine": {"extraArgs": ["--api-server-count=2"]}}, "spec.engine.extraArgs[0]"),
    ],
)
def test_what_speaks_against_it_is_named(changes: dict[str, Any], field: str) -> None:
    assert [item.field for item in validate(parsed(**ASKED))] == []
    assert [item.field for item in validate(parsed(**changes))] == []
    assert [item.field for item in validate(parsed(**ASKED, **changes))] == [field]


def test_engine_pods_notice_that_it_is_there_and_not_its_size() -> None:
    """They take answers over from it, by a secret that they mount."""

    def digest(**changes: Any) -> str:
        return spec_digest(parsed(**changes), "image", None)

    handed = {"rollout": {"handover": True}}
    assert digest() != digest(**ASKED)
    assert digest(**ASKED) == digest(frontend={"replicas": 5})
    assert digest(**handed) != digest(**ASKED, **handed)
    assert digest(**ASKED, **handed) == digest(frontend={"replicas": 5}, **handed)


def test_it_has_the_options_that_the_server_of_a_request_reads() -> None:
    engine = {"maxImages": 2, "deadlineMs": 500, "deadlineAction": "queue", "reproducible": True}
    args = container(engine={**engine, "maxNumSeqs": 8, "kvCacheDtype": "bf16"})["args"]
    for words in (
        ["--limit-mm-per-prompt", "2"],
        ["--deadline-ms", "500"],
        ["--deadline-action", "queue"],
    ):
        at = args.index(words[0])
        assert args[at : at + 2] == words
    assert "--reproducible" in args
    assert not {"--max-num-seqs", "--kv-cache-dtype"}.intersection(args)


def test_it_mounts_no_files_of_the_kv_cache() -> None:
    disk = {"hostMemory": "1Gi", "disk": {"size": "2Gi", "claim": "blocks"}}
    found = pod(**AMD, cache={"kv": disk})["spec"]
    assert "kv-cache" not in {volume["name"] for volume in found["volumes"]}
