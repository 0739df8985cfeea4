"""spec.gateway.prefixAware runs a picker of the operator's own, which counts as no engine."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from atom_operator.children.render import render
from atom_operator.constants import LABEL_DEPLOYMENT, Reason
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    DEPLOYMENT,
    SERVICE,
    SERVICE_ACCOUNT,
    ChildKey,
    Kind,
)
from atom_operator.integration_values import PICKER_IMAGES, PickerKind, PickerProgram, Site
from atom_operator.kinds import INFERENCE_POOL, NETWORK_POLICY, ROLE, ROLE_BINDING
from atom_operator.plan.spec_digest import spec_digest
from atom_operator.settings import OperatorSettings, SettingsError
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

ASKED: dict[str, Any] = {"gateway": {"prefixAware": True}}
PICKER = (SERVICE_ACCOUNT, ROLE, ROLE_BINDING, CONFIG_MAP, SERVICE, DEPLOYMENT)
EXTENSION = Site(picker=PickerProgram(PickerKind.INFERENCE_EXTENSION, "epp:test"))


def rendered(kind: Kind, name: str, site: Site | None = None, **changes: Any) -> Any:
    return render(plan(site=site, **{**ASKED, **changes}))[ChildKey(kind, name)]


def config(site: Site | None = None, **changes: Any) -> Any:
    return yaml.safe_load(
        rendered(CONFIG_MAP, "chat-picker", site, **changes)["data"]["picker.yaml"]
    )


def engine(**changes: Any) -> Any:
    template = rendered(DEPLOYMENT, "chat", **changes)["spec"]["template"]
    return template["spec"]["containers"][0]


def plugins(document: Any) -> dict[str, Any]:
    return {item["type"]: item.get("parameters") for item in document["plugins"]}


async def test_the_pool_asks_a_picker_that_is_there_and_goes_with_the_field() -> None:
    cluster = cluster_with(**ASKED)
    await reconciler(cluster).reconcile(KEY)
    asked = cluster.find(INFERENCE_POOL, "chat")["spec"]["endpointPickerRef"]
    service = cluster.find(SERVICE, asked["name"])
    ports = [item["port"] for item in service["spec"]["ports"]]
    assert ports == [asked["port"]["number"]]
    assert all("chat-picker" in cluster.names(kind) for kind in PICKER)
    cluster.change_spec(ATOM_DEPLOYMENT, "chat", gateway={})
    await reconciler(cluster).reconcile(KEY)
    assert not any("chat-picker" in cluster.names(kind) for kind in PICKER)


async def test_the_picker_is_no_engine() -> None:
    """Neither its Deployment nor its pods count as the model's, whether they are well or not."""
    cluster = cluster_with(**ASKED, replicas=2)
    for _ in range(2):
        await reconciler(cluster).reconcile(KEY)
        finish_rollout(cluster)
    await reconciler(cluster).reconcile(KEY)
    status = cluster.find(ATOM_DEPLOYMENT, "chat")["status"]
    assert (status["replicas"], status["readyReplicas"]) == (2, 2)
    assert condition(cluster, "Ready")["status"] == "True"
    picker = cluster.find(DEPLOYMENT, "chat-picker")
    selector = cluster.find(SERVICE, "chat")["spec"]["selector"]
    labels = picker["spec"]["template"]["metadata"]["labels"]
    assert not selector.items() <= labels.items()
    assert LABEL_DEPLOYMENT not in labels
    picker["status"] = {
        "conditions": [
            {"type": "Available", "status": "False", "reason": "No", "message": "no pod is ready"}
        ]
    }
    cluster.touch(picker)
    await reconciler(cluster).reconcile(KEY)
    said = condition(cluster, "IntegrationsReady")
    assert (said["status"], said["reason"]) == ("False", Reason.PICKER_NOT_READY)
    assert "chat-picker" in said["message"]
    assert condition(cluster, "Ready")["status"] == "True"


