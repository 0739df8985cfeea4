"""Packs one static program as an image archive (docker-archive format) without any image tool.

For the two images that the cluster itself needs. The archive is the same for the same input: no
clock, no owner.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Sequence
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def pack_program(image: str, program: Path, inside: str, out: Path, user: str = "65532") -> None:
    """One layer that holds `program` as /`inside`, which is also the image's entry point."""
    layer = _layer(program, inside)
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": [f"/{inside}"], "User": user, "Env": ["PATH=/"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    manifest = [{"Config": "config.json", "RepoTags": [image], "Layers": ["layer.tar"]}]
    members = [
        ("config.json", json.dumps(config).encode()),
        ("layer.tar", layer),
        ("manifest.json", json.dumps(manifest).encode()),
    ]
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = out.with_name(f".{out.name}-{os.getpid()}")
    temporary.write_bytes(_tar(members, mode=0o644))
    temporary.replace(out)


def _layer(program: Path, inside: str) -> bytes:
    return _tar([(inside, program.read_bytes())], mode=0o755)


def _tar(members: Sequence[tuple[str, bytes]], mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
