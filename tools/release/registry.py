"""Puts chart and images into an OCI registry, with the signatures that cosign looks for there.

Carried out by crane, which has the caller's credentials of registries (`docker login`, `helm
registry login`).
"""

from __future__ import annotations

import subprocess
import tarfile
import tempfile
from pathlib import Path

from tools.release import chart, provenance, signing
from tools.release.archives import OciArtefact
from tools.release.contents import CHART_LAYOUT, STATEMENT
from tools.release.errors import ReleaseError
from tools.release.signing import PrivateKey


class Registry:
    """A registry with a path, such as registry.example.com/atom. crane: the program."""

    def __init__(self, crane: Path, name: str) -> None:
        self._crane, self.name = crane, name

    def push_chart(self, folder: Path, key: PrivateKey | None) -> str:
        """Push the chart of a release, which helm then pulls; return it by digest. With a key its
        signature and the release's provenance are put beside it."""
        (layout,) = folder.glob(f"*{CHART_LAYOUT}")
        version = layout.name.removeprefix(f"{chart.NAME}-").removesuffix(CHART_LAYOUT)
        repository = f"{self.name}/charts/{chart.NAME}"
        with tempfile.TemporaryDirectory() as unpacked:
            with tarfile.open(layout) as archive:
                archive.extractall(unpacked, filter="data")
            pushed = self.push(Path(unpacked), f"{repository}:{version.replace('+', '_')}")
        if key is not None:
            self.sign(pushed, key)
            (statement,) = folder.glob(f"*{STATEMENT}")
            attested = signing.registry_attestation(statement.read_bytes(), provenance.PREDICATE)
            self._beside(pushed, "att", attested)
        return pushed

    def push(self, path: Path, reference: str) -> str:
        """Push an OCI layout, or an archive of an image; return it by digest."""
        self._run("push", str(path), reference)
        repository = reference.rpartition(":")[0]
        return f"{repository}@{self._run('digest', reference).strip()}"

    def sign(self, pushed: str, key: PrivateKey) -> None:
        """Sign what was pushed, by its digest."""
        self._beside(pushed, "sig", signing.registry_signature(key, pushed))

    def _beside(self, pushed: str, kind: str, artefact: OciArtefact) -> None:
        repository, _, digest = pushed.partition("@")
        with tempfile.TemporaryDirectory() as layout:
            for name, data in artefact.layout().items():
                (Path(layout) / name).parent.mkdir(parents=True, exist_ok=True)
                (Path(layout) / name).write_bytes(data)
            self.push(Path(layout), f"{repository}:{digest.replace(':', '-')}.{kind}")

    def _run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self._crane, *arguments], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ReleaseError(
                f"crane {arguments[0]} {arguments[-1]} failed: {done.stderr.strip()}; log in to "
                "the registry first (`docker login`)"
            )
        return done.stdout
