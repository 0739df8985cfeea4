"""Brings image archives into the cluster's containerd, and says which images are there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from devcluster import dns
from devcluster.errors import DevclusterError
from devcluster.images import archive
from devcluster.node.configs import PAUSE_IMAGE
from devcluster.progress import Step, say
from devcluster.settings import Settings
from devcluster.shell import run

LOADED = "loaded.json"


def ctr(settings: Settings) -> list[str | Path]:
    return ["ctr", "--address", settings.containerd_socket, "--namespace", "k8s.io"]


def loaded_images(settings: Settings) -> list[str]:
    names = run([*ctr(settings), "images", "ls", "-q"], timeout_seconds=20).split()
    return sorted(name for name in names if not name.startswith("sha256:"))


def load(settings: Settings, archives: Sequence[Path]) -> None:
    """Imports archives (docker-archive or OCI, .tar); the images replace others of their names."""
    for path in archives:
        if not path.is_file():
            raise DevclusterError(
                f"no image archive at {path}; give a .tar made by `build-image`, `buildah push` or "
                "`docker save`"
            )
    if not settings.containerd_socket.exists():
        raise DevclusterError("the cluster is not running; start it with `python -m devcluster up`")
    for path in archives:
        with Step(f"load {path.name} ({path.stat().st_size / 1e6:.0f} MB)"):
            run([*ctr(settings), "images", "import", path], timeout_seconds=900)
    forgotten = replaced_images(run([*ctr(settings), "images", "ls"]))
    if forgotten:
        run([*ctr(settings), "images", "rm", *forgotten])


def replaced_images(listing: str) -> list[str]:
    """Find in `ctr images ls` the references that hold an image which no name means any more.

    Kubernetes' part of containerd keeps every image under its id as well; without this, each build
    of an image would keep its predecessor on the disk. Running containers keep what they need."""
    rows = [line.split() for line in listing.splitlines()[1:]]
    pairs = [(row[0], row[2]) for row in rows if len(row) > 2]
    named = {digest for name, digest in pairs if not name.startswith("sha256:")}
    return [name for name, digest in pairs if name.startswith("sha256:") and digest not in named]


def ensure_cluster_images(settings: Settings, programs: Mapping[str, Path]) -> None:
    """The images of the pause process and of CoreDNS, made from the built programs and loaded where
    missing.
    """
    present = loaded_images(settings)
    missing = []
    for image, name in ((PAUSE_IMAGE, "pause"), (dns.IMAGE, "coredns")):
        if image in present:
            continue
        path = settings.cache / "images" / f"{programs[name].name}.tar"
        if not path.exists():
            archive.pack_program(image, programs[name], name, path)
        missing.append(path)
    if missing:
        load(settings, missing)


def load_once(settings: Settings, image: str, path: Path) -> None:
    """Loads an archive whose name changes with its content, unless this very one is loaded."""
    record = settings.state / LOADED
    known: dict[str, str] = json.loads(record.read_text()) if record.exists() else {}
    if known.get(image) == path.name and image in loaded_images(settings):
        say(f"✓ image {image} is loaded")
        return
    load(settings, [path])
    record.write_text(json.dumps({**known, image: path.name}))
