"""What a site keeps spec.template from doing to pods. Pure.

A user who may write an AtomDeployment has the operator make pods for them, and may not be allowed
to make any: another ServiceAccount or the host's namespaces would be rights that they do not have.
The list is the administrator's (the chart's template.forbidden). What a namespace's Pod Security
admission refuses is refused by the API server as for any other pod.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem
from atom_operator.integration_values import Site, TemplateFeature

_FIELDS = {
    "serviceAccountName": TemplateFeature.SERVICE_ACCOUNT,
    "serviceAccount": TemplateFeature.SERVICE_ACCOUNT,
    "hostPID": TemplateFeature.HOST_PID,
    "hostIPC": TemplateFeature.HOST_IPC,
    "hostNetwork": TemplateFeature.HOST_NETWORK,
}


def validate_template(spec: AtomDeploymentSpec, site: Site) -> tuple[FieldProblem, ...]:
    """Every use of what this site forbids."""
    pod: Any = (spec.template or {}).get("spec")
    if not isinstance(pod, Mapping):
        return ()
    return tuple(
        FieldProblem(
            f"spec.template.spec.{path}",
            f"{feature.value} is not allowed here (template.forbidden in the operator's chart); "
            "leave it out, or ask whoever runs the operator",
            Reason.TEMPLATE_FORBIDDEN,
        )
        for path, feature in _uses(pod)
        if feature in site.template_forbidden
    )


def _uses(pod: Mapping[str, Any]) -> Iterator[tuple[str, TemplateFeature]]:
    for name, feature in _FIELDS.items():
        if pod.get(name):
            yield name, feature
    for field in ("containers", "initContainers"):
        for number, container in enumerate(_items(pod, field)):
            context = container.get("securityContext")
            if isinstance(context, Mapping) and context.get("privileged"):
                yield f"{field}[{number}].securityContext.privileged", TemplateFeature.PRIVILEGED
    for number, volume in enumerate(_items(pod, "volumes")):
        if volume.get("hostPath") is not None:
            yield f"volumes[{number}].hostPath", TemplateFeature.HOST_PATH


def _items(pod: Mapping[str, Any], field: str) -> list[Mapping[str, Any]]:
    found = pod.get(field)
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []
