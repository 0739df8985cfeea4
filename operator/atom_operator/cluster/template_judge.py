"""Ask the API server what it makes of a pod template, before anything is planned with it.

A server-side dry run of the Deployment that would have it, under a name of its own: nothing is
stored, and no other object's state matters. What it finds wrong is the user's to read in the
Accepted condition; quota and admission, which judge the moment, answer when pods are asked for.
What was accepted once is not asked again. Called by the Decider.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from atom_operator import constants
from atom_operator.cluster.errors import RefusedError
from atom_operator.cluster.port import ClusterPort
from atom_operator.domain import DEPLOYMENT, FieldProblem, ObjectKey, PodRevision

_INVALID_CODES = (400, 422)
# What stands before the words about fields: the action, the made-up name, the decoder.
_PREAMBLE = re.compile(r"^.*?( is invalid: |strict decoding error: )", re.DOTALL)


@dataclass(frozen=True, slots=True)
class AcceptedTemplates:
    """The revision of each AtomDeployment's pods that the API server has accepted last."""

    known: dict[ObjectKey, str] = field(default_factory=dict)

    def forget(self, key: ObjectKey) -> None:
        self.known.pop(key, None)


async def judge_template(
    port: ClusterPort, key: ObjectKey, pods: PodRevision, accepted: AcceptedTemplates
) -> FieldProblem | None:
    """Why the API server would refuse these pods; None where it would not. Raises TransientError
    where it does not answer."""
    if accepted.known.get(key) == pods.name:
        return None
    labels = pods.template["metadata"]["labels"]
    selected = {constants.LABEL_DEPLOYMENT: labels[constants.LABEL_DEPLOYMENT]}
    deployment = {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": {"generateName": f"{key.name}-", "namespace": key.namespace},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": selected},
            "template": pods.template,
        },
    }
    try:
        await port.dry_run(DEPLOYMENT, deployment)
    except RefusedError as error:
        if error.code in _INVALID_CODES:
            words = _PREAMBLE.sub("", str(error))
            return FieldProblem("spec.template", f"the API server refuses such pods: {words}")
    accepted.known[key] = pods.name
    return None
