"""The rights that the chart gives are enough, and it asks for no more: the operator as its account.

The process runs here with the pod's own environment, and talks to the API server with a token of
the chart's ServiceAccount.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.settings import read_settings
from tests.support.cluster import upstream_crds
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.operator.builders_operator import atom_deployment
from tests.support.waiting import HANG_SECONDS

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("only_operator")]

_OF_THE_CLUSTER = (
    *("ClusterRole", "ClusterRoleBinding", "ValidatingWebhookConfiguration"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
)
_POINTER = "serving.atom.dev/lease"
_PLAYED_HERE = ("Deployment", "PodDisruptionBudget", "CustomResourceDefinition")


def rendered(cluster: LiveCluster, *options: str) -> list[dict[str, Any]]:
    """The chart's objects, those of the whole cluster named after this test's namespace."""
    built = read_settings(os.environ).tools / "helm"
    helm = shutil.which("helm") or (str(built) if built.exists() else None)
    if helm is None:
        pytest.skip("no helm: python -m devcluster build makes one")
    result = subprocess.run(
        [
            helm, "template", "release", str(ROOT / "charts" / "atom-operator"),
            f"--namespace={cluster.namespace}", "--kube-version=1.34.0",
            f"--set=fullnameOverride={cluster.namespace}",
            "--set=defaultEngineImages.amd=localhost/atom-none:0", *options,
        ],
        capture_output=True, text=True, timeout=HANG_SECONDS, check=True,
    )  # fmt: skip
    return [item for item in yaml.safe_load_all(result.stdout) if item]


@contextmanager
def installed(cluster: LiveCluster, documents: list[dict[str, Any]]) -> Iterator[None]:
    made = [item for item in documents if item["kind"] not in _PLAYED_HERE]
    try:
        for item in made:
            cluster.kubectl("apply", place_of(cluster, item), "--filename=-", manifest=item)
        yield
    finally:
        for item in made:  # the namespace itself goes with all that is in it
            if item["kind"] in _OF_THE_CLUSTER or place_of(cluster, item) != place_of(cluster, {}):
                cluster.kubectl(
                    "delete", place_of(cluster, item), "--ignore-not-found", item["kind"],
                    item["metadata"]["name"],
                )  # fmt: skip


def place_of(cluster: LiveCluster, item: dict[str, Any]) -> str:
    """The option that names an object's namespace: the Lease of all releases is in kube-system."""
    own = item.get("metadata", {}).get("namespace")
    return f"--namespace={own or cluster.namespace}"


