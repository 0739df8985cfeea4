"""The project's own images: their fixed names, Dockerfiles and targets. The only module that knows
them.
"""

from __future__ import annotations

from devcluster.errors import DevclusterError
from devcluster.images.build_image import BuildRequest
from devcluster.settings import REPOSITORY

IMAGES = REPOSITORY / "images"
REQUESTS = {
    "thin": BuildRequest(
        "localhost/atom-engine:thin", IMAGES / "engine/Dockerfile.cpu", REPOSITORY, "thin"
    ),
    "operator": BuildRequest(
        "localhost/atom-operator:dev", IMAGES / "operator/Dockerfile", REPOSITORY
    ),
    "runtime": BuildRequest(
        "localhost/atom-engine:runtime", IMAGES / "engine/Dockerfile.cpu", REPOSITORY, "runtime"
    ),
}
NAMES = tuple(REQUESTS)


def requests(only: str | None) -> list[BuildRequest]:
    """All of them, or those of a comma-separated list."""
    names = [name.strip() for name in only.split(",")] if only else list(NAMES)
    unknown = [name for name in names if name not in REQUESTS]
    if unknown:
        raise DevclusterError(f"unknown image {unknown[0]}; known are {', '.join(NAMES)}")
    return [REQUESTS[name] for name in names]
