"""What tests beside real controllers share: a namespace for all tests of a file."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.cluster import upstream_crds
from tests.support.cluster.live_cluster import LiveCluster


@pytest.fixture(scope="module")
def shared_namespace(live_cluster: LiveCluster) -> Iterator[LiveCluster]:
    """A namespace that all tests of a file live in, with the kinds of other systems."""
    upstream_crds.install(live_cluster)
    name = f"atom-test-{uuid.uuid4().hex[:8]}"
    live_cluster.kubectl("create", "namespace", name)
    yield replace(live_cluster, namespace=name)
    live_cluster.kubectl("delete", "namespace", name, "--wait=false")
