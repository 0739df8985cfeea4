"""Fixtures of the operator's cluster tests: a real API server with our CRD, and a namespace."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.cluster.live_cluster import CRD_DIRECTORY, CRD_NAME, LiveCluster, connect


@pytest.fixture(scope="session")
def live_cluster() -> Iterator[LiveCluster]:
    """A real cluster that has the CRD of this checkout; skips with the reason where none is."""
    cluster = connect()
    if isinstance(cluster, str):
        pytest.skip(cluster)
    existed = cluster.get("crd", CRD_NAME) is not None
    cluster.kubectl(
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=crd-test",
        f"--filename={CRD_DIRECTORY}",
    )
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{CRD_NAME}", "--timeout=30s")
    # Established comes before the endpoint is served everywhere.
    cluster.wait(
        "AtomDeployment endpoint",
        lambda: cluster.kubectl("get", "atomd", check=False).returncode == 0,
    )
    yield cluster
    if not existed:  # helm refuses to install over a CRD that it did not make
        cluster.kubectl("delete", "crd", CRD_NAME, "--wait=false")


@pytest.fixture
def namespaced(live_cluster: LiveCluster) -> Iterator[LiveCluster]:
    """The same, in a namespace of its own."""
    name = f"atom-test-{uuid.uuid4().hex[:8]}"
    live_cluster.kubectl("create", "namespace", name)
    yield replace(live_cluster, namespace=name)
    live_cluster.kubectl("delete", "namespace", name, "--wait=false")
