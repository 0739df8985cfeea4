"""`kubectl atom` against a cluster, as a user's shell would run it."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.waiting import HANG_SECONDS
from tools.kube import Kube
from tools.on_cluster import ROOT


def atom(kube: Kube, *arguments: str) -> str:
    """Run a command of the plug-in in the namespace of `kube`; what it printed."""
    paths = [str(ROOT / "operator"), str(ROOT / "engine")]
    command = [sys.executable, "-m", "atom_operator.kubectl_atom", "-n", kube.namespace]
    done = subprocess.run(
        [*command, *arguments],
        env={**kube.environment, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True, text=True, timeout=HANG_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout
