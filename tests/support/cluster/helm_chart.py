"""helm, run on the chart of this repository."""

from __future__ import annotations

import subprocess
from functools import cache
from typing import Any

import yaml

from tests.support.cluster.live_cluster import ROOT

CHART = ROOT / "charts" / "atom-operator"
KUBE_VERSION = "1.34.0"


@cache
def run_helm(helm: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run helm once for each list of arguments: the chart does not change meanwhile."""
    return subprocess.run(
        [helm, *arguments], capture_output=True, encoding="utf-8", timeout=60, check=False
    )


def objects_in(text: str) -> list[dict[str, Any]]:
    """Parse rendered manifests with libyaml, in an eighth of the time of PyYAML."""
    return [item for item in yaml.load_all(text, Loader=yaml.CSafeLoader) if item]
