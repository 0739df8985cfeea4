"""Tells which folders of a claim of weights are used: a download may remove the others. Pure.

Whatever an AtomDeployment of the namespace asks for counts, suspended or not, with its canary and
its adapters, and so does whatever its pods and those of a rollback were made from. Folders are
found by the only two forms in which anything names them: the path below which pods mount the claim,
and pvc://. What cannot be read is a reason to remove nothing, and so is a pod of others that mounts
the claim. Called by reconcile/weights_on_claim.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from atom_operator.constants import LABEL_DEPLOYMENT, LABEL_JOB_FOR, MODELS_DIRECTORY
from atom_operator.domain import Manifest
from atom_operator.plan.volume_claims.pvc_access import mounted_claims

_SCHEME = "pvc://"
_TOLD_TO_DOWNLOADS = ("--claim-root", "--keep")


def folders_named(claim: str, values: Iterable[object]) -> frozenset[str]:
    """Return every folder below the claim that a text in `values`, however deep, names; "." is the
    whole claim."""
    found: set[str] = set()
    for value in values:
        named = (_below(claim, text) for text in _texts(value))
        found |= {name for name in named if name is not None}
        found.update(_mounted_otherwise(claim, value))
    return frozenset(found)


def foreign_readers(claim: str, pods: Iterable[Manifest]) -> tuple[str, ...]:
    """Name the pods that mount the claim and are not ours: the files that they read are unknown."""
    return tuple(
        str(pod["metadata"]["name"])
        for pod in pods
        if claim in mounted_claims(pod.get("spec") or {})
        and not {LABEL_DEPLOYMENT, LABEL_JOB_FOR} & (pod["metadata"].get("labels") or {}).keys()
    )


def _below(claim: str, text: str) -> str | None:
    for prefix in (f"{MODELS_DIRECTORY}/{claim}", f"{_SCHEME}{claim}"):
        rest = text.removeprefix(prefix)
        if rest != text and (not rest or rest.startswith("/")):
            return str(PurePosixPath(rest.strip("/") or "."))
    return None


def _texts(value: object) -> Iterator[str]:
    """Yield every text in a manifest, and the part after its =; a mount's path alone uses nothing,
    nor does a download's list of other folders."""
    if isinstance(value, str):
        yield value
        yield value.partition("=")[2]
    elif isinstance(value, Mapping):
        for name, each in value.items():
            if name != "mountPath":
                yield from _texts(each)
    elif isinstance(value, list | tuple):
        for before, each in zip((None, *value), value, strict=False):
            if before not in _TOLD_TO_DOWNLOADS:
                yield from _texts(each)


def _mounted_otherwise(claim: str, value: object) -> Iterator[str]:
    """Yield the folders that pod specs mount by themselves; all of it where the claim is mounted
    whole at a path that is not ours."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from _mounted_otherwise(claim, each)
    if not isinstance(value, Mapping):
        return
    for each in value.values():
        yield from _mounted_otherwise(claim, each)
    volumes = {item.get("name") for item in _maps(value, "volumes") if _is_of(claim, item)}
    for container in (*_maps(value, "containers"), *_maps(value, "initContainers")):
        for mount in _maps(container, "volumeMounts"):
            if mount.get("name") not in volumes:
                continue
            inside = mount.get("subPath") or mount.get("subPathExpr")
            if inside or mount.get("mountPath") != f"{MODELS_DIRECTORY}/{claim}":
                yield str(PurePosixPath(str(inside or ".").strip("/") or "."))


def _is_of(claim: str, volume: Mapping[str, Any]) -> bool:
    source = volume.get("persistentVolumeClaim")
    return isinstance(source, Mapping) and source.get("claimName") == claim


def _maps(value: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = value.get(name)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def accepted_specs(records: Iterable[Manifest], key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the specs that were carried out last, by the records of them."""
    for record in records:
        data = record.get("data")
        found = data.get(key) if isinstance(data, Mapping) else None
        if isinstance(found, Mapping):
            yield found
