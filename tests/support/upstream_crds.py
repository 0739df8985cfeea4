"""The CRDs of other systems, as their projects publish them, for tests on a real API server.

They are data beside the project's home and not part of it: ATOM_UPSTREAM_CRDS names the folder, or
it lies in ../shared/crds beside the main checkout. Where there is none a test skips, and says so.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.support.live_cluster import ROOT, LiveCluster

_VARIABLE = "ATOM_UPSTREAM_CRDS"


def find() -> Path | str:
    """The folder, or one sentence why there is none."""
    if named := os.environ.get(_VARIABLE):
        return Path(named)
    listed = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", "--git-common-dir"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    main_checkout = Path(listed.stdout.strip()).parent if listed.returncode == 0 else ROOT
    folder = main_checkout.parent / "shared" / "crds"
    if folder.is_dir():
        return folder
    return f"no upstream CRDs: {_VARIABLE} is not set, and there is no {folder}"


def install(cluster: LiveCluster, folder: Path) -> None:
    """Idempotent; they stay, as an administrator's would."""
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
