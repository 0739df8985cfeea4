"""A container runs as a number that no password file knows; the operator starts all the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.cluster.live_cluster import ROOT

# Nobody listens on this port: the operator comes as far as its first request, and says so.
_KUBECONFIG = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: u, user: {token: none}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


# What pwd answers in a container that runs as 65532.
_PROGRAM = """
import pwd, sys
def getpwuid(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = getpwuid
from atom_operator.__main__ import main
sys.exit(main([]))
"""


def test_the_operator_starts_as_a_user_without_a_name(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(_KUBECONFIG, encoding="utf-8")
    hidden = ("LOGNAME", "USER", "LNAME", "USERNAME")
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env={
            **{name: value for name, value in os.environ.items() if name not in hidden},
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{ROOT / 'operator'}:{ROOT / 'engine'}",
            "ATOM_OPERATOR_HEALTH_PORT": "0",
            "ATOM_OPERATOR_METRICS_PORT": "0",
        },
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "cannot list AtomDeployments" in line:
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
