"""What an older version of the operator left behind: the same spec, its pods rendered otherwise."""

from __future__ import annotations

from typing import Any

from atom_operator.constants import ANNOTATION_REVISION, ANNOTATION_SPEC_DIGEST
from atom_operator.domain import CONTROLLER_REVISION, DEPLOYMENT, Manifest
from tests.support.operator.builders_operator import pod, ready_records
from tests.support.operator.fake_cluster import FakeCluster

OLDER = "0lder"


def as_an_older_one_left_it(cluster: FakeCluster, *, digests: bool, records: bool = True) -> None:
    """`chat` as if another version had rendered what the cluster holds now, and is gone.

    `digests` and `records`: whether that version wrote spec digests, and what was ready last.
    """
    deployment = cluster.find(DEPLOYMENT, "chat")
    _make_older(deployment, deployment["spec"]["template"], digests=digests)
    for name in set(cluster.names(CONTROLLER_REVISION)) - set(ready_records(cluster)):
        del cluster.objects[CONTROLLER_REVISION, "default", name]  # which it did not write yet
    for name in ready_records(cluster):
        record = cluster.objects.pop((CONTROLLER_REVISION, "default", name))
        if records:
            _make_older(record, record["data"]["template"], digests=digests)
            record["metadata"]["name"] = f"chat-{OLDER}"
            cluster.objects[CONTROLLER_REVISION, "default", f"chat-{OLDER}"] = record


def _make_older(manifest: Manifest, template: Manifest, *, digests: bool) -> None:
    annotations = manifest["metadata"]["annotations"]
    annotations[ANNOTATION_REVISION] = OLDER
    if not digests:
        annotations.pop(ANNOTATION_SPEC_DIGEST, None)
    template["metadata"]["annotations"][ANNOTATION_REVISION] = OLDER
    template["spec"].pop("topologySpreadConstraints")
    template["spec"]["containers"][0]["args"].append("--of-an-older-time")


def older_pod(cluster: FakeCluster, *, ready: bool = True, **status: Any) -> Manifest:
    """A pod of that revision."""
    manifest = pod(cluster, "chat-0", ready=ready, **status)
    manifest["metadata"]["annotations"][ANNOTATION_REVISION] = OLDER
    return manifest
