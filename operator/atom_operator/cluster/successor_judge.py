"""Ask the API server whether it would admit a pod's successor, before the pod ends, and the
ResourceClaims for the successor's devices.

A server-side dry run of the very objects that controllers would make: webhooks, policies,
LimitRanges and quotas judge them as they would the real ones, answer in their own words, and
nothing is stored. The old pod still exists meanwhile, and a quota counts both: plan/quota.py
computes how much the old pod's end would free. Called by reconcile/successors.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator import constants
from atom_operator.cluster.errors import RefusedError, TransientError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import POD, Manifest, ObjectKey, Successor
from atom_operator.kinds import RESOURCE_CLAIM, RESOURCE_CLAIM_TEMPLATE, Kind

# What controllers add to the labels and annotations of their pods. Anything else of a pod that
# exists is of its template, which is taken as it is now, or of a webhook, which is asked again.
_OF_CONTROLLERS = (
    "pod-template-hash",
    "controller-revision-hash",
    "apps.kubernetes.io/",
    "statefulset.kubernetes.io/",
    "leaderworkerset.sigs.k8s.io/",
    constants.LABEL_ROLE,
)
# No pod has it, and LeaderWorkerSet's webhook finds a number at the end of its pods' names. A
# random one would differ in each refusal, and so in the condition that reports it.
_NUMBER = 9999
_FORBIDDEN = " is forbidden: "
_CLAIM_OF_POD = "resource.kubernetes.io/pod-claim-name"
_MOST_OF_NAME = 200  # of 253
# By the role of a chart of before, or of a webhook that does something beside its answer.
_NO_WEBHOOK = "failed calling webhook"
_NOT_JUDGED = (
    'cannot create resource "pods"',
    'cannot create resource "resourceclaims"',
    "does not support dry run",
)


async def ask_for_successor(
    port: ClusterPort, key: ObjectKey, name: str, template: Manifest
) -> Successor:
    """Return the API server's verdict on the template's pod in place of the named pod; empty if
    that pod is gone."""
    pod = await port.get(POD, key.namespace, name)
    if pod is None:
        return Successor()
    return await _judged(port, POD, _successor(pod, template))


async def ask_for_claims(
    port: ClusterPort, key: ObjectKey, name: str, template: Manifest, claims: Manifest | None
) -> tuple[Successor, ...]:
    """Return the API server's verdict on each claim of the named pod's successor. `claims`: the
    template of claims that will be applied, which may not exist yet."""
    pod = await port.get(POD, key.namespace, name)
    found = []
    for entry in template["spec"].get("resourceClaims") or () if pod is not None else ():
        named = entry.get("resourceClaimTemplateName")
        asked = claims if claims and claims["metadata"]["name"] == named else None
        if asked is None and named:
            asked = await port.get(RESOURCE_CLAIM_TEMPLATE, key.namespace, named)
        if asked is not None and pod is not None:
            claim = _claim(pod, str(entry["name"]), asked["spec"])
            found.append(await _judged(port, RESOURCE_CLAIM, claim))
    return tuple(found)


async def _judged(port: ClusterPort, kind: Kind, manifest: Manifest) -> Successor:
    try:
        made = await port.dry_run(kind, manifest)
    except TransientError as error:
        # A policy engine that is down answers the real pod as it answers this one.
        if _NO_WEBHOOK in str(error):
            return Successor(refusal=str(error))
        return Successor(unknown=str(error))
    except RefusedError as error:
        words = _words(str(error))
        if any(each in words for each in _NOT_JUDGED):
            return Successor(unknown=words)
        return Successor(refusal=words)
    return Successor(made if kind == POD else None)


def _claim(pod: Manifest, entry: str, asked: Mapping[str, Any]) -> Manifest:
    """Build the claim that the pod's controller would make of a template."""
    before, metadata = pod["metadata"], asked.get("metadata") or {}
    owner = {"apiVersion": POD.api_version, "kind": POD.kind, "name": before["name"]}
    annotations = {**(metadata.get("annotations") or {}), _CLAIM_OF_POD: entry}
    return {
        "apiVersion": RESOURCE_CLAIM.api_version,
        "kind": RESOURCE_CLAIM.kind,
        "metadata": {
            "name": f"{before['name'][:_MOST_OF_NAME]}-{entry}-{_NUMBER}",
            "namespace": before["namespace"],
            "labels": dict(metadata.get("labels") or {}),
            "annotations": annotations,
            "ownerReferences": [{**owner, "uid": before["uid"], "controller": True}],
        },
        "spec": asked["spec"],
    }


def _successor(pod: Manifest, template: Manifest) -> Manifest:
    before, metadata = pod["metadata"], template.get("metadata") or {}
    # Policies against pods without a controller check their owners. Blocking an owner's deletion
    # needs a right to that owner, and an object that is not stored blocks nothing.
    owners = [
        {key: value for key, value in owner.items() if key != "blockOwnerDeletion"}
        for owner in before.get("ownerReferences") or ()
    ]
    return {
        "apiVersion": POD.api_version,
        "kind": POD.kind,
        "metadata": {
            "name": f"{before['name']}-{_NUMBER}",
            "namespace": before["namespace"],
            "labels": _of_controllers(before.get("labels")) | (metadata.get("labels") or {}),
            "annotations": _of_controllers(before.get("annotations"))
            | (metadata.get("annotations") or {}),
            "ownerReferences": owners,
        },
        "spec": template["spec"],
    }


def _words(text: str) -> str:
    """Leave out the name that was made up."""
    _, forbidden, words = text.partition(_FORBIDDEN)
    return words if forbidden else text


def _of_controllers(found: Mapping[str, str] | None) -> dict[str, str]:
    return {key: text for key, text in (found or {}).items() if key.startswith(_OF_CONTROLLERS)}
