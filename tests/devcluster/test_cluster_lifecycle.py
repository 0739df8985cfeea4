"""The embedded cluster for real: up, repair, down without a trace. On an instance of its own.

The cluster that people or other tests use on this machine is not touched.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from devcluster import dns, preflight, target
from devcluster.node import cgroups
from devcluster.settings import REPOSITORY, read_settings
from tests.support import waiting

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

INSTANCE = "61"
ENVIRONMENT = {**os.environ, "ATOM_DEVCLUSTER_INSTANCE": INSTANCE, "CLUSTER": ""}
ENVIRONMENT.pop("ATOM_DEVCLUSTER_STATE", None)
SETTINGS = read_settings(ENVIRONMENT)
UP_SECONDS = 1500  # when nothing is built yet
LIMIT_SECONDS = 60


def why_skipped() -> str | None:
    if target.chosen_kind(os.environ) is target.Kind.CURRENT:
        return "tests the embedded cluster itself, but CLUSTER=current is given"
    return preflight.why_not_here()


@pytest.fixture(autouse=True, scope="module")
def clean_instance() -> Iterator[None]:
    reason = why_skipped()
    if reason:
        pytest.skip(reason)
    devcluster("down")
    yield
    devcluster("down")


def devcluster(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "devcluster", *arguments],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def status() -> dict[str, Any]:
    return dict(json.loads(devcluster("status", "--json")))


def pid_of(component: str) -> int:
    return next(int(c["pid"]) for c in status()["components"] if c["name"] == component)


def kubectl(*arguments: str, manifest: object = None) -> str:
    done = subprocess.run(
        [SETTINGS.tools / "kubectl", f"--kubeconfig={SETTINGS.kubeconfig}", *arguments],
        input=None if manifest is None else json.dumps(manifest),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(condition: Callable[[], bool]) -> None:
    waiting.wait_until(condition, "what this test waits for", LIMIT_SECONDS)


@dataclass(frozen=True)
class Traces:
    """What a cluster could leave on the machine, as far as it can be told from what others do."""

    processes: frozenset[str]
    mounts: frozenset[str]
    links: frozenset[str]
    network_namespaces: frozenset[str]
    cgroups: frozenset[str]
    folders: frozenset[str]


def look_for_traces() -> Traces:
    arguments = (p / "cmdline" for p in Path("/proc").iterdir() if p.name.isdecimal())
    return Traces(
        processes=frozenset(
            f"{path.parent.name} {text}"
            for path in arguments
            if f"{SETTINGS.state}/" in (text := read(path).replace("\0", " "))
        ),
        mounts=frozenset(
            line.split()[4] for line in read(Path("/proc/self/mountinfo")).splitlines()
        ),
        links=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
        network_namespaces=frozenset(p.name for p in Path("/run/netns").glob("*")),
        cgroups=frozenset(str(p) for p in cgroups.ROOT.glob(f"*/{SETTINGS.name}"))
        | frozenset(str(p) for p in cgroups.ROOT.glob(SETTINGS.name)),
        folders=frozenset(str(p) for p in SETTINGS.state.parent.glob(SETTINGS.state.name)),
    )


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def test_down_leaves_nothing_behind_of_a_cluster_with_pods() -> None:
    devcluster("down")
    before = look_for_traces()
    devcluster("up")
    during = look_for_traces()
    assert any("containerd-shim" in process for process in during.processes)
    assert during.links - before.links == {f"atomdev{INSTANCE}"}
    assert during.mounts == before.mounts, "the cluster's mounts are its own"
    devcluster("down")
    assert look_for_traces() == before


def test_a_second_up_leaves_a_cluster_that_runs_as_it_is() -> None:
    def processes() -> dict[str, tuple[int, int]]:
        return {each["name"]: (each["pid"], each["restarts"]) for each in status()["components"]}

    devcluster("up")
    first = processes()
    devcluster("up")
    assert processes() == first, "none was started again"


@pytest.mark.parametrize("component", ["kubelet", "containerd", "etcd", "apiserver", "scheduler"])
def test_up_repairs_a_killed_component_without_losing_objects(component: str) -> None:
    devcluster("up")
    kubectl("create", "configmap", f"before-{component}")
    os.kill(pid_of(component), signal.SIGKILL)
    devcluster("up")
    assert status()["state"] == "up"
    assert component in kubectl("get", "configmap", f"before-{component}", "-o", "name")


def test_up_starts_anew_after_the_node_process_was_killed() -> None:
    devcluster("up")
    os.kill(status()["node_process_pid"], signal.SIGKILL)
    wait_until(lambda: not look_for_traces().processes)
    devcluster("up")
    assert status()["state"] == "up"


def test_up_starts_anew_while_a_killed_cluster_still_has_its_link() -> None:
    """The kernel keeps the pair for as long as something holds the namespace."""
    devcluster("up")
    pid = status()["node_process_pid"]
    with Path(f"/proc/{pid}/ns/net").open():
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not look_for_traces().processes)
        assert f"atomdev{INSTANCE}" in look_for_traces().links
        devcluster("up")
    assert status()["state"] == "up"


@pytest.mark.parametrize(
    ("reached", "sent"),
    [
        ("pki/ca.crt", signal.SIGKILL),
        ("plan.json", signal.SIGINT),
        ("components.json", signal.SIGKILL),
    ],
)
def test_up_completes_what_an_interrupted_up_began(reached: str, sent: signal.Signals) -> None:
    devcluster("down")
    process = subprocess.Popen(
        [sys.executable, "-m", "devcluster", "up"],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        # Tests that a shell runs in the background ignore it, and so would what they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    wait_until(lambda: (SETTINGS.state / reached).exists())
    process.send_signal(sent)
    assert process.wait(LIMIT_SECONDS) != 0
    devcluster("up")
    assert status()["state"] == "up"


def test_down_cleans_up_after_an_interrupted_up() -> None:
    devcluster("down")
    before = look_for_traces()
    process = subprocess.Popen(
        [sys.executable, "-m", "devcluster", "up"],
        cwd=REPOSITORY,
        env=ENVIRONMENT,
        stderr=subprocess.DEVNULL,
    )
    wait_until(lambda: (SETTINGS.state / "components.json").exists())
    process.kill()
    process.wait()
    devcluster("down")
    assert look_for_traces() == before


def test_fake_amd_nodes_stay_ready_and_admit_gpu_pods() -> None:
    devcluster("up", "--fake-amd-nodes", "2:4")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "gpu"},
        "spec": {
            "containers": [
                {
                    "name": "c",
                    "image": dns.IMAGE,  # any image that is there
                    "imagePullPolicy": "Never",
                    "args": ["-version"],
                    "resources": {"limits": {"amd.com/gpu": "4"}},
                }
            ],
            "restartPolicy": "Never",
        },
    }
    kubectl("apply", "-f", "-", manifest=pod)
    kubectl("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/gpu", "--timeout=50s")
    lease = ("get", "lease", "-n", "kube-node-lease", "amd-1", "-o", "jsonpath={.spec.renewTime}")
    wait_until(
        lambda: bool(kubectl("get", "lease", "-n", "kube-node-lease", "-o", "name").count("amd-1"))
    )
    first = kubectl(*lease)
    wait_until(lambda: kubectl(*lease) != first)
    nodes = {node["name"]: node for node in status()["nodes"]}
    assert {name: node["gpus"] for name, node in nodes.items()} == {"dev-node": "4", "amd-1": "4"}
    assert all(node["ready"] for node in nodes.values())


def test_gpus_of_the_real_node_survive_a_restart_of_the_kubelet() -> None:
    devcluster("up", "--fake-amd-nodes", "1:8")
    os.kill(pid_of("kubelet"), signal.SIGKILL)
    devcluster("up")
    assert [n["gpus"] for n in status()["nodes"] if n["name"] == "dev-node"] == ["8"]
