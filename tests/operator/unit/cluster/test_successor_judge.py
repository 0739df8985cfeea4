"""The API server is asked for the very pod that would follow one: as its template is now, with what
its controllers say of it, and with nothing that a webhook once put into the pod before."""

from __future__ import annotations

import pytest

from atom_operator.cluster.errors import ClusterError, RefusedError, TransientError
from atom_operator.cluster.successor_judge import ask_for_successor
from atom_operator.domain import POD, Manifest, ObjectKey
from tests.support.operator.fake_cluster import FakeCluster

_KEY = ObjectKey("default", "chat")
_OWNER = {
    "apiVersion": "apps/v1",
    "kind": "ReplicaSet",
    "name": "chat-1",
    "uid": "uid-1",
    "controller": True,
}
_BEFORE = {
    "metadata": {
        "name": "chat-1-abcde",
        "namespace": "default",
        "uid": "uid-2",
        "labels": {
            "app": "old",
            "pod-template-hash": "1",
            "leaderworkerset.sigs.k8s.io/group-index": "3",
            "serving.atom.dev/role": "worker",
            "mesh.test/injected": "yes",
        },
        "annotations": {"leaderworkerset.sigs.k8s.io/size": "2", "mesh.test/status": "injected"},
        "ownerReferences": [{**_OWNER, "blockOwnerDeletion": True}],
    },
    "spec": {"nodeName": "a", "containers": [{"name": "engine"}, {"name": "mesh"}]},
    "status": {"phase": "Running"},
}
_TEMPLATE = {
    "metadata": {"labels": {"app": "new"}, "annotations": {"of": "the template"}},
    "spec": {"containers": [{"name": "engine"}]},
}


def _cluster() -> tuple[FakeCluster, list[Manifest]]:
    cluster, asked = FakeCluster(), list[Manifest]()
    cluster.put_pod(_BEFORE)

    def admit(pod: Manifest) -> Manifest:
        asked.append(pod)
        return {**pod, "spec": {"containers": [{"name": "engine"}, {"name": "new mesh"}]}}

    cluster.admit_pod = admit
    return cluster, asked


async def test_the_pod_that_is_asked_for_is_the_one_that_would_follow() -> None:
    cluster, asked = _cluster()
    found = await ask_for_successor(cluster, _KEY, "chat-1-abcde", _TEMPLATE)
    (pod,) = asked
    assert pod["spec"] == _TEMPLATE["spec"]
    assert pod["metadata"]["labels"] == {
        "app": "new",
        "pod-template-hash": "1",
        "leaderworkerset.sigs.k8s.io/group-index": "3",
        "serving.atom.dev/role": "worker",
    }
    assert pod["metadata"]["annotations"] == {
        "of": "the template",
        "leaderworkerset.sigs.k8s.io/size": "2",
    }
    assert pod["metadata"]["ownerReferences"] == [_OWNER]  # and no right to the owner is needed
    name = pod["metadata"]["name"]
    assert name.startswith("chat-1-abcde-")
    assert name.rpartition("-")[2].isdecimal()  # by which the controller of groups knows its pods
    assert found.pod is not None
    assert [item["name"] for item in found.pod["spec"]["containers"]] == ["engine", "new mesh"]
    assert cluster.writes == []
    assert list(cluster.objects) == [(POD, "default", "chat-1-abcde")]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            'dry run of Pod in default: pods "chat-9999" is forbidden: failed quota: a',
            "failed quota: a",
        ),
        (
            'admission webhook "a" denied the request: no',
            'admission webhook "a" denied the request: no',
        ),
    ],
)
async def test_a_refusal_is_told_in_the_words_of_whoever_refuses(said: str, words: str) -> None:
    cluster, _ = _cluster()
    cluster.refused_dry_run = RefusedError(said, 403)
    found = await ask_for_successor(cluster, _KEY, "chat-1-abcde", _TEMPLATE)
    assert (found.pod, found.refusal) == (None, words)


@pytest.mark.parametrize(
    "error",
    [
        RefusedError('pods is forbidden: User "x" cannot create resource "pods" in', 403),
        RefusedError('admission webhook "a" does not support dry run', 400),
        TransientError("failed calling webhook"),
    ],
)
async def test_a_server_that_judged_nothing_is_no_refusal(error: ClusterError) -> None:
    cluster, _ = _cluster()
    cluster.refused_dry_run = error
    found = await ask_for_successor(cluster, _KEY, "chat-1-abcde", _TEMPLATE)
    assert (found.pod, found.refusal) == (None, None)
    assert found.unknown is not None
    assert str(error).endswith(found.unknown)


async def test_nothing_is_asked_for_in_the_place_of_a_pod_that_is_gone() -> None:
    cluster, asked = _cluster()
    found = await ask_for_successor(cluster, _KEY, "chat-1-other", _TEMPLATE)
    assert (found.pod, found.refusal, asked) == (None, None, [])
