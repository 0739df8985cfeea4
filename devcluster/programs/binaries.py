"""Builds the cluster's programs from Go modules, once per version, into the cache.

The versions live in go/<group>/go.mod and are pinned with all their dependencies by go.sum; a
program's file name holds its version and a hash of what it is built from, so that a change of
either builds anew and nothing else does. A program appears under its final name only when it is
complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.lock import exclusive
from devcluster.preflight import require_go
from devcluster.progress import Step
from devcluster.settings import Settings
from devcluster.shell import follow, run

GO_FOLDER = Path(__file__).resolve().parent.parent / "go"
FLAGS = ("-trimpath", "-buildvcs=false", "-v")
STATIC = {"CGO_ENABLED": "0"}  # no C compiler needed, and the programs run in any image


@dataclass(frozen=True, slots=True)
class Group:
    """Programs that are built together from one Go module; `stamps` are variables set to the
    version at link time.
    """

    folder: str
    module: str  # whose version in go.mod is the programs' version
    programs: Mapping[str, str]  # name → Go package
    stamps: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()  # Go's build tags, which leave parts out
    note: str = ""  # what a person should expect, shown with the step


KUBERNETES_STAMPS = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
KUBERNETES = Group(
    "kubernetes",
    "k8s.io/kubernetes",
    {
        name: f"k8s.io/kubernetes/cmd/{name}"
        for name in (
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kube-proxy",
        )
    },
    KUBERNETES_STAMPS,
    note="about 6 minutes on 2 cores the first time",
)
KUBECTL = Group(
    "kubernetes",
    "k8s.io/kubernetes",
    {"kubectl": "k8s.io/kubernetes/cmd/kubectl"},
    KUBERNETES_STAMPS,
)
ETCD = Group("etcd", "go.etcd.io/etcd/server/v3", {"etcd": "."})
COREDNS = Group(
    "coredns", "github.com/coredns/coredns", {"coredns": "."}, note="about 1 minute the first time"
)
PAUSE = Group("pause", "", {"pause": "."})
HELM = Group(
    "helm",
    "helm.sh/helm/v3",
    {"helm": "helm.sh/helm/v3/cmd/helm"},
    ("helm.sh/helm/v3/internal/version.version",),
    note="about 1 minute the first time",
)
KUBECONFORM = Group(
    "kubeconform",
    "github.com/yannh/kubeconform",
    {"kubeconform": "github.com/yannh/kubeconform/cmd/kubeconform"},
)
# For the operator's scale benchmark: nodes and pods that exist in the API only and behave.
KWOK = Group(
    "kwok",
    "sigs.k8s.io/kwok",
    {"kwok": "sigs.k8s.io/kwok/cmd/kwok"},
    note="about 1 minute the first time",
)

CLUSTER_GROUPS = (KUBERNETES, ETCD, COREDNS, PAUSE)
TOOL_GROUPS = (KUBECTL, HELM, KUBECONFORM)


@dataclass(frozen=True, slots=True)
class Build:
    """Hold what one group builds, resolved: every program's final path, and the linker's flags."""

    group: Group
    version: str
    outputs: Mapping[str, Path]
    linker_flags: str


def version_in(go_mod: str, module: str) -> str:
    """The version that a go.mod requires of a module; `local` for a module of our own."""
    if not module:
        return "local"
    found = re.search(rf"^(?:require)?\s*{re.escape(module)}\s+(v\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise DevclusterError(
            f"go.mod requires no version of {module}; run `go get {module}@VERSION` in its folder "
            "below devcluster/go"
        )
    return found.group(1)


def plan_build(group: Group, bin_folder: Path, go_folder: Path = GO_FOLDER) -> Build:
    folder = go_folder / group.folder
    sources = sorted(p for p in folder.rglob("*") if p.suffix in (".mod", ".sum", ".go"))
    version = version_in((folder / "go.mod").read_text(), group.module)
    linker_flags = " ".join(["-s", "-w", *_stamp_flags(group.stamps, version)])
    digest = hashlib.sha256(f"{_flags(group)}{STATIC}{linker_flags}".encode())
    for source in sources:
        name = str(source.relative_to(folder))
        digest.update(name.encode() + b"\0" + source.read_bytes())
    suffix = f"{version}-{digest.hexdigest()[:10]}"
    outputs = {name: bin_folder / f"{name}-{suffix}" for name in group.programs}
    return Build(group, version, outputs, linker_flags)


def _flags(group: Group) -> tuple[str, ...]:
    return (*FLAGS, f"-tags={','.join(group.tags)}") if group.tags else FLAGS


def _stamp_flags(stamps: Iterable[str], version: str) -> list[str]:
    flags = []
    major, minor = version.lstrip("v").split(".")[:2] if "." in version else ("0", "0")
    for stamp in stamps:
        if stamp.endswith(".version"):
            flags.append(f"-X {stamp}={version}")
        else:
            flags += [
                f"-X {stamp}.gitVersion={version}",
                f"-X {stamp}.gitMajor={major}",
                f"-X {stamp}.gitMinor={minor}",
            ]
    return flags


def ensure_binaries(settings: Settings, groups: Iterable[Group]) -> dict[str, Path]:
    """Every program of the groups, built where missing; name → path."""
    bin_folder = settings.cache / "bin"
    builds = [plan_build(group, bin_folder) for group in groups]
    if any(_incomplete(build) for build in builds):
        require_go()
        with exclusive(settings.cache / "build.lock", "build cache"):
            for build in builds:
                if _incomplete(build):
                    _execute(build, bin_folder)
    return {name: path for build in builds for name, path in build.outputs.items()}


def _incomplete(build: Build) -> bool:
    return not all(path.exists() for path in build.outputs.values())


def _execute(build: Build, bin_folder: Path) -> None:
    bin_folder.mkdir(parents=True, exist_ok=True)
    note = f", {build.group.note}" if build.group.note else ""
    with Step(f"build {' '.join(build.group.programs)} {build.version}{note}") as step:
        compiled = 0

        def count(line: str) -> None:
            nonlocal compiled
            compiled += not line.startswith("go:")
            step.detail(line if line.startswith("go:") else f"{compiled} packages compiled")

        with tempfile.TemporaryDirectory(prefix=".building-", dir=bin_folder) as temporary:
            packages = list(build.group.programs.values())
            command = [
                "go",
                "build",
                *_flags(build.group),
                f"-ldflags={build.linker_flags}",
                "-o",
                f"{temporary}/",
                *packages,
            ]
            follow(command, count, env=STATIC, cwd=GO_FOLDER / build.group.folder)
            for name, final in build.outputs.items():
                (Path(temporary) / _built_name(name, build.group)).replace(final)


def _built_name(program: str, group: Group) -> str:
    """Name what `go build` writes: after the package's folder, or after our module for `.`."""
    package = group.programs[program]
    return program if package == "." else package.rpartition("/")[2]


