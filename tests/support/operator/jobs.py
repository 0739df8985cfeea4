"""What the Job controller and the kubelet do to our Jobs in a FakeCluster."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from atom.entrypoints.inspect_model import pack
from atom_operator.domain import JOB, POD, Manifest
from tests.support.operator.builders_operator import pod_of
from tests.support.operator.fake_cluster import FakeCluster


def only_job(cluster: FakeCluster, prefix: str) -> Manifest:
    (name,) = [name for name in cluster.names(JOB) if prefix in name]
    return cluster.find(JOB, name)


def job_pod(cluster: FakeCluster, job: Manifest, **status: Any) -> None:
    """The Job's pod on a node, with this status."""
    name = job["metadata"]["name"]
    made = pod_of(job, f"{name}-1", "somewhere")
    made["metadata"]["labels"]["job-name"] = name
    cluster.put_pod({**made, "status": status})


def succeed(cluster: FakeCluster, job: Manifest, result: dict[str, Any]) -> None:
    ended = {"exitCode": 0, "reason": "Completed", "message": json.dumps(result)}
    status = {"name": "prepare", "ready": False, "state": {"terminated": ended}}
    job_pod(cluster, job, containerStatuses=[status])
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}


def fail(cluster: FakeCluster, job: Manifest, words: str, now: datetime) -> None:
    ended = {"exitCode": 1, "reason": "Error", "message": words}
    status = {"name": "prepare", "ready": False, "state": {"terminated": ended}}
    job_pod(cluster, job, containerStatuses=[status])
    failed = {"type": "Failed", "status": "True", "message": "backoff limit"}
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    job["status"] = {"conditions": [{**failed, "lastTransitionTime": stamp}]}


def report_config(cluster: FakeCluster, job: Manifest, config: dict[str, Any]) -> None:
    """An inspection that found `config`, in the engine's own words."""
    succeed(cluster, job, {"model": "m", "config": pack(config)})


def forget_pods(cluster: FakeCluster) -> None:
    for key in [key for key in cluster.objects if key[0] == POD]:
        del cluster.objects[key]
