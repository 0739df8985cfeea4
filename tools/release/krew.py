"""The plug-in `kubectl atom` for krew: an archive, and a manifest with its hash. Pure.

The archive has the wheel, the hash-pinned list of its packages, and a program that installs both
into an environment of the user at its first run: a Python program has no single binary. The form of
the manifest is that of kubernetes-sigs/krew (pkg/index/types.go, and its validation).
"""

from __future__ import annotations

from pathlib import Path

import yaml

from tools.release.archives import sha256, tar_gz
from tools.release.errors import ReleaseError
from tools.release.source import Source

PROGRAM = "kubectl-atom"
LAUNCHER = Path("tools/release/kubectl-atom.sh")
LOCK = Path("requirements/operator.txt")
# RFC 2606: a name that never resolves, of a release that says not where its files will be.
NOT_PUBLISHED = "https://downloads.invalid"
_DESCRIPTION = """\
Plans, explains and watches AtomDeployments: plan and import work without a cluster, and status,
why, top, logs, chat and gpus with the one of your context.
"""
_CAVEATS = """\
Needs Linux and Python 3.11 or newer. The first run installs the packages of kubectl atom from your
package index into ~/.local/share/kubectl-atom, by their hashes.
"""


def archive_name(source: Source) -> str:
    """Name the archive of a version."""
    return f"{PROGRAM}-{source.version}.tar.gz"


def archive(source: Source, wheel: str, data: bytes) -> bytes:
    """Pack the plug-in. wheel, data: name and bytes of the wheel of the same release."""
    files = {
        PROGRAM: (source.folder / LAUNCHER).read_bytes(),
        "requirements.txt": (source.folder / LOCK).read_bytes(),
        "LICENSE": (source.folder / "LICENSE").read_bytes(),
        wheel: data,
    }
    return tar_gz(files, source.seconds, executable={PROGRAM})


def manifest(source: Source, packed: bytes, downloads: str | None) -> bytes:
    """Write the manifest. downloads: the address below which the files of this release are
    published. Raises `ReleaseError` if it is no address of HTTPS."""
    if downloads is not None and not downloads.startswith("https://"):
        raise ReleaseError(f"--downloads {downloads}: krew downloads by https:// alone; correct it")
    plugin = {
        "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
        "kind": "Plugin",
        "metadata": {"name": "atom"},
        "spec": {
            "version": f"v{source.version}",
            "homepage": f"{(downloads or NOT_PUBLISHED).rstrip('/')}/",
            "shortDescription": "Plan, import and explain AtomDeployments",
            "description": _DESCRIPTION,
            "caveats": _CAVEATS,
            "platforms": [
                {
                    "selector": {"matchLabels": {"os": "linux"}},
                    "uri": f"{(downloads or NOT_PUBLISHED).rstrip('/')}/{archive_name(source)}",
                    "sha256": sha256(packed),
                    "bin": PROGRAM,
                    "files": [{"from": "*", "to": "."}],
                }
            ],
        },
    }
    return yaml.safe_dump(plugin, sort_keys=False).encode()
