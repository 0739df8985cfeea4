"""Limits of the engine pod's containers where a ResourceQuota of the namespace counts them. Pure.

By default the containers have no such limits: the kernel throttles a process at its limit of cpu,
and kills one at its limit of memory. A quota on limits.cpu or limits.memory refuses pods whose
containers state none, so that a pod with these limits is better than none. A limit that the
overlay or a LimitRange states is never replaced, and containers of an overlay are left to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from atom_operator import constants
from atom_operator.children.engine_pod.preflight import PREFLIGHT_CONTAINER
from atom_operator.children.volumes import shared_memory_bytes
from atom_operator.domain import Accelerator, EngineOptions, Manifest, PodsPlan
from atom_operator.domain.resources import LimitAsked, amount

_CORES, _GIB = 2, 8  # for the server and for each rank
_CORES_OF_CPU_RANK = 4  # that computes on cores
_PREFLIGHT_CORES = 1
_FIELDS = ("containers", "initContainers")


def with_quota_limits(
    engine: EngineOptions, accelerator: Accelerator, pods: PodsPlan, template: Manifest
) -> Manifest:
    """Return the finished template with the limits of `pods.quota_limits` that it lacks, and an
    annotation that names them."""
    if not pods.quota_limits:
        return template
    known = _limits(engine, accelerator, pods)
    given: list[str] = []
    spec = dict(template["spec"])
    for field in _FIELDS:
        if field in spec:
            spec[field] = [_limited(item, pods.quota_limits, known, given) for item in spec[field]]
    if not given:
        return template
    metadata = template["metadata"]
    noted = {constants.ANNOTATION_QUOTA_LIMITS: " ".join(given)}
    annotations = {**(metadata.get("annotations") or {}), **noted}
    return {**template, "metadata": {**metadata, "annotations": annotations}, "spec": spec}


def quota_limits_of(template: Manifest) -> tuple[LimitAsked, ...]:
    """Read the limits back that `with_quota_limits` has stated in a template."""
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    words = str(annotations.get(constants.ANNOTATION_QUOTA_LIMITS, "")).split()
    pairs = (word.rpartition(".") for word in words)
    return tuple(LimitAsked(container, resource) for container, _, resource in pairs)


def _limits(
    engine: EngineOptions, accelerator: Accelerator, pods: PodsPlan
) -> Mapping[LimitAsked, str]:
    ranks, container = engine.devices_per_pod, constants.ENGINE_CONTAINER
    cores = _CORES * (1 + ranks) if accelerator.type == "amd" else _CORES_OF_CPU_RANK * ranks
    beside = pods.host_bytes + shared_memory_bytes(engine, accelerator)
    gib = _GIB * (1 + ranks) + math.ceil(beside / 2**30)
    return {
        LimitAsked(container, "cpu"): str(cores),
        LimitAsked(container, "memory"): f"{gib}Gi",
        LimitAsked(PREFLIGHT_CONTAINER, "cpu"): str(_PREFLIGHT_CORES),
    }


def _limited(
    container: Manifest,
    asked: Iterable[LimitAsked],
    known: Mapping[LimitAsked, str],
    given: list[str],
) -> Manifest:
    """Return the container with the limits that it lacks, none below its request, and note them in
    `given`."""
    resources = container.get("resources") or {}
    requests, limits = resources.get("requests") or {}, dict(resources.get("limits") or {})
    for each in asked:
        name = each.resource
        if each.container != container.get("name") or name in limits or each not in known:
            continue
        request, limit = str(requests.get(name, "0")), known[each]
        limits[name] = limit if amount(name, limit) >= amount(name, request) else request
        given.append(f"{each.container}.{name}")
    return {**container, "resources": {**resources, "limits": limits}} if limits else container
