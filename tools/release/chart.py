"""The Helm chart as a package, and as the OCI artefact that `helm push` would make of it."""

from __future__ import annotations

import re
from collections.abc import Mapping

import yaml

from tools.release.archives import OciArtefact, canonical_json, tar_gz
from tools.release.errors import ReleaseError
from tools.release.recipes import Reference
from tools.release.source import CHART, Source

NAME = CHART.name
_CONFIG = "application/vnd.cncf.helm.config.v1+json"
_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"


def package(source: Source, images: Mapping[str, Reference]) -> bytes:
    """The .tgz that helm installs. images: become the defaults of its values, by digest."""
    folder = source.folder / CHART
    files = {
        f"{NAME}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    values = f"{NAME}/values.yaml"
    files[values] = with_images(files[values].decode(), images).encode()
    return tar_gz(files, source.seconds)


def with_images(values: str, images: Mapping[str, Reference]) -> str:
    """Rewrite the lines of values.yaml that name images; comments stay."""
    for image, section, key in (
        ("atom-operator", "image", "repository"),
        ("atom-operator", "image", "digest"),
        ("atom-engine-rocm", "defaultEngineImages", "amd"),
        ("atom-engine-cpu", "defaultEngineImages", "cpu"),
    ):
        found = images.get(image)
        if found is not None:
            chosen = {"repository": found.repository, "digest": found.digest}
            values = _with_value(values, section, key, chosen.get(key, str(found)))
    return values


def _with_value(text: str, section: str, key: str, value: str) -> str:
    line = re.compile(rf"^({section}:\n(?:  .*\n)*?  {key}:) .*$", re.MULTILINE)
    changed, count = line.subn(rf"\1 {value}", text)
    if count != 1:
        raise ReleaseError(f"values.yaml has {count} lines of {section}.{key}; it needs one")
    return changed


def artefact(source: Source, packed: bytes, created: str) -> OciArtefact:
    """The chart in the form that helm pulls (helm.sh/docs/topics/registries)."""
    metadata = yaml.safe_load((source.folder / CHART / "Chart.yaml").read_text(encoding="utf-8"))
    annotations = {
        "org.opencontainers.image.title": NAME,
        "org.opencontainers.image.version": source.version,
        "org.opencontainers.image.description": metadata["description"],
        "org.opencontainers.image.revision": source.commit,
        "org.opencontainers.image.created": created,
    }
    return OciArtefact(canonical_json(metadata), _CONFIG, packed, _CONTENT, annotations)
