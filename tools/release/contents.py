"""Every file of a release, made from one exported commit."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from tools.release import chart, krew, provenance, recipes, signing
from tools.release.archives import sha256, tar
from tools.release.errors import ReleaseError
from tools.release.provenance import Build
from tools.release.recipes import Reference
from tools.release.sbom import sbom
from tools.release.signing import PrivateKey, PublicKey
from tools.release.source import Source

CHECKSUMS, SIGNATURE = "SHA256SUMS", "SHA256SUMS.sig"
CHART_LAYOUT, STATEMENT = ".oci.tar", ".intoto.jsonl"


def contents(
    source: Source, images: Mapping[str, Reference], build: Build, key: PrivateKey | None
) -> dict[str, bytes]:
    """Bytes by name. images: what a builder made of the recipes, by digest. Without a key nothing
    is signed, and the provenance is a bare statement."""
    created = datetime.fromtimestamp(source.seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = source.version
    packed = chart.package(source, images)
    artefact = chart.artefact(source, packed, created)
    wheels = _wheel(source)
    ((wheel, data),) = wheels.items()
    plugin = krew.archive(source, wheel, data)
    files = {
        **wheels,
        krew.archive_name(source): plugin,
        f"atom-krew-{version}.yaml": krew.manifest(source, plugin, build.downloads),
        f"{chart.NAME}-{version}.tgz": packed,
        f"{chart.NAME}-{version}{CHART_LAYOUT}": tar(artefact.layout(), source.seconds),
        f"atom-crds-{version}.yaml": _crds(source),
        f"atom-images-{version}.tar.gz": recipes.archive(source, created),
    }
    files[f"atom-platform-{version}.spdx.json"] = sbom(source, files, images)
    files["release-notes.md"] = _notes(source, images)
    subjects = {name: sha256(data) for name, data in files.items()}
    subjects[chart.NAME] = artefact.digest.removeprefix("sha256:")
    said = provenance.statement(source, subjects, images, build)
    if key is None:
        files[f"atom-platform-{version}.provenance.json"] = said
    else:
        files[f"atom-platform-{version}{STATEMENT}"] = signing.envelope(key, said)
    sums = "".join(f"{sha256(data)}  {name}\n" for name, data in sorted(files.items())).encode()
    files[CHECKSUMS] = sums
    if key is not None:
        files[SIGNATURE] = signing.sign(key, sums).encode()
    return files


def build_tools() -> dict[str, str]:
    """Tell the versions of what can change the bytes that are made of a commit."""
    return {
        "python": platform.python_version(),
        "hatchling": importlib.metadata.version("hatchling"),
    }


def verify(folder: Path, key: PublicKey) -> dict[str, str]:
    """The SHA-256 of each file, all of them signed. Raises `ReleaseError` at the first doubt."""
    sums = _read(folder, CHECKSUMS)
    signing.verify(key, sums, _read(folder, SIGNATURE).decode(), CHECKSUMS)
    expected = {
        name: digest for digest, name in (line.split() for line in sums.decode().splitlines())
    }
    present = {path.name for path in folder.iterdir()} - {CHECKSUMS, SIGNATURE}
    for name in sorted(present ^ expected.keys()):
        what = "is missing" if name in expected else "is no file of this release"
        raise ReleaseError(f"{folder / name} {what}: fetch the release anew")
    for name, digest in expected.items():
        if sha256(_read(folder, name)) != digest:
            raise ReleaseError(f"{folder / name} is not what was signed: fetch the release anew")
    (statement,) = (name for name in expected if name.endswith(STATEMENT))
    said = signing.open_envelope(key, _read(folder, statement), statement)
    about = provenance.subjects(said)
    for name in expected.keys() - {statement}:
        if about.get(name) != expected[name]:
            raise ReleaseError(f"the provenance {statement} is not of {name}: do not use it")
    return expected


def _wheel(source: Source) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", out],
            cwd=source.folder,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(source.seconds)},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ReleaseError(f"the wheel cannot be built: {done.stderr.strip()}")
        return {path.name: path.read_bytes() for path in Path(out).glob("*.whl")}


def _crds(source: Source) -> bytes:
    head = (
        f"# CustomResourceDefinitions of ATOM platform {source.version}, commit {source.commit}.\n"
        "# kubectl apply --server-side --filename FILE\n"
    )
    texts = (
        path.read_text(encoding="utf-8") for path in sorted((source.folder / "crds").iterdir())
    )
    return (head + "".join(f"---\n{text}" for text in texts)).encode()


def _notes(source: Source, images: Mapping[str, Reference]) -> bytes:
    lines = [f"# ATOM platform {source.version}", "", f"Commit {source.commit}.", "", source.notes]
    if images:
        lines += ["", "### Images", *(f"- {name}: `{found}`" for name, found in images.items())]
    return ("\n".join(lines) + "\n").encode()


def _read(folder: Path, name: str) -> bytes:
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise ReleaseError(f"{folder / name} cannot be read: {error.strerror}") from error
