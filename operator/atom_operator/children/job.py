"""The Jobs that prepare a model: the download into a claim, and the look at its config.json. Pure.

Both run the engine's own image. A download is named after what it fetches and where to, so that
AtomDeployments of the same model find one Job. Their pods carry none of the labels that a Service,
a Deployment or a disruption budget selects by.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.volumes import CACHE_ENVIRONMENT
from atom_operator.children.workload import pod_template
from atom_operator.constants import MODELS_DIRECTORY
from atom_operator.domain import Manifest, Plan, SourceKind
from atom_operator.domain.preparation import JobPurpose, JobRequest

_WEIGHTS_RETRIES = 4
_INSPECTION_RETRIES = 1
# The image of an engine is large, and the node may not have it yet.
_INSPECTION_SECONDS = 1800
# What it found is kept in a ConfigMap.
_INSPECTION_KEPT_SECONDS = 3600
_REQUESTS = {"cpu": "250m", "memory": "512Mi"}
# Where a pod may go is the user's overlay, for Jobs too.
_PLACEMENT = ("nodeSelector", "affinity", "tolerations", "imagePullSecrets", "priorityClassName")


def weights_job(plan: Plan) -> JobRequest | None:
    """The download of the plan's model into its claim; None where pods need none."""
    download = plan.model.download
    if download is None:
        return None
    command = ["python3", "-m", "atom.entrypoints.download", "--model", download.repository]
    if download.revision:
        command += ["--revision", download.revision]
    command += ["--folder", plan.model.argument, "--status-port", str(constants.ENGINE_PORT)]
    name = f"atom-weights-{_hash(plan.model.claim, download.repository, download.revision)}"
    spec = _pod_spec(plan, command, download.token_secret, writable=True)
    return _request(plan, JobPurpose.WEIGHTS, name, spec, retries=_WEIGHTS_RETRIES)


def inspection_job(plan: Plan) -> JobRequest:
    """A look at the model's config.json, wherever it is, without its weights."""
    model = plan.model
    # A model that will be downloaded is still on the hub.
    source = model.download.repository if model.download else model.argument
    revision = model.download.revision if model.download else model.revision
    token = model.download.token_secret if model.download else model.token_secret
    command = ["python3", "-m", "atom.entrypoints.inspect_model", "--model", source]
    if revision:
        command += ["--revision", revision]
    name = f"{plan.key.name}-inspect-{_hash(source, revision)}"
    spec = _pod_spec(plan, command, token, writable=False)
    seconds = _INSPECTION_SECONDS
    return _request(
        plan, JobPurpose.INSPECTION, name, spec, retries=_INSPECTION_RETRIES, seconds=seconds
    )


def _request(
    plan: Plan,
    purpose: JobPurpose,
    name: str,
    pod_spec: Manifest,
    *,
    retries: int,
    seconds: int | None = None,
) -> JobRequest:
    digest = _hash(json.dumps(pod_spec, sort_keys=True))
    labels = {
        constants.LABEL_NAME: f"atom-{purpose.value}",
        constants.LABEL_PART_OF: "atom-platform",
        constants.LABEL_MANAGED_BY: constants.FIELD_MANAGER,
        constants.LABEL_JOB_FOR: plan.key.name,
    }
    metadata = naming.metadata(plan, name, {constants.ANNOTATION_JOB_DIGEST: digest})
    spec: dict[str, Any] = {
        "backoffLimit": retries,
        "template": {"metadata": {"labels": labels}, "spec": pod_spec},
    }
    if seconds is not None:
        spec["activeDeadlineSeconds"] = seconds
        spec["ttlSecondsAfterFinished"] = _INSPECTION_KEPT_SECONDS
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**metadata, "labels": labels},
        "spec": spec,
    }
    return JobRequest(purpose, name, digest, manifest)


def _pod_spec(
    plan: Plan, command: list[str], token: tuple[str, str] | None, *, writable: bool
) -> Manifest:
    engine_pod: Mapping[str, Any] = pod_template(plan)["spec"]
    placement = {key: engine_pod[key] for key in _PLACEMENT if key in engine_pod}
    return {
        **placement,
        "restartPolicy": "Never",  # the last pod of a failed Job keeps its log
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": engine_pod["securityContext"],
        "containers": [_container(plan, command, token, writable=writable)],
        "volumes": _volumes(plan, writable=writable),
    }


def _container(
    plan: Plan, command: list[str], token: tuple[str, str] | None, *, writable: bool
) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if _mounts_claim(plan, writable=writable):
        path = f"{MODELS_DIRECTORY}/{plan.model.claim}"
        mounts.append({"name": "models", "mountPath": path, "readOnly": not writable})
    return {
        "name": constants.JOB_CONTAINER,
        "image": plan.engine.image,
        "command": command,
        "env": _environment(plan, token),
        "ports": [{"name": constants.ENGINE_PORT_NAME, "containerPort": constants.ENGINE_PORT}],
        "resources": {"requests": dict(_REQUESTS)},
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _volumes(plan: Plan, *, writable: bool) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if _mounts_claim(plan, writable=writable):
        claim = {"claimName": plan.model.claim, "readOnly": not writable}
        volumes.append({"name": "models", "persistentVolumeClaim": claim})
    return volumes


def _mounts_claim(plan: Plan, *, writable: bool) -> bool:
    """A look at a model that is still on the hub needs no claim."""
    return plan.model.kind is SourceKind.CLAIM and (writable or plan.model.download is None)


def _environment(plan: Plan, token: tuple[str, str] | None) -> list[dict[str, Any]]:
    """The engine's own: HF_ENDPOINT and proxies are needed here more than there."""
    rendered: dict[str, dict[str, Any]] = {
        name: {"name": name, "value": value} for name, value in CACHE_ENVIRONMENT.items()
    }
    rendered["HF_HUB_DISABLE_PROGRESS_BARS"] = {
        "name": "HF_HUB_DISABLE_PROGRESS_BARS",
        "value": "1",
    }
    if token is not None:
        secret, key = token
        reference = {"secretKeyRef": {"name": secret, "key": key}}
        rendered["HF_TOKEN"] = {"name": "HF_TOKEN", "valueFrom": reference}
    for variable in plan.engine.env:
        rendered[variable["name"]] = dict(variable)
    return list(rendered.values())


def _hash(*parts: str | None) -> str:
    return hashlib.sha256("\n".join(part or "" for part in parts).encode()).hexdigest()[:10]
