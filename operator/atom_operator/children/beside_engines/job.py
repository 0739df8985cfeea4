"""The Jobs that prepare a model: the download into a claim, and the inspection of its config.json.
Pure.

Both run the engine's own image, in a pod made from the engine's finished template: the metadata,
placement, security, variables and mounts of spec.template hold for them too, and spec.jobs is
merged over the result. A download is named after its source and target, so that AtomDeployments of
the same model find one Job. Their pods carry none of the labels that a Service, a Deployment or a
disruption budget selects by.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.beside_engines.inherited import (
    engine_of,
    inherited_metadata,
    inherited_of_pod,
)
from atom_operator.children.beside_engines.overlaid import overlaid
from atom_operator.children.engine_container import engine_container
from atom_operator.children.model_sources.bucket_access import bucket_environment
from atom_operator.children.model_sources.model_image import (
    image_mount,
    image_sidecar,
    image_volume,
)
from atom_operator.children.overlay import copied
from atom_operator.children.service import service_account
from atom_operator.children.volumes import CACHE_ENVIRONMENT, volumes
from atom_operator.children.workload import pod_template
from atom_operator.constants import MODELS_DIRECTORY
from atom_operator.domain import (
    JOB,
    SERVICE_ACCOUNT,
    Identity,
    Manifest,
    ModelLocation,
    Plan,
    SourceKind,
)
from atom_operator.domain.preparation import ClaimInUse, JobPurpose, JobRequest

_RETRIES = {JobPurpose.WEIGHTS: 4, JobPurpose.INSPECTION: 1}
# A pod that never starts is reported at once; this ends a Job that runs without end. The image of
# an engine is large, and the node may not have it yet.
_DEADLINE_SECONDS = {JobPurpose.WEIGHTS: 86_400, JobPurpose.INSPECTION: 1800}
# What it found is kept in a ConfigMap.
_INSPECTION_KEPT_SECONDS = 3600
# Quotas and policies of many namespaces require limits; the page cache of written files is
# reclaimed.
_RESOURCES: Mapping[str, Mapping[str, str]] = {
    "requests": {"cpu": "250m", "memory": "512Mi"},
    "limits": {"cpu": "4", "memory": "4Gi"},
}
_CLAIM_UID = "ATOM_CLAIM_UID"
_OF_THE_CONTAINER = ("imagePullPolicy", "envFrom", "securityContext")


def weights_job(plan: Plan, claim: ClaimInUse | None = None) -> JobRequest | None:
    """Render the download of the plan's model into its claim; None if pods need none. `claim`: with
    the folders in use, which do not change the Job's digest."""
    download = plan.model.location.download
    if download is None:
        return None
    command = ["python3", "-m", "atom.entrypoints.download", "--model", download.repository]
    if download.revision:
        command += ["--revision", download.revision]
    command += [
        "--folder",
        plan.model.location.argument,
        "--status-port",
        str(constants.ENGINE_PORT),
    ]
    fetched = [plan.model.location.claim, download.repository, download.revision]
    if download.bucket is not None and download.bucket.endpoint is not None:
        fetched.append(download.bucket.endpoint)
    name = f"atom-weights-{_hash(*fetched)}"
    template = _template(plan, command, download.token_secret, writable=True)
    request = _request(plan, JobPurpose.WEIGHTS, name, template)
    if claim is None:
        return request
    added = _pruning(plan.model.location, download.prune, claim)
    return replace(request, manifest=_with_claim(request.manifest, command, added, claim.uid))


def _pruning(location: ModelLocation, prune: str | None, claim: ClaimInUse) -> list[str]:
    """Return the flags by which the download removes unused folders; empty if it removes none."""
    if prune is None or claim.kept is None or claim.as_of is None:
        return []
    root = f"{MODELS_DIRECTORY}/{location.claim}"
    flags = ["--prune", prune, "--claim-root", root]
    flags += ["--as-of", str(int(claim.as_of.timestamp()))]
    return [*flags, *(text for folder in claim.kept for text in ("--keep", folder))]


def _with_claim(job: Manifest, command: list[str], added: list[str], uid: str) -> Manifest:
    """Return the Job whose download marks its folders as the claim's. Flags are added only to a
    command that is ours alone; an image older than the variable ignores it."""
    result: Manifest = copied(job)
    for container in result["spec"]["template"]["spec"]["containers"]:
        if container["name"] == constants.JOB_CONTAINER:
            container["env"] = [*(container.get("env") or ()), {"name": _CLAIM_UID, "value": uid}]
            if container.get("command") == command:
                container["command"] = [*command, *added]
    return result


