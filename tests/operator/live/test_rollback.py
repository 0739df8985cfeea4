"""A failed rollout on a real Deployment controller: back to what was ready, and no further try.

The pods run a few lines instead of an engine, so they are ready as soon as they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.live_cluster import LiveCluster
from tests.support.cluster.operator_process import operator
from tests.support.cluster.quick_pods import (
    condition,
    engine_image,
    quick_container,
    status,
    wait_ready,
)
from tests.support.operator.builders_operator import atom_deployment

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.side_by_side,
    pytest.mark.usefixtures("only_operator"),
]

_ABSENT = "localhost/atom-none:0"
_MEMORY = {"requests": {"memory": "64Mi"}, "limits": {"memory": "64Mi"}}
# Touches every page, so that the kernel has to find them.
_GREEDY = "held = [b'x' * (8 << 20) for _ in range(64)]"


@pytest.fixture(scope="module")
def image(live_cluster: LiveCluster) -> str:
    return engine_image(live_cluster)


def apply(
    cluster: LiveCluster,
    image: str,
    container: dict[str, Any] | None = None,
    **annotations: str,
) -> None:
    engine = container or quick_container()
    manifest = atom_deployment(
        engine={"image": image},
        template={"metadata": {"annotations": annotations}, "spec": {"containers": [engine]}},
        rollout={"progressDeadlineSeconds": 10, "drainSeconds": 0},
        accelerator={"type": "cpu", "memory": "1Gi"},
    )
    manifest["metadata"]["namespace"] = cluster.namespace
    cluster.kubectl("apply", "--filename=-", manifest=manifest)


def running_image(cluster: LiveCluster) -> str:
    deployment = cluster.get("deployment", "chat") or {}
    return str(deployment["spec"]["template"]["spec"]["containers"][0]["image"])


def pods(cluster: LiveCluster) -> set[str]:
    listed = cluster.kubectl(
        "get", "pods", "--output=name", "--selector=serving.atom.dev/deployment"
    )
    return set(listed.stdout.split())


@pytest.mark.whole  # test_lifecycle rolls a bad image back, and the next test killed pods
def test_a_bad_image_gives_way_to_the_revision_that_was_ready(
    namespaced: LiveCluster, image: str, tmp_path: Path
) -> None:
    """Some twenty seconds: a rollout fails ten seconds after its start, and two operators start."""
    cluster = namespaced
    log = tmp_path / "operator.log"
    with operator(cluster, log):
        apply(cluster, image, note="first")
        wait_ready(cluster)
        good, before = status(cluster)["revision"], pods(cluster)

        apply(cluster, _ABSENT)
        degraded = cluster.wait(
            "rollback",
            lambda: (
                (found := condition(cluster, "Degraded")).get("reason") == "RolledBack" and found
            ),
        )
        assert "Image" in degraded["message"], "the pod's own reason"
        assert running_image(cluster) == image
        assert status(cluster)["revision"] == good
        assert status(cluster)["rollout"]["failedRevision"] != good
        cluster.wait("end of the failed pod", lambda: pods(cluster) == before)
    # Another operator finds everything that it needs in the cluster, and does not try again.
    with operator(cluster, log):
        cluster.kubectl("delete", "service", "chat")
        cluster.wait("service that came back", lambda: cluster.get("service", "chat"))
        assert running_image(cluster) == image
        assert condition(cluster, "Available")["status"] == "True"
        assert pods(cluster) == before

        apply(cluster, image, note="another try")
        wait_ready(cluster)
        assert condition(cluster, "Degraded")["status"] == "False"
        records = cluster.kubectl(
            "get", "controllerrevisions", "--output=name", "--selector=serving.atom.dev/deployment"
        ).stdout.split()
        ready = [name for name in records if "/chat-spec-" not in name]
        assert ready == [f"controllerrevision.apps/chat-{status(cluster)['revision']}"]


def test_pods_that_are_killed_for_memory_say_so_and_give_way(
    namespaced: LiveCluster, image: str, tmp_path: Path
) -> None:
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log"):
        apply(cluster, image)
        wait_ready(cluster)
        good, before = status(cluster)["revision"], pods(cluster)

        greedy = quick_container(command=["python3", "-c", _GREEDY], resources=_MEMORY)
        apply(cluster, image, greedy)
        failing = cluster.wait(
            "word of the killed pod",
            lambda: (found := condition(cluster, "Degraded")).get("status") == "True" and found,
        )
        assert "OOMKilled (exit code 137)" in failing["message"]
        degraded = cluster.wait(
            "rollback",
            lambda: (
                (found := condition(cluster, "Degraded")).get("reason") == "RolledBack" and found
            ),
        )
        assert "OOMKilled" in degraded["message"]
        assert status(cluster)["revision"] == good
        cluster.wait("end of the failed pod", lambda: pods(cluster) == before)
        assert condition(cluster, "Available")["status"] == "True"


def test_an_unknown_model_is_looked_at_by_a_job_whose_failure_stops_nothing(
    namespaced: LiveCluster, image: str, tmp_path: Path
) -> None:
    cluster = namespaced
    with operator(cluster, tmp_path / "operator.log"):
        manifest = atom_deployment(
            model={"source": "path:///nothing"},
            engine={"image": image},
            accelerator={"type": "cpu", "memory": "1Gi"},
        )
        manifest["metadata"]["namespace"] = cluster.namespace
        cluster.kubectl("apply", "--filename=-", manifest=manifest)
        loaded = cluster.wait(
            "look at the model",
            lambda: (
                (found := condition(cluster, "ModelLoaded")).get("reason") == "InspectingModel"
                and found
            ),
        )
        assert "config.json" in loaded["message"]
        assert cluster.get("deployment", "chat") is None
        (job,) = cluster.kubectl("get", "jobs", "--output=name").stdout.split()
        # There is no such folder: the Job fails by itself, and the engine is left to size itself.
        cluster.wait("pods in spite of it", lambda: cluster.get("deployment", "chat"), seconds=120)
        assert condition(cluster, "CapacityFits")["reason"] == "ModelFactsUnknown"
        cluster.kubectl("delete", "atomd", "chat", "--timeout=20s")
        cluster.wait(
            "removal of the Job", lambda: not cluster.kubectl("get", "jobs", "-o", "name").stdout
        )
        assert job.startswith("job.batch/chat-inspect-")
