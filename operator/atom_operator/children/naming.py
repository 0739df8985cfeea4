"""Names, labels and owner references of the children, in one place.

A child carries the AtomDeployment's name (checked to be a short DNS label), so that users find it.
"""

from __future__ import annotations

import hashlib
from typing import Any

from atom_operator import constants
from atom_operator.domain import Identity, Kind, Manifest, ObjectKey, Plan


def config_map_name(key: ObjectKey) -> str:
    """Return the plan's ConfigMap; the bare name stays free for a ConfigMap of the user's."""
    return f"{key.name}-plan"


def adapters_name(key: ObjectKey) -> str:
    """Return the ConfigMap that names the adapters."""
    return f"{key.name}-adapters"


def peers_name(key: ObjectKey) -> str:
    """Return the Secret by which its servers know each other."""
    return f"{key.name}-peers"


def dashboard_name(key: ObjectKey) -> str:
    """Return the ConfigMap of the Grafana dashboard."""
    return f"{key.name}-dashboard"


def canary_name(key: ObjectKey) -> str:
    """Return the AtomDeployment of the canary, and so all that it has."""
    return f"{key.name}-canary"


def prefill_name(key: ObjectKey) -> str:
    """Return the AtomDeployment of the pods that compute prompts for those of another one."""
    return f"{key.name}-prefill"


def picker_name(key: ObjectKey) -> str:
    """Return the name of every object of the endpoint picker that we run."""
    return f"{key.name}-picker"


def picker_labels(name: str) -> dict[str, str]:
    """Return the labels that select the endpoint picker's pods, and no engine's."""
    return _component_labels(constants.PICKER_NAME, name, constants.PICKER_COMPONENT)


def frontend_name(key: ObjectKey) -> str:
    """Return the name of every object of the frontend."""
    return f"{key.name}-frontend"


def frontend_labels(name: str) -> dict[str, str]:
    """Return the labels that select the frontend's pods, and no engine's."""
    return _component_labels(constants.FRONTEND_NAME, name, constants.FRONTEND_COMPONENT)


def _component_labels(program: str, name: str, component: str) -> dict[str, str]:
    return {
        constants.LABEL_NAME: program,
        constants.LABEL_INSTANCE: name,
        constants.LABEL_COMPONENT: component,
    }


def workers_name(key: ObjectKey) -> str:
    """Return the headless Service by whose name a frontend finds every engine pod."""
    return f"{key.name}-workers"


def workers_url(key: ObjectKey) -> str:
    """Return the address of all engine pods, each by itself."""
    return f"http://{workers_name(key)}.{key.namespace}.svc:{constants.ENGINE_PORT}"


def short_hash(text: str) -> str:
    """Hash a text to 16 characters; equal texts have equal hashes."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def serving_labels(plan: Plan) -> dict[str, str]:
    """Return the labels that select the pods that serve HTTP: all, or the leader of a replica over
    several nodes. While groups take over from single pods all are selected: the workers among them
    have no port of the Service's."""
    return _serving_labels(
        plan.identity.key.name, groups=(plan.engine.nodes > 1) != plan.rollout.changes_kind
    )


def selector_text(name: str, *, groups: bool) -> str:
    """Return the selector of the pods that serve HTTP as text, for the scale subresource."""
    labels = _serving_labels(name, groups=groups)
    return ",".join(f"{key}={value}" for key, value in labels.items())


def _serving_labels(name: str, *, groups: bool) -> dict[str, str]:
    role = {constants.LABEL_ROLE: constants.ROLE_LEADER} if groups else {}
    return {**selector_labels(name), **role}


def selector_labels(name: str) -> dict[str, str]:
    """Return the labels that select the pods of one AtomDeployment; immutable in a Deployment."""
    return {
        constants.LABEL_NAME: constants.ENGINE_NAME,
        constants.LABEL_INSTANCE: name,
        constants.LABEL_DEPLOYMENT: name,
    }


def child_labels(name: str) -> dict[str, str]:
    """Return the labels of every child and pod."""
    return {
        **selector_labels(name),
        constants.LABEL_COMPONENT: "inference",
        constants.LABEL_PART_OF: "atom-platform",
        constants.LABEL_MANAGED_BY: constants.FIELD_MANAGER,
    }


def service_url(key: ObjectKey) -> str:
    """Return the base address of the engine's HTTP API inside the cluster, whatever the cluster's
    domain."""
    return f"http://{key.name}.{key.namespace}.svc:{constants.ENGINE_PORT}"


def metadata(
    identity: Identity, name: str, annotations: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return the metadata of a child: labels to find it by, the owner for garbage collection."""
    result: dict[str, Any] = {
        "name": name,
        "namespace": identity.key.namespace,
        "labels": child_labels(identity.key.name),
        "ownerReferences": [
            {
                "apiVersion": constants.API_VERSION,
                "kind": constants.KIND,
                "name": identity.key.name,
                "uid": identity.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        result["annotations"] = annotations
    return result


def component_head(identity: Identity, kind: Kind, name: str, component: str) -> Manifest:
    """Begin a child of a component beside the engines: its kind and metadata."""
    own = metadata(identity, name)
    own["labels"][constants.LABEL_COMPONENT] = component
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": own}


def with_words(identity: Identity, manifest: Manifest) -> Manifest:
    """Return the manifest with the labels and annotations that the spec asks for; ours win."""
    words, metadata = identity.objects.of(str(manifest["kind"])), manifest["metadata"]
    if words.labels:
        metadata = {**metadata, "labels": {**words.labels, **metadata["labels"]}}
    if words.annotations:
        ours = metadata.get("annotations") or {}
        metadata = {**metadata, "annotations": {**words.annotations, **ours}}
    return {**manifest, "metadata": metadata}