def inspection_job(plan: Plan) -> JobRequest:
    """Render the inspection of the model's config.json, wherever it is, without its weights."""
    model = plan.model
    # A model that will be downloaded is still on the hub.
    source = (
        model.location.download.repository if model.location.download else model.location.argument
    )
    revision = (
        model.location.download.revision if model.location.download else model.location.revision
    )
    token = (
        model.location.download.token_secret
        if model.location.download
        else model.location.token_secret
    )
    command = ["python3", "-m", "atom.entrypoints.inspect_model", "--model", source]
    if revision:
        command += ["--revision", revision]
    name = f"{plan.identity.key.name}-inspect-{_hash(source, revision)}"
    template = _template(plan, command, token, writable=False)
    return _request(plan, JobPurpose.INSPECTION, name, template)


def job_account(identity: Identity, location: ModelLocation) -> str | None:
    """Name the account of the Jobs' pods; None for the namespace's own, which has its pull secrets.
    Where a cloud gives the engine's account a role, the Jobs need it for the same bucket."""
    if identity.own_account is not None:
        return identity.own_account
    download = location.download
    bucket = download.bucket if download is not None else location.bucket
    by_identity = bucket is not None and bucket.secret is None
    given = identity.objects.of(SERVICE_ACCOUNT.kind).annotations
    return identity.key.name if by_identity or given else None


def made_account(identity: Identity, location: ModelLocation) -> Manifest | None:
    """Return the account that we make for the Jobs, which may precede any engine; None if they run
    as another one."""
    if job_account(identity, location) is None or identity.own_account is not None:
        return None
    return naming.with_words(identity, service_account(identity))


def _request(plan: Plan, purpose: JobPurpose, name: str, template: Manifest) -> JobRequest:
    own = {
        constants.LABEL_NAME: f"atom-{purpose.value}",
        constants.LABEL_PART_OF: "atom-platform",
        constants.LABEL_MANAGED_BY: constants.FIELD_MANAGER,
        constants.LABEL_JOB_FOR: plan.identity.key.name,
    }
    template = overlaid(template, plan.pods.jobs.template, constants.JOB_CONTAINER)
    labels = {**template["metadata"]["labels"], **own}
    template["metadata"]["labels"] = labels
    seconds = plan.pods.jobs.active_deadline_seconds or _DEADLINE_SECONDS[purpose]
    spec: dict[str, Any] = {
        "backoffLimit": _RETRIES[purpose],
        "activeDeadlineSeconds": seconds,
        "template": template,
    }
    if purpose is JobPurpose.INSPECTION:
        spec["ttlSecondsAfterFinished"] = _INSPECTION_KEPT_SECONDS
    # What is used at the moment is no part of it; whether the rest goes is.
    prune = plan.model.location.download.prune if plan.model.location.download else None
    prunes = (prune,) if purpose is JobPurpose.WEIGHTS and prune is not None else ()
    digest = _hash(json.dumps(spec, sort_keys=True), *prunes)
    annotation = {constants.ANNOTATION_JOB_DIGEST: digest}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {**naming.metadata(plan.identity, name, annotation), "labels": labels},
        "spec": {**spec, "template": _with_words(plan.identity, template)},
    }
    return JobRequest(purpose, name, digest, naming.with_words(plan.identity, manifest))


def _with_words(identity: Identity, template: Manifest) -> Manifest:
    """Add the labels and annotations of spec.objects.job to the pods without changing the Job's
    digest; ours win."""
    words, metadata = identity.objects.of(JOB.kind), template["metadata"]
    both: Manifest = {**metadata, "labels": {**words.labels, **metadata["labels"]}}
    if words.annotations:
        both["annotations"] = {**words.annotations, **(metadata.get("annotations") or {})}
    return {**template, "metadata": both}


