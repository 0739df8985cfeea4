"""Cluster DNS: CoreDNS as a Deployment behind the kube-dns Service, and the objects that it needs.

Answers Service and pod names; any other name does not exist, because nothing in the cluster reaches
outside. Pure.
"""

from __future__ import annotations

import hashlib
from typing import Any

from devcluster.node import network

IMAGE = "localhost/coredns:dev"
NAMESPACE = "kube-system"
NAME = "coredns"
PORT = 1053  # above 1024, so that no capability is needed
DEPLOYMENT_PATH = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{NAME}"
LABELS = {"k8s-app": "kube-dns"}

ZONES = " ".join(f"{zone}:{PORT}" for zone in (network.DOMAIN, "in-addr.arpa", "ip6.arpa"))
COREFILE = f"""{ZONES} {{
    errors
    kubernetes {network.DOMAIN} in-addr.arpa ip6.arpa {{
        pods insecure
        ttl 5
    }}
    cache 5
    loadbalance
    health :8080
    ready :8181
}}
.:{PORT} {{
    errors
    template ANY ANY . {{
        rcode NXDOMAIN
    }}
}}
"""


def objects() -> list[tuple[str, dict[str, Any]]]:
    """List (path, manifest) of every object, in the order in which to apply them."""
    core, rbac = f"/api/v1/namespaces/{NAMESPACE}", "/apis/rbac.authorization.k8s.io/v1"
    return [
        (f"{core}/serviceaccounts/{NAME}", _object("v1", "ServiceAccount", NAME)),
        (f"{rbac}/clusterroles/system:{NAME}", _cluster_role()),
        (f"{rbac}/clusterrolebindings/system:{NAME}", _cluster_role_binding()),
        (
            f"{core}/configmaps/{NAME}",
            {**_object("v1", "ConfigMap", NAME), "data": {"Corefile": COREFILE}},
        ),
        (DEPLOYMENT_PATH, _deployment()),
        (f"{core}/services/kube-dns", _service()),
    ]


def _object(api_version: str, kind: str, name: str, namespaced: bool = True) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": NAMESPACE} if namespaced else {})}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}


def _cluster_role() -> dict[str, Any]:
    rules = [
        {
            "apiGroups": [""],
            "resources": ["endpoints", "services", "pods", "namespaces"],
            "verbs": ["list", "watch"],
        },
        {
            "apiGroups": ["discovery.k8s.io"],
            "resources": ["endpointslices"],
            "verbs": ["list", "watch"],
        },
    ]
    return {
        **_object(
            "rbac.authorization.k8s.io/v1", "ClusterRole", f"system:{NAME}", namespaced=False
        ),
        "rules": rules,
    }


def _cluster_role_binding() -> dict[str, Any]:
    return {
        **_object(
            "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", f"system:{NAME}", namespaced=False
        ),
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "name": f"system:{NAME}",
        },
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE}],
    }


def _deployment() -> dict[str, Any]:
    pod = {
        "serviceAccountName": NAME,
        "dnsPolicy": "Default",
        "priorityClassName": "system-cluster-critical",
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container()],
        "volumes": [{"name": "config", "configMap": {"name": NAME}}],
    }
    # CoreDNS reads its file once: another text must mean another pod.
    annotations = {"devcluster.atom.dev/config": hashlib.sha256(COREFILE.encode()).hexdigest()[:12]}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": LABELS},
        "template": {"metadata": {"labels": LABELS, "annotations": annotations}, "spec": pod},
    }
    return {**_object("apps/v1", "Deployment", NAME), "spec": spec}


def _container() -> dict[str, Any]:
    return {
        "name": NAME,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [
            {"name": "dns", "containerPort": PORT, "protocol": "UDP"},
            {"name": "dns-tcp", "containerPort": PORT, "protocol": "TCP"},
        ],
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8181}, "periodSeconds": 1},
        "livenessProbe": {
            "httpGet": {"path": "/health", "port": 8080},
            "initialDelaySeconds": 30,
            "failureThreshold": 5,
        },
        "resources": {"requests": {"cpu": "20m", "memory": "32Mi"}, "limits": {"memory": "170Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "volumeMounts": [{"name": "config", "mountPath": "/etc/coredns", "readOnly": True}],
    }


def _service() -> dict[str, Any]:
    ports = [
        {"name": "dns", "port": 53, "targetPort": PORT, "protocol": "UDP"},
        {"name": "dns-tcp", "port": 53, "targetPort": PORT, "protocol": "TCP"},
    ]
    return {
        **_object("v1", "Service", "kube-dns"),
        "spec": {"clusterIP": network.DNS_ADDRESS, "selector": LABELS, "ports": ports},
    }
