"""Which files of the cluster's tests run side by side, and that they can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.cluster_tests import files_with_cluster_tests, split

_, BESIDE = split(files_with_cluster_tests(), has_lanes=True)
# Ways to change what all tests of a cluster share: kinds without a namespace, and a chart.
_SHARED = re.compile(
    r"upstream_crds|simulated_nodes|helm|WebhookConfiguration|ClusterRole|PriorityClass"
    r"|\"crd\"|DeviceClass|kubectl\(\s*\"(label|taint|cordon|drain)\""
)
_GIVES_GPUS = "test_gpu_rollout.py"  # of one node, and no other file beside it asks for any


def test_every_file_runs_once_with_lanes_or_without() -> None:
    files = files_with_cluster_tests()
    for has_lanes in (True, False):
        alone, beside = split(files, has_lanes=has_lanes)
        assert sorted(alone + beside) == sorted(files)
        assert bool(beside) == has_lanes


@pytest.mark.parametrize("file", BESIDE, ids=lambda file: Path(file).stem)
def test_a_file_beside_others_changes_nothing_that_they_share(file: str) -> None:
    text = Path(file).read_text(encoding="utf-8")
    assert _SHARED.search(text) is None
    assert "namespaced" in text, "its objects are in a namespace of their own"


def test_one_file_beside_others_has_accelerators() -> None:
    """They are of one node, and would be one file's surplus and another's want."""
    texts = {Path(file).name: Path(file).read_text(encoding="utf-8") for file in BESIDE}
    assert [name for name, text in texts.items() if "give_gpus" in text] == [_GIVES_GPUS]
