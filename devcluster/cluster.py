"""Brings the cluster up and down: observes, decides (`decide` is pure), carries out.

`up` is level-based: it compares what runs with what should, so that a second call, a call after
Ctrl-C and a call after a crash are all the same call. `down` removes everything but the cache.
Callers: the command line and tests.
"""

from __future__ import annotations

import enum
import hashlib
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from devcluster import dns, health, preflight, teardown
from devcluster.api import Api, ApiError
from devcluster.errors import DevclusterError
from devcluster.health import api_of
from devcluster.images import image_store
from devcluster.node import cgroups, configs, kernel_settings, network, node_process, pki
from devcluster.node.components import Component, all_components
from devcluster.programs import binaries, packages
from devcluster.progress import Step, say
from devcluster.settings import Settings
from devcluster.shell import run

NODE_NAME = "dev-node"
# Of an idle machine 20; where the tests run beside it, the programs wait for the processor.
START_SECONDS = 600.0
RECOVERY_SECONDS = 180.0
POLL_SECONDS = 0.25


class Action(enum.Enum):
    CREATE = "create"
    KEEP = "keep"
    RECREATE = "recreate"


@dataclass(frozen=True, slots=True)
class StatusInputs:
    """Hold what `up` found. `fingerprint` is that of the running plan, None when it cannot be
    read."""

    running: bool
    state_exists: bool
    fingerprint: str | None


def decide(situation: StatusInputs, wanted_fingerprint: str) -> tuple[Action, str]:
    """Return what to do, and why in words for a person (empty when there is nothing to explain)."""
    if not situation.running:
        reason = (
            "the cluster ended without `down` (crash, kill or reboot): starting anew"
            if situation.state_exists
            else ""
        )
        return Action.CREATE, reason
    if situation.fingerprint != wanted_fingerprint:
        return (
            Action.RECREATE,
            "the running cluster was made by another version or configuration: starting anew",
        )
    return Action.KEEP, ""


