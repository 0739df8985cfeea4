"""The CustomResourceDefinitions of other systems, for tests on a real API server; no cluster needs
them.

Their projects publish them within their Go modules. The versions and checksums are pinned here, as
go.sum would have them; only the files that tests use are kept, in a folder of the cache that is
named after the pins and appears when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from devcluster.errors import DevclusterError
from devcluster.lock import exclusive
from devcluster.preflight import require_go
from devcluster.progress import Step
from devcluster.settings import Settings
from devcluster.shell import run


@dataclass(frozen=True, slots=True)
class CrdModule:
    """A Go module that has CRDs. checksum: of the module's zip, in go.sum's notation. names: of the
    files, without .yaml."""

    path: str
    version: str
    checksum: str
    folder: str
    names: tuple[str, ...]


MODULES = (
    CrdModule(
        "sigs.k8s.io/lws",
        "v0.7.0",
        "h1:qWfzX8+UBak+Hq0+m/PuE3uO0mp/3dmm5q/h/7z31A8=",
        "config/crd/bases",
        ("leaderworkerset.x-k8s.io_leaderworkersets",),
    ),
    CrdModule(
        "github.com/kedacore/keda/v2",
        "v2.18.0",
        "h1:ttR223fii/4QJ0YvtrhcWHaEoezByb/t5CeFopjl6EI=",
        "config/crd/bases",
        ("keda.sh_scaledobjects", "keda.sh_triggerauthentications"),
    ),
    CrdModule(
        "github.com/cert-manager/cert-manager",
        "v1.21.2",
        "h1:UWgoYM+KLNtRlqmoWOKjKBOBUPVHeepQ6/ac3ERJW68=",
        "deploy/crds",
        ("cert-manager.io_certificates", "cert-manager.io_issuers"),
    ),
    CrdModule(
        "sigs.k8s.io/gateway-api",
        "v1.4.0",
        "h1:ZwlNM6zOHq0h3WUX2gfByPs2yAEsy/EenYJB78jpQfQ=",
        "config/crd/standard",
        (
            "gateway.networking.k8s.io_gatewayclasses",
            "gateway.networking.k8s.io_gateways",
            "gateway.networking.k8s.io_httproutes",
            "gateway.networking.k8s.io_referencegrants",
        ),
    ),
    CrdModule(
        "sigs.k8s.io/gateway-api-inference-extension",
        "v1.3.0",
        "h1:Ng2Qs1Oum4WycuWyi3rOkAC7pZ2aDqgN2ku6Lr/mryQ=",
        "config/crd/bases",
        (
            "inference.networking.k8s.io_inferencepools",
            # Which its endpoint picker watches where they are.
            "inference.networking.x-k8s.io_inferenceobjectives",
            "inference.networking.x-k8s.io_inferencemodelrewrites",
        ),
    ),
    CrdModule(
        "github.com/prometheus-operator/prometheus-operator",
        "v0.85.0",
        "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
        "example/prometheus-operator-crd",
        (
            "monitoring.coreos.com_podmonitors",
            "monitoring.coreos.com_prometheusrules",
            "monitoring.coreos.com_servicemonitors",
        ),
    ),
)


def ensure_upstream_crds(settings: Settings, modules: Sequence[CrdModule] = MODULES) -> Path:
    """The folder of the files. Raises `DevclusterError` where they are not to be had."""
    digest = hashlib.sha256(repr(modules).encode()).hexdigest()[:10]
    folder = settings.cache / f"upstream-crds-{digest}"
    if not folder.exists():
        with exclusive(settings.cache / "upstream-crds.lock", "download of upstream CRDs"):
            if not folder.exists():
                _collect(modules, folder)
    return folder


def _collect(modules: Sequence[CrdModule], folder: Path) -> None:
    require_go()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".crds-", dir=folder.parent) as temporary:
        complete = Path(temporary) / "complete"
        complete.mkdir()
        with Step("take other systems' CRDs from their Go modules") as step:
            for module in modules:
                step.detail(module.path)
                source = _module_folder(module, Path(temporary))
                for name in module.names:
                    shutil.copyfile(source / f"{name}.yaml", complete / f"{name}.yaml")
        complete.replace(folder)


def _module_folder(module: CrdModule, outside_modules: Path) -> Path:
    """Find the folder of its CRDs, in Go's own cache. outside_modules: where no go.mod applies."""
    wanted = f"{module.path}@{module.version}"
    downloaded = json.loads(run(["go", "mod", "download", "-json", wanted], cwd=outside_modules))
    if downloaded["Sum"] != module.checksum:
        raise DevclusterError(
            f"the Go module {wanted} has the checksum {downloaded['Sum']}, not {module.checksum}: "
            f"it is not what was pinned in devcluster/programs/upstream_crds.py; do not use it"
        )
    return Path(downloaded["Dir"]) / module.folder
