"""Deployments of other projects: the least document of each kind, and its published fields.

Fields and forms: kserve/kserve (pkg/apis/serving, docs/samples), kubeai-project/kubeai
(api/k8s/v1/model_types.go), NVIDIA/k8s-nim-operator (api/apps/v1alpha1), vllm-project/
production-stack (helm/values.yaml) and the Compose specification. A value is of the published type.
"""

from __future__ import annotations

import copy
from typing import Any

Fields = dict[str, Any]
MODEL = "Qwen/Qwen3-8B"
_PROBE: Fields = {"httpGet": {"path": "/health", "port": 8000}, "failureThreshold": 3}
_RESOURCES: Fields = {
    "requests": {"cpu": "4", "memory": "32Gi", "amd.com/gpu": "2", "ephemeral-storage": "9Gi"},
    "limits": {"cpu": "4", "memory": "32Gi", "amd.com/gpu": "2", "rdma/roce": 1},
}
_AFFINITY: Fields = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
_TOLERATIONS = [{"key": "dedicated", "operator": "Exists"}]
_ENV = [
    {"name": "HTTPS_PROXY", "value": "http://proxy.test:3128"},
    {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "t"}}},
]
_REFERENCE = {"secretName": "s", "secretKey": "k"}
_FLAGS = ["--max-model-len", "8192", "--max-num-seqs=32"]
_CONTAINER: Fields = {
    "name": "main", "image": "vllm/vllm-openai:v0.19.0", "command": ["vllm", "serve", MODEL],
    "args": _FLAGS, "env": _ENV, "envFrom": [{"secretRef": {"name": "x"}}],
    "resources": _RESOURCES, "ports": [{"containerPort": 8000}], "livenessProbe": _PROBE,
    "readinessProbe": _PROBE, "startupProbe": _PROBE, "lifecycle": {"preStop": {}},
    "volumeMounts": [{"name": "v", "mountPath": "/v"}], "securityContext": {"runAsUser": 0},
    "imagePullPolicy": "Always", "workingDir": "/", "tty": True,
}  # fmt: skip
_POD: Fields = {
    "nodeSelector": {"pool": "gpu"}, "tolerations": _TOLERATIONS, "affinity": _AFFINITY,
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone"}],
    "priorityClassName": "high", "schedulerName": "other", "serviceAccountName": "sa",
    "imagePullSecrets": [{"name": "reg"}], "terminationGracePeriodSeconds": 60,
    "initContainers": [{"name": "i", "image": "busybox"}], "runtimeClassName": "nvidia",
    "volumes": [{"name": "v", "emptyDir": {}}], "securityContext": {"fsGroup": 1},
    "hostNetwork": True, "hostIPC": True, "dnsPolicy": "Default", "nodeName": "n",
}  # fmt: skip
_MAIN = [{"name": "main", "args": list(_FLAGS)}]
_METADATA: Fields = {
    "labels": {"team": "a", "app.kubernetes.io/name": "x"},
    "annotations": {"note": "b", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
    "uid": "1", "resourceVersion": "2", "generation": 3, "creationTimestamp": "2026-01-01",
    "managedFields": [], "finalizers": ["f"], "ownerReferences": [{"name": "o"}],
}  # fmt: skip


def _object(version: str, kind: str, spec: Fields) -> Fields:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": "chat"}, "spec": spec}


_KSERVE = "serving.kserve.io/"
LEAST: dict[str, Fields] = {
    "InferenceService": _object(
        f"{_KSERVE}v1beta1",
        "InferenceService",
        {"predictor": {"model": {"storageUri": f"hf://{MODEL}"}}},
    ),
    "LLMInferenceService": _object(
        f"{_KSERVE}v1alpha2", "LLMInferenceService", {"model": {"uri": f"hf://{MODEL}"}}
    ),
    "Model": _object("kubeai.org/v1", "Model", {"url": f"hf://{MODEL}"}),
    "NIMService": _object(
        "apps.nvidia.com/v1alpha1",
        "NIMService",
        {"image": {"repository": "nvcr.io/nim/meta/llama-3.1-8b-instruct"}},
    ),
    "production-stack": {"servingEngineSpec": {"modelSpec": [{"name": "chat", "modelURL": MODEL}]}},
    "Compose": {"services": {"chat": {"image": "vllm/vllm-openai", "command": f"--model {MODEL}"}}},
}
_KEDA = "servingEngineSpec.modelSpec[0].keda"
_AUTOSCALED: Fields = {"minReplicas": 1, "maxReplicas": 4}
# Of each kind, the objects with fields, by their path; an index is an item of a list.
PUBLISHED: dict[str, dict[str, Fields]] = {
    "InferenceService": {
        "metadata": _METADATA,
        "spec": {"transformer": {"containers": []}, "explainer": {"containers": []}},
        "spec.predictor": {
            **_POD, "containers": _MAIN, "minReplicas": 2, "maxReplicas": 4, "scaleTarget": 10,
            "scaleMetric": "concurrency", "scaleMetricType": "AverageValue", "timeout": 60,
            "containerConcurrency": 8, "canaryTrafficPercent": 10, "logger": {"mode": "all"},
            "batcher": {"maxBatchSize": 8}, "labels": {"a": "b"}, "annotations": {"a": "b"},
            "deploymentStrategy": {"type": "Recreate"}, "autoScaling": {"metrics": []},
            "storageUris": [{"uri": "s3://bucket/model"}], "huggingface": {"args": _FLAGS},
            "workerSpec": {"pipelineParallelSize": 2, "tensorParallelSize": 2, "containers": _MAIN},
        },
        "spec.predictor.model": {
            **_CONTAINER, "modelFormat": {"name": "huggingface"}, "runtime": "vllm",
            "runtimeVersion": "1", "protocolVersion": "v2", "storage": {"key": "s3"},
            "storageUri": "pvc://models/chat",
            "args": ["--model_name=chat", f"--model_id={MODEL}", "--backend=vllm", "--task", "x"],
        },
    },
    "LLMInferenceService": {
        "metadata": _METADATA,
        "spec": {
            "replicas": 2, "scaling": {**_AUTOSCALED, "wva": {"keda": {}}}, "worker": _POD,
            "parallelism": {"tensor": 2}, "labels": {"a": "b"}, "annotations": {"a": "b"},
            "template": {"containers": _MAIN}, "rolloutStrategy": {"maxSurge": 1},
            "router": {"route": {}}, "prefill": {"replicas": 1}, "runtime": "sglang",
            "trustRemoteCode": True, "storageInitializer": {"enabled": False}, "tracing": {},
            "baseRefs": [{"name": "c"}],
        },
        "spec.model": {"name": "served", "criticality": "Critical", "lora": {"maxRank": 8}},
        "spec.model.lora": {
            "adapters": [{"name": "a", "uri": "hf://org/a"}], "maxRank": 32, "maxAdapters": 2,
            "maxCpuAdapters": 4,
        },
        "spec.parallelism": {
            "tensor": 2, "data": 2, "dataLocal": 2, "dataRPCPort": 5000, "pipeline": 2,
            "expert": True,
        },
        "spec.kvCacheOffloading": {
            "cpuBytesToUse": 1 << 30, "evictionPolicy": "lru", "secondaryTiers": [{"type": "fs"}],
            "cpu": {"size": "8Gi", "evictionPolicy": "lru", "blockSize": 64},
            "fileSystem": [{"path": "/kv"}], "objectStore": {"bucket": "b"},
        },
        "spec.speculator": {
            "model": {"uri": "hf://org/draft"},
            "config": {"method": "eagle3", "num_speculative_tokens": "3"},
        },
        "spec.router": {
            "route": {"http": {"refs": []}}, "ingress": {"refs": []},
            "gateway": {"refs": [{"name": "gw", "namespace": "n", "sectionName": "s"}]},
            "scheduler": {
                "pool": {"ref": {}}, "template": {}, "config": {"inline": {}}, "replicas": 2,
                "labels": {"a": "b"}, "annotations": {"a": "b"},
            },
        },
        "spec.template": _POD,
        "spec.template.containers[0]": _CONTAINER,
        "spec.prefill": {
            "replicas": 3, "parallelism": {"tensor": 2, "expert": True}, "scaling": _AUTOSCALED,
            "template": {"containers": _MAIN, "nodeSelector": {"a": "b"}},
        },
    },
    "Model": {
        "metadata": _METADATA,
        "spec": {
            "adapters": [{"name": "a", "url": "hf://org/a"}, {"name": "b", "url": "gs://b/x"}],
            "features": ["TextGeneration"], "engine": "VLLM", "resourceProfile": "amd-mi300x:2",
            "cacheProfile": "efs", "image": "i", "args": _FLAGS, "env": {"A": "b"},
            "envFrom": [{"secretRef": {"name": "x"}}], "replicas": 2, **_AUTOSCALED,
            "autoscalingDisabled": True, "targetRequests": 9, "scaleDownDelaySeconds": 30,
            "owner": "me", "loadBalancing": {"strategy": "PrefixHash", "prefixHash": {}},
            "files": [{"path": "/f", "content": "x"}], "priorityClassName": "high",
            "jsonPatches": [{"op": "remove", "path": "/a"}],
        },
    },
    "NIMService": {
        "metadata": _METADATA,
        "spec": {
            "type": "llm", "command": ["vllm", "serve", MODEL, "--max-num-seqs", "8"],
            "args": _FLAGS, "env": _ENV,
            "authSecret": "ngc", "labels": {"a": "b"}, "annotations": {"a": "b"},
            "nodeSelector": {"a": "b"}, "tolerations": _TOLERATIONS, "affinity": _AFFINITY,
            "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
            "resources": _RESOURCES, "draResources": [{"resourceClaimName": "c"}],
            "router": {}, "livenessProbe": {"enabled": True}, "readinessProbe": {"probe": _PROBE},
            "startupProbe": {"probe": _PROBE}, "replicas": 2, "userID": 1, "groupID": 1,
            "scale": {"enabled": True, "hpa": {**_AUTOSCALED, "metrics": [], "behavior": {}}},
            "metrics": {"enabled": True, "serviceMonitor": {"interval": "1m"}},
            "runtimeClass": "nvidia", "runtimeClassName": "nvidia", "schedulerName": "s",
            "inferencePlatform": "standalone", "proxy": {"httpsProxy": "p"},
            "multiNode": {"parallelism": {"tp": 2, "pp": 2}, "mpi": {}, "backendType": "lws"},
            "initContainers": [{"name": "i"}], "sidecarContainers": [{"name": "s"}],
        },
        "spec.storage": {
            "nimCache": {"name": "c", "profile": ""}, "pvc": {"create": True}, "hostPath": "/h",
            "readOnly": True, "sharedMemorySizeLimit": "1Gi", "emptyDir": {"sizeLimit": "1Gi"},
        },
        "spec.expose": {"service": {"port": 80}, "ingress": {"enabled": True}, "router": {}},
    },
    "production-stack": {
        "": {
            "routerSpec": {"routingLogic": "prefixaware", "replicaCount": 1},
            "cacheserverSpec": {"replicaCount": 1}, "loraController": {"enableLoraController": 1},
            "sharedStorage": {"enabled": True}, "lookupServerSpec": {"enabled": True},
            "loraAdapters": [
                {"name": "a", "baseModel": "chat", "adapterSource":
                    {"type": "huggingface", "adapterName": "a", "repository": "org/a"}}
            ],
        },
        "servingEngineSpec": {
            "enableEngine": True, "labels": {"a": "b"}, "extraPorts": [1], "containerPort": 8000,
            "vllmApiKey": _REFERENCE, "servicePort": 80, "configs": {"a": "b"},
            "strategy": {"type": "Recreate"}, "startupProbe": _PROBE, "livenessProbe": _PROBE,
            "readinessProbe": _PROBE, "tolerations": _TOLERATIONS, "runtimeClassName": "nvidia",
            "schedulerName": "s", "imagePullPolicy": "Always", "securityContext": {"runAsUser": 0},
            "containerSecurityContext": {"runAsNonRoot": False}, "sidecar": {"image": "i"},
            "serviceMonitor": {"enabled": True},
        },
        "servingEngineSpec.modelSpec[0]": {
            "enabled": True, "annotations": {"a": "b"}, "podAnnotations": {"a": "b"},
            "serviceAccountName": "sa", "priorityClassName": "high", "runtimeClassName": "nvidia",
            "repository": "vllm/vllm-openai", "tag": "latest", "imagePullSecret": "reg",
            "chatTemplate": "x.jinja", "replicaCount": 2, "resources": _RESOURCES,
            "requestCPU": 6, "requestMemory": "16Gi", "requestGPU": 2, "limitCPU": 8,
            "requestGPUType": "amd.com/gpu", "requestGPUMem": "3000", "limitMemory": "32Gi",
            "requestGPUMemPercentage": "80", "requestGPUCores": "10", "limitGPUMem": "1",
            "limitGPUMemPercentage": "80", "limitGPUCores": "1", "pvcStorage": "50Gi",
            "pvcAccessMode": ["ReadWriteOnce"], "storageClass": "s", "pvcMatchLabels": {"a": "b"},
            "pvcLabels": {"a": "b"}, "pvcAnnotations": {"a": "b"}, "extraVolumes": [{"name": "v"}],
            "extraVolumeMounts": [{"name": "v"}], "initContainer": {"name": "i"},
            "hf_token": _REFERENCE, "envFromSecret": {"name": "s"}, "env": _ENV,
            "affinity": _AFFINITY, "nodeSelectorTerms": [{"matchExpressions": []}],
            "nodeName": "n", "tolerations": _TOLERATIONS, "tolerationsPolicy": "append",
            "shmSize": "20Gi", "enableLoRA": True, "raySpec": {"enabled": True},
            "labels": {"a": "b"}, "enableTool": True, "toolCallParser": "hermes",
        },
        "servingEngineSpec.modelSpec[0].vllmConfig": {
            "v0": "1", "v1": "1", "enablePrefixCaching": False, "enableChunkedPrefill": True,
            "maxModelLen": 8192, "dtype": "bfloat16", "tensorParallelSize": 2, "maxNumSeqs": 32,
            "maxLoras": 4, "gpuMemoryUtilization": 0.95, "runner": "pooling", "convert": "embed",
            "pipelineParallelSize": 2, "extraArgs": ["--gpu-memory-utilization", "0.4"],
        },
        "servingEngineSpec.modelSpec[0].lmcacheConfig": {
            "enabled": True, "cpuOffloadingBufferSize": "30", "diskOffloadingBufferSize": "60",
            "logLevel": "INFO", "kvRole": "kv_producer", "localCpu": True, "maxLocalCpuSize": 5,
            "maxLocalDiskSize": 5,
        },
        "servingEngineSpec.modelSpec[0].keda": {
            "enabled": False, "minReplicaCount": 1, "maxReplicaCount": 5, "pollingInterval": 15,
            "cooldownPeriod": 360, "idleReplicaCount": 0, "initialCooldownPeriod": 60,
            "fallback": {"replicas": 2}, "triggers": [{"type": "prometheus"}], "advanced": {},
        },
    },
    "Compose": {
        "": {"volumes": {"v": {}}, "networks": {"n": {}}, "secrets": {"s": {"file": "f"}}},
        "services": {"page": {"image": "nginx"}},
        "services.chat": {
            "entrypoint": ["vllm", "serve", MODEL, "--max-num-seqs", "8"], "build": ".",
            "environment": {"A": "b"}, "env_file": [".env"], "ports": ["8000:8000"],
            "expose": ["8000"], "gpus": "all",
            "volumes": ["v:/data"], "devices": ["/dev/kfd", "/dev/fuse"], "scale": 2,
            "mem_limit": "16g", "depends_on": ["db"], "labels": ["a=b"], "secrets": ["s"],
            "configs": ["c"], "container_name": "c", "restart": "always", "ipc": "host",
            "healthcheck": {"test": "x"}, "networks": ["n"], "shm_size": "1g", "user": "0",
            "privileged": True, "cap_add": ["SYS_PTRACE"], "security_opt": ["seccomp=unconfined"],
            "group_add": ["video"], "ulimits": {"memlock": -1}, "network_mode": "host",
            "runtime": "nvidia", "tty": True, "extra_hosts": ["a:1"], "working_dir": "/",
        },
        "services.chat.deploy": {
            "replicas": 2, "restart_policy": {"condition": "any"}, "placement": {},
            "update_config": {}, "labels": {"a": "b"},
        },
        "services.chat.deploy.resources": {
            "limits": {"memory": "32g", "cpus": "4"},
            "reservations": {"devices": [{"driver": "nvidia", "count": 2, "capabilities": []}]},
        },
    },
}  # fmt: skip


def with_fields(kind: str, *chosen: tuple[str, str, Any]) -> Fields:
    """The least document of a kind with fields, each its place, name and value."""
    document = copy.deepcopy(LEAST[kind])
    if any(place.endswith(".keda") for place, _, _ in chosen):
        place_in(document, _KEDA)["enabled"] = True  # else nothing below it is read
    for place, name, value in chosen:
        place_in(document, place)[name] = copy.deepcopy(value)
    return document


def place_in(document: Fields, place: str) -> Fields:
    """The object at a place, made if it is missing."""
    found: Any = document
    for step in filter(None, place.split(".")):
        name, _, index = step.partition("[")
        if index:
            found = found.setdefault(name, [{"name": "main"}])[int(index.rstrip("]"))]
        else:
            found = found.setdefault(name, {})
    return found
