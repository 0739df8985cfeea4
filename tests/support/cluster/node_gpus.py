"""AMD GPUs of the embedded cluster's node: resources and labels only, as many as a test wants."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from devcluster import target
from tests.support.cluster.live_cluster import ROOT, LiveCluster

NODE = "dev-node"
RESOURCE = "amd.com/gpu"


def give_gpus(count: int) -> None:
    command = [sys.executable, "-m", "devcluster", "fake-amd", "--node", NODE]
    subprocess.run([*command, "--gpus", str(count)], cwd=ROOT, check=True, timeout=60)


@contextmanager
def node_gpus(cluster: LiveCluster, count: int) -> Iterator[None]:
    """The node has so many, and afterwards as many as before."""
    if not target.resolve(os.environ).is_embedded:
        pytest.skip("only the embedded cluster's node can be given GPUs")
    before = (cluster.get("node", NODE) or {})["status"]["allocatable"].get(RESOURCE, "0")
    give_gpus(count)
    yield
    give_gpus(int(before))
