"""Rendered manifests, compared with golden files; UPDATE_GOLDEN=1 rewrites them for review."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from atom_operator.canary_spec import canary_spec
from atom_operator.children.render import render
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
    ChildKey,
    Rollout,
    RolloutStrategy,
)
from atom_operator.domain.canary import Canary, CanaryPhase, CanaryState
from atom_operator.integration_values import (
    FORBIDDEN_BY_DEFAULT,
    Site,
    SiteAddresses,
    TemplateFeature,
)
from atom_operator.kinds import HTTP_ROUTE, LEADER_WORKER_SET, NETWORK_POLICY
from atom_operator.validation.rules import validate
from tests.support.operator.builders_operator import parsed, plan, spec

GOLDEN = Path(__file__).parent.parent / "golden"

CASES: dict[str, dict[str, Any]] = {
    "cpu-path": {},
    "amd-claim": {
        "model": {"source": "pvc://weights/llama-3.1-8b", "servedName": "llama"},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "replicas": 2,
        "rollout": {"drainSeconds": 300},
        "engine": {"extraArgs": ["--log-level", "debug"], "prefixCaching": False},
    },
    "amd-hub": {
        "model": {
            "source": "hf://Qwen/Qwen3-8B",
            "revision": "main",
            "tokenSecretRef": {"name": "hub"},
        },
        "accelerator": {"type": "amd", "product": "MI300X"},
        "engine": {
            "env": [{"name": "HF_HUB_ENABLE_HF_TRANSFER", "value": "1"}],
            "schedulingPolicy": "prefillFirst",
        },
        "template": {"spec": {"priorityClassName": "serving"}},
    },
    "amd-copies": {
        "model": {"source": "hf://Qwen/Qwen3-8B"},
        "accelerator": {"type": "amd", "product": "MI300X", "preflight": True},
        "parallelism": {"data": 4},
    },
    "every-integration": {
        "model": {"source": "hf://Qwen/Qwen3-8B"},
        "accelerator": {"type": "amd", "product": "MI300X", "preflight": True},
        "replicas": 2,
        "gateway": {
            "inferencePool": {"name": "picker"},
            "httpRoute": {
                "parentRefs": [{"name": "gate", "namespace": "gateways"}],
                "hostnames": ["chat.test"],
            },
        },
        "monitoring": {
            "podMonitor": {"labels": {"release": "prometheus"}, "interval": "30s"},
            "alerts": {"labels": {"release": "prometheus"}},
            "dashboard": {},
        },
        "networkPolicy": {"clients": [{"namespaceSelector": {"matchLabels": {"team": "chat"}}}]},
        "cache": {"compile": {"claim": "kernels"}},
    },
    "prefix-aware": {
        "gateway": {"prefixAware": True, "httpRoute": {"parentRefs": [{"name": "gate"}]}},
        "networkPolicy": {},
    },
    "adapters": {
        "model": {"source": "hf://Qwen/Qwen3-8B", "tokenSecretRef": {"name": "hub"}},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "cache": {"weights": {"claim": "weights"}},
        "engine": {"lora": {"maxLoras": 2, "claims": ["weights", "adapters"]}},
        "adapters": [{"name": "sql", "source": "pvc://adapters/sql"}],
    },
    "multi-node": {
        "model": {"source": "pvc://weights/llama-3.3-70b"},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "parallelism": {"tensor": 16, "nodes": 2},
        "networkPolicy": {},
    },
    "claims-of-groups": {
        "model": {"source": "pvc://weights/llama-3.3-70b"},
        "accelerator": {"type": "amd", "product": "MI300X", "claim": {}},
        "parallelism": {"tensor": 16, "nodes": 2},
    },
}
SITE = Site(
    engine_tensor_parallel=16,
    engine_multi_node=True,
    addresses=SiteAddresses(
        prometheus="http://prometheus.test:9090", operator_namespace="atom-system"
    ),
)


# A canary as the operator has come to it: its share, and the AtomDeployment of its pods.
CANARY: dict[str, Any] = {
    "gateway": {"prefixAware": True, "httpRoute": {"parentRefs": [{"name": "gate"}]}},
    "autoscaling": {"maxReplicas": 4},
    "canary": {
        "change": {
            "model": {"source": "pvc://weights/tiny-2"},
            "engine": {"image": "registry.test/atom:2"},
        },
        "weight": 20,
        "replicas": 2,
    },
}


def test_a_canary_is_rendered_as_the_golden_file_has_it() -> None:
    raw = spec(**CANARY)
    state = CanaryState("digest", CanaryPhase.WAITING, weight=20)
    canary = Canary("chat-canary", state, canary_spec(raw, parsed(**CANARY)))
    planned = replace(plan(site=SITE, **CANARY), canary=canary)
    kinds = (HTTP_ROUTE, ATOM_DEPLOYMENT)
    found = [item for key, item in render(planned).items() if key.kind in kinds]
    path, text = GOLDEN / "canary.yaml", yaml.safe_dump_all(found, sort_keys=False)
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def rendered_yaml(changes: dict[str, Any]) -> str:
    documents = [
        manifest
        for key, manifest in render(plan(site=SITE, **changes)).items()
        if key.kind != CONFIG_MAP
    ]
    return yaml.safe_dump_all(documents, sort_keys=False)


@pytest.mark.parametrize("name", CASES)
def test_rendered_manifests_equal_the_golden_file(name: str) -> None:
    path, text = GOLDEN / f"{name}.yaml", rendered_yaml(CASES[name])
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def pod_template(**changes: Any) -> dict[str, Any]:
    manifest = render(plan(**changes))[ChildKey(DEPLOYMENT, "chat")]
    return manifest["spec"]["template"]  # type: ignore[no-any-return]


def revision(**changes: Any) -> str:
    annotations = pod_template(**changes)["metadata"]["annotations"]
    return str(annotations["serving.atom.dev/revision"])


def test_what_a_pod_does_not_notice_keeps_the_revision() -> None:
    explicit = {"maxNumSeqs": 512, "blockSize": 16, "kvCacheDtype": "auto"}
    assert revision() == revision(replicas=5) == revision(engine=explicit)
    assert revision() == revision(rollout={"strategy": "Recreate"})


@pytest.mark.parametrize(
    ("strategy", "rendered"),
    [
        ("Surge", {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}),
        (
            "InPlace",
            {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
        ),
        ("Recreate", {"type": "Recreate"}),
    ],
)
def test_a_strategy_and_its_reason_are_on_the_deployment(
    strategy: str, rendered: dict[str, Any]
) -> None:
    rollout = replace(plan().rollout, chosen=Rollout(RolloutStrategy(strategy), "because"))
    manifest = render(replace(plan(), rollout=rollout))[ChildKey(DEPLOYMENT, "chat")]
    assert manifest["spec"]["strategy"] == rendered
    assert manifest["metadata"]["annotations"]["serving.atom.dev/rollout-reason"] == "because"


@pytest.mark.parametrize(
    "changes",
    [
        {"engine": {"maxModelLen": 1024}},
        {"engine": {"image": "registry.test/atom:2"}},
        {"rollout": {"drainSeconds": 1}},
        {"accelerator": {"type": "cpu", "memory": "6Gi"}},
        {"template": {"metadata": {"annotations": {"a": "b"}}}},
    ],
)
def test_what_a_pod_notices_changes_the_revision(changes: dict[str, Any]) -> None:
    assert revision(**changes) != revision()


def test_a_budget_exists_only_where_it_does_not_block_drains() -> None:
    budget = ChildKey(DISRUPTION_BUDGET, "chat")
    assert budget not in render(plan(replicas=1))
    assert render(plan(replicas=2))[budget]["spec"]["maxUnavailable"] == 1


def test_the_grace_period_covers_pre_stop_and_drain() -> None:
    spec = pod_template(rollout={"drainSeconds": 100})["spec"]
    pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert spec["terminationGracePeriodSeconds"] > pause + 100


def test_a_pod_has_no_rights_and_writes_only_where_it_may() -> None:
    changes = {"accelerator": {"type": "amd", "product": "MI300X", "deviceGroups": [44, 109]}}
    spec = pod_template(**changes)["spec"]
    assert spec["enableServiceLinks"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["supplementalGroups"] == [44, 109]
    (engine,) = spec["containers"]
    assert engine["securityContext"]["readOnlyRootFilesystem"] is True
    assert engine["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    written = {mount["mountPath"] for mount in engine["volumeMounts"] if not mount.get("readOnly")}
    assert written == {"/cache", "/tmp", "/dev/shm"}


@pytest.mark.parametrize(
    ("accelerator", "size"),
    [
        ({"type": "cpu", "memory": "4Gi"}, "128Mi"),
        ({"type": "cpu", "memory": "512Mi"}, "64Mi"),
        ({"type": "amd", "product": "MI300X"}, "2Gi"),
    ],
)
def test_shared_memory_stays_within_the_memory_of_the_container(
    accelerator: dict[str, Any], size: str
) -> None:
    # An engine that splits the model would get a GiB more for every further device.
    volumes = {
        item["name"]: item for item in pod_template(accelerator=accelerator)["spec"]["volumes"]
    }
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": size}


def test_replicas_prefer_different_hosts_and_scaling_changes_no_pod() -> None:
    (spread,) = pod_template()["spec"]["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == (
        "kubernetes.io/hostname",
        "ScheduleAnyway",
    )
    assert pod_template(replicas=1) == pod_template(replicas=5)


def test_the_plan_is_shown_without_the_values_of_the_environment() -> None:
    secret = {"env": [{"name": "API_KEY", "value": "hush"}]}
    data = render(plan(engine=secret))[ChildKey(CONFIG_MAP, "chat-plan")]["data"]
    assert "API_KEY" in data["plan.json"]
    assert "hush" not in data["plan.json"]


def test_the_startup_budget_grows_with_the_weights_and_their_source() -> None:
    def budget(source: str) -> int:
        model = {"source": source}
        container = pod_template(model=model)["spec"]["containers"][0]
        probe = container["startupProbe"]
        return int(probe["failureThreshold"] * probe["periodSeconds"])

    small, large = budget("hf://Qwen/Qwen3-0.6B"), budget("hf://Qwen/Qwen3-1.7B")
    assert small < large
    assert budget("hf://acme/unknown") > 3600


def test_the_compile_cache_is_keyed_by_what_compiled_code_depends_on() -> None:
    def folder(**changes: Any) -> str:
        asked = {
            "accelerator": {"type": "amd", "product": "MI300X"},
            "cache": {"compile": {"claim": "kernels"}},
            **changes,
        }
        made = plan(site=SITE, **asked)
        template = render(made)[ChildKey(DEPLOYMENT, "chat")]["spec"]["template"]
        (container,) = template["spec"]["containers"]
        values = {item["name"]: item.get("value") for item in container["env"]}
        assert {"name": "compile-cache", "mountPath": "/compile-cache"} in container["volumeMounts"]
        assert values["TRITON_CACHE_DIR"].removesuffix("triton") == (
            values["TORCHINDUCTOR_CACHE_DIR"].removesuffix("inductor")
        )
        return str(values["TRITON_CACHE_DIR"])

    usual = folder()
    assert usual.startswith("/compile-cache/")
    assert usual == folder(replicas=3) == folder(engine={"maxNumSeqs": 8})
    others = [
        folder(engine={"image": "registry.test/atom@sha256:" + "0" * 64}),
        folder(accelerator={"type": "amd", "product": "MI355X"}),
        folder(
            accelerator={"type": "amd", "product": "MI300X", "resourceName": "amd.com/cpx_nps4"}
        ),
        folder(parallelism={"tensor": 2}),
    ]
    assert len({usual, *others}) == 5


def test_the_preflight_asks_for_the_devices_of_the_engine() -> None:
    changes = {"accelerator": {"type": "amd", "product": "MI300X", "preflight": True}}
    spec = pod_template(**changes)["spec"]
    (check,), (engine,) = spec["initContainers"], spec["containers"]
    assert check["resources"]["limits"]["amd.com/gpu"] == "1"
    assert engine["resources"]["limits"]["amd.com/gpu"] == "1"
    assert check["image"] == engine["image"]


def test_each_group_has_an_address_of_its_own_beside_the_service() -> None:
    """The LeaderWorkerSet's controller makes no headless Service of a name that is taken."""
    rendered = render(plan(site=SITE, **CASES["multi-node"]))
    groups = rendered[ChildKey(LEADER_WORKER_SET, "chat")]
    assert ChildKey(SERVICE, groups["metadata"]["name"]) in rendered
    assert groups["spec"]["networkConfig"] == {"subdomainPolicy": "UniquePerReplica"}