def _template(
    plan: Plan, command: list[str], token: tuple[str, str] | None, *, writable: bool
) -> Manifest:
    """Render the pod template before spec.jobs; raises OverlayError if the engines' template cannot
    be."""
    finished = pod_template(plan)
    engine = engine_of(finished)
    container = _container(plan, engine, command, token, writable=writable)
    spec: dict[str, Any] = {
        **inherited_of_pod(finished),
        "restartPolicy": "Never",  # the last pod of a failed Job keeps its log
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [container],
        "volumes": [
            *_volumes(plan.model.location, writable=writable),
            *_added_volumes(plan, finished["spec"], container),
        ],
    }
    if beside := image_sidecar(plan.model.location.image):
        spec |= {"initContainers": beside, "shareProcessNamespace": True}
    account = job_account(plan.identity, plan.model.location)
    if account is not None:
        spec["serviceAccountName"] = account
    # Engines that keep away from each other need not keep away from this.
    nodes = (finished["spec"].get("affinity") or {}).get("nodeAffinity")
    if nodes:
        spec["affinity"] = {"nodeAffinity": nodes}
    return {
        "metadata": inherited_metadata(plan.identity.key, plan.integrations, finished),
        "spec": spec,
    }


def _container(
    plan: Plan,
    engine: Mapping[str, Any],
    command: list[str],
    token: tuple[str, str] | None,
    *,
    writable: bool,
) -> dict[str, Any]:
    mounts: list[dict[str, Any]] = [
        {"name": "cache", "mountPath": "/cache"},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if _mounts_claim(plan.model.location, writable=writable):
        path = f"{MODELS_DIRECTORY}/{plan.model.location.claim}"
        mounts.append({"name": "models", "mountPath": path, "readOnly": not writable})
    if plan.model.location.image is not None:
        mounts.append(image_mount())
    rendered = engine_container(plan)
    known = [mount["mountPath"] for mount in rendered["volumeMounts"]]
    added = [mount for mount in engine.get("volumeMounts") or () if mount["mountPath"] not in known]
    return {
        **{key: engine[key] for key in _OF_THE_CONTAINER if key in engine},
        "name": constants.JOB_CONTAINER,
        "image": engine["image"],
        "command": command,
        "env": _environment(plan, engine, rendered, token),
        "ports": [{"name": constants.ENGINE_PORT_NAME, "containerPort": constants.ENGINE_PORT}],
        "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
        "volumeMounts": [*mounts, *added],
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _volumes(location: ModelLocation, *, writable: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": "cache", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
    ]
    if _mounts_claim(location, writable=writable):
        claim = {"claimName": location.claim, "readOnly": not writable}
        found.append({"name": "models", "persistentVolumeClaim": claim})
    if location.image is not None:
        found.append(image_volume(location.image))
    return found


def _added_volumes(
    plan: Plan, engine_pod: Mapping[str, Any], container: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Return the volumes of the overlay that the container mounts, such as certificates of a
    proxy."""
    ours = {volume["name"] for volume in volumes(plan)} | {"models"}
    mounted = {mount["name"] for mount in container["volumeMounts"]} - ours
    return [volume for volume in engine_pod.get("volumes") or () if volume["name"] in mounted]


def _mounts_claim(location: ModelLocation, *, writable: bool) -> bool:
    """Return whether the Job mounts the claim; an inspection of a model on the hub does not."""
    return location.kind is SourceKind.CLAIM and (writable or location.download is None)


def _environment(
    plan: Plan,
    engine: Mapping[str, Any],
    rendered: Mapping[str, Any],
    token: tuple[str, str] | None,
) -> list[dict[str, Any]]:
    """Return the engine's own variables: HF_ENDPOINT and proxies matter even more here. Of the
    rendered variables only the caches are kept."""
    found: dict[str, dict[str, Any]] = {
        name: {"name": name, "value": value} for name, value in CACHE_ENVIRONMENT.items()
    }
    quiet = {"name": "HF_HUB_DISABLE_PROGRESS_BARS", "value": "1"}
    found[quiet["name"]] = quiet
    if token is not None:
        secret, key = token
        reference = {"secretKeyRef": {"name": secret, "key": key}}
        found["HF_TOKEN"] = {"name": "HF_TOKEN", "valueFrom": reference}
    model = plan.model
    found |= bucket_environment(
        model.location.download.bucket if model.location.download else model.location.bucket
    )
    for variable in plan.engine.serving.env:
        found[variable["name"]] = dict(variable)
    for variable in engine.get("env") or ():
        if variable not in rendered["env"]:  # the overlay's
            found[variable["name"]] = dict(variable)
    return list(found.values())


def _hash(*parts: str | None) -> str:
    return hashlib.sha256("\n".join(part or "" for part in parts).encode()).hexdigest()[:10]
