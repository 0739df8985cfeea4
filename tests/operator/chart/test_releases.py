"""What a site makes of the chart: names of its releases, and values for its own cluster."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from typing import Any

import pytest
from aiohttp import web

from atom_operator.leadership.lease_object import ApiLease, lease_record
from atom_operator.leadership.rivals import Rival, Rivals
from atom_operator.settings import OperatorSettings
from tests.support.cluster.helm_chart import CHART, KUBE_VERSION, objects_in, run_helm
from tests.support.operator.stub_api_server import stub_api_server


def only(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = [document for document in documents if document["kind"] == kind]
    return found


def rendered_as(helm: str, release: str, namespace: str, *values: str) -> list[dict[str, Any]]:
    flags = [flag for value in values for flag in ("--set", value)]
    result = run_helm(
        helm,
        *("template", release, str(CHART), f"--namespace={namespace}"),
        *(f"--kube-version={KUBE_VERSION}", *flags),
    )
    assert result.returncode == 0, result.stderr
    return objects_in(result.stdout)


# Of these kinds a name is a DNS label; of all others it may have 253 characters.
LABELS_FOR_NAMES = {"Service", "Pod"}
CLUSTER_SCOPED = {"ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "release",
    ["a", "x" * 53, "atom-operator", "team-" + "y" * 34 + "-atom-operator", "z" * 50 + "-ab"],
)
@pytest.mark.parametrize("more", [(), ("watchNamespaces={a,b}",)], ids=["cluster", "namespaces"])
def test_every_name_of_a_release_fits(helm: str, release: str, more: tuple[str, ...]) -> None:
    assert len(release) <= 53
    namespace = "n" * 63
    switched_on = ("webhook.certManager.enabled=true", "metrics.serviceMonitor.enabled=true")
    for values in (more, (*more, *switched_on)):
        documents = rendered_as(helm, release, namespace, *values)
        names = [(item["kind"], item["metadata"]["name"]) for item in documents]
        for kind, name in names:
            longest = 63 if kind in LABELS_FOR_NAMES else 253
            assert len(name) <= longest, (kind, name)
            label = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
            assert re.fullmatch(rf"{label}(\.{label})*", name), (kind, name)
        for item in documents:
            for text in (item["metadata"].get("labels") or {}).values():
                assert len(text) <= 63, text
        (deployment,) = [item for item in documents if item["kind"] == "Deployment"]
        (container,) = deployment["spec"]["template"]["spec"]["containers"]
        environ = {item["name"]: item.get("value") for item in container["env"]}
        configured = environ.get("ATOM_OPERATOR_WEBHOOK_CONFIGURATION")
        assert configured is None or ("ValidatingWebhookConfiguration", configured) in names


def test_two_releases_of_one_name_in_two_namespaces_share_no_object(helm: str) -> None:
    """But the Lease of the whole cluster, which is no object of the chart's, and the CRD."""
    for values in ((), ("watchNamespaces={shared}",)):
        one, two = (
            {
                (item["kind"], item["metadata"].get("namespace"), item["metadata"]["name"])
                for item in rendered_as(helm, "atom", namespace, *values)
                if item["kind"] != "CustomResourceDefinition"
            }
            for namespace in ("team-a", "team-b")
        )
        assert not one & two


def lease(namespace: str, name: str, *, reconciles: bool, **spec: Any) -> dict[str, Any]:
    annotations = {"serving.atom.dev/reconciles": "true"} if reconciles else {}
    metadata = {"namespace": namespace, "name": name, "annotations": annotations}
    return {"metadata": metadata, "spec": {"leaseDurationSeconds": 12, **spec}}


