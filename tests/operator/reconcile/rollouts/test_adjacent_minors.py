"""An operator of the next minor version, or of the one before, takes over without restarting a pod.

What the version before left is recorded, and this version takes it over in every run. In the long
run both versions act as they are, each in a process of its own, on the in-memory cluster that the
other left: upwards, downwards and upwards again; it also says when the record is out of date, which
UPDATE_GOLDEN=1 renews. Between two minors an AtomDeployment says what both know.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import ROOT
from tests.support.cluster.previous_version import PREVIOUS_MINOR, extract
from tests.support.operator import one_version

RECORD = Path(__file__).with_name("left_by_previous_minor.json")
_GPU = {"type": "amd", "product": "MI300X"}
_QWEN = {"source": "hf://Qwen/Qwen3-8B"}
SPECS: dict[str, dict[str, Any]] = {
    "on CPUs": {},
    "three replicas, a template, a policy": {
        "replicas": 3,
        "template": {"spec": {"priorityClassName": "high"}},
        "networkPolicy": {},
        "engine": {"maxModelLen": 1024, "env": [{"name": "A", "value": "1"}]},
    },
    "on GPUs": {
        "nodes": 2,
        "accelerator": {**_GPU, "preflight": True},
        "parallelism": {"tensor": 2},
        "replicas": 2,
        "model": _QWEN,
        "cache": {"compile": {"claim": "kernels"}},
    },
    "autoscaled": {
        "nodes": 3,
        "accelerator": _GPU,
        "model": _QWEN,
        "autoscaling": {
            "minReplicas": 1,
            "maxReplicas": 4,
            "prometheus": {"serverAddress": "http://prometheus.test:9090"},
        },
    },
}
State = dict[str, Any]


def what_runs(state: State) -> tuple[dict[str, str], dict[str, Any]]:
    """Uids of pods, and the templates that they are of."""
    pods, templates = {}, {}
    for (*_, kind, _plural), _namespace, name, item in state["objects"]:
        if kind == "Pod":
            pods[name] = item["metadata"]["uid"]
        if kind == "Deployment":
            templates[name] = item["spec"]["template"]
    assert pods, "nothing serves that could be restarted"
    return pods, templates


@pytest.mark.parametrize("name", SPECS)
async def test_what_the_version_before_left_is_taken_over_as_it_runs(name: str) -> None:
    left = json.loads(RECORD.read_text())[name]
    taken = await one_version.taken_over(json.loads(json.dumps(left)))
    assert what_runs(taken) == what_runs(left)
    assert not taken["writes"], "it does not come to rest"


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    paths = ("engine/atom/__init__.py", "engine/atom/sizing", "operator", "tests/support", "tools")
    return extract(tmp_path_factory.mktemp("before"), *paths, commit=PREVIOUS_MINOR)


def answered(version: Path, question: dict[str, Any]) -> dict[str, State]:
    path = os.pathsep.join(str(version / part) for part in ("engine", "operator", ""))
    # The version before lets a set's order decide which of its pods is made first.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, one_version.__file__], cwd=version, input=json.dumps(question),
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, State] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_an_upgrade_a_downgrade_and_an_upgrade_restart_no_pod(before: Path) -> None:
    first = answered(before, {"specs": SPECS})
    if os.environ.get("UPDATE_GOLDEN"):
        RECORD.write_text(json.dumps(first, sort_keys=True, separators=(",", ":")) + "\n")
    recorded = json.loads(RECORD.read_text())
    assert {name: what_runs(state) for name, state in first.items()} == {
        name: what_runs(state) for name, state in recorded.items()
    }
    new = {f"started by this version, {name}": spec for name, spec in SPECS.items()}
    states = [first, answered(ROOT, {"states": first, "specs": new})]
    states.append(answered(before, {"states": states[-1]}))
    states.append(answered(ROOT, {"states": states[-1]}))
    for earlier, later in itertools.pairwise(states):
        for name, state in earlier.items():
            assert what_runs(later[name]) == what_runs(state), name
            assert not later[name]["writes"], name
