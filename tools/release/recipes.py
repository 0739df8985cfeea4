"""The recipes of the project's images: Dockerfiles, what they copy, and what they install.

An image itself is made by a builder from the released recipe; its reference by digest comes back as
an argument of the release. Pure but for reading the export.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from devcluster.images.dockerfile import IgnoreRules, context_files, copied_sources, parse
from tools.release.archives import tar_gz
from tools.release.errors import ReleaseError
from tools.release.source import Source

_LINUX = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix",
          "platform_machine": "x86_64", "implementation_name": "cpython",
          "platform_python_implementation": "CPython", "extra": ""}  # fmt: skip
# What images/engine/rocm/without_torch.py leaves to the base image.
_OF_THE_BASE = re.compile(r"torch|triton|nvidia-.+|cuda-.+")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One image. lock: what it installs of PyPI; python: the version of its interpreter, for the
    lock's conditions; base_brings_torch: what AMD's base has is not installed from the lock."""

    image: str
    dockerfile: str
    lock: str
    python: str
    base_brings_torch: bool = False


RECIPES = (
    Recipe("atom-operator", "images/operator/Dockerfile", "requirements/operator.txt", "3.11"),
    Recipe("atom-engine-cpu", "images/engine/Dockerfile.cpu", "requirements/engine.txt", "3.11"),
    Recipe(
        "atom-engine-rocm",
        "images/engine/Dockerfile.rocm",
        "requirements/engine.txt",
        "3.12",
        base_brings_torch=True,
    ),
)


@dataclass(frozen=True, slots=True, order=True)
class Locked:
    """One package of a lock."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Reference:
    """An image by its digest."""

    repository: str
    tag: str | None
    digest: str

    def __str__(self) -> str:
        return f"{self.repository}{f':{self.tag}' if self.tag else ''}@{self.digest}"


def reference(text: str) -> Reference:
    """Read `REPOSITORY[:TAG]@sha256:…`. Raises `ReleaseError` for one without a digest."""
    found = re.fullmatch(r"(.+?)(?::([\w.-]+))?@(sha256:[0-9a-f]{64})", text)
    if found is None or "/" not in found.group(1):
        raise ReleaseError(
            f"{text} is no image by its digest: write HOST/NAME[:TAG]@sha256:…, which the builder "
            "printed when it pushed"
        )
    return Reference(found.group(1), found.group(2), found.group(3))


def build_arguments(source: Source, recipe: Recipe) -> dict[str, str]:
    """The defaults of all its ARG lines that have one."""
    file = parse((source.folder / recipe.dockerfile).read_text(encoding="utf-8"))
    inside = [i.text for s in file.stages for i in s.instructions if i.keyword == "ARG"]
    pairs = (text.partition("=") for text in (*file.arguments, *inside) if "=" in text)
    return {name: value.strip('"') for name, _, value in pairs}


def base_image(source: Source, recipe: Recipe) -> Reference:
    return reference(build_arguments(source, recipe)["BASE"])


def aiter_commit(source: Source) -> str:
    return build_arguments(source, RECIPES[-1])["AITER_COMMIT"]


def locked(source: Source, recipe: Recipe) -> list[Locked]:
    """List what of its lock is installed in this image."""
    environment = {**_LINUX, "python_version": recipe.python}
    environment["python_full_version"] = f"{recipe.python}.0"
    found = [
        (canonicalize_name(item.name), str(item.specifier).removeprefix("=="))
        for item in _requirements((source.folder / recipe.lock).read_text(encoding="utf-8"))
        if item.marker is None or item.marker.evaluate(environment)
    ]
    return sorted(
        Locked(name, version)
        for name, version in found
        if not (recipe.base_brings_torch and _OF_THE_BASE.fullmatch(name))
    )


def _requirements(lock: str) -> Iterator[Requirement]:
    yield from map(Requirement, re.findall(r"^[A-Za-z0-9][^\n\\]*==[^\n\\]+", lock, re.MULTILINE))


def archive(source: Source, created: str) -> bytes:
    """The context of all builds, whose labels name this version and commit by default."""
    context = source.folder
    rules = IgnoreRules((context / ".dockerignore").read_text(encoding="utf-8"))
    files: dict[str, bytes] = {".dockerignore": (context / ".dockerignore").read_bytes()}
    labels = {"VERSION": source.version, "REVISION": source.commit, "CREATED": created}
    for recipe in RECIPES:
        text = (context / recipe.dockerfile).read_text(encoding="utf-8")
        for path in context_files(context, copied_sources(parse(text).stages), rules):
            files[path.relative_to(context).as_posix()] = path.read_bytes()
        files[recipe.dockerfile] = _with_defaults(text, labels, recipe.dockerfile).encode()
    root = f"atom-images-{source.version}"
    return tar_gz({f"{root}/{name}": data for name, data in files.items()}, source.seconds)


def _with_defaults(text: str, values: Mapping[str, str], name: str) -> str:
    for argument, value in values.items():
        text, replaced = re.subn(
            rf"^ARG {argument}=.*$", f"ARG {argument}={value}", text, flags=re.MULTILINE
        )
        if replaced != 1:
            raise ReleaseError(f"{name} has {replaced} lines `ARG {argument}=`; it needs one")
    return text


def named_images(texts: Mapping[str, str]) -> dict[str, Reference]:
    """Images that a builder made, by the names of their recipes. Raises `ReleaseError`."""
    known = [recipe.image for recipe in RECIPES]
    for name in texts:
        if name not in known:
            raise ReleaseError(f"there is no image {name}: there are {', '.join(known)}")
    return {name: reference(text) for name, text in sorted(texts.items())}
