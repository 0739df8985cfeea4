"""The CRDs of other systems, as their projects publish them, on a test's cluster."""

from __future__ import annotations

import os

from devcluster.programs.upstream_crds import ensure_upstream_crds
from devcluster.settings import read_settings
from tests.support.cluster.live_cluster import LiveCluster


def install(cluster: LiveCluster) -> None:
    """Idempotent; they stay, as an administrator's would."""
    folder = ensure_upstream_crds(read_settings(os.environ))
    files = [f"--filename={path}" for path in sorted(folder.glob("*.yaml"))]
    flags = ("--server-side", "--force-conflicts", "--field-manager=crd-test")
    listed = cluster.kubectl("apply", *flags, *files, "--output=name").stdout.split()
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", *listed)
    # Established comes before the endpoints answer.
    names = [name.partition("/")[2] for name in listed]
    cluster.wait(
        "endpoints of the upstream CRDs",
        lambda: cluster.kubectl("get", ",".join(names), check=False).returncode == 0,
    )