def fingerprint(components: list[Component], texts: Mapping[str, str]) -> str:
    """Digest everything that decides how the cluster behaves; not where its programs are cached."""
    argvs = [[c.name, Path(c.argv[0]).name, *c.argv[1:]] for c in components]
    return hashlib.sha256(json.dumps([argvs, dict(texts)]).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that `up` needs, before it changes anything."""

    settings: Settings
    programs: Mapping[str, Path]
    components: list[Component]
    texts: Mapping[str, str]  # file below the state folder → content
    link: network.Uplink

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.components, self.texts)

    def as_json(self) -> dict[str, Any]:
        """Describe the cluster for the supervisor."""
        binds = {
            target: str(self.settings.state / "bind" / Path(target).name)
            for target in configs.BOUND_FOLDERS
        }
        return {
            "state": str(self.settings.state),
            "pki": str(self.settings.pki),
            "binds": binds,
            "components": [component.as_json() for component in self.components],
            "fingerprint": self.fingerprint,
        }


def up(settings: Settings) -> None:
    """Leaves a working cluster behind, whatever was there before."""
    preflight.require_machine()
    packages.ensure_cluster_packages()
    programs = binaries.ensure_binaries(settings, binaries.CLUSTER_GROUPS)
    binaries.ensure_tools(settings)
    plan = make_plan(settings, programs)
    action, reason = decide(_look(settings), plan.fingerprint)
    if reason:
        say(f"  {reason}")
    if action is Action.KEEP and not _recovers(plan):
        action = Action.RECREATE
        say("  the running cluster does not recover: starting anew")
    if action is not Action.KEEP:
        if action is Action.RECREATE or settings.state.exists():
            teardown.remove_everything(settings)
        _create(plan)


def make_plan(settings: Settings, programs: Mapping[str, Path]) -> Plan:
    containerd = shutil.which("containerd")
    assert containerd is not None, "ensure_cluster_packages ran before"
    complete = {**programs, "containerd": Path(containerd)}
    texts = {
        "containerd.toml": configs.containerd_config(
            settings, preflight.cni_folder(), _snapshotter(settings.state)
        ),
        "kubelet.json": configs.kubelet_config(settings),
        "cni/10-dev.conflist": network.cni_config(settings.state / "cni-ipam"),
        "resolv.conf": "",  # of pods with dnsPolicy Default: nothing outside can be resolved
    }
    return Plan(
        settings,
        complete,
        all_components(settings, complete, NODE_NAME),
        texts,
        network.uplink(settings.instance),
    )


def _snapshotter(state: Path) -> str:
    """Overlay file systems do not stack: where the state folder lies on one (inside a container),
    copy instead.
    """
    existing = next(folder for folder in (state, *state.parents) if folder.exists())
    return (
        "native"
        if run(["stat", "--file-system", "--format=%T", existing]).strip() == "overlayfs"
        else "overlayfs"
    )


def _look(settings: Settings) -> StatusInputs:
    try:
        known = json.loads(settings.plan_file.read_text())["fingerprint"]
    except (OSError, ValueError, KeyError):
        known = None
    return StatusInputs(node_process.find(settings) is not None, settings.state.exists(), known)


def _recovers(plan: Plan) -> bool:
    """Return whether the running cluster works, or does so within a while: the supervisor restarts
    what died.
    """
    try:
        _complete(plan, RECOVERY_SECONDS, "check the running cluster")
    except DevclusterError as error:
        say(f"  {error}")
        return False
    return True


def _create(plan: Plan) -> None:
    settings = plan.settings
    with Step("prepare certificates, configuration and network"):
        _write_state(plan)
        cgroups.ensure(settings.name)
        link_address = network.draw_hardware_address()
        _write(settings.state / teardown.LINK_RECORD, link_address)
        starting = node_process.start(settings)
        try:
            network.connect(plan.link, link_address, starting.node.pid)
            starting.release()
        except (DevclusterError, BrokenPipeError) as error:
            log = (settings.logs / "supervisor.log").read_text().strip()
            raise DevclusterError(
                f"the node's network could not be made: {error}\n  {log[-400:]}"
            ) from error
    _complete(plan, START_SECONDS, "start Kubernetes")


def _write_state(plan: Plan) -> None:
    settings = plan.settings
    settings.state.mkdir(parents=True, mode=0o700)
    for folder in (settings.logs, settings.state / "cni", settings.state / "containerd"):
        folder.mkdir()
    kernel_settings.remember(settings.state / "kernel-settings.json")
    _make_bound_folders(settings)
    all_roles = pki.roles(NODE_NAME, plan.link)
    pki.make_all(settings.pki, all_roles)
    inside = f"https://{network.NODE_ADDRESS}:{network.API_PORT}"
    for role in ("controller-manager", "scheduler", "kubelet", "proxy"):
        _write(
            settings.state / f"{role}.kubeconfig", pki.kubeconfig_text(settings.pki, role, inside)
        )
    _write(settings.kubeconfig, pki.kubeconfig_text(settings.pki, "admin", plan.link.api_url))
    for name, text in plan.texts.items():
        _write(settings.state / name, text)
    _write(settings.plan_file, json.dumps(plan.as_json(), indent=1))


def _make_bound_folders(settings: Settings) -> None:
    """Folders of the host that are mount points inside; `down` removes again those that were not
    there.
    """
    made = []
    for target in map(Path, configs.BOUND_FOLDERS):
        (settings.state / "bind" / target.name).mkdir(parents=True)
        if not target.exists():
            made.append(str(target))
            _write(settings.state / teardown.MADE_FOLDERS, json.dumps(made))
            target.mkdir(parents=True)


def _write(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}")
    temporary.write_text(text)
    temporary.chmod(0o600)
    temporary.replace(path)


def _complete(plan: Plan, limit_seconds: float, title: str) -> None:
    """Loads the cluster's own images, applies DNS, and waits until all works; each part only as far
    as it is missing.
    """
    settings, api = plan.settings, api_of(plan.settings, plan.link.api_url)
    deadline = time.monotonic() + limit_seconds
    with Step(title) as step:
        _wait_for(settings, "containerd", step, deadline)
        image_store.ensure_cluster_images(settings, plan.programs)
        _wait_for(settings, "apiserver", step, deadline)
        _apply_dns(api, deadline)
        while True:
            # A neighbour that fails is no reason to start the cluster anew.
            own = {component.name for component in plan.components}
            problems = health.observe(settings, api).problems(NODE_NAME, own)
            if not problems:
                return
            step.detail(problems[0])
            _pause(settings, deadline, problems)


def _wait_for(settings: Settings, name: str, step: Step, deadline: float) -> None:
    while not any(c.name == name and c.ready for c in health.components(settings)):
        step.detail(f"waiting for {name}")
        _pause(settings, deadline, [f"{name} is not ready"])


def _apply_dns(api: Api, deadline: float) -> None:
    """The API server is ready a moment before it has made the namespace kube-system and lets
    objects into it.
    """
    for path, manifest in dns.objects():
        while True:
            try:
                api.apply(path, manifest)
                break
            except ApiError as error:
                if time.monotonic() > deadline or error.status in (400, 422):
                    raise
                time.sleep(POLL_SECONDS)


def _pause(settings: Settings, deadline: float, problems: list[str]) -> None:
    """A moment between two looks; raises when there is no sense in looking again."""
    if node_process.find(settings) is None:
        raise DevclusterError(
            f"the node process ended; see {settings.logs / 'supervisor.log'}, then run `up` again"
        )
    if time.monotonic() > deadline:
        raise DevclusterError(
            f"the cluster does not work: {'; '.join(problems)}; its logs are in {settings.logs}"
        )
    time.sleep(POLL_SECONDS)