def test_ranks_of_a_group_find_each_other() -> None:
    """What torch.distributed's env:// rendezvous needs, with what LeaderWorkerSet injects."""
    groups = render(plan(site=SITE, **CASES["multi-node"]))[ChildKey(LEADER_WORKER_SET, "chat")]
    template = groups["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    assert template["restartPolicy"] == "RecreateGroupOnPodRestart"
    for role in ("leader", "worker"):
        pod = template[f"{role}Template"]
        assert pod["metadata"]["labels"]["serving.atom.dev/role"] == role
        (engine,) = pod["spec"]["containers"]
        assert engine["resources"]["limits"]["amd.com/gpu"] == "8"
        environment = {item["name"]: item for item in engine["env"]}
        assert environment["MASTER_ADDR"]["value"] == "$(LWS_LEADER_ADDRESS)"
        assert environment["MASTER_PORT"]["value"] == "29500"
        mounted = {mount["mountPath"]: mount["name"] for mount in engine["volumeMounts"]}
        joined = Path(environment["ATOM_JOIN_ONCE"]["value"])
        kept = next(each for each in pod["spec"]["volumes"] if each["name"] == mounted["/tmp"])
        assert str(joined.parent) == "/tmp"
        assert kept == {"name": "tmp", "emptyDir": {}}, "as old as the pod, not as the container"
        assert environment["NODE_RANK"]["valueFrom"]["fieldRef"]["fieldPath"] == (
            "metadata.labels['leaderworkerset.sigs.k8s.io/worker-index']"
        )
        numbers = [environment[name]["value"] for name in ("NNODES", "WORLD_SIZE")]
        assert [*numbers, environment["LOCAL_WORLD_SIZE"]["value"]] == ["2", "16", "8"]
        told = dict(zip(engine["args"], engine["args"][1:], strict=False))
        assert told["--nnodes"] == "$(NNODES)"
        assert (told["--node-rank"], told["--master-addr"], told["--master-port"]) == (
            "$(NODE_RANK)", "$(MASTER_ADDR)", "$(MASTER_PORT)",
        )  # fmt: skip
        assert ("readinessProbe" in engine) is (role == "leader")


def test_ranks_that_share_experts_are_a_group_with_as_many_devices_in_each_pod() -> None:
    asked: dict[str, Any] = {
        "model": {"source": "hf://Qwen/Qwen3-30B-A3B"},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "parallelism": {"data": 8, "nodes": 2, "expert": True},
    }
    groups = render(plan(site=SITE, **asked))[ChildKey(LEADER_WORKER_SET, "chat")]
    template = groups["spec"]["leaderWorkerTemplate"]
    assert template["size"] == 2
    for role in ("leaderTemplate", "workerTemplate"):
        (engine,) = template[role]["spec"]["containers"]
        assert engine["resources"]["limits"] == {"amd.com/gpu": "4"}
        assert engine["resources"]["requests"]["memory"] == "32Gi", "of the copies of one pod"
        environment = {item["name"]: item.get("value") for item in engine["env"]}
        numbers = [environment[name] for name in ("NNODES", "WORLD_SIZE", "LOCAL_WORLD_SIZE")]
        assert numbers == ["2", "8", "4"]
        told = dict(zip(engine["args"], engine["args"][1:], strict=False))
        assert (told["--data-parallel-size"], told["--node-rank"]) == ("8", "$(NODE_RANK)")
        assert "--enable-dp-attention" in engine["args"]


def test_a_group_carries_what_a_fast_network_needs_where_it_is_asked_for() -> None:
    """RDMA devices, locked memory and RCCL's variables, in the leader and in the workers."""
    container = {
        "name": "engine",
        "resources": {"limits": {"rdma/hca": "8"}},
        "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    }
    asked = {
        **CASES["multi-node"],
        "template": {"spec": {"containers": [container]}},
        "engine": {"env": [{"name": "NCCL_IB_HCA", "value": "mlx5_0:1"}]},
    }
    site = replace(SITE, template_forbidden=FORBIDDEN_BY_DEFAULT - {TemplateFeature.CAPABILITIES})
    groups = render(plan(site=site, **asked))[ChildKey(LEADER_WORKER_SET, "chat")]
    for role in ("leaderTemplate", "workerTemplate"):
        spec = groups["spec"]["leaderWorkerTemplate"][role]["spec"]
        (engine,) = spec["containers"]
        assert engine["resources"]["limits"] == {"amd.com/gpu": "8", "rdma/hca": "8"}
        assert engine["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert {"name": "NCCL_IB_HCA", "value": "mlx5_0:1"} in engine["env"]
        (shared,) = [volume for volume in spec["volumes"] if volume["name"] == "shm"]
        assert shared["emptyDir"] == {"medium": "Memory", "sizeLimit": "9Gi"}
        (mount,) = [item for item in engine["volumeMounts"] if item["name"] == "shm"]
        assert mount["mountPath"] == "/dev/shm"


def test_only_leaders_are_behind_the_service() -> None:
    rendered = render(plan(site=SITE, **CASES["multi-node"]))
    selector = rendered[ChildKey(SERVICE, "chat")]["spec"]["selector"]
    assert selector["serving.atom.dev/role"] == "leader"


def test_a_policy_admits_clients_prometheus_and_the_operator_only() -> None:
    rendered = render(plan(site=SITE, **CASES["every-integration"]))
    spec = rendered[ChildKey(NETWORK_POLICY, "chat")]["spec"]
    (rule,) = spec["ingress"]
    assert rule["ports"] == [{"port": "http", "protocol": "TCP"}]
    clients, prometheus, operator = rule["from"]
    assert clients == {"namespaceSelector": {"matchLabels": {"team": "chat"}}}
    assert prometheus["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "prometheus"}
    assert operator == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "atom-system"}},
        "podSelector": {
            "matchLabels": {
                "app.kubernetes.io/component": "operator",
                "app.kubernetes.io/part-of": "atom-platform",
            }
        },
    }


def test_open_answers_are_handed_over_through_the_service_where_it_is_asked() -> None:
    arguments = pod_template(rollout={"handover": True})["spec"]["containers"][0]["args"]
    url = arguments[arguments.index("--handover-url") + 1]
    assert url == "http://chat.default.svc:8000"
    assert "--handover-url" not in pod_template()["spec"]["containers"][0]["args"]
    assert_knows_its_peers(pod_template(rollout={"handover": True})["spec"])
    assert "chat-peers" not in str(pod_template()["spec"])
    asked = {**CASES["every-integration"], "rollout": {"handover": True}}
    rules = render(plan(site=SITE, **asked))[ChildKey(NETWORK_POLICY, "chat")]["spec"]["ingress"]
    labels = rules[-1]["from"][0]["podSelector"]["matchLabels"]
    assert labels["serving.atom.dev/deployment"] == "chat", "the replicas are let in"


def assert_knows_its_peers(pod: dict[str, Any]) -> None:
    """The secret is mounted where the flag looks for it."""
    (container,) = pod["containers"]
    folder = container["args"][container["args"].index("--handover-secret-file") + 1]
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == folder]
    (volume,) = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert volume["secret"] == {"secretName": "chat-peers"}


def test_several_http_processes_hand_nothing_over() -> None:
    asked = {"rollout": {"handover": True}, "engine": {"extraArgs": ["--api-server-count=2"]}}
    (found,) = validate(parsed(**asked))
    assert found.field == "spec.engine.extraArgs[0]"
    assert "spec.rollout.handover needs one" in found.message
