"""Reads of an API server without kubectl: each name of a resource leads to its path, and what only
kubectl can answer is left to it. A test on a cluster compares both.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from devcluster import api_reader
from devcluster.api_reader import ApiReader, Resource, UnreadError, reader_of


def _resource(plural: str, singular: str, kind: str, *short: str, scope: str = "Namespaced") -> Any:
    names = {"resource": plural, "singularResource": singular, "shortNames": list(short)}
    return {**names, "responseKind": {"kind": kind}, "scope": scope}


GROUPS: dict[str, list[dict[str, Any]]] = {
    "/api": [
        {
            "metadata": {"name": ""},
            "versions": [
                {
                    "version": "v1",
                    "resources": [
                        _resource("pods", "pod", "Pod", "po"),
                        _resource("nodes", "node", "Node", "no", scope="Cluster"),
                        _resource("events", "event", "Event", "ev"),
                    ],
                }
            ],
        }
    ],
    "/apis": [
        {
            "metadata": {"name": "events.k8s.io"},
            "versions": [{"version": "v1", "resources": [_resource("events", "event", "Event")]}],
        },
        {
            "metadata": {"name": "serving.atom.dev"},
            "versions": [
                {
                    "version": "v1alpha1",
                    "resources": [_resource("atomdeployments", "", "AtomDeployment", "atomd")],
                }
            ],
        },
    ],
}
POD = {"kind": "Pod", "metadata": {"name": "a", "managedFields": [{}]}}


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> ApiReader:
    """A reader of a server that has one pod."""
    answers: dict[str, Any] = {root: {"items": groups} for root, groups in GROUPS.items()}
    answers["/api/v1/namespaces/team/pods/a"] = POD
    answers["/api/v1/namespaces/team/pods?labelSelector=a%3Db"] = {"items": [{"metadata": {}}]}
    monkeypatch.setattr(ApiReader, "_ask", lambda self, path, accept="": answers.get(path))
    return ApiReader("server:6443", api_reader.ssl.create_default_context())


@pytest.mark.parametrize("name", ["pod", "pods", "po", "Pod"])
def test_a_resource_is_found_by_each_of_its_names(reader: ApiReader, name: str) -> None:
    assert reader.get("team", name, "a") == {"kind": "Pod", "metadata": {"name": "a"}}
    assert reader.get("team", name, "b") is None


def test_names_are_kubectls() -> None:
    found = {}
    for root, groups in GROUPS.items():
        for group in groups:
            for name, resource in api_reader._resources(root, group):
                found.setdefault(name, resource.path("team", "x"))
    custom = "/apis/serving.atom.dev/v1alpha1/namespaces/team/atomdeployments/x"
    assert found["atomd"] == found["atomdeployments.serving.atom.dev"] == custom
    assert found["node"] == "/api/v1/nodes/x"
    assert found["events"] == "/api/v1/namespaces/team/events/x"
    assert found["events.events.k8s.io"] == "/apis/events.k8s.io/v1/namespaces/team/events/x"


def test_a_list_is_kubectls(reader: ApiReader) -> None:
    listed = reader.list("team", "pods", "a=b")
    assert (listed["kind"], listed["items"][0]["kind"]) == ("List", "Pod")
    assert listed["items"][0]["apiVersion"] == "v1"


def test_an_unknown_resource_is_left_to_kubectl(reader: ApiReader) -> None:
    with pytest.raises(UnreadError, match="no resource unicorns"):
        reader.get("team", "unicorns", "a")


def test_an_api_version_is_that_of_its_group() -> None:
    assert Resource("/apis/apps/v1", "deployments", "Deployment", True).api_version == "apps/v1"


@pytest.mark.parametrize("text", ["", "{}", "current-context: a\ncontexts: []\nclusters: []\n"])
def test_another_kubeconfig_is_left_to_kubectl(tmp_path: Path, text: str) -> None:
    file = tmp_path / "config"
    assert reader_of(str(file)) is None
    file.write_text(text, encoding="utf-8")
    assert reader_of(str(file)) is None
