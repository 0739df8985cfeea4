"""The rendered chart, compared with golden files; UPDATE_GOLDEN=1 rewrites them for review.

The CRD is left out: test_chart.py compares it with the one that is generated.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from devcluster.settings import read_settings
from tests.support.cluster.live_cluster import ROOT
from tests.support.waiting import HANG_SECONDS

CHART = ROOT / "charts" / "atom-operator"
GOLDEN = Path(__file__).parent / "golden"

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "everything": {
        "image": {"repository": "registry.test/atom-operator", "digest": "sha256:" + "a" * 64},
        "imagePullSecrets": [{"name": "registry"}],
        "defaultEngineImages": {"amd": "registry.test/atom:rocm", "cpu": "registry.test/atom:cpu"},
        "engine": {
            "maxTensorParallel": 8,
            "multiNode": True,
            "architectures": ["DeepseekV3ForCausalLM"],
            "features": ["expertParallel"],
        },
        "defaults": {"accelerator": {"deviceGroups": [109]}, "serviceAccountName": "$(cloud)"},
        "autoscaling": {"prometheusAddress": "http://prometheus.test:9090"},
        "runbookBaseUrl": "https://runbooks.test",
        "webhook": {"certManager": {"enabled": True}},
        "serviceAccount": {"name": "operator", "annotations": {"team.test/owner": "serving"}},
        "metrics": {
            "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "alerts": {"enabled": True},
        },
        "page": {"enabled": True},
        "podAnnotations": {"team.test/note": "kept"},
        "podLabels": {"team": "serving"},
        "nodeSelector": {"kubernetes.io/arch": "amd64"},
        "tolerations": [{"key": "control-plane", "operator": "Exists"}],
        "priorityClassName": "system-cluster-critical",
    },
    "two-namespaces-no-webhook": {
        "replicas": 1,
        "watchNamespaces": ["team-a", "team-b"],
        "webhook": {"enabled": False},
        "crds": {"enabled": False},
        "metrics": {"service": False},
    },
}


def rendered(values: Path) -> str:
    built = read_settings(os.environ).tools / "helm"
    helm = shutil.which("helm") or (str(built) if built.exists() else None)
    if helm is None:
        pytest.skip(f"no helm in PATH nor at {built}: python -m devcluster build makes one")
    result = subprocess.run(
        [helm, "template", "release", str(CHART), "--namespace=atom-system",
         "--kube-version=1.34.0", f"--values={values}"],
        capture_output=True, encoding="utf-8", timeout=HANG_SECONDS, check=True,
    )  # fmt: skip
    documents = [item for item in yaml.safe_load_all(result.stdout) if item]
    kept = [item for item in documents if item["kind"] != "CustomResourceDefinition"]
    return yaml.safe_dump_all(kept, sort_keys=False)


@pytest.mark.parametrize("name", CASES)
def test_the_rendered_chart_equals_the_golden_file(name: str, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(CASES[name]), encoding="utf-8")
    text, path = rendered(values), GOLDEN / f"{name}.yaml"
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.iterdir()} == set(CASES)
