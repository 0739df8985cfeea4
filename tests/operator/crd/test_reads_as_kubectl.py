"""Tests and tools read objects without kubectl, and get what kubectl shows."""

from __future__ import annotations

import json

import pytest

from devcluster.api_reader import ApiReader, reader_of
from tests.support.cluster.live_cluster import CRD_NAME, LiveCluster

pytestmark = [pytest.mark.cluster, pytest.mark.side_by_side]


@pytest.fixture
def reader(namespaced: LiveCluster) -> ApiReader:
    found = reader_of(namespaced.kubeconfig)
    if found is None:
        pytest.skip("kubectl alone can use this kubeconfig")
    return found


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("CustomResourceDefinition", CRD_NAME),
        ("ServiceAccount", "default"),
        ("cm", "kube-root-ca.crt"),
        ("cm", "none"),
    ],
)
def test_an_object_is_what_kubectl_shows(
    namespaced: LiveCluster, reader: ApiReader, kind: str, name: str
) -> None:
    namespaced.wait("what each namespace has", lambda: namespaced.get("sa", "default"))
    namespaced.wait("and this", lambda: namespaced.get("cm", "kube-root-ca.crt"))
    text = namespaced.kubectl("get", kind, name, "--output=json", "--ignore-not-found").stdout
    assert reader.get(namespaced.namespace, kind, name) == (json.loads(text) if text else None)


def test_a_list_is_what_kubectl_shows(namespaced: LiveCluster, reader: ApiReader) -> None:
    for name in ("one", "two", "three"):
        labels = {"shelf": "a" if name != "three" else "b"}
        metadata = {"name": name, "labels": labels}
        manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        namespaced.kubectl("apply", "--filename=-", manifest=manifest)
    text = namespaced.kubectl("get", "configmaps", "--selector=shelf=a", "--output=json").stdout
    shown = json.loads(text)["items"]
    found = reader.list(namespaced.namespace, "configmaps", "shelf=a")["items"]
    assert [item["metadata"]["name"] for item in found] == ["one", "two"]
    assert found == shown
