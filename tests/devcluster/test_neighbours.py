"""What `--with` means: names, command lines and webhooks of other projects' controllers."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from devcluster.errors import DevclusterError
from devcluster.health import Component, Health
from devcluster.neighbours import endpoint_picker, kueue
from devcluster.neighbours.neighbour import Place
from devcluster.neighbours.registry import NEIGHBOURS, parse_names
from devcluster.neighbours.webhooks import only_pods_with, reached_by_url
from devcluster.settings import REPOSITORY


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A neighbour's folder, with a certificate authority of four entries."""
    (tmp_path / "ca.crt").write_text("AUTH")
    return Place(tmp_path, tmp_path, {}, tmp_path, tmp_path / "kubeconfig")


def configuration(resource: str) -> dict[str, Any]:
    service = {"name": "webhook-service", "namespace": "system", "path": "/mutate"}
    return {
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "mutating"},
        "webhooks": [
            {"name": "one.io", "clientConfig": {"service": service}, "rules": [rule(resource)]}
        ],
    }


def rule(resource: str) -> dict[str, Any]:
    return {"apiGroups": ["*"], "operations": ["CREATE"], "resources": [resource]}


def test_names_are_taken_once_each_and_in_their_order() -> None:
    assert [found.name for found in parse_names("prometheus, lws,prometheus")] == [
        "prometheus",
        "lws",
    ]
    assert parse_names("") == []


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(DevclusterError, match=r"no neighbour istio; known are .*lws"):
        parse_names("lws,istio")


def test_a_neighbour_is_called_as_it_is_asked_for() -> None:
    assert all(name == neighbour.name for name, neighbour in NEIGHBOURS.items())


def test_a_webhook_is_reached_at_the_process_of_the_node(place: Place) -> None:
    (changed,) = reached_by_url([configuration("jobs")], place, "lws", 9543)
    assert changed["metadata"]["name"] == "lws-mutating"
    assert changed["webhooks"][0]["clientConfig"] == {
        "url": "https://127.0.0.1:9543/mutate",
        "caBundle": "QVVUSA==",
    }


def test_only_pods_with_the_label_wait_for_a_webhook() -> None:
    pods, jobs = only_pods_with("group", [configuration("pods"), configuration("jobs")])
    (chosen,) = pods["webhooks"][0]["objectSelector"]["matchExpressions"]
    assert chosen == {"key": "group", "operator": "Exists"}
    assert "objectSelector" not in jobs["webhooks"][0]


def test_a_webhook_of_a_framework_that_is_not_configured_is_left_out(place: Place) -> None:
    folder = place.module / "config/components/webhook"
    folder.mkdir(parents=True)
    hooks = [*configuration("pods")["webhooks"], *configuration("jobs")["webhooks"]]
    every = {**configuration("pods"), "webhooks": hooks}
    (folder / "manifests.yaml").write_text(json.dumps(every))
    installed = kueue.install(replace(place, programs={"kueue-manager": Path("/bin/kueue")}))
    (left,) = [item for item in installed.objects if "webhooks" in item]
    (hook,) = left["webhooks"]
    assert hook["rules"] == [rule("pods")]
    assert "objectSelector" in hook


def test_a_command_line_carries_its_variables(place: Place) -> None:
    argv = place.started_with({"POD_NAMESPACE": "keda"}, "/bin/operator", "--flag")
    assert argv == (
        "env",
        f"KUBECONFIG={place.kubeconfig}",
        "POD_NAMESPACE=keda",
        "/bin/operator",
        "--flag",
    )


def test_a_neighbour_that_fails_is_no_problem_of_the_cluster_itself() -> None:
    etcd = Component("etcd", 7, ready=True, restarts=0, last_exit="")
    keda = Component("keda", None, ready=False, restarts=3, last_exit="code 1")
    seen = Health((etcd, keda), api_ready=True, ready_nodes=("node",), dns_ready=True)
    assert seen.problems("node") == ["keda is not ready (last ended with code 1)"]
    assert seen.problems("node", of={"etcd"}) == []


def test_the_picker_is_told_what_the_guide_tells_people() -> None:
    guide = REPOSITORY / "docs" / "guides" / "gateway-and-monitoring.md"
    text = " ".join(guide.read_text(encoding="utf-8").split())
    assert [flag for flag in endpoint_picker.METRICS if flag not in text] == []
