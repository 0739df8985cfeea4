"""One copy of a model in two pods, by the engine itself, beside LeaderWorkerSet's own controller.

Ranks on the CPU, over gloo, on the pods' network. The tests follow one model's life, in order. What
the controller makes of a group, without an engine, is test_leader_worker_set.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import yaml

from devcluster import target
from tests.support.cluster import neighbours
from tests.support.cluster.client_pod import asking
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import condition, status, wait_ready
from tools.kube import Kube, wait_until
from tools.on_cluster import Images, choose_images, demo_manifest, offer_folders

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

READY_SECONDS = 300.0
PROMPTS = ("What is ATOM?", "The operator", "One two three four five six seven")
ASK = """
import json, sys, urllib.request
for prompt in json.loads(sys.argv[2]):
    body = {"model": sys.argv[1], "prompt": prompt, "max_tokens": 24, "temperature": 0}
    request = urllib.request.Request(
        f"http://{sys.argv[1]}:8000/v1/completions", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    print(json.dumps(json.load(urllib.request.urlopen(request, timeout=60))["choices"][0]["text"]))
"""
# Of the module that is its argument.
KILL_PROCESS = """
import os, pathlib, signal, sys
for entry in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    words = entry.read_bytes().split(b"\\0")
    if sys.argv[1].encode() in words and b"-c" not in words:
        os.kill(int(entry.parent.name), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def images() -> Images:
    return choose_images(target.resolve(os.environ), os.environ)


@pytest.fixture(scope="module")
def group(
    shared_namespace: LiveCluster, images: Images, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveCluster]:
    """`chat` in a group of two pods, and `alone` in one pod; both Ready."""
    neighbours.ensure("lws")
    offer_folders(Kube(target.resolve(os.environ), shared_namespace.namespace), images)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with operator(shared_namespace, log):
        neighbours.apply(shared_namespace, model("alone", images))
        neighbours.apply(shared_namespace, grouped(images))
        wait_ready(shared_namespace, READY_SECONDS)
        shared_namespace.wait("alone", lambda: is_ready(shared_namespace, "alone"), READY_SECONDS)
        yield shared_namespace


def model(name: str, images: Images, **engine: Any) -> dict[str, Any]:
    """The demo's, small, and with one thread for each process."""
    made: dict[str, Any] = yaml.safe_load(demo_manifest(images))
    made["metadata"]["name"] = name
    spec = made["spec"]
    spec["accelerator"]["memory"] = "2Gi"
    threads = {"name": "OMP_NUM_THREADS", "value": "1"}
    spec["engine"].update({"maxModelLen": 256, "maxNumSeqs": 4, "env": [threads], **engine})
    spec["model"]["servedName"] = name
    return made


def grouped(images: Images, replicas: int = 1, **engine: Any) -> dict[str, Any]:
    made = model("chat", images, **engine)
    made["spec"] |= {"parallelism": {"tensor": 2, "nodes": 2}, "replicas": replicas}
    return made


def is_ready(cluster: LiveCluster, name: str) -> bool:
    found = (cluster.get("atomd", name) or {}).get("status") or {}
    return any(
        (item["type"], item["status"]) == ("Ready", "True") for item in found.get("conditions", ())
    )


def pods(cluster: LiveCluster, name: str = "chat") -> dict[str, str]:
    """The uid of each pod."""
    columns = "custom-columns=:metadata.name,:metadata.uid"
    selector = f"--selector=serving.atom.dev/deployment={name}"
    listed = cluster.kubectl("get", "pods", selector, "--no-headers", f"--output={columns}").stdout
    return dict(line.split() for line in listed.splitlines())


def answers(cluster: LiveCluster, name: str) -> list[str]:
    (asker,) = pods(cluster, "alone")
    command = ["python3", "-c", ASK, name, json.dumps(PROMPTS)]
    text = cluster.kubectl("exec", asker, "--container=engine", "--", *command).stdout
    return [json.loads(line) for line in text.splitlines()]


@contextmanager
def made_anew(group: LiveCluster, images: Images) -> Iterator[None]:
    """What is done within has all pods of the group made anew."""
    before = pods(group)
    with asking(group, images.engine, "chat") as asked:
        yield
        group.wait("another group", lambda: not set(before.values()) & set(pods(group).values()))
        wait_ready(group, READY_SECONDS)
    # An error at once, or an answer: no request was left waiting until its client gave up.
    assert asked.answered
    assert not [failure for failure in asked.failures if "timed out" in failure]


def kill(group: LiveCluster, pod: str, module: str) -> None:
    """End the processes of a pod that run this module."""
    command = ["python3", "-c", KILL_PROCESS, module]
    group.kubectl("exec", pod, "--container=engine", "--", *command)


def wait_named(group: LiveCluster, name: str) -> None:
    """Wait for an event that says it."""

    def is_named() -> bool:
        listed = group.kubectl("get", "events", "--output=json").stdout
        return any(name in item["message"] for item in json.loads(listed)["items"])

    group.wait(f"{name!r} in an event", is_named)


def test_two_pods_say_what_one_says(group: LiveCluster) -> None:
    assert set(pods(group)) == {"chat-0", "chat-0-1"}
    assert answers(group, "chat") == answers(group, "alone")
    group.kubectl("delete", "atomd", "alone", "--wait=false")


def test_a_rank_that_dies_is_named_and_its_group_made_anew(
    group: LiveCluster, images: Images
) -> None:
    with made_anew(group, images):
        kill(group, "chat-0-1", "atom.model_engine.executor.tensor_parallel.rank_main")
        wait_named(group, "rank 1 of the tensor-parallel group on node 1 (")


def test_a_worker_that_is_deleted_has_its_group_made_anew(
    group: LiveCluster, images: Images
) -> None:
    with made_anew(group, images):
        group.kubectl("delete", "pod", "chat-0-1", "--wait=false")


def test_a_change_of_two_groups_fails_no_request(group: LiveCluster, images: Images) -> None:
    neighbours.apply(group, grouped(images, replicas=2))
    wait_until("two groups", lambda: _serving(group) == 2, seconds=READY_SECONDS)
    before = pods(group)
    assert set(before) == {"chat-0", "chat-0-1", "chat-1", "chat-1-1"}
    revision = status(group)["revision"]
    with asking(group, images.engine, "chat") as asked:
        neighbours.apply(group, grouped(images, replicas=2, maxNumSeqs=8))
        group.wait("another revision", lambda: status(group)["revision"] != revision)
        wait_ready(group, 2 * READY_SECONDS)
    assert asked.answered
    assert asked.failures == []
    assert not set(before.values()) & set(pods(group).values())


def test_nothing_is_left_of_the_groups(group: LiveCluster, images: Images) -> None:
    neighbours.apply(group, grouped(images, replicas=1, maxNumSeqs=8))
    wait_until("one group", lambda: len(pods(group)) == 2, seconds=READY_SECONDS)
    group.kubectl("delete", "atomd", "chat", "--wait=false")
    group.wait("the end of every pod", lambda: not pods(group))


def _serving(cluster: LiveCluster) -> int:
    ready = condition(cluster, "Ready").get("status") == "True"
    return int(status(cluster).get("readyReplicas", 0)) if ready else 0
