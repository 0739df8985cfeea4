"""The Deployment (or the group of pods) with its pod template, overlay and revision. Pure.

The revision is a hash of the finished pod template, so only what a pod would notice starts a
rollout.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.device_claim import CLAIM, claim_template_name
from atom_operator.children.disaggregation.kv_transfer import transfer_labels
from atom_operator.children.endpoint_picker.cache_events import picked_labels
from atom_operator.children.engine_container import PRE_STOP_SECONDS, engine_container
from atom_operator.children.engine_pod.preflight import preflight_container
from atom_operator.children.engine_pod.quota_limits import with_quota_limits
from atom_operator.children.leader_worker_set import group_annotations, leader_worker_set
from atom_operator.children.model_sources.model_image import image_sidecar
from atom_operator.children.overlay import OverlayError, merge_pod_template
from atom_operator.children.template_removal import remove_fields
from atom_operator.children.volumes import volumes, with_disk
from atom_operator.domain import (
    DEPLOYMENT,
    Accelerator,
    EngineOptions,
    Identity,
    Manifest,
    ObjectKey,
    Plan,
    PodRevision,
    PodsPlan,
    Rollback,
    Rollout,
    RolloutPlan,
    RolloutStrategy,
)
from atom_operator.domain.profile import Profile
from atom_operator.kinds import LEADER_WORKER_SET, Kind

# After draining the server still has to close its engine process.
_STOP_MARGIN_SECONDS = 15
DEVICE_TAINT = "amd.com/gpu"  # that keeps other pods off nodes with devices
_DEVICE_ID_LABELS = ("amd.com/gpu.device-id", "beta.amd.com/gpu.device-id")


def workload(
    plan: Plan, pods: PodRevision, rollback: Rollback | None = None
) -> tuple[Kind, Manifest]:
    """Render the workload of `pods`: a Deployment, or a LeaderWorkerSet for replicas of several
    pods.

    `rollback` tells why the pods differ from the plan's. The number of replicas is left out if an
    autoscaler owns it.
    """
    annotations = {
        constants.ANNOTATION_REVISION: pods.name,
        constants.ANNOTATION_SPEC_DIGEST: plan.spec.digest,
        constants.ANNOTATION_STARTUP_BUDGET: str(plan.rollout.startup_budget_seconds),
        constants.ANNOTATION_ROLLOUT_REASON: plan.rollout.chosen.reason,
    }
    if plan.rollout.chosen.had_place is not None:
        annotations[constants.ANNOTATION_HAD_PLACE] = str(plan.rollout.chosen.had_place)
    if plan.rollout.chosen.asked_at is not None:
        annotations[constants.ANNOTATION_ASKED_AT] = plan.rollout.chosen.asked_at.isoformat()
    if plan.spec.default_image is not None:
        annotations[constants.ANNOTATION_DEFAULT_IMAGE] = plan.spec.default_image
    if plan.spec.origin is not None:
        annotations[constants.ANNOTATION_ORIGIN] = plan.spec.origin.text
    if rollback is not None:
        annotations[constants.ANNOTATION_FAILED_REVISION] = rollback.failed
        annotations[constants.ANNOTATION_FAILURE] = rollback.cause
    if not plan.scale.owns_replicas:
        annotations[constants.ANNOTATION_REPLICAS] = constants.REPLICAS_OF_AUTOSCALER
    if plan.engine.nodes > 1:
        annotations |= group_annotations(plan.rollout)
    metadata = naming.metadata(plan.identity, plan.identity.key.name, annotations)
    if plan.engine.nodes > 1:
        manifest = leader_worker_set(plan.engine, plan.rollout, pods.template, metadata)
    else:
        manifest = _deployment(plan.identity, plan.rollout, pods.template, metadata)
    if plan.scale.owns_replicas:
        manifest["spec"] = {"replicas": plan.scale.replicas, **manifest["spec"]}
    return workload_kind(plan.engine), manifest


def workload_kind(engine: EngineOptions) -> Kind:
    """Return the kind of workload that the pods belong to."""
    return LEADER_WORKER_SET if engine.nodes > 1 else DEPLOYMENT


def _deployment(
    identity: Identity, rollout: RolloutPlan, template: Manifest, metadata: dict[str, Any]
) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": rollout.progress_deadline_seconds,
            "selector": {"matchLabels": naming.selector_labels(identity.key.name)},
            "strategy": _strategy(rollout.chosen),
            "template": template,
        },
    }


def pod_template(plan: Plan) -> Manifest:
    """Return the pod template with the user's overlay; does not depend on the rollout's strategy.

    Raises OverlayError when spec.template cannot be merged.
    """
    template = merge_pod_template(
        _with_profile(plan.identity.key, plan.pods.profile, rendered_template(plan)),
        plan.pods.template or {},
    )
    if plan.pods.template_removed:  # copying a template costs a tenth of a reconcile
        template = remove_fields(template, plan.pods.template_removed)
    _check_still_ours(template, plan.identity.key.name)
    template = with_disk(plan.pods, without_escalation(template))
    return with_quota_limits(plan.engine, plan.accelerator, plan.pods, template)


def without_escalation(template: Manifest) -> Manifest:
    """Forbid privilege escalation for the template's containers, including those of an overlay,
    unless they state it."""
    spec = dict(template["spec"])
    for field in ("containers", "initContainers"):
        if any(_may_escalate(item) for item in spec.get(field) or ()):
            spec[field] = [_contained(item) for item in spec[field]]
    return {**template, "spec": spec}


def _may_escalate(container: Manifest) -> bool:
    """Return whether a container leaves the field open, which the API takes for true. A privileged
    one cannot state otherwise."""
    context = container.get("securityContext") or {}
    added = (context.get("capabilities") or {}).get("add") or ()
    if context.get("privileged") or {"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added):
        return False
    return context.get("allowPrivilegeEscalation") is None


def _contained(container: Manifest) -> Manifest:
    if not _may_escalate(container):
        return container
    context = container.get("securityContext") or {}
    return {**container, "securityContext": {**context, "allowPrivilegeEscalation": False}}


def _with_profile(key: ObjectKey, profile: Profile | None, template: Manifest) -> Manifest:
    """Lay the pod template of the AtomProfile over the rendered one."""
    if profile is None or profile.template is None:
        return template
    try:
        laid = merge_pod_template(template, profile.template)
        _check_still_ours(laid, key.name)
        return laid
    except OverlayError as error:
        raise OverlayError(f"of AtomProfile {profile.name}: {error}") from error


def _check_still_ours(template: Manifest, name: str) -> None:
    """Raise OverlayError if the template has lost the labels or container that make its pods this
    AtomDeployment's."""
    check_names(template, constants.ENGINE_CONTAINER, "is what serves")
    labels = (template.get("metadata") or {}).get("labels") or {}
    for label, value in naming.selector_labels(name).items():
        if labels.get(label) != value:
            raise OverlayError(
                f"metadata.labels[{label}]: the operator selects pods by it; leave it as it is"
            )


