"""The verdict on a manifest without a cluster is that of a real API server, on generated ones."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from kubernetes import client, config

from atom_operator import constants
from atom_operator.served_schema.manifest import judge
from tests.operator.crd.test_crd_on_api_server import ACCEPTED, REFUSED
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.operator.builders_operator import atom_deployment
from tests.support.operator.odd_manifests import odd_manifests

pytestmark = pytest.mark.cluster

BASES = [
    atom_deployment(**changes) for changes in (*ACCEPTED.values(), *(each for each, _ in REFUSED))
]


def refusals(cluster: LiveCluster, manifests: list[dict[str, Any]]) -> dict[str, str]:
    """Return by its name why the API server refuses a manifest, as kubectl asks it: strictly, and
    in a dry run."""
    found: dict[str, str] = {}
    configuration = client.Configuration()
    config.load_kube_config(cluster.kubeconfig, client_configuration=configuration)
    with client.ApiClient(configuration) as connection:
        api = client.CustomObjectsApi(connection)
        for manifest in manifests:
            try:
                api.create_namespaced_custom_object(
                    constants.GROUP, constants.VERSION, cluster.namespace, constants.PLURAL,
                    manifest, dry_run="All", field_validation="Strict",
                )  # fmt: skip
            except client.ApiException as error:
                if "admission webhook" not in str(error.body):  # asked only of sound objects
                    found[manifest["metadata"]["name"]] = str(error.body)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_generated_manifests_have_the_verdict_of_the_api_server(
    live_cluster: LiveCluster, seed: int
) -> None:
    drawn = list(islice(odd_manifests(BASES, seed), 150))
    for number, manifest in enumerate(drawn):
        manifest["metadata"].pop("namespace")
        manifest["metadata"]["name"] = f"c-{number}"
    theirs = refusals(live_cluster, drawn)
    wrong = []
    for manifest in drawn:
        ours, name = judge(manifest).problems, manifest["metadata"]["name"]
        if bool(ours) != (name in theirs):
            wrong.append((manifest, [str(problem) for problem in ours], theirs.get(name)))
    assert wrong == []
    assert 10 < len(theirs) < 140
