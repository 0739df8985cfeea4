"""Metadata of Kubernetes objects, and their numbers of replicas, which several kinds have. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.importing.results import (
    Result,
    Setting,
    TranslationError,
    changed,
    left,
    unneeded,
)
from atom_operator.importing.rules import At, Rules, into, walk
from atom_operator.importing.rules import unneeded as unneeded_rule

# Labels and annotations of other programs; a copy of them would claim the object for those.
_OF_PROGRAMS = re.compile(
    r"(^|\.)(kserve\.io|knative\.dev|kubectl\.kubernetes\.io|helm\.sh|kubeai\.org|nvidia\.com"
    r"|argoproj\.io|cni\.cncf\.io|openshift\.io|opendatahub\.io|app\.kubernetes\.io)/"
)
_STATE = unneeded_rule("the API server sets it")
_LONGEST_NAME = 40


def _texts(at: At) -> Iterator[Result]:
    kept: dict[str, Any] = {}
    for key, value in at.object().items():
        if _OF_PROGRAMS.search(str(key)):
            yield left(f"{at.where}[{key}]", "belongs to another program; leave it out")
        else:
            kept[str(key)] = value
    if kept:
        yield Setting(f"/metadata.{at.where.rpartition('.')[2]}", kept, at.where)


_METADATA: Rules = {
    "labels": _texts,
    "annotations": _texts,
    **dict.fromkeys(
        (
            *("creationTimestamp", "generation", "managedFields", "resourceVersion", "selfLink"),
            *("uid", "deletionTimestamp", "deletionGracePeriodSeconds", "generateName"),
        ),
        _STATE,
    ),
    "ownerReferences": unneeded_rule("the AtomDeployment has another owner"),
    "finalizers": unneeded_rule("the operator sets its own"),
}


def object_results(at: At, spec: Rules) -> Iterator[Result]:
    """Translate a whole object: its metadata and the fields of its spec."""
    rules: Rules = {
        "apiVersion": lambda _: (),
        "kind": lambda _: (),
        "metadata": lambda metadata: walk(metadata, _METADATA, frozenset({"name", "namespace"})),
        "spec": into(spec),
        "status": unneeded_rule("the operator writes its own status"),
    }
    # The paths of fields are those of kubectl explain.
    yield from walk(At("", at.value), rules)


def name_of(at: At) -> str:
    """Return metadata.name. Raises `TranslationError` if there is none."""
    name = at.below("metadata").below("name").value
    if not isinstance(name, str) or not name:
        raise TranslationError(f"{at.where}: metadata.name: is missing; give the object a name")
    return name


def namespace_of(at: At) -> str | None:
    """Return metadata.namespace, None if there is none."""
    found = at.below("metadata").below("namespace").value
    return None if found is None else str(found)


def valid_name(text: str) -> str:
    """Return a name for an AtomDeployment, made of any text."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_LONGEST_NAME].strip("-")
    return plain if plain[:1].isalpha() else f"model-{plain}".strip("-")


def replica_results(least: At, most: At) -> Iterator[Result]:
    """Translate the fewest and the most replicas of an autoscaler. A value of None is not given."""
    fewest, highest = whole(least), whole(most)
    if fewest == 0:
        yield changed(
            least.where,
            "no replicas at rest need spec.autoscaling.activationQuery with KEDA; "
            "autoscaling.idle: Sleep frees the device instead",
        )
    first = fewest or 1
    if highest and highest > first:
        yield Setting("autoscaling.minReplicas", first, least.where)
        yield Setting("autoscaling.maxReplicas", highest, most.where)
    elif fewest is not None:
        yield Setting("replicas", first, least.where)
    elif highest:
        yield unneeded(most.where, "one replica is the default")


def whole(at: At) -> int | None:
    """Return a whole number, None if there is none. Raises `TranslationError` for another value."""
    if at.value is None:
        return None
    text = at.text().strip()
    if not text.isdecimal():
        raise at.wrong("a whole number")
    return int(text)


def fields_of(value: Any) -> Mapping[str, Any]:
    """Return the fields of an object; empty for any other value."""
    return value if isinstance(value, Mapping) else {}


def is_of_kind(document: object, group: str, kind: str) -> bool:
    """Return whether a document is an object of this kind, in any version of its API group."""
    fields = fields_of(document)
    return fields.get("kind") == kind and str(fields.get("apiVersion")).startswith(f"{group}/")
