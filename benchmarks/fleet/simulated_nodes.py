"""AMD nodes that exist in the API only, and kwok, which makes the pods on them ready.

A taint keeps everybody else's pods away. Called by operator_scale; knows nothing of the operator.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.engines.server_process import end
from devcluster.api import MERGE, Api, ApiError
from devcluster.fake_nodes import amd
from devcluster.fake_nodes.nodes import FakeAmd, created_status
from devcluster.programs.binaries import KWOK, ensure_binaries
from devcluster.settings import Settings

LABEL = "devcluster.atom.dev/simulated"
TOLERATION = {"key": LABEL, "operator": "Exists"}
GPUS_PER_NODE = 8
_PRODUCT = "MI300X"
_STAGES = Path(__file__).with_name("kwok_stages.yaml")
_LEASE_SECONDS = 40
_END_SECONDS = 20.0


@contextlib.contextmanager
def simulated_nodes(settings: Settings, api: Api, count: int, log: Path) -> Iterator[None]:
    """`count` nodes with GPUs, and kwok for their leases and pods; nothing of it stays."""
    program = ensure_binaries(settings, [KWOK])["kwok"]
    command = [str(program), "--kubeconfig", str(settings.kubeconfig), "--config", str(_STAGES)]
    command += ["--manage-nodes-with-label-selector", f"{LABEL}=true"]
    command += ["--node-lease-duration-seconds", str(_LEASE_SECONDS), "--server-address", ""]
    names = [f"simulated-{number}" for number in range(count)]
    try:
        for name in names:
            _create(api, name)
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output)
            try:
                yield
            finally:
                end(process, _END_SECONDS)
    finally:
        for name in names:
            with contextlib.suppress(ApiError):
                api.request("DELETE", f"/api/v1/nodes/{name}")


def _create(api: Api, name: str) -> None:
    labels = {
        LABEL: "true",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        **amd.labels(amd.product(_PRODUCT), GPUS_PER_NODE),
    }
    node: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
        "spec": {"taints": [{"key": LABEL, "value": "true", "effect": "NoSchedule"}]},
    }
    if api.find(f"/api/v1/nodes/{name}") is None:
        api.request("POST", "/api/v1/nodes", node)
    status = created_status(FakeAmd(name, GPUS_PER_NODE, _PRODUCT, create=True))
    api.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)


def wait_gone(api: Api, path: str, seconds: float) -> bool:
    """Return whether the object at `path` has disappeared within `seconds`."""
    deadline = time.monotonic() + seconds
    while api.find(path) is not None:
        if time.monotonic() > deadline:
            return False
        time.sleep(1)
    return True
