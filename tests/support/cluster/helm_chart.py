"""helm, run on the chart of this repository."""

from __future__ import annotations

import subprocess

from tests.support.cluster.live_cluster import ROOT

CHART = ROOT / "charts" / "atom-operator"
KUBE_VERSION = "1.34.0"


def run_helm(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm, *arguments], capture_output=True, encoding="utf-8", timeout=60, check=False
    )