def lease_of(documents: list[dict[str, Any]]) -> tuple[str, str]:
    """Where the operator of a rendered release has its Lease."""
    (container,) = only(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    environ = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    return environ["ATOM_OPERATOR_LEASE_NAMESPACE"], environ["ATOM_OPERATOR_LEASE"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("release", ["atom", "another"])
@pytest.mark.parametrize("watched", ["shared", "own,shared", "shared,more", "own"])
async def test_the_second_release_for_one_namespace_finds_the_first_and_says_so(
    helm: str, caplog: pytest.LogCaptureFixture, release: str, watched: str
) -> None:
    first = rendered_as(helm, "atom", "team-a", "watchNamespaces={shared,more}")
    second = rendered_as(helm, release, "team-b", f"watchNamespaces={{{watched}}}")
    stored = [item for item in (*first, *second) if item["kind"] == "Lease"]
    both = [name for name in watched.split(",") if name in ("shared", "more")]
    stored.append(lease(*lease_of(first), reconciles=True, holderIdentity="a-0"))

    def answer(request: web.Request) -> web.StreamResponse:
        *_, namespace, kind = request.path.rsplit("/", 2)
        if kind == "leases":
            label, value = request.query["labelSelector"].split("=")
            found = [item for item in stored if item["metadata"]["namespace"] == namespace]
            chosen = [i for i in found if (i["metadata"].get("labels") or {}).get(label) == value]
            return web.json_response({"items": chosen})
        place = [request.path.split("/")[-3], kind]
        for item in stored:
            if [item["metadata"]["namespace"], item["metadata"]["name"]] == place:
                return web.json_response(item)
        return web.json_response({"code": 404}, status=404)

    mine = Rival("own", lease_record(lease(*lease_of(second), reconciles=False)))
    async with stub_api_server(answer) as server:
        connection = server.connection()
        own = ApiLease(connection, *lease_of(second))
        rivals = Rivals(lambda: own.rivals("kube-system", watched.split(",")), time.monotonic, 0.01)
        looked = asyncio.Event()
        waiting = asyncio.ensure_future(rivals.wait(lambda: mine, lambda _: looked.set()))
        if both:
            await looked.wait()
            assert not waiting.done()
            stored[-1] = lease(*lease_of(first), reconciles=False, holderIdentity="")
        await waiting
        await connection.close()
    told = [item.getMessage() for item in caplog.records if item.levelno == logging.ERROR]
    expected = f"the release of Lease team-a/{lease_of(first)[1]} watches {', '.join(both)}, and so"
    assert len(told) == bool(both)
    assert all(expected in text for text in told)


def test_openshift_gets_pods_without_user_ids(helm: str) -> None:
    documents = rendered_as(helm, "atom", "default", "openshift=true")
    spec = only(documents, "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    (container,) = spec["containers"]
    environ = {item["name"]: item["value"] for item in container["env"] if "value" in item}
    environ = {name: value for name, value in environ.items() if "LEASE" not in name}
    del environ["ATOM_OPERATOR_WEBHOOK_PORT"]
    assert OperatorSettings.from_env(environ).site.user_id is None


def test_what_a_site_puts_on_the_operator_reaches_its_pods_and_objects(helm: str) -> None:
    documents = rendered_as(
        helm,
        "atom",
        "default",
        "commonLabels.team=serving",
        "podSecurityContext.fsGroup=7",
        "securityContext.readOnlyRootFilesystem=false",
        "extraEnv[0].name=HTTPS_PROXY",
        "extraEnv[0].value=http://proxy.test",
        "hostNetwork=true",
        "engine.imagePullSecrets={registry}",
    )
    for item in documents:
        if item["kind"] not in ("CustomResourceDefinition", "Pod"):
            assert item["metadata"]["labels"]["team"] == "serving", item["kind"]
    spec = only(documents, "Deployment")["spec"]["template"]["spec"]
    assert spec["securityContext"]["fsGroup"] == 7
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["hostNetwork"] is True
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is False
    assert {"name": "HTTPS_PROXY", "value": "http://proxy.test"} in container["env"]
    assert {"name": "ATOM_OPERATOR_ENGINE_PULL_SECRETS", "value": "registry"} in container["env"]


def test_an_extra_variable_cannot_be_one_of_the_operators(helm: str) -> None:
    flags = ("--set=extraEnv[0].name=ATOM_OPERATOR_WORKERS", f"--kube-version={KUBE_VERSION}")
    result = run_helm(helm, "template", "atom", str(CHART), *flags)
    assert result.returncode != 0
    assert "extraEnv" in result.stderr
