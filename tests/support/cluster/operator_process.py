"""The operator as a process of its own, against a real API server (or what stands in front of it).

Ended gracefully unless the test killed it; without ports of its own unless the test names them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.cluster.live_cluster import ROOT, LiveCluster

_EXIT_SECONDS = 20


@contextmanager
def operator(
    cluster: LiveCluster, log: Path, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """An operator for the cluster's namespace; its output is appended to `log`."""
    variables = {
        **os.environ,
        "KUBECONFIG": cluster.kubeconfig,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "operator"), str(ROOT / "engine")]),
        "ATOM_OPERATOR_HEALTH_PORT": "0",
        "ATOM_OPERATOR_METRICS_PORT": "0",
        **(environment or {}),
    }
    command = [sys.executable, "-m", "atom_operator", "--namespace", cluster.namespace]
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=variables, cwd=log.parent, stdout=output, stderr=output
        )
    try:
        yield process
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=_EXIT_SECONDS) == 0, log.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
