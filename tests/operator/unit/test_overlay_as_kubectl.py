"""spec.template is merged as `kubectl patch --type strategic` merges: the same code as the API
server's, run on generated overlays of a rendered pod template."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from atom_operator.children.overlay import merge_pod_template
from atom_operator.children.workload import pod_template
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.operator.builders_operator import plan
from tests.support.operator.overlays import overlay, said_to_kubectl

pytestmark = pytest.mark.cluster


def bases() -> list[dict[str, Any]]:
    amd = {"type": "amd", "product": "MI300X", "preflight": True}
    hub = {"source": "hf://Qwen/Qwen3-8B", "tokenSecretRef": {"name": "hub"}}
    return [pod_template(plan()), pod_template(plan(model=hub, accelerator=amd))]


def patched(kubectl: str, folder: Path, base: dict[str, Any], patch: object) -> dict[str, Any]:
    """What kubectl itself makes of it, without a cluster."""
    pod = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": base}
    file = folder / "base.json"
    file.write_text(json.dumps(pod))
    command = [kubectl, "patch", "--local", "--type=strategic", f"--filename={file}"]
    command += [f"--patch={json.dumps({'template': patch})}", "--output=json"]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, f"{done.stderr}\n{json.dumps(patch)}"
    return without_nulls(json.loads(done.stdout)["template"])  # type: ignore[no-any-return]


def without_nulls(value: Any) -> Any:
    """A copy without what is null: kubectl keeps it in the items of a list that is replaced, and to
    the API server it is as if it were not there."""
    if isinstance(value, dict):
        return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def compare(cluster: LiveCluster, folder: Path, seeds: range) -> None:
    kubectl, known = cluster.kubectl_path, bases()
    for seed in seeds:
        chance = random.Random(seed)
        base = known[seed % len(known)]
        asked = overlay(chance, base)
        expected = patched(kubectl, folder, base, said_to_kubectl(asked, base))
        # What kubectl prints went through the API's types, which leave out what is empty.
        ours = patched(kubectl, folder, merge_pod_template(base, asked), {})
        assert ours == expected, f"seed {seed}: {json.dumps(asked)}"


def test_an_overlay_is_what_kubectl_makes_of_it(live_cluster: LiveCluster, tmp_path: Path) -> None:
    compare(live_cluster, tmp_path, range(40))


@pytest.mark.slow
def test_many_overlays_are_what_kubectl_makes_of_them(
    live_cluster: LiveCluster, tmp_path: Path
) -> None:
    compare(live_cluster, tmp_path, range(40, 1040))