def check_names(template: Manifest, container: str, does: str) -> None:
    """Raise OverlayError where a finished template lacks the container, which `does` the work, or
    has two containers or volumes of one name."""
    spec = template.get("spec") or {}
    found = [item for item in spec.get("containers") or () if item.get("name") == container]
    if not found:
        raise OverlayError(f"spec.containers: container {container} {does}; leave it in")
    if not found[0].get("image"):
        raise OverlayError(f"spec.containers[{container}].image: every container needs one")
    for field in ("containers", "initContainers", "volumes"):
        names = [item.get("name") for item in spec.get(field) or ()]
        for twice in sorted({str(name) for name in names if names.count(name) > 1}):
            raise OverlayError(f"spec.{field}: {twice} is there twice; give each a name of its own")


def pod_revision(plan: Plan) -> PodRevision:
    """Name the pod template by its revision, which its pods carry too. Raises OverlayError."""
    template = pod_template(plan)
    name = template_revision(template)
    template["metadata"].setdefault("annotations", {})[constants.ANNOTATION_REVISION] = name
    return PodRevision(name, template, plan.spec.digest, plan.engine.nodes)


def _strategy(rollout: Rollout) -> dict[str, Any]:
    if rollout.strategy is RolloutStrategy.RECREATE:
        return {"type": "Recreate"}
    surges = rollout.strategy is RolloutStrategy.SURGE
    steps = {
        "maxSurge": int(surges) + rollout.surplus,
        "maxUnavailable": 0 if surges else rollout.unavailable,
    }
    return {"type": "RollingUpdate", "rollingUpdate": steps}