def environment(cluster: LiveCluster, documents: list[dict[str, Any]]) -> dict[str, str]:
    (deployment,) = [item for item in documents if item["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    fields = {"metadata.namespace": cluster.namespace, "metadata.name": "pod-of-the-test"}
    values = {
        item["name"]: item.get("value") or fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
        for item in container["env"]
    }
    here = {"HOME": os.environ.get("HOME", "/"), "ATOM_OPERATOR_WEBHOOK_PORT": "0"}
    return {**values, **here, "ATOM_OPERATOR_HEALTH_PORT": "0", "ATOM_OPERATOR_METRICS_PORT": "0"}


def as_its_account(cluster: LiveCluster, path: Path) -> LiveCluster:
    token = cluster.kubectl("create", "token", cluster.namespace).stdout.strip()
    config = yaml.safe_load(Path(cluster.kubeconfig).read_text())
    config["users"][0]["user"] = {"token": token}
    path.write_text(json.dumps(config))
    return replace(cluster, kubeconfig=str(path))


def test_the_charts_rights_are_enough_for_all_that_the_operator_does(
    namespaced: LiveCluster, tmp_path: Path, free_port: int
) -> None:
    cluster, log = namespaced, tmp_path / "operator.log"
    upstream_crds.install(cluster)  # before the operator looks which kinds there are
    documents = rendered(cluster, "--set=endpointPicker.rights=true")
    with installed(cluster, documents):
        account = as_its_account(cluster, tmp_path / "kubeconfig")
        variables = environment(cluster, documents)
        variables["ATOM_OPERATOR_WEBHOOK_PORT"] = str(free_port)
        with operator(account, log, variables):
            cluster.wait("Lease", lambda: _holds_its_lease(cluster, variables))
            cluster.wait("certificate", lambda: _filled(cluster))
            manifest = atom_deployment(
                model={"source": "hf://Qwen/Qwen3-8B"},
                accelerator={"type": "amd", "product": "MI300X"},
                replicas=2,
                gateway={"prefixAware": True},
            )
            manifest["metadata"]["namespace"] = cluster.namespace
            cluster.kubectl("apply", "--filename=-", manifest=manifest)
            cluster.wait("deployment", lambda: cluster.get("deployment", "chat"))
            # Whose Role gives rights, which the API server lets nobody give who lacks them.
            for kind in ("role", "rolebinding", "deployment"):
                cluster.wait(kind, lambda kind=kind: cluster.get(kind, "chat-picker"))
            cluster.wait("status", lambda: (cluster.get("atomd", "chat") or {}).get("status"))
            cluster.kubectl("scale", "atomd/chat", "--replicas=1")
            cluster.wait("prune of the budget", lambda: cluster.get("pdb", "chat") is None)
    refused = re.findall(r"(?i).*forbidden.*", log.read_text())
    assert refused == []


def test_the_account_reads_a_volume_by_name_and_does_nothing_else_to_volumes(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    cluster, name = namespaced, f"{namespaced.namespace}-volume"
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"]}
    spec |= {"hostPath": {"path": "/nothing"}, "persistentVolumeReclaimPolicy": "Retain"}
    volume = {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name}}
    with installed(cluster, rendered(cluster)):
        account = as_its_account(cluster, tmp_path / "kubeconfig")
        cluster.kubectl("apply", "--filename=-", manifest={**volume, "spec": spec})
        try:
            assert (account.get("persistentvolume", name) or {})["spec"]["capacity"]
            for refused in (("get", "persistentvolumes"), ("delete", "persistentvolume", name)):
                assert "forbidden" in account.kubectl(*refused, check=False).stderr
        finally:
            cluster.kubectl("delete", "persistentvolume", name)


def test_the_account_makes_pods_by_dry_runs_alone(namespaced: LiveCluster, tmp_path: Path) -> None:
    container = {"name": "none", "image": "localhost/atom-none:0"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "tried-"}}
    pod |= {"spec": {"containers": [container]}}
    with installed(namespaced, rendered(namespaced)):
        account = as_its_account(namespaced, tmp_path / "kubeconfig")

        def create(*options: str) -> str:
            made = account.kubectl("create", *options, "--filename=-", manifest=pod, check=False)
            return made.stderr

        # A policy counts some moments after it was made.
        namespaced.wait("policy", lambda: "by dry runs alone" in create())
        assert create("--dry-run=server") == ""


def test_a_release_finds_by_the_pointer_who_else_watches_its_namespace(
    namespaced: LiveCluster, tmp_path: Path
) -> None:
    """Two releases of namespaces of their own, which both watch a third."""
    shared = namespaced
    first, second = (
        replace(shared, namespace=f"{shared.namespace}-{which}") for which in ("one", "two")
    )
    watching = f"--set=watchNamespaces={{{shared.namespace}}}"
    with ExitStack() as stack:
        for release in (first, second):
            release.kubectl("create", "namespace", release.namespace)
            end = ("delete", "namespace", release.namespace, "--wait=false")
            stack.callback(release.kubectl, *end)
            stack.enter_context(installed(release, rendered(release, watching)))
        holder, other = (
            as_its_account(release, tmp_path / release.namespace) for release in (first, second)
        )
        selector = "--selector=serving.atom.dev/points-to-lease=true"
        where = f"--namespace={shared.namespace}"
        listed = json.loads(other.kubectl("get", where, "leases", selector, "-o", "json").stdout)
        pointed = [item["metadata"]["annotations"][_POINTER] for item in listed["items"]]
        (lease,) = [name for name in pointed if name.startswith(f"{first.namespace}/")]
        for name in (lease.partition("/")[2], "another"):
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
            made |= {"metadata": {"name": name}, "spec": {"holderIdentity": "one"}}
            holder.kubectl("create", "--filename=-", manifest=made)
        seen = replace(other, namespace=first.namespace)
        assert (seen.get("lease", lease.partition("/")[2]) or {})["spec"]["holderIdentity"] == "one"
        for refused in (("get", "lease", "another"), ("delete", "lease", lease.partition("/")[2])):
            assert "forbidden" in seen.kubectl(*refused, check=False).stderr


def _holds_its_lease(cluster: LiveCluster, variables: dict[str, str]) -> bool:
    """Wherever the chart has it: all releases of the whole cluster share one."""
    place = replace(cluster, namespace=variables["ATOM_OPERATOR_LEASE_NAMESPACE"])
    lease = place.get("lease", variables["ATOM_OPERATOR_LEASE"]) or {}
    return "pod-of-the-test" in str(lease.get("spec", {}).get("holderIdentity"))


def _filled(cluster: LiveCluster) -> bool:
    hooks = (
        cluster.get("validatingwebhookconfiguration", f"{cluster.namespace}.{cluster.namespace}")
        or {}
    )
    bundle = hooks["webhooks"][0]["clientConfig"].get("caBundle")
    name = f"{cluster.namespace}-webhook"
    return bool(bundle) and bool((cluster.get("secret", name) or {}).get("data"))
