"""The webhook asked by a real API server: an operator on this host, called by its address."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from devcluster import target
from devcluster.node import network
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator")]

_SECRET = "webhook-certificate"
_AMD = {
    "model": {"source": "hf://Qwen/Qwen3-8B"},
    "accelerator": {"type": "amd", "product": "MI300X"},
}


@pytest.fixture
def host_address() -> str:
    """An address of this host at which the API server reaches it."""
    chosen = target.resolve(os.environ)
    if not chosen.is_embedded:
        pytest.skip("only of the embedded cluster is it known how its API server reaches this host")
    return network.uplink(chosen.settings.instance).host_address


def settings(cluster: LiveCluster, address: str, port: int, name: str = "one") -> dict[str, str]:
    return {
        "ATOM_OPERATOR_ENGINE_IMAGE_AMD": "localhost/atom-none:0",
        "ATOM_OPERATOR_LEASE": "atom-operator",
        "ATOM_OPERATOR_POD_NAMESPACE": cluster.namespace,
        "ATOM_OPERATOR_POD_NAME": name,
        "ATOM_OPERATOR_WEBHOOK_PORT": str(port),
        "ATOM_OPERATOR_WEBHOOK_HOSTS": address,
        "ATOM_OPERATOR_WEBHOOK_SECRET": _SECRET,
        "ATOM_OPERATOR_WEBHOOK_CONFIGURATION": cluster.namespace,
    }


@contextmanager
def configured(cluster: LiveCluster, address: str, port: int) -> Iterator[None]:
    """The chart's configuration, but for a URL and for this namespace only."""
    hook = {
        "name": "plan.serving.atom.dev",
        "failurePolicy": "Ignore",
        "timeoutSeconds": 2,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": f"https://{address}:{port}/validate"},
        "rules": [
            {
                "apiGroups": ["serving.atom.dev"],
                "apiVersions": ["v1alpha1"],
                "resources": ["atomdeployments"],
                "operations": ["CREATE", "UPDATE"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": cluster.namespace}},
    }
    manifest = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": cluster.namespace},
        "webhooks": [hook],
    }
    cluster.kubectl("apply", "--filename=-", manifest=manifest)
    try:
        yield
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", cluster.namespace)


def bundle(cluster: LiveCluster) -> bytes:
    found = cluster.get("validatingwebhookconfiguration", cluster.namespace) or {}
    return base64.b64decode(found["webhooks"][0]["clientConfig"].get("caBundle", ""))


def apply(
    cluster: LiveCluster, *flags: str, check: bool = True, **changes: Any
) -> tuple[int, list[str], str]:
    """Exit status, warnings, and everything on standard error."""
    manifest = atom_deployment(**changes)
    manifest["metadata"]["namespace"] = cluster.namespace
    result = cluster.kubectl("apply", "--filename=-", *flags, manifest=manifest, check=check)
    prefix = "Warning: "
    lines = result.stderr.splitlines()
    found = [line.removeprefix(prefix) for line in lines if line.startswith(prefix)]
    return result.returncode, found, result.stderr


def reviewed(cluster: LiveCluster) -> None:
    """The API server has learned of the certificate, which takes it a moment."""
    dry_run = "--dry-run=server"
    cluster.wait("plan as warnings", lambda: apply(cluster, dry_run, **_AMD)[1] or None)


def test_the_plan_is_shown_and_the_impossible_refused_before_anything_is_stored(
    namespaced: LiveCluster, tmp_path: Path, host_address: str, free_port: int
) -> None:
    cluster, port = namespaced, free_port
    with (
        configured(cluster, host_address, port),
        operator(cluster, tmp_path / "one.log", settings(cluster, host_address, port)),
    ):
        reviewed(cluster)
        _, lines, _ = apply(cluster, "--dry-run=server", **_AMD)
        assert "model: Qwen/Qwen3-8B" in lines
        assert "at 8,192 tokens: 133 sequences at once" in lines
        assert cluster.get("atomd", "chat") is None

        status, _, errors = apply(cluster, check=False, parallelism={"tensor": 3}, **_AMD)
        assert status != 0
        assert "spec.parallelism.tensor" in errors
        assert cluster.get("atomd", "chat") is None

        apply(cluster, **_AMD)
        cluster.wait("rollout", lambda: cluster.get("deployment", "chat"))
        engine = {"maxModelLen": 8192}
        _, lines, _ = apply(cluster, "--dry-run=server", engine=engine, **_AMD)
        assert "changes sequences at 40,960 tokens: no longer served" in lines
        assert any(line.startswith("rollout: every pod is replaced") for line in lines)
        assert apply(cluster, **_AMD)[1] == []  # nothing changes


def test_an_apply_passes_while_the_webhook_is_down_and_a_second_replica_shares_its_certificate(
    namespaced: LiveCluster, tmp_path: Path, host_address: str, free_port: int
) -> None:
    cluster, port = namespaced, free_port
    with configured(cluster, host_address, port):
        with operator(cluster, tmp_path / "one.log", settings(cluster, host_address, port)) as one:
            reviewed(cluster)
            made = cluster.get("secret", _SECRET)
            one.kill()
            one.wait()
        # Even what the webhook would refuse: the status says it then.
        apply(cluster, parallelism={"tensor": 3}, **_AMD)
        before = bundle(cluster)
        with operator(cluster, tmp_path / "two.log", settings(cluster, host_address, port, "two")):
            reviewed(cluster)
            accepted = cluster.wait("verdict", lambda: _accepted(cluster))
        assert accepted["status"] == "False"
        assert (cluster.get("secret", _SECRET), bundle(cluster)) == (made, before)


@pytest.mark.whole  # the webhook's test_server makes certificates without an API server
def test_a_deleted_certificate_is_made_anew(
    namespaced: LiveCluster, tmp_path: Path, host_address: str, free_port: int
) -> None:
    cluster, port = namespaced, free_port
    with configured(cluster, host_address, port):
        with operator(cluster, tmp_path / "one.log", settings(cluster, host_address, port)):
            reviewed(cluster)
        before = bundle(cluster)
        cluster.kubectl("delete", "secret", _SECRET)
        cluster.kubectl("create", "secret", "generic", _SECRET)  # as the chart makes it: empty
        with operator(cluster, tmp_path / "two.log", settings(cluster, host_address, port, "two")):
            cluster.wait("other authority", lambda: bundle(cluster) not in (before, b""))
            reviewed(cluster)
        assert len(x509.load_pem_x509_certificates(bundle(cluster))) == 1


def _accepted(cluster: LiveCluster) -> dict[str, Any] | None:
    status = (cluster.get("atomd", "chat") or {}).get("status") or {}
    return next((c for c in status.get("conditions", ()) if c["type"] == "Accepted"), None)
