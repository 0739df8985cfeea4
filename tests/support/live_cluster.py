"""LiveCluster: kubectl against a real API server, for tests marked `cluster`.

The cluster is the one that `devcluster.target` names: the embedded one, brought up when it is not
running, or with CLUSTER=current the one of KUBECONFIG.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from devcluster import target
from devcluster.errors import DevclusterError

ROOT = Path(__file__).resolve().parent.parent.parent
CRD_DIRECTORY = ROOT / "crds"
CRD_NAME = "atomdeployments.serving.atom.dev"
_UP_SECONDS = 1500
_COMMAND_SECONDS = 60

T = TypeVar("T")


@dataclass(frozen=True)
class LiveCluster:
    """One namespace of a real cluster."""

    kubectl_path: str
    kubeconfig: str
    namespace: str = "default"

    def kubectl(
        self, *arguments: str, manifest: object = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; `manifest` goes to its standard input."""
        text = None if manifest is None else yaml.safe_dump(manifest)
        result = subprocess.run(
            [self.kubectl_path, "--namespace", self.namespace, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=_COMMAND_SECONDS,
            env={**os.environ, "KUBECONFIG": self.kubeconfig},
            check=False,
        )
        if check and result.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {result.stderr}")
        return result

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, None when there is none."""
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found").stdout
        return json.loads(text) if text else None

    def wait(self, what: str, look: Callable[[], T | None], seconds: float = 60.0) -> T:
        """The first result of `look` that is not None (or False)."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            result = look()
            if result is not None and result is not False:
                return result
            time.sleep(0.2)  # between two looks at another process, not instead of one
        raise AssertionError(f"after {seconds:g}s there is still no {what}")


def connect() -> LiveCluster | str:
    """The cluster, or one sentence why there is none."""
    if reason := target.why_unusable(os.environ):
        return reason
    chosen = target.resolve(os.environ)
    try:
        target.require_reachable(chosen)
    except DevclusterError as error:
        if not chosen.is_embedded:
            return str(error)
        subprocess.run(
            [sys.executable, "-m", "devcluster", "up"], cwd=ROOT, timeout=_UP_SECONDS, check=True
        )
    kubectl = shutil.which("kubectl") or str(chosen.settings.tools / "kubectl")
    return LiveCluster(kubectl, chosen.kubeconfig)