def test_the_picker_reads_the_port_at_which_the_engine_speaks() -> None:
    container = engine()
    document = config()
    place = container["args"].index("--kv-events-config")
    said = yaml.safe_load(container["args"][place + 1])
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    reads = plugins(document)["precise-prefix-cache-producer"]["kvEventsConfig"]
    discovery = reads["podDiscoveryConfig"]
    assert said["endpoint"].endswith(f":{discovery['socketPort']}")
    assert said["replay_endpoint"].endswith(f":{discovery['replaySocketPort']}")
    assert {discovery["socketPort"], discovery["replaySocketPort"]} < set(ports.values())
    assert said["topic"].startswith(reads["topicFilter"])
    assert any(item["name"] == "POD_NAME" for item in container["env"])
    names = plugins(document)["core-metrics-extractor"]["engineConfigs"][0]
    label = rendered(DEPLOYMENT, "chat")["spec"]["template"]["metadata"]["labels"]
    assert label["llm-d.ai/engine-type"] == names["name"]


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"apiKeySecretRef": {"name": "key"}}},
        {
            "model": {"source": "hf://Qwen/Qwen3-8B"},
            "accelerator": {"type": "amd", "product": "MI300X"},
            "parallelism": {"data": 2},
        },
    ],
    ids=["the engine asks for a key", "a pod has several caches"],
)
def test_where_events_do_not_tell_enough_the_picker_goes_by_what_it_sent(
    changes: dict[str, Any],
) -> None:
    assert "--kv-events-config" not in engine(**changes)["args"]
    document = config(**changes)
    assert "precise-prefix-cache-producer" not in plugins(document)
    assert plugins(document)["prefix-cache-scorer"] is None
    assert [item["name"] for item in engine(**changes)["ports"]] == ["http"]


def test_the_extensions_picker_is_told_our_metrics_by_flags() -> None:
    container = rendered(DEPLOYMENT, "chat-picker", EXTENSION)["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert container["image"] == "epp:test"
    assert "--total-queued-requests-metric=atom:requests_waiting" in container["args"]
    document = config(EXTENSION)
    assert document["apiVersion"].startswith("inference.networking.x-k8s.io/")
    assert set(plugins(document)) == {
        item["pluginRef"] for item in document["schedulingProfiles"][0]["plugins"]
    }


def test_another_configuration_makes_another_picker_pod() -> None:
    def pod(**changes: Any) -> Any:
        return rendered(DEPLOYMENT, "chat-picker", **changes)["spec"]["template"]["metadata"]

    assert pod() == pod(replicas=3)
    assert pod() != pod(model={**parsed().model.model_dump(exclude_none=True), "servedName": "a"})


def test_the_network_policy_admits_the_picker_and_no_other_pod_to_the_events() -> None:
    policy = rendered(NETWORK_POLICY, "chat", networkPolicy={})["spec"]
    labels = rendered(DEPLOYMENT, "chat-picker")["spec"]["template"]["metadata"]["labels"]
    (rule,) = [
        item
        for item in policy["ingress"]
        if any(port["port"] == "kv-events" for port in item.get("ports", ()))
    ]
    (peer,) = rule["from"]
    assert peer["podSelector"]["matchLabels"].items() <= labels.items()


def test_what_speaks_against_it_is_named() -> None:
    def problems(**changes: Any) -> list[str]:
        return [item.field for item in validate(parsed(**changes))]

    assert problems(**ASKED) == []
    arguments = ["--kv-events-config", "{}"]
    assert problems(engine={"extraArgs": arguments}) == []
    assert problems(**ASKED, engine={"extraArgs": arguments}) == ["spec.engine.extraArgs[0]"]
    assert problems(**ASKED, engine={"prefixCaching": False}) == ["spec.gateway.prefixAware"]
    both = {"gateway": {"prefixAware": True, "inferencePool": {"name": "mine"}}}
    assert problems(**both) == ["spec.gateway.prefixAware"]


def test_pods_notice_it_and_nothing_else_of_a_gateway() -> None:
    def digest(**changes: Any) -> str:
        return spec_digest(parsed(**changes), "image", None)

    route = {"httpRoute": {"parentRefs": [{"name": "gate"}]}}
    assert digest() == digest(gateway=route) == digest(gateway={"prefixAware": False})
    assert digest() != digest(**ASKED) == digest(gateway={"prefixAware": True, **route})


def test_the_chart_names_the_picker() -> None:
    def picker(**environ: str) -> PickerProgram:
        named = {f"ATOM_OPERATOR_PICKER_{name}": value for name, value in environ.items()}
        return OperatorSettings.from_env(named).site.picker

    assert picker() == PickerProgram(PickerKind.LLM_D, PICKER_IMAGES[PickerKind.LLM_D])
    extension = picker(KIND="inference-extension")
    assert extension.image == PICKER_IMAGES[PickerKind.INFERENCE_EXTENSION]
    assert picker(IMAGE="own:1") == PickerProgram(PickerKind.LLM_D, "own:1")
    with pytest.raises(SettingsError, match=r"PICKER_KIND.*known: llm-d, inference-extension"):
        picker(KIND="dynamo")
