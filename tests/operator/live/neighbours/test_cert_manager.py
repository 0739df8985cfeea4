"""cert-manager's own controllers and what the chart asks of them for the webhook."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from devcluster import target
from tests.support.cluster import neighbours
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tools.kube import Kube

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

RELEASE = "certified"
NAME = f"{RELEASE}-atom-operator"
SECRET = f"{NAME}-webhook-tls"


def hooks_of(cluster: LiveCluster) -> str:
    """The name of what belongs to the whole cluster."""
    return f"{NAME}.{cluster.namespace}"


ASKED = ("Issuer", "Certificate", "ValidatingWebhookConfiguration")


@pytest.fixture
def certified(namespaced: LiveCluster) -> Iterator[LiveCluster]:
    """A namespace with what the chart renders for cert-manager, and no operator."""
    neighbours.ensure("cert-manager")
    text = Kube(target.resolve(os.environ)).run(
        "helm", "template", RELEASE, str(ROOT / "charts" / "atom-operator"),
        f"--namespace={namespaced.namespace}", "--set=webhook.certManager.enabled=true",
        "--kube-version=1.34.0",
    )  # fmt: skip
    asked = [item for item in yaml.safe_load_all(text) if item and item["kind"] in ASKED]
    assert sorted(item["kind"] for item in asked) == sorted(ASKED)
    for manifest in asked:
        namespaced.kubectl("apply", "--filename=-", manifest=manifest)
    yield namespaced
    namespaced.kubectl("delete", "validatingwebhookconfiguration", hooks_of(namespaced))


def issued(cluster: LiveCluster) -> dict[str, bytes]:
    """The files of the Secret that the operator's pods mount."""

    def ready() -> dict[str, Any] | None:
        certificate = cluster.get("certificate", f"{NAME}-webhook") or {}
        told = certificate.get("status", {}).get("conditions", ())
        is_ready = any(item["type"] == "Ready" and item["status"] == "True" for item in told)
        return cluster.get("secret", SECRET) if is_ready else None

    data = cluster.wait("the certificate", ready, seconds=90)["data"]
    return {name: base64.b64decode(text) for name, text in data.items()}


def test_the_webhook_gets_the_certificate_that_the_chart_asks_for(certified: LiveCluster) -> None:
    files = issued(certified)
    assert set(files) == {"ca.crt", "tls.crt", "tls.key"}
    certificate = x509.load_pem_x509_certificate(files["tls.crt"])
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    service = f"{NAME}-webhook.{certified.namespace}.svc"
    assert service in names.get_values_for_type(x509.DNSName)
    assert isinstance(certificate.public_key(), ec.EllipticCurvePublicKey)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert x509.ExtendedKeyUsageOID.SERVER_AUTH in usage


def test_the_api_server_is_told_whom_to_trust(certified: LiveCluster) -> None:
    files = issued(certified)

    def bundle() -> str | None:
        found = certified.get("validatingwebhookconfiguration", hooks_of(certified)) or {}
        return next((hook["clientConfig"].get("caBundle") for hook in found["webhooks"]), None)

    told = certified.wait("the CA bundle", bundle, seconds=60)
    assert base64.b64decode(told) == files["ca.crt"]
