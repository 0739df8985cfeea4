"""Ranks that share a mixture's experts in two pods, beside LeaderWorkerSet's own controller.

On the CPU, over gloo, on the pods' network; the mixture is a tiny one that a ConfigMap holds. The
life of a group is test_engine_over_nodes.py's: here is what another kind of rank adds to it.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from devcluster import target
from tests.operator.live.neighbours.test_engine_over_nodes import (
    READY_SECONDS,
    answers,
    images,
    is_ready,
    kill,
    made_anew,
    model,
    pods,
    wait_named,
)
from tests.support.cluster import neighbours
from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import wait_ready
from tests.support.models.tiny_model import make_tiny_checkpoint
from tools.kube import Kube
from tools.on_cluster import Images, offer_folders

__all__ = ["images"]

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("only_operator")]

FOLDER, VOLUME = "/models/mixture", "mixture"
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    return make_tiny_checkpoint(folder, "qwen3_moe", extra={"vocab_size": 384, **EXPERTS})


@pytest.fixture(scope="module")
def group(
    shared_namespace: LiveCluster,
    images: Images,
    checkpoint: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[LiveCluster]:
    """`chat` on two ranks in a group of two pods, and `alone` in one pod; both Ready."""
    neighbours.ensure("lws")
    offer_folders(Kube(target.resolve(os.environ), shared_namespace.namespace), images)
    log = tmp_path_factory.mktemp("operator") / "operator.log"
    with operator(shared_namespace, log):
        # Not applied: that would keep all of it in an annotation as well, which is too long.
        shared_namespace.kubectl("create", "--filename=-", manifest=files(checkpoint))
        shared = {"data": 2, "nodes": 2, "expert": True}
        neighbours.apply(shared_namespace, mixture("alone", images, checkpoint))
        chat = mixture("chat", images, checkpoint)
        chat["spec"]["parallelism"] = shared
        neighbours.apply(shared_namespace, chat)
        wait_ready(shared_namespace, READY_SECONDS)
        shared_namespace.wait("alone", lambda: is_ready(shared_namespace, "alone"), READY_SECONDS)
        yield shared_namespace


def files(checkpoint: Path) -> dict[str, Any]:
    """The ConfigMap with the checkpoint."""
    data = {
        path.name: base64.b64encode(path.read_bytes()).decode() for path in checkpoint.iterdir()
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": VOLUME},
        "binaryData": data,
    }


def mixture(name: str, images: Images, checkpoint: Path) -> dict[str, Any]:
    made = model(name, images)
    spec = made["spec"]
    spec["model"] |= {
        "source": f"path://{FOLDER}",
        "config": json.loads((checkpoint / "config.json").read_text(encoding="utf-8")),
    }
    pod = spec.setdefault("template", {}).setdefault("spec", {})
    containers = pod.setdefault("containers", [{"name": "engine"}])
    mount = {"name": VOLUME, "mountPath": FOLDER, "readOnly": True}
    containers[0].setdefault("volumeMounts", []).append(mount)
    pod.setdefault("volumes", []).append({"name": VOLUME, "configMap": {"name": VOLUME}})
    return made


def test_two_pods_that_share_experts_say_what_one_says(group: LiveCluster) -> None:
    assert set(pods(group)) == {"chat-0", "chat-0-1"}
    assert answers(group, "chat") == answers(group, "alone")
    group.kubectl("delete", "atomd", "alone", "--wait=false")


def test_a_core_of_the_other_pod_that_dies_is_named_and_the_group_made_anew(
    group: LiveCluster, images: Images
) -> None:
    with made_anew(group, images):
        kill(group, "chat-0-1", "atom.model_engine.core_main")
        wait_named(group, "the engine process of rank 1 on node 1 (")


def test_nothing_is_left_of_the_group(group: LiveCluster) -> None:
    group.kubectl("delete", "atomd", "chat", "--wait=false")
    group.wait("the end of every pod", lambda: not pods(group))
