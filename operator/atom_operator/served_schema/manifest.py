"""Judge a whole manifest as `kubectl apply --dry-run=server` does, without an API server. Pure.

The order is the API server's: version and kind, unknown fields and types, defaults, bounds, and the
CEL rules only if the structure is sound. The operator's webhook is asked by the caller afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from atom_operator import constants
from atom_operator.api.crd import build_crd, build_profile_crd
from atom_operator.domain import FieldProblem, Manifest
from atom_operator.served_schema.near_names import did_you_mean, nearest
from atom_operator.served_schema.stored_form import stored_form
from atom_operator.served_schema.structure import shown, structure_problems

KINDS = (constants.KIND, constants.PROFILE_KIND)
_DOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_MOST_DOMAIN, _MOST_LABEL = 253, 63  # characters
_MOST_ANNOTATIONS = 256 * 1024  # bytes of all keys and values
_SURELY_LIKE = 0.9  # Deployment and AtomDeployment are not the same name misspelt
_TEXT: Mapping[str, Any] = {"type": "string"}
_WHOLE: Mapping[str, Any] = {"type": "integer"}
_TEXTS: Mapping[str, Any] = {"type": "object", "additionalProperties": _TEXT}
_OPEN: Mapping[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
_LIST: Mapping[str, Any] = {"type": "array", "items": _OPEN}
# ObjectMeta, which no CRD describes.
_METADATA: Mapping[str, Any] = {
    "type": "object",
    "properties": {
        "name": _TEXT,
        "generateName": _TEXT,
        "namespace": _TEXT,
        "labels": _TEXTS,
        "annotations": _TEXTS,
        "finalizers": {"type": "array", "items": _TEXT},
        "uid": _TEXT,
        "resourceVersion": _TEXT,
        "selfLink": _TEXT,
        "creationTimestamp": _TEXT,
        "deletionTimestamp": _TEXT,
        "generation": _WHOLE,
        "deletionGracePeriodSeconds": _WHOLE,
        "ownerReferences": _LIST,
        "managedFields": _LIST,
    },
}


@dataclass(frozen=True, slots=True)
class Judged:
    """A manifest in its stored form, or the problems for which an API server refuses it."""

    stored: Manifest
    problems: tuple[FieldProblem, ...] = ()


def judge(manifest: Manifest) -> Judged:
    """Judge a manifest of one of KINDS."""
    kind = str(manifest["kind"])
    version = manifest.get("apiVersion")
    if version != constants.API_VERSION:
        return Judged(manifest, (_wrong_version(kind, version),))
    schema = _schema(kind)
    found = (*structure_problems(schema, dict(manifest), ""), *_metadata_problems(manifest))
    if found:
        return Judged(manifest, tuple(_from_root(problem) for problem in found))
    stored = stored_form(schema, manifest)
    # Costs 0.2 s to import, and few commands judge a manifest.
    from atom_operator.served_schema.cel_rules import rule_problems

    broken = rule_problems(schema, stored, "")
    return Judged(stored, tuple(_from_root(problem) for problem in broken))


def unknown_kind(manifest: Manifest) -> tuple[FieldProblem, ...]:
    """Return the problem of an object that is meant to be of one of KINDS and is of a kind that the
    API group does not serve; empty for objects of other groups."""
    kind, version = str(manifest.get("kind")), str(manifest.get("apiVersion"))
    ours = version.partition("/")[0] == constants.GROUP
    near = nearest(kind, KINDS) if ours else nearest(kind, KINDS, _SURELY_LIKE)
    if kind in KINDS or not (ours or near):
        return ()
    meant = did_you_mean(near) or f"; it serves {' and '.join(KINDS)}"
    words = f"{constants.GROUP} serves no {shown(manifest.get('kind'))}{meant}"
    return (FieldProblem("kind", words),)


def _wrong_version(kind: str, version: object) -> FieldProblem:
    if version is None:
        return FieldProblem("apiVersion", f"is required; set {constants.API_VERSION}")
    words = f"{kind} is served as {constants.API_VERSION}, got {shown(version)}; correct it"
    return FieldProblem("apiVersion", words)


def _from_root(problem: FieldProblem) -> FieldProblem:
    """Name the field from the root of the object: `spec.replicas`, without a leading dot."""
    return FieldProblem(problem.field.removeprefix(".") or "metadata.name", problem.message)


@cache
def _schema(kind: str) -> Mapping[str, Any]:
    crd = build_crd() if kind == constants.KIND else build_profile_crd()
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    # Whoever applies writes no status; the API server drops it.
    served = {name: field for name, field in schema["properties"].items() if name != "status"}
    return {**schema, "properties": {**served, "metadata": _METADATA, "status": _OPEN}}


def _metadata_problems(manifest: Manifest) -> Iterator[FieldProblem]:
    """Yield the API server's complaints about names and labels, whose schema is not published."""
    metadata = manifest.get("metadata")
    if not isinstance(metadata, Mapping):
        return
    name, namespace = metadata.get("name"), metadata.get("namespace")
    if isinstance(name, str) and not _is_domain(name):
        yield FieldProblem(
            "metadata.name", f"{shown(name)} is no name; use at most 253 of a-z, 0-9, '-' and '.'"
        )
    if isinstance(namespace, str) and namespace and not _is_domain(namespace, _MOST_LABEL):
        yield FieldProblem("metadata.namespace", f"{shown(namespace)} is no namespace; correct it")
    for field in ("labels", "annotations"):
        texts = metadata.get(field)
        for key, value in (texts if isinstance(texts, Mapping) else {}).items():
            yield from _text_problems(field, str(key), value)
    annotations = metadata.get("annotations")
    if isinstance(annotations, Mapping):
        size = sum(len(f"{key}{value}".encode()) for key, value in annotations.items())
        if size > _MOST_ANNOTATIONS:
            yield FieldProblem(
                "metadata.annotations", f"has {size:,} bytes, and may have {_MOST_ANNOTATIONS:,}"
            )


def _text_problems(field: str, key: str, value: object) -> Iterator[FieldProblem]:
    path = f"metadata.{field}.{key}"
    prefix, slash, name = key.rpartition("/")
    if not name or not _is_label(name) or (slash and not _is_domain(prefix)):
        yield FieldProblem(path, "is no key such as team or example.org/team; rename it")
    if field == "labels" and isinstance(value, str) and not _is_label(value):
        words = f"{shown(value)} is no label; use at most 63 of A-Z, a-z, 0-9, '-', '_', '.'"
        yield FieldProblem(path, words)


def _is_label(text: str) -> bool:
    return len(text) <= _MOST_LABEL and _LABEL.fullmatch(text) is not None


def _is_domain(text: str, most: int = _MOST_DOMAIN) -> bool:
    if most == _MOST_LABEL and "." in text:
        return False
    return len(text) <= most and _DOMAIN.fullmatch(text) is not None
