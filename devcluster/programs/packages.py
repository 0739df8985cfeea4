"""Installs the Debian packages whose programs are missing; does nothing when all are there."""

from __future__ import annotations

import os
import shutil

from devcluster import preflight
from devcluster.errors import DevclusterError
from devcluster.progress import Step
from devcluster.shell import follow

APT_ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


def ensure_cluster_packages() -> None:
    _install(preflight.missing_packages(preflight.CLUSTER_TOOLS, cni_folders=preflight.CNI_FOLDERS))


def ensure_image_packages() -> None:
    _install(preflight.missing_packages(preflight.IMAGE_TOOLS))


def _install(packages: list[str]) -> None:
    if not packages:
        return
    if shutil.which("apt-get") is None:
        raise DevclusterError(
            f"missing programs of the packages {', '.join(packages)}, and there is no apt-get to "
            "install them with; install them by hand"
        )
    with Step(f"install Debian packages: {' '.join(packages)}") as step:
        environment = {**os.environ, **APT_ENVIRONMENT}
        follow(["apt-get", "update", "-qq"], step.detail, env=environment)
        follow(
            ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages],
            step.detail,
            env=environment,
        )
