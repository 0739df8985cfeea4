"""Helm upgrades the CRD with the chart, and an uninstall leaves it and what it holds.

The API server alone: the operator's pods need not run, and are never scheduled.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from devcluster.settings import read_settings
from tests.support.cluster.live_cluster import CRD_NAME, ROOT, LiveCluster
from tests.support.cluster.previous_version import extract
from tests.support.operator.builders_operator import atom_deployment
from tests.support.waiting import HANG_SECONDS

pytestmark = pytest.mark.cluster


def helm(cluster: LiveCluster, *arguments: str) -> None:
    built = read_settings(os.environ).tools / "helm"
    program = shutil.which("helm") or (str(built) if built.exists() else None)
    if program is None:
        pytest.skip("no helm: python -m devcluster build makes one")
    done = subprocess.run(
        [program, f"--namespace={cluster.namespace}", *arguments],
        env={**os.environ, "KUBECONFIG": cluster.kubeconfig},
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def upgrade(cluster: LiveCluster, sources: Path) -> None:
    helm(
        cluster, "upgrade", "--install", cluster.namespace,
        str(sources / "charts" / "atom-operator"), "--take-ownership",
        f"--set=watchNamespaces={{{cluster.namespace}}}", "--set=nodeSelector.none=none",
    )  # fmt: skip


def fields(cluster: LiveCluster) -> set[str]:
    crd = cluster.get("crd", CRD_NAME) or {}
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return set(schema["properties"]["spec"]["properties"])


def test_the_crd_follows_the_chart_and_outlives_it(namespaced: LiveCluster, tmp_path: Path) -> None:
    cluster, previous = namespaced, extract(tmp_path, "charts")
    this = fields(cluster)
    upgrade(cluster, previous)
    try:
        assert "autoscaling" not in fields(cluster), "the CRD is not the previous chart's"
        manifest = atom_deployment()
        manifest["metadata"]["namespace"] = cluster.namespace
        cluster.kubectl("apply", "--filename=-", manifest=manifest)
        before = cluster.get("atomd", "chat")
        assert before is not None
        upgrade(cluster, ROOT)
        assert fields(cluster) == this
    finally:
        helm(cluster, "uninstall", cluster.namespace, "--ignore-not-found")
    assert fields(cluster) == this
    after = cluster.get("atomd", "chat")
    assert after is not None
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])
