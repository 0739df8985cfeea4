"""Refuses a finished pod template with rights that the site does not allow. Pure.

A user who may write an AtomDeployment has the operator make pods for them, and may not be allowed
to make any: another ServiceAccount, the host's namespaces, ports and files, or its root would be
rights that they do not have. restricted_pod.py lists the rights of every author; the administrator
allows more (template.allowed of the chart). The finished template is judged, so it does not matter
whether spec.template, spec.templateRemove, spec.jobs.template or an AtomProfile asks for a right. A
namespace's Pod Security admission judges the pods as any others. Called by planning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from atom_operator.children import naming
from atom_operator.children.beside_engines.frontend import frontend_template
from atom_operator.children.beside_engines.job import inspection_job, job_account, weights_job
from atom_operator.children.beside_engines.picker import picker_template
from atom_operator.children.overlay import OverlayError
from atom_operator.children.restricted_pod import (
    Given,
    Right,
    rights_of,
    secrets_of,
    unknown_fields,
)
from atom_operator.children.workload import pod_revision, pod_template, rendered_template
from atom_operator.constants import Reason
from atom_operator.domain import JOB, FieldProblem, Manifest, Plan, RevisionInForce
from atom_operator.integration_values import Site, TemplateFeature
from atom_operator.served_schema.near_names import did_you_mean

_TEMPLATE, _JOBS = "spec.template", "spec.jobs.template"


def template_problems(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    """Return why the plan's pods may not have the rights that its overlays give them."""
    given = plan.pods.profile.service_account if plan.pods.profile is not None else None
    own, account = plan.identity.own_account, TemplateFeature.SERVICE_ACCOUNT
    if own is not None and own != given and not site.allows(account, own):
        return (_forbidden(Right("spec.serviceAccountName", account, own)),)
    if found := _of_engines(plan, site):
        return found
    if plan.pods.jobs.template is not None or plan.identity.objects.of(JOB.kind).annotations:
        jobs = _Beside(
            _JOBS, plan.pods.jobs.template, job_account(plan.identity, plan.model.location)
        )
        found = _beside(plan, site, jobs, lambda: _of_jobs(plan))
    return (*found, *_of_servers(plan, site))


def _of_engines(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    if not plan.pods.is_overlaid:
        return ()
    given = Given(plan.identity.service_account, _secrets(plan))
    try:
        found = _rights([pod_template(plan)], given, plan.pods.template)
        below = _of_profile(plan, given)
    except OverlayError as error:
        return (FieldProblem(_TEMPLATE, str(error)),)
    own = (right.below(_TEMPLATE) for right in found if right not in below)
    asked = list(_not_allowed(below, site))
    if asked and plan.pods.profile is not None:
        name, words = plan.pods.profile.name, _words(asked[0])
        problem = f"AtomProfile {name} asks for {asked[0].path}: {words}"
        return (FieldProblem("spec.profile", problem, Reason.TEMPLATE_FORBIDDEN),)
    return tuple(_forbidden(right) for right in _not_allowed(own, site))


def _of_profile(plan: Plan, given: Given) -> list[Right]:
    """Return the rights that pods have from the AtomProfile's template alone."""
    if plan.pods.profile is None or plan.pods.profile.template is None:
        return []
    pods = replace(plan.pods, template=None, template_removed=())
    alone = pod_template(replace(plan, pods=pods))
    return _rights([alone], given, plan.pods.profile.template)


def _rights(
    templates: Iterable[Manifest], given: Given, overlay: Mapping[str, Any] | None
) -> list[Right]:
    """List the rights of finished templates; each field that no version of a pod is known to have
    once, by its place in the overlay."""
    unknown = [*unknown_fields(overlay or {})]
    names = {right.value for right in unknown}
    found = [right for template in templates for right in rights_of(template, given)]
    return [*unknown, *(right for right in found if not _is_unknown(right, names))]


def _is_unknown(right: Right, names: Collection[str | None]) -> bool:
    return right.feature is TemplateFeature.OTHER_FIELDS and right.value in names


@dataclass(frozen=True, slots=True)
class _Beside:
    """Describe the overlay of a kind of pod beside the engines, and the account of these pods."""

    place: str
    overlay: Mapping[str, Any] | None
    account: str | None


def _of_servers(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    """Judge the overlays of the frontend and of the endpoint picker that we run."""
    found: list[FieldProblem] = []
    front, picker = plan.integrations.frontend, plan.integrations.endpoint_picker
    program = plan.integrations.picker_program
    if front is not None and front.template is not None:
        asked = _Beside("spec.frontend.template", front.template, plan.identity.service_account)
        found += _beside(plan, site, asked, lambda: [frontend_template(_own(plan), front)])
    if picker is not None and program is not None and picker.template is not None:
        account = naming.picker_name(plan.identity.key)
        asked = _Beside("spec.gateway.pickerTemplate", picker.template, account)
        found += _beside(plan, site, asked, lambda: [picker_template(_own(plan), program)])
    return tuple(found)


def _own(plan: Plan) -> RevisionInForce:
    return RevisionInForce(pod_revision(plan), plan)


def _of_jobs(plan: Plan) -> list[Manifest]:
    """Return the templates of Jobs, with spec.jobs.template and the annotations of
    spec.objects.job."""
    jobs = [job for job in (weights_job(plan), inspection_job(plan)) if job is not None]
    return [job.manifest["spec"]["template"] for job in jobs]


def _beside(
    plan: Plan, site: Site, asked: _Beside, templates: Callable[[], list[Manifest]]
) -> tuple[FieldProblem, ...]:
    """Judge the finished templates of pods beside the engines."""
    try:
        finished = templates()
    except OverlayError as error:
        return (FieldProblem(asked.place, str(error)),)
    given = Given(asked.account, _secrets(plan))
    found = _rights(finished, given, asked.overlay)
    rights = dict.fromkeys(right.below(asked.place) for right in found)
    return tuple(_forbidden(right) for right in _not_allowed(rights, site))


def _secrets(plan: Plan) -> frozenset[str]:
    """Name the Secrets that typed fields of the spec, or its AtomProfile, name."""
    model, named = plan.model, set(secrets_of(rendered_template(plan)["spec"]))
    download = model.location.download
    tokens = (model.location.token_secret, download.token_secret if download else None)
    named |= {token[0] for token in tokens if token is not None}
    for bucket in (model.location.bucket, download.bucket if download else None):
        if bucket is not None and bucket.secret is not None:
            named.add(bucket.secret)
    profile = plan.pods.profile.template if plan.pods.profile is not None else None
    return frozenset(named) | secrets_of((profile or {}).get("spec") or {})


def _not_allowed(rights: Iterable[Right], site: Site) -> Iterator[Right]:
    return (right for right in rights if not site.allows(right.feature, right.value))


def _forbidden(right: Right) -> FieldProblem:
    unknown = right.feature is TemplateFeature.OTHER_FIELDS
    reason = Reason.INVALID_SPEC if unknown else Reason.TEMPLATE_FORBIDDEN
    return FieldProblem(right.path, _words(right), reason)


def _words(right: Right) -> str:
    feature, value = right.feature.value, right.value
    if right.feature is TemplateFeature.OTHER_FIELDS:
        return (
            f"is no field of a pod{did_you_mean(right.near)}; if this cluster's Kubernetes is newer"
            f" and has it, ask the operator's administrator to add {feature}/{value} to"
            " template.allowed of its chart"
        )
    single = f" or {feature}/{value}" if value is not None else ""
    return (
        f"{feature} is not allowed here; leave it out, or ask the operator's administrator to add"
        f" {feature}{single} to template.allowed of its chart"
    )
