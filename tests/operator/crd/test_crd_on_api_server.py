"""Each rule of the CRD, accepted and refused by the real API server, with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.operator.builders_operator import TINY_CONFIG, atom_deployment
from tests.support.operator.kstatus import kstatus
from tests.support.operator.status_shown import SHOWN_COLUMNS

pytestmark = pytest.mark.cluster

PATH, HUB = "path:///models/tiny", "hf://Qwen/Qwen3-8B"


def dry_run(cluster: LiveCluster, manifest: dict[str, Any]) -> str:
    """What the API server says against it; empty when it accepts."""
    del manifest["metadata"]["namespace"]
    result = cluster.kubectl(
        "apply", "--dry-run=server", "--filename=-", manifest=manifest, check=False
    )
    return result.stderr if result.returncode else ""


ACCEPTED: dict[str, dict[str, Any]] = {
    "only a model": {},
    "hub": {"model": {"source": HUB, "revision": "main", "tokenSecretRef": {"name": "hub"}}},
    "claim": {"model": {"source": "pvc://weights/a/b-1.0"}},
    "bucket": {
        "model": {"source": "s3://models/qwen/3", "s3": {"secretRef": {"name": "bucket"}}},
        "cache": {"weights": {"claim": "models"}},
    },
    "image": {
        "model": {
            "source": f"oci://registry.acme:5000/models/qwen-3:v1@sha256:{'0' * 64}",
            "image": {"folder": "/weights", "volume": False},
        }
    },
    "nested path": {"model": {"source": "path:///models/qwen/3"}},
    "config map": {"model": {"source": PATH, "configRef": {"name": "shape"}}},
    "block size 1": {"engine": {"blockSize": 1}},
    "block size 32": {"engine": {"blockSize": 32}},
    "all of the memory": {"engine": {"gpuMemoryUtilization": 1}},
    "a batch of exactly the sequences": {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 64}},
    "everything of the engine": {
        "engine": {
            "image": "a/b:c",
            "maxModelLen": 512,
            "kvCacheDtype": "fp32",
            "prefixCaching": False,
            "schedulingPolicy": "prefillFirst",
            "extraArgs": ["--x"],
            "env": [{"name": "A", "value": "b"}, {"name": "C", "valueFrom": {"fieldRef": {}}}],
        }
    },
    "product": {"accelerator": {"type": "amd", "product": "MI355X", "memory": "288Gi"}},
    **{
        f"{memory} of memory": {"accelerator": {"type": "cpu", "memory": memory}}
        for memory in ("0.5Gi", "1Pi", "4e9", 4_000_000_000, ".5Gi", "+4Gi")
    },
    "partition": {"accelerator": {"type": "amd", "resourceName": "amd.com/cpx_nps4"}},
    "zero replicas": {"replicas": 0},
    "no drain": {"rollout": {"drainSeconds": 0}},
    "strategy": {"rollout": {"strategy": "InPlace"}},
    # A model that can be split so: where an operator is installed, its webhook is asked too.
    "several copies": {
        "model": {"source": "hf://Qwen/Qwen3-8B"},
        "accelerator": {"type": "amd", "product": "MI300X"},
        "parallelism": {"tensor": 2, "data": 4},
    },
    "one copy on a cpu": {
        "model": {"source": "hf://Qwen/Qwen3-8B"},
        "accelerator": {"type": "cpu"},
        "parallelism": {"data": 1},
    },
    "several nodes": {
        "model": {"source": "hf://meta-llama/Llama-3.1-70B-Instruct"},
        "parallelism": {"tensor": 16, "nodes": 2},
    },
    "autoscaling": {
        "autoscaling": {
            "maxReplicas": 4,
            "minReplicas": 0,
            "activationQuery": "sum(queue)",
            "prometheus": {
                "serverAddress": "https://prometheus.test",
                "authenticationRef": {"name": "login"},
            },
        }
    },
    "sleep": {"autoscaling": {"maxReplicas": 1, "idle": "Sleep", "idleSeconds": 60}},
    "an HPA": {"autoscaling": {"maxReplicas": 1, "minReplicas": 1, "method": "HPA"}},
    "targets of latency": {"slo": {"ttft": "2s", "itl": "50ms", "percentile": 95}},
    "one target": {"slo": {"itl": "1s"}},
    "gateway": {
        "gateway": {
            "inferencePool": {"name": "picker", "port": 9003, "failureMode": "FailClose"},
            "httpRoute": {
                "parentRefs": [{"name": "gate", "namespace": "gates", "sectionName": "https"}],
                "hostnames": ["a.test"],
            },
        }
    },
    "a picker of our own": {"gateway": {"prefixAware": True}},
    "monitoring": {
        "monitoring": {
            "podMonitor": {"labels": {"release": "x"}, "interval": "30s"},
            "alerts": {},
            "dashboard": {"labels": {"folder": "models"}},
        }
    },
    "network policy": {
        "networkPolicy": {
            "clients": [{"ipBlock": {"cidr": "10.0.0.0/8"}}],
            "prometheus": [{"podSelector": {}}],
        }
    },
    "compile cache and preflight": {
        "cache": {"compile": {"claim": "kernels"}},
        "accelerator": {"type": "amd", "preflight": True},
    },
    "overlay": {"template": {"spec": {"containers": [{"name": "engine", "anything": 1}]}}},
}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": {"source": "gs://bucket/x"}}, "spec.model.source: Invalid value"),
    ({"model": {"source": "gs://bucket/x"}}, "must be hf://ORG/NAME, pvc://CLAIM/PATH, path:///"),
    ({"model": {"source": "s3://bucket/../x"}}, "must be hf://ORG/NAME"),
    ({"model": {"source": "oci://registry"}}, "must be hf://ORG/NAME"),
    ({"model": {"source": HUB, "s3": {"region": "eu"}}}, "s3 applies to s3:// sources only"),
    ({"model": {"source": HUB, "image": {}}}, "image applies to oci:// sources only"),
    ({"model": {"source": "hf://only-a-name"}}, "must be hf://ORG/NAME"),
    ({"model": {"source": "path://relative"}}, "path:///DIRECTORY/IN/THE/IMAGE"),
    ({"model": {"source": "path:///models/../etc"}}, "path:///DIRECTORY/IN/THE/IMAGE"),
    ({"model": {"source": "pvc://claim"}}, "pvc://CLAIM/PATH"),
    ({"model": {}}, "spec.model.source: Required value"),
    (
        {"model": {"source": PATH, "config": TINY_CONFIG, "configRef": {"name": "x"}}},
        "set at most one of config and configRef",
    ),
    ({"model": {"source": PATH, "revision": "main"}}, "revision applies to hf:// sources only"),
    (
        {"model": {"source": PATH, "tokenSecretRef": {"name": "x"}}},
        "tokenSecretRef applies to hf:// sources only",
    ),
    ({"engine": {"blockSize": 24}}, "must be 1 or a multiple of 16, at most 1024"),
    ({"engine": {"blockSize": 2048}}, "should be less than or equal to 1024"),
    ({"engine": {"gpuMemoryUtilization": 0}}, "must be greater than 0 and at most 1"),
    ({"engine": {"gpuMemoryUtilization": 1.5}}, "must be greater than 0 and at most 1"),
    (
        {"engine": {"maxNumSeqs": 64, "maxNumBatchedTokens": 63}},
        "maxNumBatchedTokens must be at least maxNumSeqs",
    ),
    ({"engine": {"maxModelLen": 0}}, "spec.engine.maxModelLen in body should be greater than or"),
    ({"engine": {"maxNumSeqs": -1}}, "spec.engine.maxNumSeqs in body should be greater than or"),
    ({"engine": {"maxModelLen": "long"}}, "spec.engine.maxModelLen"),
    ({"engine": {"kvCacheDtype": "fp4"}}, 'supported values: "auto", "bf16", "fp32", "fp8"'),
    ({"engine": {"schedulingPolicy": "fifo"}}, 'supported values: "mixed", "prefillFirst"'),
    (
        {"engine": {"env": [{"name": "A", "value": "b", "valueFrom": {}}]}},
        "set at most one of value and valueFrom",
    ),
    ({"engine": {"env": [{"name": "A"}, {"name": "A"}]}}, "Duplicate value"),
    (
        {"engine": {"speculative": {"method": "guess"}}},
        'supported values: "ngram", "suffix", "mtp", "eagle3", "draft_model"',
    ),
    ({"engine": {"speculative": {"draftModel": "acme/eagle"}}}, "draftModel in body should match"),
    ({"engine": {"speculative": {"tokens": 17}}}, "less than or equal to 16"),
    ({"replicas": -1}, "spec.replicas in body should be greater than or equal to 0"),
    ({"parallelism": {"tensor": 9}}, "tensor must be at most 8 for each node"),
    ({"parallelism": {"tensor": 129}}, "should be less than or equal to 128"),
    ({"parallelism": {"data": 9}}, "data times tensor must be at most 8 for each node"),
    ({"parallelism": {"data": 129}}, "should be less than or equal to 128"),
    ({"parallelism": {"data": 4, "tensor": 4}}, "data times tensor must be at most 8"),
    ({"parallelism": {"data": 2, "nodes": 2, "tensor": 2}}, "replicas of one node only"),
    (
        {"parallelism": {"data": 3, "nodes": 2, "expert": True}},
        "data must be a multiple of nodes",
    ),
    (
        {"parallelism": {"data": 18, "nodes": 2, "expert": True}},
        "data times tensor must be at most 8 for each node",
    ),
    (
        {"parallelism": {"data": 2}, "accelerator": {"type": "cpu"}},
        "parallelism.data applies to accelerator type amd only",
    ),
    ({"parallelism": {"tensor": 9, "nodes": 2}}, "tensor must be a multiple of nodes"),
    ({"parallelism": {"nodes": 2}}, "tensor must be a multiple of nodes"),
    ({"parallelism": {"tensor": 17, "nodes": 17}}, "should be less than or equal to 16"),
    ({"accelerator": {"type": "nvidia"}}, 'supported values: "amd", "cpu"'),
    ({"accelerator": {"type": "amd", "product": "H100"}}, '"MI300X"'),
    (
        {"accelerator": {"type": "cpu", "product": "MI300X"}},
        "product and resourceName apply to type amd only",
    ),
    ({"accelerator": {"type": "cpu", "memory": "lots"}}, "spec.accelerator.memory"),
    ({"accelerator": {"type": "cpu", "memory": "0Gi"}}, "must be more than 0"),
    ({"accelerator": {"type": "cpu", "memory": -1}}, "must be more than 0"),
    ({"accelerator": {"type": "cpu", "memory": "500m"}}, "spec.accelerator.memory"),
    ({"rollout": {"drainSeconds": -5}}, "greater than or equal to 0"),
    ({"rollout": {"strategy": "Rolling"}}, '"Auto", "Surge", "InPlace", "Recreate"'),
    ({"speculative": {}}, 'unknown field "spec.speculative"'),
    ({"autoscaling": {}}, "spec.autoscaling.maxReplicas: Required value"),
    ({"autoscaling": {"maxReplicas": 0}}, "should be greater than or equal to 1"),
    (
        {"autoscaling": {"maxReplicas": 2, "minReplicas": 3}},
        "minReplicas must be at most maxReplicas",
    ),
    ({"autoscaling": {"maxReplicas": 2, "minReplicas": 0}}, "minReplicas 0 needs activationQuery"),
    ({"autoscaling": {"maxReplicas": 1, "idleSeconds": 60}}, "idleSeconds needs idle"),
    ({"slo": {"percentile": 90}}, "set ttft, itl or both"),
    ({"slo": {"ttft": "2"}}, "spec.slo.ttft"),
    ({"slo": {"ttft": "0s"}}, "spec.slo.ttft"),
    ({"slo": {"itl": "50ms", "percentile": 100}}, "spec.slo.percentile"),
    (
        {
            "autoscaling": {
                "maxReplicas": 2,
                "minReplicas": 0,
                "activationQuery": "vector(1)",
                "idle": "Sleep",
            }
        },
        "idle Sleep keeps the pods",
    ),
    (
        {
            "autoscaling": {
                "maxReplicas": 2,
                "minReplicas": 0,
                "activationQuery": "vector(1)",
                "method": "HPA",
            }
        },
        "minReplicas 0 needs method KEDA",
    ),
    (
        {"autoscaling": {"maxReplicas": 2, "prometheus": {"serverAddress": "prometheus:9090"}}},
        "spec.autoscaling.prometheus.serverAddress",
    ),
    ({"autoscaling": {"maxReplicas": 2, "targetKvUsagePercent": 101}}, "less than or equal to 100"),
    ({"gateway": {"httpRoute": {"parentRefs": []}}}, "should have at least 1 items"),
    ({"gateway": {"inferencePool": {}}}, "spec.gateway.inferencePool.name: Required value"),
    (
        {"gateway": {"inferencePool": {"name": "a"}, "prefixAware": True}},
        "prefixAware runs an endpoint picker of its own: leave inferencePool out",
    ),
    ({"monitoring": {"podMonitor": {"interval": "soon"}}}, "spec.monitoring.podMonitor.interval"),
    ({"monitoring": {"alerts": {"labels": {"a": 1}}}}, "spec.monitoring.alerts.labels.a"),
    ({"cache": {"compile": {}}}, "spec.cache.compile.claim: Required value"),
    (
        {"accelerator": {"type": "cpu", "preflight": True}},
        "preflight applies to type amd only",
    ),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ACCEPTED)
def test_a_valid_spec_is_accepted(live_cluster: LiveCluster, name: str) -> None:
    assert dry_run(live_cluster, atom_deployment(**ACCEPTED[name])) == ""


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_an_invalid_spec_is_refused_with_field_and_range(
    live_cluster: LiveCluster, changes: dict[str, Any], words: str
) -> None:
    assert words in dry_run(live_cluster, atom_deployment(**changes))


@pytest.mark.parametrize("name", ["x" * 41, "1st", "with.dot", "ends-"])
def test_a_name_that_no_service_could_have_is_refused(live_cluster: LiveCluster, name: str) -> None:
    message = dry_run(live_cluster, atom_deployment(name=name))
    assert "at most 40 characters" in message or "Invalid value" in message


def test_a_name_of_forty_characters_is_accepted(live_cluster: LiveCluster) -> None:
    assert dry_run(live_cluster, atom_deployment(name="x" * 40)) == ""


def test_kubectl_shows_the_columns_and_can_scale(namespaced: LiveCluster) -> None:
    manifest = atom_deployment()
    manifest["metadata"]["namespace"] = namespaced.namespace
    namespaced.kubectl("apply", "--filename=-", manifest=manifest)
    header = namespaced.kubectl("get", "atomd").stdout.splitlines()[0].split()
    assert header == ["NAME", *SHOWN_COLUMNS]
    namespaced.kubectl("scale", "atomd/chat", "--replicas=3")
    scaled = namespaced.get("atomd", "chat")
    assert scaled is not None
    assert scaled["spec"]["replicas"] == 3


def test_a_new_object_has_the_generation_that_no_operator_has_seen(namespaced: LiveCluster) -> None:
    manifest = atom_deployment(suspend=True)
    manifest["metadata"]["namespace"] = namespaced.namespace
    command = ("create", "--dry-run=server", "--output=json", "--filename=-")
    stored = json.loads(namespaced.kubectl(*command, manifest=manifest).stdout)
    assert (stored["status"]["observedGeneration"], stored["status"]["conditions"]) == (-1, [])
    assert kstatus(stored) == "InProgress"
    assert stored["spec"]["suspend"] is True
