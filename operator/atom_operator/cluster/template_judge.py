"""Ask the API server to judge a pod template, before anything is planned with it.

A server-side dry run of the Deployment or Job of the template, under a separate name: nothing is
stored, and no other object's state matters. The user reads its complaint in the Accepted condition;
quota and admission, which judge the moment, answer when pods are created. A template that was
accepted is not asked about again. Called by the Decider.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from atom_operator import constants
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import DEPLOYMENT, JOB, FieldProblem, Manifest, ObjectKey, PodRevision
from atom_operator.domain.preparation import JobRequest
from atom_operator.kinds import Kind

_INVALID_CODES = (400, 422)
_IMAGE_VOLUMES = "ImageVolume"
# The prefix of messages about fields: the action, the made-up name, the decoder.
_PREAMBLE = re.compile(r"^.*?( is invalid: |strict decoding error: )", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AcceptedTemplates:
    """Remember the templates that the API server accepted last, by AtomDeployment: the revision of
    its pods, and the digest of its Jobs."""

    known: dict[ObjectKey, str] = field(default_factory=dict)
    jobs: dict[ObjectKey, str] = field(default_factory=dict)
    features: dict[str, bool] = field(default_factory=dict)  # of the API server, by name

    def forget(self, key: ObjectKey) -> None:
        self.known.pop(key, None)
        self.jobs.pop(key, None)


async def judge_template(
    port: ClusterPort, key: ObjectKey, pods: PodRevision, accepted: AcceptedTemplates
) -> FieldProblem | None:
    """Return why the API server would refuse these pods, or None. Raises TransientError if it does
    not answer."""
    if accepted.known.get(key) == pods.name:
        return None
    labels = pods.template["metadata"]["labels"]
    selected = {constants.LABEL_DEPLOYMENT: labels[constants.LABEL_DEPLOYMENT]}
    spec = {"replicas": 0, "selector": {"matchLabels": selected}, "template": pods.template}
    words = await _refusal(port, DEPLOYMENT, key, spec)
    if words is None:
        accepted.known[key] = pods.name
        return None
    return FieldProblem("spec.template", f"the API server refuses such pods: {words}")


async def judge_job(
    port: ClusterPort, key: ObjectKey, job: JobRequest, accepted: AcceptedTemplates
) -> FieldProblem | None:
    """Return why the API server would refuse the Job with spec.jobs.template merged in, or None."""
    if accepted.jobs.get(key) == job.digest:
        return None
    words = await _refusal(port, JOB, key, job.manifest["spec"])
    if words is None:
        accepted.jobs[key] = job.digest
        return None
    return FieldProblem("spec.jobs.template", f"the API server refuses such pods: {words}")


async def takes_image_volumes(
    port: ClusterPort, key: ObjectKey, accepted: AcceptedTemplates
) -> bool:
    """Return whether pods may have images as volumes: if the feature is off, the API server drops
    these silently. Asked once in an operator's life; serving pods stay unchanged. Raises
    TransientError if it does not answer."""
    if _IMAGE_VOLUMES not in accepted.features:
        labels = {constants.LABEL_DEPLOYMENT: key.name}
        pod = {
            "containers": [{"name": constants.ENGINE_CONTAINER, "image": "image"}],
            "volumes": [{"name": "image", "image": {"reference": "image"}}],
        }
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
        try:
            made = await port.dry_run(DEPLOYMENT, _unnamed(DEPLOYMENT, key, spec))
        except RefusedError:
            return False
        kept = made["spec"]["template"]["spec"].get("volumes") or ()
        accepted.features[_IMAGE_VOLUMES] = any(volume.get("image") for volume in kept)
    return accepted.features[_IMAGE_VOLUMES]


async def _refusal(port: ClusterPort, kind: Kind, key: ObjectKey, spec: Manifest) -> str | None:
    """Return the API server's complaint about an object with this spec, or None if it is valid."""
    try:
        await port.dry_run(kind, _unnamed(kind, key, spec))
    except RefusedError as error:
        if error.code in _INVALID_CODES:
            return _PREAMBLE.sub("", str(error))
    return None


def _unnamed(kind: Kind, key: ObjectKey, spec: Manifest) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"generateName": f"{key.name}-", "namespace": key.namespace},
        "spec": spec,
    }