def template_revision(template: Manifest) -> str:
    """Hash a pod template: the name of a revision."""
    text = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def stop_seconds(engine: EngineOptions) -> int:
    """Return how long a pod may take to end."""
    return PRE_STOP_SECONDS + engine.serving.drain_seconds + _STOP_MARGIN_SECONDS


def rendered_template(plan: Plan) -> Manifest:
    """Return the pod template before any overlay."""
    spec: dict[str, Any] = {
        "serviceAccountName": plan.identity.service_account,
        "automountServiceAccountToken": False,
        # A Service named "atom" would otherwise inject ATOM_PORT and the like.
        "enableServiceLinks": False,
        # Process 1 of a pod is then the pause container: it reaps orphans, and a server that is
        # still loading dies of SIGTERM instead of waiting out the whole grace period.
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": stop_seconds(plan.engine),
        "securityContext": _security_context(plan.accelerator, plan.pods),
        # At all numbers of replicas alike, so that scaling changes no pod.
        "topologySpreadConstraints": [
            spread_over_hosts(naming.selector_labels(plan.identity.key.name))
        ],
        "containers": [engine_container(plan)],
        "volumes": volumes(plan),
    }
    if plan.engine.serving.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in plan.engine.serving.pull_secrets]
    first = (
        [preflight_container(plan.engine, plan.accelerator)] if plan.integrations.preflight else []
    )
    if before := [*first, *image_sidecar(plan.model.location.image)]:
        spec["initContainers"] = before
    if plan.accelerator.type == "amd":
        claim = plan.accelerator.claim
        resource = DEVICE_TAINT if claim is not None else str(plan.accelerator.resource_name)
        if claim is not None:
            name = claim_template_name(plan.identity.key, plan.engine, claim)
            spec["resourceClaims"] = [{"name": CLAIM, "resourceClaimTemplateName": name}]
        spec["tolerations"] = [{"key": resource, "operator": "Exists", "effect": "NoSchedule"}]
    if plan.accelerator.device_ids:
        spec["affinity"] = _product_affinity(plan.accelerator)
    labels = {
        **naming.child_labels(plan.identity.key.name),
        **picked_labels(plan.integrations),
        **transfer_labels(plan.engine),
    }
    return {"metadata": {"labels": labels}, "spec": spec}


def _security_context(accelerator: Accelerator, pods: PodsPlan) -> dict[str, Any]:
    context: dict[str, Any] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    if pods.user_id is not None:
        ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), pods.user_id)
        context = {"runAsNonRoot": True, **ids, "seccompProfile": context["seccompProfile"]}
    if accelerator.device_groups:
        context["supplementalGroups"] = list(accelerator.device_groups)
    return context


def spread_over_hosts(labels: dict[str, str]) -> dict[str, Any]:
    """Prefer different hosts for pods with these labels; never a reason to wait."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
        "matchLabelKeys": ["pod-template-hash"],  # old pods of a rollout do not count
    }


def _product_affinity(accelerator: Accelerator) -> dict[str, Any]:
    """Return the nodes whose device id is the product's: virtual functions carry no product-name
    label.

    The terms are alternatives: the node labeller's stable label and its older family, of nodes
    whose devices all have one id, and the counted labels of nodes with several ids.
    """
    wanted: list[dict[str, Any]] = [
        {"key": label, "operator": "In", "values": list(accelerator.device_ids)}
        for label in _DEVICE_ID_LABELS
    ]
    wanted += [
        {"key": f"{label}.{device_id}", "operator": "Exists"}
        for label in _DEVICE_ID_LABELS
        for device_id in accelerator.device_ids
    ]
    terms = [{"matchExpressions": [requirement]} for requirement in wanted]
    return {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}
        }
    }
