"""What the machine must be and have; each refusal is one sentence with its remedy.

`missing_packages` is pure over a lookup, so that tests need no particular machine.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from devcluster.errors import DevclusterError

SYSTEM_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/usr/local/go/bin",
)
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))

CLUSTER_TOOLS = {  # program → Debian package
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "conntrack": "conntrack",
    "ipset": "ipset",
    "socat": "socat",
    "openssl": "openssl",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "mount": "mount",
    "sysctl": "procps",
}
IMAGE_TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap", "unshare": "util-linux"}


def complete_path() -> None:
    """Adds the folders of system programs, which a plain `su` or a service leaves out of PATH."""
    present = os.environ.get("PATH", "").split(":")
    os.environ["PATH"] = ":".join([*present, *(f for f in SYSTEM_FOLDERS if f not in present)])


def why_not_here(platform: str | None = None, user_id: int | None = None) -> str | None:
    """Return why the embedded cluster cannot run here, as one sentence; None when it can."""
    if not (platform or sys.platform).startswith("linux"):
        return (
            "the embedded cluster runs on Linux only; use CLUSTER=current with a KUBECONFIG instead"
        )
    if (os.geteuid() if user_id is None else user_id) != 0:
        return (
            "the embedded cluster needs root (namespaces, mounts, cgroups); run it with sudo, "
            "or use CLUSTER=current with a KUBECONFIG"
        )
    return None


def require_machine() -> None:
    reason = why_not_here()
    if reason:
        raise DevclusterError(reason)


def missing_packages(
    tools: dict[str, str],
    find: Callable[[str], str | None] = shutil.which,
    cni_folders: Iterable[Path] = (),
) -> list[str]:
    """Debian packages of the programs that are not there, each once, in order."""
    wanted = [package for tool, package in tools.items() if find(tool) is None]
    folders = list(cni_folders)
    if folders and not any((folder / "bridge").exists() for folder in folders):
        wanted.append("containernetworking-plugins")
    return list(dict.fromkeys(wanted))


def cni_folder() -> Path:
    for folder in CNI_FOLDERS:
        if (folder / "bridge").exists():
            return folder
    raise DevclusterError(
        "the CNI plugins are not installed; install the Debian package containernetworking-plugins"
    )


def require_go() -> str:
    found = shutil.which("go")
    if found is None:
        raise DevclusterError(
            "go is not installed, and Kubernetes is built with it; install Go 1.24 or newer "
            "(https://go.dev/dl) and put it on PATH"
        )
    return found
