"""The endpoint picker that we run for one model: its Deployment, Service, account and rights. Pure.

A gateway asks it for the pod of each request (Envoy's ext-proc, gRPC). It is one replica: its
knowledge is rebuilt from the engines, and the gateway continues without it (FailOpen) meanwhile.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.beside_engines.inherited import inherited_metadata, inherited_of_pod
from atom_operator.children.beside_engines.overlaid import overlaid
from atom_operator.children.endpoint_picker.picker_config import config_text, picker_flags
from atom_operator.children.overlay import copied
from atom_operator.domain import (
    CONFIG_MAP,
    DEPLOYMENT,
    SERVICE,
    SERVICE_ACCOUNT,
    Identity,
    Kind,
    Manifest,
    ObjectKey,
    RevisionInForce,
)
from atom_operator.integration_values import PickerProgram
from atom_operator.kinds import INFERENCE_POOL, ROLE, ROLE_BINDING

PICKER_CONTAINER = "picker"
# Quotas and policies of many namespaces want limits.
_RESOURCES = {
    "requests": {"cpu": "100m", "memory": "128Mi"},
    "limits": {"cpu": "4", "memory": "4Gi"},
}
_HEALTH_PORT = 9003
_METRICS_PORT = 9090
_CONFIG_FOLDER, _CONFIG_FILE = "/config", "picker.yaml"
_HEALTH_SERVICE = "inference-extension"
_READ = ["get", "list", "watch"]
# Priorities and rewrites of models: the kinds' two homes, of the extension and of llm-d.
_OBJECTIVES = ["inferenceobjectives", "inferencemodelrewrites"]
_OBJECTIVE_GROUPS = ["inference.networking.x-k8s.io", "llm-d.ai"]


def endpoint_picker(
    serving: RevisionInForce, program: PickerProgram
) -> Iterator[tuple[Kind, Manifest]]:
    """Yield the picker's objects, the prerequisites of its pod first. Raises OverlayError."""
    plan = serving.plan
    config = config_text(plan, program)
    yield SERVICE_ACCOUNT, _account(plan.identity)
    yield ROLE, _role(plan.identity)
    yield ROLE_BINDING, _role_binding(plan.identity)
    yield CONFIG_MAP, {**_head(plan.identity, CONFIG_MAP), "data": {_CONFIG_FILE: config}}
    yield SERVICE, _service(plan.identity)
    yield DEPLOYMENT, _deployment(serving, program)


def _head(identity: Identity, kind: Kind) -> Manifest:
    name = naming.picker_name(identity.key)
    return naming.component_head(identity, kind, name, constants.PICKER_COMPONENT)


def _account(identity: Identity) -> Manifest:
    account = {**_head(identity, SERVICE_ACCOUNT), "automountServiceAccountToken": False}
    if identity.pull_secrets:
        account["imagePullSecrets"] = [{"name": name} for name in identity.pull_secrets]
    return account


def _role(identity: Identity) -> Manifest:
    return {
        **_head(identity, ROLE),
        "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": _READ},
            {
                "apiGroups": [INFERENCE_POOL.group],
                "resources": [INFERENCE_POOL.plural],
                "verbs": _READ,
            },
            {"apiGroups": _OBJECTIVE_GROUPS, "resources": _OBJECTIVES, "verbs": _READ},
        ],
    }


def _role_binding(identity: Identity) -> Manifest:
    name = naming.picker_name(identity.key)
    return {
        **_head(identity, ROLE_BINDING),
        "roleRef": {"apiGroup": ROLE.group, "kind": ROLE.kind, "name": name},
        "subjects": [
            {"kind": SERVICE_ACCOUNT.kind, "name": name, "namespace": identity.key.namespace}
        ],
    }


def _service(identity: Identity) -> Manifest:
    port = {
        "name": "grpc-ext-proc",
        "port": constants.PICKER_PORT,
        "targetPort": "grpc",
        "protocol": "TCP",
        "appProtocol": "http2",
    }
    selector = naming.picker_labels(identity.key.name)
    spec = {"type": "ClusterIP", "selector": selector, "ports": [port]}
    return {**_head(identity, SERVICE), "spec": spec}


def _deployment(serving: RevisionInForce, program: PickerProgram) -> Manifest:
    return {
        **_head(serving.plan.identity, DEPLOYMENT),
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": naming.picker_labels(serving.plan.identity.key.name)},
            "template": picker_template(serving, program),
        },
    }


def picker_template(serving: RevisionInForce, program: PickerProgram) -> Manifest:
    """Return the pod template of the picker, made from the engine's finished one: metadata,
    placement and security. Raises OverlayError."""
    plan, finished = serving.plan, copied(serving.pods.template)
    labels, config = naming.picker_labels(plan.identity.key.name), config_text(plan, program)
    metadata = inherited_metadata(plan.identity.key, plan.integrations, finished)
    # Nobody watches the file: another configuration makes another pod.
    digest = {f"{constants.GROUP}/config": hashlib.sha256(config.encode()).hexdigest()[:16]}
    own = {**labels, constants.LABEL_PART_OF: "atom-platform"}
    metadata["labels"] = {**metadata["labels"], **own}
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **digest}
    spec = {**inherited_of_pod(finished), **_pod_spec(plan.identity.key, program)}
    asked = plan.integrations.endpoint_picker
    overlay = asked.template if asked is not None else None
    return overlaid({"metadata": metadata, "spec": spec}, overlay, PICKER_CONTAINER, labels)


def _pod_spec(key: ObjectKey, program: PickerProgram) -> dict[str, Any]:
    name = naming.picker_name(key)
    return {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "containers": [_container(key, program)],
        "volumes": [{"name": "config", "configMap": {"name": name}}],
    }


def _container(key: ObjectKey, program: PickerProgram) -> dict[str, Any]:
    ports = {"grpc": constants.PICKER_PORT, "health": _HEALTH_PORT, "metrics": _METRICS_PORT}
    probe = {"grpc": {"port": _HEALTH_PORT, "service": _HEALTH_SERVICE}}
    return {
        "name": PICKER_CONTAINER,
        "image": program.image,
        "args": [
            f"--pool-name={key.name}",
            f"--pool-namespace={key.namespace}",
            f"--grpc-port={constants.PICKER_PORT}",
            f"--grpc-health-port={_HEALTH_PORT}",
            f"--metrics-port={_METRICS_PORT}",
            "--metrics-endpoint-auth=false",
            f"--config-file={_CONFIG_FOLDER}/{_CONFIG_FILE}",
            *picker_flags(program),
        ],
        "env": [
            {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.{field}"}}}
            for variable, field in (("NAMESPACE", "namespace"), ("POD_NAME", "name"))
        ],
        "ports": [
            {"name": port, "containerPort": number, "protocol": "TCP"}
            for port, number in ports.items()
        ],
        "readinessProbe": {**probe, "periodSeconds": 2},
        "livenessProbe": {**probe, "initialDelaySeconds": 5, "periodSeconds": 10},
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "config", "mountPath": _CONFIG_FOLDER, "readOnly": True}],
    }
