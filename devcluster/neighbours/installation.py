"""Installs neighbours into a running cluster: certificates, files, objects, then the processes.

Level-based as `cluster.up` is: a second call with the same names changes nothing. What was asked
for once stays until `down`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from devcluster import health
from devcluster.errors import DevclusterError
from devcluster.neighbours.neighbour import Neighbour, Object, Place
from devcluster.node import network, node_process, pki
from devcluster.node.components import Component
from devcluster.programs.binaries import GO_FOLDER, Group, ensure_binaries, version_in
from devcluster.programs.upstream_crds import ensure_upstream_crds
from devcluster.progress import Step
from devcluster.settings import Settings
from devcluster.shell import run
from devcluster.supervisor import NEIGHBOURS

START_SECONDS = 600.0
POLL_SECONDS = 0.25
CRD_PATH = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
FOLDER = "neighbours"


def ensure_running(settings: Settings, wanted: Sequence[Neighbour]) -> None:
    """Build, install and start what is missing, and wait until every process answers."""
    programs = ensure_binaries(settings, [neighbour.group for neighbour in wanted])
    components: list[Component] = []
    for neighbour in wanted:
        with Step(f"install {neighbour.name}"):
            place = _prepare(settings, neighbour, programs)
            components += _install(settings, neighbour, place)
    with Step("start the neighbours") as step:
        _record(settings, components)
        _wait(settings, [component.name for component in components], step)


def folder_of(settings: Settings, name: str) -> Path:
    return settings.state / FOLDER / name


def _prepare(settings: Settings, neighbour: Neighbour, programs: dict[str, Path]) -> Place:
    """Certificates and a kubeconfig of the neighbour's own."""
    folder = folder_of(settings, neighbour.name)
    certificates = folder / "certificates"
    certificates.mkdir(parents=True, exist_ok=True)
    file = f"neighbour-{neighbour.name}"
    addresses = [f"IP:{address}" for address in ("127.0.0.1", network.NODE_ADDRESS)]
    names = ",".join(["DNS:localhost", *(f"DNS:{n}" for n in neighbour.server_names), *addresses])
    role = pki.Role(file, f"neighbour:{neighbour.name}", "system:masters", names)
    pki.ensure_certificate(settings.pki, role)
    for source, name in ((f"{file}.crt", "tls.crt"), (f"{file}.key", "tls.key"), ("ca.crt",) * 2):
        shutil.copyfile(settings.pki / source, certificates / name)
    kubeconfig = folder / "kubeconfig"
    inside = f"https://{network.NODE_ADDRESS}:{network.API_PORT}"
    kubeconfig.write_text(pki.kubeconfig_text(settings.pki, file, inside))
    module = _module_folder(neighbour.group)
    return Place(folder, module, programs, certificates, kubeconfig)


def _module_folder(group: Group) -> Path:
    """The unpacked module, checked against the group's go.sum."""
    folder = GO_FOLDER / group.folder
    version = version_in((folder / "go.mod").read_text(), group.module)
    wanted = f"{group.module}@{version}"
    return Path(json.loads(run(["go", "mod", "download", "-json", wanted], cwd=folder))["Dir"])


def _install(settings: Settings, neighbour: Neighbour, place: Place) -> Sequence[Component]:
    installation = neighbour.install(place)
    for name, text in installation.files.items():
        (place.folder / name).write_text(text)
    files = sorted(path for pattern in neighbour.crds for path in place.module.glob(pattern))
    if neighbour.upstream_crds:
        folder = ensure_upstream_crds(settings)
        files += [folder / f"{name}.yaml" for name in neighbour.upstream_crds]
    if files:
        _wait_for_kinds(settings, _apply(settings, *(f"--filename={path}" for path in files)))
    if installation.objects:
        _apply(settings, "--filename=-", objects=installation.objects)
    return installation.components


def _wait_for_kinds(settings: Settings, crds: Sequence[str]) -> None:
    """Wait until the API server serves them; a controller that starts before gives up."""
    api = health.api_of(settings, network.uplink(settings.instance).api_url)
    deadline = time.monotonic() + START_SECONDS
    for name in (crd.partition("/")[2] for crd in crds):
        while not health.is_true(api.get(f"{CRD_PATH}/{name}"), "Established"):
            if time.monotonic() > deadline:
                raise DevclusterError(f"the API server does not serve {name}; see its log")
            time.sleep(POLL_SECONDS)


def _apply(settings: Settings, *files: str, objects: Sequence[Object] = ()) -> list[str]:
    """The names of what was applied."""
    listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    flags = ("--server-side", "--force-conflicts", "--field-manager=atom-devcluster")
    return _kubectl(
        settings, "apply", *flags, *files, "--output=name", stdin=json.dumps(listed)
    ).split()


def _kubectl(settings: Settings, *arguments: str, stdin: str | None = None) -> str:
    kubectl = settings.tools / "kubectl"
    return run([kubectl, f"--kubeconfig={settings.kubeconfig}", *arguments], stdin=stdin)


def _record(settings: Settings, components: Sequence[Component]) -> None:
    """Record them for the supervisor, with those of earlier calls, and tell it so."""
    path = settings.state / NEIGHBOURS
    known = json.loads(path.read_text()) if path.exists() else []
    specs = {spec["name"]: spec for spec in known}
    specs |= {
        component.name: json.loads(json.dumps(component.as_json())) for component in components
    }
    if list(specs.values()) == known:
        return
    temporary = path.with_name(f".{NEIGHBOURS}")
    temporary.write_text(json.dumps(list(specs.values()), indent=1))
    temporary.replace(path)
    running = node_process.find(settings)
    if running is not None:
        os.kill(running.pid, signal.SIGHUP)


def _wait(settings: Settings, names: Sequence[str], step: Step) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        known = {c.name: c for c in health.components(settings)}
        missing = [name for name in names if name not in known or not known[name].ready]
        if not missing:
            return
        first = missing[0]  # what comes after it waits for it
        step.detail(f"waiting for {first}")
        if time.monotonic() > deadline:
            log = settings.logs / f"{first}.log"
            raise DevclusterError(
                f"{first} did not start within {START_SECONDS:.0f} s; its output is in {log}"
            )
        time.sleep(POLL_SECONDS)
