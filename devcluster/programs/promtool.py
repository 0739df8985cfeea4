"""promtool, Prometheus' own checker of metrics and rules, for the tests; no cluster needs it.

One from PATH is used as it is. Otherwise it comes from Debian's package `prometheus`, of which only
this program is taken out: installing the package would start a server, and building promtool would
pull in the clients of every cloud that Prometheus can discover targets in.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.lock import exclusive
from devcluster.programs.packages import APT_ENVIRONMENT
from devcluster.progress import Step
from devcluster.settings import Settings
from devcluster.shell import run

PACKAGE = "prometheus"
_IN_PACKAGE = Path("usr/bin/promtool")


def ensure_promtool(settings: Settings) -> Path:
    """Raises `DevclusterError` where it is neither installed nor to be had."""
    installed = shutil.which("promtool")
    if installed is not None:
        return Path(installed)
    program = settings.cache / "bin" / "promtool"
    if not program.exists():
        with exclusive(settings.cache / "promtool.lock", "download of promtool"):
            if not program.exists():
                _unpack(program)
    return program


def _unpack(program: Path) -> None:
    if shutil.which("apt-get") is None:
        raise DevclusterError(
            "promtool is not installed, and there is no apt-get to take it from Debian's package "
            f"{PACKAGE} with; install Prometheus' promtool and put it on PATH"
        )
    program.parent.mkdir(parents=True, exist_ok=True)
    with Step(f"take promtool from the Debian package {PACKAGE}, 19 MB"):
        with tempfile.TemporaryDirectory(prefix=".promtool-", dir=program.parent) as temporary:
            folder = Path(temporary)
            _download(folder)
            (package,) = folder.glob("*.deb")
            run(["dpkg-deb", "--extract", package, folder])
            (folder / _IN_PACKAGE).replace(program)


def _download(folder: Path) -> None:
    """Download by apt, which checks what it fetches against the signed package lists."""
    environment = {**os.environ, **APT_ENVIRONMENT}
    download = ["apt-get", "download", "-qq", PACKAGE]
    try:
        run(download, cwd=folder, env=environment)
    except DevclusterError:
        if os.geteuid() != 0:
            raise
        run(["apt-get", "update", "-qq"], env=environment)  # without lists apt knows no package
        run(download, cwd=folder, env=environment)
