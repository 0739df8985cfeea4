"""Builds one Dockerfile into an image archive in the cache; does nothing when nothing that it reads
has changed.

The key of an archive covers the Dockerfile, the files that its stages copy, the arguments and the
base image.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.images import base_image, host_access
from devcluster.images.buildah import Buildah
from devcluster.images.dockerfile import IgnoreRules, context_files, copied_sources, parse
from devcluster.lock import exclusive
from devcluster.progress import Step, say
from devcluster.settings import Settings


@dataclass(frozen=True, slots=True)
class BuildRequest:
    tag: str
    dockerfile: Path
    context: Path
    target: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict)


def build_image(settings: Settings, request: BuildRequest) -> Path:
    """The archive of the image (docker-archive, tagged)."""
    check_tag(request.tag)
    with exclusive(settings.cache / "images.lock", "image cache"):
        buildah = Buildah(settings)
        base = base_image.ensure(buildah)
        archive = (
            settings.cache
            / "images"
            / f"{_file_name(request.tag)}-{content_key(request, base)}.tar"
        )
        if archive.exists():
            say(f"✓ image {request.tag} is unchanged")
            return archive
        archive.parent.mkdir(parents=True, exist_ok=True)
        _build(buildah, request, archive)
        _forget_older(archive, request.tag)
        return archive


def check_tag(tag: str) -> None:
    if not re.fullmatch(r"[a-z0-9.-]+(?::\d+)?/[a-z0-9._/-]+:[A-Za-z0-9_.-]+", tag):
        raise DevclusterError(
            f"the image name {tag} is not complete; write HOST/NAME:TAG, such as "
            f"localhost/{tag.split(':')[0]}:dev"
        )


def content_key(request: BuildRequest, base: str) -> str:
    text = _read(request.dockerfile)
    stages = parse(text).needed_stages(request.target)
    ignore = request.context / ".dockerignore"
    rules = IgnoreRules(ignore.read_text(encoding="utf-8") if ignore.exists() else "")
    digest = hashlib.sha256(
        f"{text}\0{request.target}\0{sorted(request.arguments.items())}\0{base}\0".encode()
    )
    for path in context_files(request.context, copied_sources(stages), rules):
        executable = os.access(path, os.X_OK)
        digest.update(f"{path.relative_to(request.context)}\0{executable}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def _read(dockerfile: Path) -> str:
    try:
        return dockerfile.read_text(encoding="utf-8")
    except OSError as error:
        raise DevclusterError(
            f"cannot read the Dockerfile {dockerfile}: {error.strerror}; give an existing one with "
            "-f"
        ) from error


def _build(buildah: Buildah, request: BuildRequest, archive: Path) -> None:
    target = ["--target", request.target] if request.target else []
    arguments = [
        part
        for key, value in {"BASE": base_image.IMAGE, **request.arguments}.items()
        for part in ("--build-arg", f"{key}={value}")
    ]
    access = host_access.volumes(buildah.folder / "host-access", os.environ)
    buildah.forget_containers()
    with Step(f"build image {request.tag}") as step:
        command: list[str | Path] = [
            *access,
            *target,
            *arguments,
            "--tag",
            request.tag,
            "--file",
            request.dockerfile,
            request.context,
        ]
        buildah.bud(command, step.detail)
    temporary = archive.with_name(f".{archive.name}")
    temporary.unlink(
        missing_ok=True
    )  # of a run that was killed: an existing docker-archive is never extended
    with Step(f"export image {request.tag}"):
        buildah.push(request.tag, temporary)
        temporary.replace(archive)


def _file_name(tag: str) -> str:
    return re.sub(r"[/:]", "-", tag)


def _forget_older(archive: Path, tag: str) -> None:
    pattern = re.compile(re.escape(_file_name(tag)) + r"-[0-9a-f]{16}\.tar")
    for other in archive.parent.iterdir():
        if other != archive and pattern.fullmatch(other.name):
            other.unlink()
