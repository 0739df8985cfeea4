"""Other projects' real controllers beside the embedded cluster, for tests of what they do with what
the operator renders.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devcluster import target
from devcluster.neighbours.installation import folder_of
from tests.support.cluster.live_cluster import ROOT, LiveCluster
from tests.support.cluster.quick_pods import quick_container
from tests.support.operator.builders_operator import atom_deployment

_BUILD_SECONDS = 3600


def ensure(*names: str) -> None:
    """Skips on a cluster of the user's own: what runs there is not ours to choose."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("other projects' controllers are run on the embedded cluster alone")
    command = [sys.executable, "-m", "devcluster", "up", "--with", ",".join(names)]
    subprocess.run(command, cwd=ROOT, timeout=_BUILD_SECONDS, check=True)


def state_of(name: str) -> Path:
    """The folder of a neighbour's files."""
    return folder_of(target.resolve(os.environ).settings, name)


def quick_model(image: str, container: Mapping[str, Any] | None = None, **spec: Any) -> Any:
    """An AtomDeployment `chat` whose pods are ready at once and take next to nothing."""
    requests = {"resources": {"requests": {"cpu": "10m", "memory": "32Mi"}}}
    template = {"spec": {"containers": [quick_container(**{**requests, **(container or {})})]}}
    rollout = {"drainSeconds": 0, **spec.pop("rollout", {})}
    return atom_deployment(
        engine={"image": image},
        accelerator={"type": "cpu", "memory": "1Gi"},
        template=template,
        rollout=rollout,
        **spec,
    )


def apply(cluster: LiveCluster, manifest: dict[str, Any]) -> None:
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)
