"""The pods that are on nodes, and the resources that they take there: read once, asked by many.

A thousand AtomDeployments ask about the same list, most of which is not theirs: sums by node and
the pods of each are made when the list is read. Pods that have ended take nothing and are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import msgspec

from atom_operator import constants
from atom_operator.domain.objects import Manifest, ObjectKey
from atom_operator.domain.resources import Resources, requests_of

_ENDED = ("Succeeded", "Failed")
# The fields of a pod's spec that its requests are made of.
_COUNTED = ("containers", "initContainers", "resources", "overhead", "hostNetwork")


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """Hold one pod on a node."""

    namespace: str
    name: str
    node: str
    labels: Mapping[str, str]
    revision: str | None  # of our pod templates
    ends: bool  # it is being deleted, and holds its resources until it has gone
    requests: Resources
    apart: tuple[Mapping[str, Any], ...] = ()  # terms of its required pod anti-affinity


@dataclass(frozen=True, slots=True, eq=False)
class PlacedPods:
    """Index all pods on nodes by AtomDeployment; one reading is equal to itself alone."""

    pods: tuple[PlacedPod, ...] = ()
    requested: Mapping[str, Resources] = field(default_factory=dict)  # by node
    _ours: Mapping[ObjectKey, tuple[PlacedPod, ...]] = field(default_factory=dict)

    def of(self, key: ObjectKey) -> tuple[PlacedPod, ...]:
        """Return the pods of one AtomDeployment."""
        return self._ours.get(key, ())

    def without(self, key: ObjectKey, names: Container[str]) -> PlacedPods:
        """Return the other pods and their requests, as after these pods of an AtomDeployment have
        gone."""
        ours, requested = self.of(key), dict(self.requested)
        gone = [pod for pod in ours if pod.name in names]
        for pod in gone:
            left = Counter(requested[pod.node])
            left.subtract(pod.requests)
            requested[pod.node] = left
        stay = tuple(pod for pod in ours if pod.name not in names)
        pods = tuple(pod for pod in self.pods if not any(pod is each for each in gone))
        return PlacedPods(pods, requested, {**self._ours, key: stay})


def placed_pods(manifests: Iterable[Manifest]) -> PlacedPods:
    """Sum up pods, of which those without a node take nothing yet."""
    return summed(tuple(_placed(manifests)))


def summed(pods: tuple[PlacedPod, ...]) -> PlacedPods:
    """Index pods on nodes, and sum their requests by node."""
    requested: dict[str, Counter[str]] = {}
    ours: dict[ObjectKey, list[PlacedPod]] = {}
    for pod in pods:
        requested.setdefault(pod.node, Counter()).update(pod.requests)
        name = pod.labels.get(constants.LABEL_DEPLOYMENT)
        if name is not None:
            ours.setdefault(ObjectKey(pod.namespace, name), []).append(pod)
    return PlacedPods(pods, requested, {key: tuple(found) for key, found in ours.items()})


def _placed(manifests: Iterable[Manifest]) -> Iterator[PlacedPod]:
    for manifest in manifests:
        spec, metadata = manifest.get("spec") or {}, manifest["metadata"]
        node = spec.get("nodeName")
        if not node or (manifest.get("status") or {}).get("phase") in _ENDED:
            continue
        annotations = metadata.get("annotations") or {}
        yield PlacedPod(
            namespace=str(metadata.get("namespace")),
            name=str(metadata.get("name")),
            node=str(node),
            labels=metadata.get("labels") or {},
            revision=annotations.get(constants.ANNOTATION_REVISION),
            ends=bool(metadata.get("deletionTimestamp")),
            requests=_requests({name: spec[name] for name in _COUNTED if name in spec}),
            apart=_apart(spec.get("affinity") or {}),
        )


def _apart(affinity: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    """Read the terms by which a pod keeps others away."""
    terms = affinity.get("podAntiAffinity") or {}
    return tuple(terms.get("requiredDuringSchedulingIgnoredDuringExecution") or ())


def _requests(counted: Mapping[str, Any]) -> Resources:
    """Return the resources that the scheduler reserves for a pod; cached for equal requests."""
    return _requests_of(msgspec.json.encode(counted))


@lru_cache(maxsize=1024)
def _requests_of(counted: bytes) -> Resources:
    return requests_of(msgspec.json.decode(counted))
