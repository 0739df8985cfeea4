"""Where things live: the cache of built binaries and images, and the state of one cluster.

Read once from the environment by the command line and passed down; no other module reads these
variables. The cache survives `down`; the state folder does not. Both are outside the checkout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError

REPOSITORY = Path(__file__).resolve().parent.parent
MAX_STATE_PATH_CHARS = (
    70  # a Unix socket's path holds 107 bytes, and containerd's lies below the state folder
)
MAX_INSTANCE = 62


@dataclass(frozen=True, slots=True)
class Settings:
    """`instance` lets several clusters run on one machine; 0 is the one that people use, tests may
    start others.
    """

    cache: Path
    state: Path
    instance: int = 0

    @property
    def name(self) -> str:
        return "atom-devcluster" + (f"-{self.instance}" if self.instance else "")

    @property
    def plan_file(self) -> Path:
        return self.state / "plan.json"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "log"

    @property
    def containerd_socket(self) -> Path:
        return self.state / "containerd" / "containerd.sock"

    @property
    def tools(self) -> Path:
        """The folder of kubectl, helm and kubeconform under their plain names, for PATH."""
        return self.cache / "tools"

    @property
    def lock_file(self) -> Path:
        folder = next((p for p in (Path("/run/lock"), Path("/run")) if p.is_dir()), Path("/tmp"))
        return folder / f"{self.name}.lock"


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Settings from XDG_CACHE_HOME, XDG_STATE_HOME, ATOM_DEVCLUSTER_STATE and
    ATOM_DEVCLUSTER_INSTANCE.
    """
    home = Path(environ.get("HOME") or "/root")
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache") / "atom-devcluster"
    instance = _read_instance(environ.get("ATOM_DEVCLUSTER_INSTANCE", "0"))
    given = environ.get("ATOM_DEVCLUSTER_STATE")
    parent = Path(environ.get("XDG_STATE_HOME") or "/var/lib")
    suffix = f"-{instance}" if instance else ""
    state = Path(given) if given else parent / f"atom-devcluster{suffix}"
    _check_state(state)
    return Settings(cache=cache.absolute(), state=state, instance=instance)


def _read_instance(text: str) -> int:
    if text.isdecimal() and int(text) <= MAX_INSTANCE:
        return int(text)
    raise DevclusterError(
        f"ATOM_DEVCLUSTER_INSTANCE={text} is not a number from 0 to {MAX_INSTANCE}; unset it or "
        "give one"
    )


def _check_state(state: Path) -> None:
    remedy = "set ATOM_DEVCLUSTER_STATE to another folder"
    if not state.is_absolute():
        raise DevclusterError(f"the state folder {state} is not an absolute path; {remedy}")
    if len(str(state)) > MAX_STATE_PATH_CHARS:
        raise DevclusterError(
            f"the state folder {state} is longer than {MAX_STATE_PATH_CHARS} characters, too long "
            f"for the sockets in it; {remedy}"
        )
    if str(state).startswith(("/run/", "/var/run/", "/proc/", "/sys/", "/dev/")):
        raise DevclusterError(f"the state folder {state} lies on a virtual file system; {remedy}")
