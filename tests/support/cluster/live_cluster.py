"""LiveCluster: kubectl against a real API server, for tests marked `cluster`.

The cluster is the one that `devcluster.target` names: the embedded one, brought up when it is not
running, or with CLUSTER=current the one of KUBECONFIG.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from devcluster import target
from devcluster.api_reader import UnreadError, reader_of
from devcluster.errors import DevclusterError
from tools.kube import KubeError, attempt, command_environment, wait_until

ROOT = Path(__file__).resolve().parents[3]
CRD_DIRECTORY = ROOT / "crds"
CRD_NAME = "atomdeployments.serving.atom.dev"
_UP_SECONDS = 1500
_COMMAND_SECONDS = 60

T = TypeVar("T")


@dataclass(frozen=True)
class LiveCluster:
    """One namespace of a real cluster, through whatever `kubeconfig` leads to it."""

    kubeconfig: str
    tools: Path
    namespace: str = "default"

    @property
    def kubectl_path(self) -> str:
        path = command_environment(self.kubeconfig, self.tools)["PATH"]
        return shutil.which("kubectl", path=path) or "kubectl"

    def kubectl(
        self, *arguments: str, manifest: object = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl; `manifest` goes to its standard input."""
        result = attempt(
            ["kubectl", "--namespace", self.namespace, *arguments],
            kubeconfig=self.kubeconfig,
            tools=self.tools,
            stdin=None if manifest is None else yaml.safe_dump(manifest),
            timeout=_COMMAND_SECONDS,
        )
        if check and result.returncode:
            raise KubeError(f"kubectl {' '.join(arguments)}: {result.stderr}")
        return result

    def get(self, kind: str, name: str) -> dict[str, Any] | None:
        """The object, None when there is none."""
        if reader := reader_of(self.kubeconfig):
            with contextlib.suppress(UnreadError):
                return reader.get(self.namespace, kind, name)
        text = self.kubectl("get", kind, name, "-o", "json", "--ignore-not-found").stdout
        return json.loads(text) if text else None

    def wait(self, what: str, look: Callable[[], T | None], seconds: float = 180.0) -> T:
        """The first result of `look` that is not None (or False)."""
        return wait_until(what, look, seconds=seconds)


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
    return LiveCluster(chosen.kubeconfig, chosen.settings.tools)