def ensure_tools(settings: Settings) -> dict[str, Path]:
    """Put kubectl, helm and kubeconform under their plain names in one folder.

    A kubectl that is on PATH is used as it is when its version fits the server's."""
    found = _fitting_kubectl(settings)
    groups = [group for group in TOOL_GROUPS if group is not KUBECTL or found is None]
    programs = ensure_binaries(settings, groups)
    if found is not None:
        programs["kubectl"] = found
    settings.tools.mkdir(parents=True, exist_ok=True)
    for name, path in programs.items():
        _link(settings.tools / name, path)
    return {name: settings.tools / name for name in programs}


def _fitting_kubectl(settings: Settings) -> Path | None:
    own = plan_build(KUBECTL, settings.cache / "bin")
    folders = [f for f in os.environ.get("PATH", "").split(":") if f and Path(f) != settings.tools]
    found = shutil.which("kubectl", path=":".join(folders))
    if found is None or own.outputs["kubectl"].exists():
        return None
    try:
        answer = json.loads(
            run([found, "version", "--client", "--output=json"], timeout_seconds=20)
        )
        client = str(answer["clientVersion"]["gitVersion"])
    except (DevclusterError, ValueError, KeyError):
        return None
    return Path(found) if within_skew(client, own.version) else None


def within_skew(client: str, server: str) -> bool:
    """Kubernetes supports a kubectl that is one minor version older or newer than the server."""
    numbers = [re.match(r"v(\d+)\.(\d+)", version) for version in (client, server)]
    if not all(numbers):
        return False
    (major, minor), (server_major, server_minor) = (map(int, n.groups()) for n in numbers if n)
    return major == server_major and abs(minor - server_minor) <= 1


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    temporary = link.with_name(f".{link.name}-{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(link)
