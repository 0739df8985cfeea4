"""Which files of the cluster's tests run side by side, and that they can."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.cluster_tests import ROOT, files_with_cluster_tests, longest_first, split

ALONE, BESIDE = split(files_with_cluster_tests(), has_lanes=True)
# Ways to change what all tests of a cluster share: kinds without a namespace, and a chart.
_SHARED = re.compile(
    r"simulated_nodes|helm|WebhookConfiguration|ClusterRole|PriorityClass"
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


def test_crds_of_other_projects_are_there_before_files_run_side_by_side() -> None:
    """They stay once they are installed, so a file beside others may ask for them again."""
    asking = [file for file in BESIDE if "upstream_crds.install" in _text(file)]
    daily = [file for file in ALONE if "upstream_crds.install" in _text(file)]
    assert asking
    assert [file for file in daily if Path(file).parent.name == "e2e"]


def test_the_file_that_took_longest_begins_first() -> None:
    files = [str(ROOT / name) for name in ("tests/a.py", "tests/new.py", "tests/b.py")]
    seconds = {"tests/a.py": 3.0, "tests/b.py": 30.0}
    assert longest_first(files, seconds) == [files[2], files[0], files[1]]


def _text(file: str) -> str:
    return Path(file).read_text(encoding="utf-8")
