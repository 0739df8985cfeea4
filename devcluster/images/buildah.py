"""Runs buildah on a storage of our own in the cache, in a mount namespace of its own.

The namespace is why a killed build leaves no mounts behind. Nothing is pulled: bases come from
`base_image` only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from devcluster.settings import Settings
from devcluster.shell import follow, run

ACCEPT_ALL = {
    "default": [{"type": "insecureAcceptAnything"}]
}  # images are made here, so there is no signature to check
OWN_MOUNTS = ("unshare", "--mount", "--propagation=slave", "--")


class Buildah:
    def __init__(self, settings: Settings) -> None:
        self.folder = settings.cache / "buildah"
        self._temporary = self.folder / "tmp"
        self._temporary.mkdir(parents=True, exist_ok=True)
        self._policy = self.folder / "policy.json"
        if not self._policy.exists():
            self._policy.write_text(json.dumps(ACCEPT_ALL))

    def _command(self, arguments: Sequence[str | Path]) -> list[str | Path]:
        storage = [f"--root={self.folder}/storage", f"--runroot={self.folder}/run"]
        environment = ["env", f"TMPDIR={self._temporary}"]
        program = ["buildah", *storage, "--storage-driver=overlay"]
        return [*OWN_MOUNTS, *environment, *program, *arguments]

    def run(self, *arguments: str | Path) -> str:
        return run(self._command(arguments), timeout_seconds=1200)

    def bud(self, arguments: Sequence[str | Path], on_line: Callable[[str], None]) -> None:
        policy: list[str | Path] = ["--signature-policy", self._policy]
        follow(
            self._command(
                ["bud", *policy, "--isolation", "chroot", "--pull-never", "--layers", *arguments]
            ),
            on_line,
        )

    def forget_containers(self) -> None:
        """Working containers are of builds that were interrupted: the caller holds the lock."""
        self.run("rm", "--all")

    def push(self, image: str, archive: Path) -> None:
        self.run(
            "push",
            "--quiet",
            "--signature-policy",
            self._policy,
            image,
            f"docker-archive:{archive}:{image}",
        )

    def commit(self, container: str, image: str) -> None:
        self.run("commit", "--quiet", "--rm", "--signature-policy", self._policy, container, image)

    def image_id(self, image: str) -> str | None:
        for entry in json.loads(self.run("images", "--json") or "null") or []:
            if image in (entry.get("names") or []):
                return str(entry["id"])
        return None
