"""The API server is asked for the very pod that would follow one: as its template is now, with what
its controllers say of it, and with nothing that a webhook once put into the pod before."""

from __future__ import annotations

import pytest

from atom_operator.cluster.errors import ClusterError, RefusedError, TransientError
from atom_operator.cluster.successor_judge import ask_for_claims, ask_for_successor
from atom_operator.domain import POD, Manifest, ObjectKey
from atom_operator.kinds import RESOURCE_CLAIM_TEMPLATE
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
        TransientError("the server timed out"),
    ],
)
async def test_a_server_that_judged_nothing_is_no_refusal(error: ClusterError) -> None:
    cluster, _ = _cluster()
    cluster.refused_dry_run = error
    found = await ask_for_successor(cluster, _KEY, "chat-1-abcde", _TEMPLATE)
    assert (found.pod, found.refusal) == (None, None)
    assert found.unknown is not None
    assert str(error).endswith(found.unknown)


async def test_a_webhook_that_does_not_answer_refuses_the_successor() -> None:
    """It would not answer for the real pod either, so the pod that serves is kept."""
    cluster, _ = _cluster()
    cluster.refused_dry_run = TransientError('failed calling webhook "policy.test"')
    found = await ask_for_successor(cluster, _KEY, "chat-1-abcde", _TEMPLATE)
    assert found.pod is None
    assert found.refusal is not None
    assert found.refusal.endswith('failed calling webhook "policy.test"')


async def test_nothing_is_asked_for_in_the_place_of_a_pod_that_is_gone() -> None:
    cluster, asked = _cluster()
    found = await ask_for_successor(cluster, _KEY, "chat-1-other", _TEMPLATE)
    assert (found.pod, found.refusal, asked) == (None, None, [])


_ASKED = {"devices": {"requests": [{"name": "gpus", "exactly": {"count": 8}}]}}


def _claiming(template: str) -> Manifest:
    entry = {"name": "gpus", "resourceClaimTemplateName": template}
    return {**_TEMPLATE, "spec": {"resourceClaims": [entry], "containers": []}}


def _claims(name: str) -> Manifest:
    spec = {"metadata": {"labels": {"team": "chat"}}, "spec": _ASKED}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec}


@pytest.mark.parametrize("stored", [True, False])
async def test_the_claim_that_is_asked_for_is_made_of_the_template(stored: bool) -> None:
    cluster, asked = _cluster()[0], list[Manifest]()
    cluster.admit = lambda _kind, claim: asked.append(claim)
    if stored:
        cluster.create(RESOURCE_CLAIM_TEMPLATE, _claims("chat-gpus-1"))
    to_be = None if stored else _claims("chat-gpus-1")
    (found,) = await ask_for_claims(cluster, _KEY, "chat-1-abcde", _claiming("chat-gpus-1"), to_be)
    (claim,) = asked
    assert (found.refusal, found.unknown) == (None, None)
    assert claim["spec"] == _ASKED
    assert claim["metadata"]["labels"] == {"team": "chat"}
    (owner,) = claim["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", "chat-1-abcde", "uid-2")


@pytest.mark.parametrize(
    ("words", "field", "told"),
    [
        ("exceeded quota: team, requested: x=8", "refusal", "exceeded quota: team, requested: x=8"),
        (
            'User "operator" cannot create resource "resourceclaims" in API group',
            "unknown",
            'User "operator" cannot create resource "resourceclaims" in API group',
        ),
    ],
)
async def test_who_refuses_the_claim_is_told_without_the_name_that_was_made_up(
    words: str, field: str, told: str
) -> None:
    cluster, _ = _cluster()
    error = f'resourceclaims.resource.k8s.io "chat-1-abcde-gpus-9999" is forbidden: {words}'
    cluster.refused_dry_run = RefusedError(error, 403)
    (found,) = await ask_for_claims(
        cluster, _KEY, "chat-1-abcde", _claiming("chat-gpus-1"), _claims("chat-gpus-1")
    )
    assert getattr(found, field) == told


async def test_no_claim_is_asked_for_a_pod_that_is_gone_or_claims_nothing() -> None:
    cluster, _ = _cluster()
    to_be = _claims("chat-gpus-1")
    assert await ask_for_claims(cluster, _KEY, "gone", _claiming("chat-gpus-1"), to_be) == ()
    assert await ask_for_claims(cluster, _KEY, "chat-1-abcde", _TEMPLATE, to_be) == ()
