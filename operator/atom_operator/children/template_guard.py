"""What a site keeps a finished pod template from asking for. Pure.

A user who may write an AtomDeployment has the operator make pods for them, and may not be allowed
to make any: another ServiceAccount, the host's namespaces, ports and files, or its root would be
rights that they do not have. The list is the administrator's (template.forbidden and
template.allowed of the chart). Looked at is what comes of spec.template and spec.templateRemove,
whichever way it was said. What a namespace's Pod Security admission refuses is refused by the API
server as for any other pod. Called by planning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.children.beside_engines.job import inspection_job, weights_job
from atom_operator.children.overlay import OverlayError
from atom_operator.children.workload import pod_template
from atom_operator.constants import Reason
from atom_operator.domain import JOB, FieldProblem, Plan
from atom_operator.integration_values import Site, TemplateFeature

_HOST = {
    "hostPID": TemplateFeature.HOST_PID,
    "hostIPC": TemplateFeature.HOST_IPC,
    "hostNetwork": TemplateFeature.HOST_NETWORK,
}
_SYSTEM_CLASSES = "system-"
_HARMLESS_CAPABILITIES = {"NET_BIND_SERVICE"}  # of the restricted Pod Security Standard
# Types of the baseline Pod Security Standard; another, such as spc_t, may be a host process's.
_SE_LINUX = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}
_APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"  # the API server reads it still
_Use = tuple[str, TemplateFeature]


def template_problems(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    """Return why the plan's pods cannot be what spec.template and spec.jobs.template make of
    them."""
    account = TemplateFeature.SERVICE_ACCOUNT
    given = plan.profile.service_account if plan.profile is not None else None
    own = plan.own_account
    if own is not None and own != given and account in site.template_forbidden:
        return (_forbidden("spec.serviceAccountName", account),)
    found = _of_engines(plan, site)
    if found or (plan.jobs.template is None and not plan.objects.of(JOB.kind).annotations):
        return found
    return _of_jobs(plan, site)


def _of_engines(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    if not plan.is_overlaid:
        return ()
    try:
        template = pod_template(plan)
    except OverlayError as error:
        return (FieldProblem("spec.template", str(error)),)
    return tuple(
        _forbidden(f"spec.template.{path}", feature)
        for path, feature in _uses(template, plan.service_account)
        if feature in site.template_forbidden
    )


def _of_jobs(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    """Judge spec.jobs.template and the annotations of spec.objects.job, which are laid over what
    comes of spec.template."""
    place = "spec.jobs.template"
    try:
        jobs = [job for job in (weights_job(plan), inspection_job(plan)) if job is not None]
    except OverlayError as error:
        return (FieldProblem(place, str(error)),)
    uses = dict.fromkeys(
        use for job in jobs for use in _uses(job.manifest["spec"]["template"], plan.own_account)
    )
    return tuple(
        _forbidden(f"{place}.{path}", feature)
        for path, feature in uses
        if feature in site.template_forbidden
    )


def _forbidden(path: str, feature: TemplateFeature) -> FieldProblem:
    return FieldProblem(
        path,
        f"{feature.value} is not allowed here (template.forbidden in the operator's chart); "
        "leave it out, or ask whoever runs the operator",
        Reason.TEMPLATE_FORBIDDEN,
    )


def _uses(template: Mapping[str, Any], account: str | None) -> Iterator[_Use]:
    for name, value in (template["metadata"].get("annotations") or {}).items():
        if name.startswith(_APP_ARMOR) and value == "unconfined":
            yield f"metadata.annotations[{name}]", TemplateFeature.UNCONFINED
    for path, feature in _of_pod(template["spec"], account):
        yield f"spec.{path}", feature


def _of_pod(pod: Mapping[str, Any], account: str | None) -> Iterator[_Use]:
    for name, feature in _HOST.items():
        if pod.get(name):
            yield name, feature
    if pod.get("serviceAccountName") != account or pod.get("serviceAccount", account) != account:
        yield "serviceAccountName", TemplateFeature.SERVICE_ACCOUNT
    if pod.get("nodeName"):
        yield "nodeName", TemplateFeature.NODE_NAME
    if str(pod.get("priorityClassName") or "").startswith(_SYSTEM_CLASSES):
        yield "priorityClassName", TemplateFeature.PRIORITY_CLASS
    for volume in pod.get("volumes") or ():
        if volume.get("hostPath") is not None:
            yield f"volumes[{volume.get('name')}].hostPath", TemplateFeature.HOST_PATH
    yield from _pod_rights(pod.get("securityContext") or {})
    by_default = (pod.get("securityContext") or {}).get("seccompProfile")
    for field in ("containers", "initContainers", "ephemeralContainers"):
        for container in pod.get(field) or ():
            path = f"{field}[{container.get('name')}]"
            yield from _of_container(container, path)
            context = container.get("securityContext") or {}
            if not by_default and not context.get("seccompProfile"):  # kubelets then give none
                where = f"{path}.securityContext.seccompProfile"
                yield where, TemplateFeature.UNCONFINED


def _pod_rights(context: Mapping[str, Any]) -> Iterator[_Use]:
    where = "securityContext"
    if not context.get("runAsNonRoot"):  # without it the image may say root
        yield f"{where}.runAsNonRoot", TemplateFeature.RUN_AS_ROOT
    if context.get("sysctls"):
        yield f"{where}.sysctls", TemplateFeature.SYSCTLS
    yield from _rights(context, where)


def _of_container(container: Mapping[str, Any], path: str) -> Iterator[_Use]:
    for port in container.get("ports") or ():
        if port.get("hostPort"):
            yield f"{path}.ports[{port.get('containerPort')}].hostPort", TemplateFeature.HOST_PORT
    context = container.get("securityContext") or {}
    where = f"{path}.securityContext"
    if context.get("privileged"):
        yield f"{where}.privileged", TemplateFeature.PRIVILEGED
    if context.get("runAsNonRoot") is False:
        yield f"{where}.runAsNonRoot", TemplateFeature.RUN_AS_ROOT
    added = (context.get("capabilities") or {}).get("add") or ()
    if set(added) - _HARMLESS_CAPABILITIES:
        yield f"{where}.capabilities.add", TemplateFeature.CAPABILITIES
    yield from _rights(context, where)


def _rights(context: Mapping[str, Any], path: str) -> Iterator[_Use]:
    """Yield what a pod's and a container's security context have in common."""
    if context.get("runAsUser") == 0:
        yield f"{path}.runAsUser", TemplateFeature.RUN_AS_ROOT
    if (context.get("windowsOptions") or {}).get("hostProcess"):
        yield f"{path}.windowsOptions.hostProcess", TemplateFeature.PRIVILEGED
    for profile in ("seccompProfile", "appArmorProfile"):
        if (context.get(profile) or {}).get("type") == "Unconfined":
            yield f"{path}.{profile}", TemplateFeature.UNCONFINED
    options = context.get("seLinuxOptions") or {}
    if options.get("user") or options.get("role") or options.get("type", "") not in _SE_LINUX:
        yield f"{path}.seLinuxOptions", TemplateFeature.UNCONFINED
    if context.get("procMount") not in (None, "Default"):
        yield f"{path}.procMount", TemplateFeature.UNCONFINED
