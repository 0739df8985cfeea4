"""kubectl and helm as functions, against the cluster that devcluster.target chose.

For the demo and every test that needs a cluster. Every wait has a limit; a failing command raises
with its own words.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from devcluster.api_reader import UnreadError, reader_of
from devcluster.target import Target

T = TypeVar("T")

DEFAULT_WAIT_SECONDS = 180.0
_POLL_SECONDS = 0.2
_SELECTOR = "--selector="


class KubeError(Exception):
    """A command against the cluster failed, or something did not become true in time."""


def attempt(
    command: Sequence[str],
    *,
    kubeconfig: str,
    tools: Path,
    stdin: str | None = None,
    timeout: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Return how a command ended, with KUBECONFIG set and `tools` before the PATH; `KubeError` when
    it could not be run, or had no end."""
    environment = command_environment(kubeconfig, tools)
    program = shutil.which(command[0], path=environment["PATH"])
    if program is None:
        raise KubeError(f"{command[0]} is not on PATH; run `python -m devcluster build`")
    try:
        return subprocess.run(
            [program, *command[1:]],
            env=environment,
            input=stdin,
            capture_output=True,
            encoding="utf-8",  # whatever the locale says
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise KubeError(f"{' '.join(command)}: no end after {timeout:.0f} s") from error


def command_environment(kubeconfig: str, tools: Path) -> dict[str, str]:
    """Build the environment of kubectl, helm and what they start."""
    path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "KUBECONFIG": kubeconfig, "PATH": path}


@dataclass(frozen=True, slots=True)
class Kube:
    """Commands with the target's KUBECONFIG and tools on PATH."""

    target: Target
    namespace: str = "default"

    @property
    def environment(self) -> dict[str, str]:
        return command_environment(self.target.kubeconfig, self.target.settings.tools)

    def run(self, *command: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        """Standard output of a command; raises `KubeError` with its standard error."""
        done = attempt(
            command,
            kubeconfig=self.target.kubeconfig,
            tools=self.target.settings.tools,
            stdin=stdin,
            timeout=timeout,
        )
        if done.returncode:
            raise KubeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def kubectl(self, *arguments: str, stdin: str | None = None, timeout: float = 120.0) -> str:
        return self.run(
            "kubectl", f"--namespace={self.namespace}", *arguments, stdin=stdin, timeout=timeout
        )

    def get(self, *what: str) -> dict[str, Any]:
        """An object, or a List of them, as JSON."""
        found = self._read(*what)
        if found is not None:
            return found
        content: dict[str, Any] = json.loads(self.kubectl("get", *what, "--output=json"))
        return content

    def _read(self, kind: str, *which: str) -> dict[str, Any] | None:
        """Read an object or a list without kubectl; None if only kubectl can answer, or has to word
        the error."""
        reader = reader_of(self.target.kubeconfig)
        if reader is None or len(which) != 1 or "," in kind:
            return None
        with contextlib.suppress(UnreadError):
            if which[0].startswith(_SELECTOR):
                return reader.list(self.namespace, kind, which[0].removeprefix(_SELECTOR))
            if not which[0].startswith("-"):
                return reader.get(self.namespace, kind, which[0])
        return None

    def apply(self, manifest: str) -> str:
        return self.kubectl("apply", "--filename=-", stdin=manifest)

    def install_chart(self, values: Mapping[str, str], *, namespace: str, chart: Path) -> None:
        """Install or upgrade the operator's chart and wait until it is ready."""
        command = ["helm", "upgrade", "--install", "atom-operator", str(chart)]
        command += ["--namespace", namespace, "--create-namespace", "--wait", "--timeout=180s"]
        # A CRD that was applied by hand before becomes the chart's instead of an error.
        command += ["--take-ownership"]
        for key, value in values.items():
            command += ["--set-string", f"{key}={value}"]
        self.run(*command, timeout=240.0)

    @contextlib.contextmanager
    def port_forward(self, what: str, port: int) -> Iterator[str]:
        """Base URL of a Service's or pod's port on loopback while the block runs."""
        kubectl = shutil.which("kubectl", path=self.environment["PATH"]) or "kubectl"
        process = subprocess.Popen(
            [kubectl, f"--namespace={self.namespace}", "port-forward", what, f":{port}"],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
        )
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            found = re.search(r"127\.0\.0\.1:(\d+)", line)
            if found is None:
                raise KubeError(f"port-forward {what}: {line.strip() or 'ended at once'}")
            yield f"http://127.0.0.1:{found.group(1)}"
        finally:
            process.terminate()
            process.wait(10)
            process.stdout.close()


def wait_until(
    what: str, probe: Callable[[], T | None], *, seconds: float = DEFAULT_WAIT_SECONDS
) -> T:
    """Poll until `probe` gives something but None or False; a `KubeError` of it counts as not yet.
    `KubeError` with `what` and the last error at the end."""
    end = time.monotonic() + seconds
    last_error = ""
    while time.monotonic() < end:
        try:
            found = probe()
        except KubeError as error:
            found, last_error = None, f" (last error: {error})"
        if found is not None and found is not False:
            return found
        time.sleep(_POLL_SECONDS)  # between two looks at another process, not instead of one
    raise KubeError(f"{what}: not so after {seconds:.0f} s{last_error}")


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """A condition of an object's status, {} when it has none of this type."""
    conditions = item.get("status", {}).get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {})


def is_current(item: Mapping[str, Any]) -> bool:
    """Return whether the status speaks of the spec as it is now."""
    return bool(item.get("status", {}).get("observedGeneration") == item["metadata"]["generation"])
