"""Archives that are the same for the same files: sorted, without owners, at one time. Pure."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def canonical_json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def tar(
    files: Mapping[str, bytes], seconds: int, executable: Collection[str] = frozenset()
) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime = len(data), seconds
            entry.mode = 0o755 if name in executable else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def tar_gz(
    files: Mapping[str, bytes], seconds: int, executable: Collection[str] = frozenset()
) -> bytes:
    out = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=seconds) as packed:
        packed.write(tar(files, seconds, executable))
    return out.getvalue()


@dataclass(frozen=True, slots=True)
class OciArtefact:
    """An artefact of one layer, as a registry stores it."""

    config: bytes
    config_type: str
    layer: bytes
    layer_type: str
    annotations: Mapping[str, str] = field(default_factory=dict)
    layer_annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def manifest(self) -> bytes:
        layer: dict[str, Any] = _descriptor(self.layer_type, self.layer)
        if self.layer_annotations:
            layer["annotations"] = dict(self.layer_annotations)
        manifest = {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": _descriptor(self.config_type, self.config),
            "layers": [layer],
        }
        if self.annotations:
            manifest["annotations"] = dict(self.annotations)
        return canonical_json(manifest)

    @property
    def digest(self) -> str:
        """Name the manifest, as a registry knows the artefact."""
        return f"sha256:{sha256(self.manifest)}"

    def layout(self) -> dict[str, bytes]:
        """The files of an OCI image layout (github.com/opencontainers/image-spec) with it alone."""
        index = {"schemaVersion": 2, "manifests": [_descriptor(OCI_MANIFEST, self.manifest)]}
        blobs = (self.config, self.layer, self.manifest)
        return {
            "oci-layout": canonical_json({"imageLayoutVersion": "1.0.0"}),
            "index.json": canonical_json(index),
            **{f"blobs/sha256/{sha256(blob)}": blob for blob in blobs},
        }


def _descriptor(media_type: str, data: bytes) -> dict[str, Any]:
    return {"mediaType": media_type, "digest": f"sha256:{sha256(data)}", "size": len(data)}
