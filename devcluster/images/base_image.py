"""Makes the Debian base image that the project's Dockerfiles start from, where no registry can be
reached.

Once per cache, by debootstrap; it carries the name of the image that a registry would give, so that
the same Dockerfiles build everywhere. Its apt sources and certificates are this machine's.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from devcluster.images.buildah import OWN_MOUNTS, Buildah
from devcluster.images.host_access import CERTIFICATES
from devcluster.progress import Step
from devcluster.shell import follow

SUITE = "bookworm"
IMAGE = f"docker.io/library/debian:{SUITE}-slim"
PACKAGES = ("python3", "ca-certificates")
UNNEEDED = (
    "var/cache/apt/archives",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/man",
    "usr/share/locale",
    "var/log",
)
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ensure(buildah: Buildah) -> str:
    """The image's id."""
    found = buildah.image_id(IMAGE)
    if found is None:
        rootfs = buildah.folder / "base-rootfs"
        shutil.rmtree(rootfs, ignore_errors=True)
        with Step(f"make the base image {IMAGE} with debootstrap, about 1 minute") as step:
            sources = _host_sources()
            command = [
                "debootstrap",
                "--variant=minbase",
                f"--include={','.join(PACKAGES)}",
                SUITE,
                str(rootfs),
            ]
            mirror = mirror_in("\n".join(sources.values()))
            follow([*OWN_MOUNTS, *command, *([mirror] if mirror else [])], step.detail)
            _finish(rootfs, sources)
            _commit(buildah, rootfs)
        shutil.rmtree(rootfs)
        found = buildah.image_id(IMAGE)
        assert found is not None, "committed a moment ago"
    return found


def _host_sources(etc: Path = Path("/etc")) -> dict[str, str]:
    """Read apt's source files of this machine, by path below /etc, if it is of the same Debian
    suite; else none."""
    release = (etc / "os-release").read_text() if (etc / "os-release").exists() else ""
    if f"VERSION_CODENAME={SUITE}" not in release:
        return {}
    files = [etc / "apt/sources.list", etc / "apt/sources.list.d/debian.sources"]
    return {str(file.relative_to(etc)): file.read_text() for file in files if file.is_file()}


def mirror_in(sources: str) -> str | None:
    """The first mirror of the suite in one-line or deb822 format; None leaves debootstrap's own
    default.
    """
    one_line = re.search(rf"^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+{SUITE}\s", sources, re.MULTILINE)
    if one_line:
        return one_line.group(1)
    for paragraph in re.split(r"\n\s*\n", sources):
        fields = dict(re.findall(r"^(\w+):\s*(.+)$", paragraph, re.MULTILINE))
        if SUITE in fields.get("Suites", "").split() and fields.get("URIs"):
            return str(fields["URIs"].split()[0])
    return None


def _finish(rootfs: Path, sources: dict[str, str]) -> None:
    if sources:
        (rootfs / "etc/apt/sources.list").unlink(missing_ok=True)
    for name, text in sources.items():
        (rootfs / "etc" / name).write_text(text)
    if CERTIFICATES.exists():
        shutil.copyfile(CERTIFICATES, rootfs / CERTIFICATES.relative_to("/"))
    for name in UNNEEDED:
        for entry in (rootfs / name).iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    (rootfs / "var/cache/apt/archives/partial").mkdir()


def _commit(buildah: Buildah, rootfs: Path) -> None:
    container = buildah.run("from", "scratch").strip()
    buildah.run("add", "--quiet", container, rootfs, "/")
    buildah.run("config", "--env", f"PATH={PATH}", "--cmd", "bash", container)
    buildah.commit(container, IMAGE)
