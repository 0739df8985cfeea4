"""Refuses a finished pod template that asks for rights that the site does not allow. Pure.

A user who may write an AtomDeployment has the operator make pods for them, and may not be allowed
to make any: another ServiceAccount, the host's namespaces, ports and files, or its root would be
rights that they do not have. restricted_pod.py lists what every author may have; the administrator
allows more (template.allowed of the chart). The finished template is judged, so it does not matter
whether spec.template, spec.templateRemove, spec.jobs.template or an AtomProfile asks for a right. A
namespace's Pod Security admission judges the pods as any others. Called by planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from atom_operator.children.beside_engines.job import inspection_job, job_account, weights_job
from atom_operator.children.overlay import OverlayError
from atom_operator.children.restricted_pod import (
    Given,
    Right,
    rights_of,
    secrets_of,
    unknown_fields,
)
from atom_operator.children.workload import pod_template, rendered_template
from atom_operator.constants import Reason
from atom_operator.domain import JOB, FieldProblem, Plan
from atom_operator.integration_values import Site, TemplateFeature

_TEMPLATE, _JOBS = "spec.template", "spec.jobs.template"


def template_problems(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    """Return why the plan's pods cannot be what its overlays make of them."""
    given = plan.profile.service_account if plan.profile is not None else None
    own, account = plan.own_account, TemplateFeature.SERVICE_ACCOUNT
    if own is not None and own != given and not site.allows(account, own):
        return (_forbidden(Right("spec.serviceAccountName", account, own)),)
    found = _of_engines(plan, site)
    if found or (plan.jobs.template is None and not plan.objects.of(JOB.kind).annotations):
        return found
    return _of_jobs(plan, site)


def _of_engines(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    if not plan.is_overlaid:
        return ()
    given = Given(plan.service_account, _secrets(plan))
    try:
        found = [*rights_of(pod_template(plan), given), *unknown_fields(plan.template or {})]
        below = _of_profile(plan, given)
    except OverlayError as error:
        return (FieldProblem(_TEMPLATE, str(error)),)
    own = (right.below(_TEMPLATE) for right in found if right not in below)
    asked = list(_not_allowed(below, site))
    if asked and plan.profile is not None:
        name, words = plan.profile.name, _words(asked[0])
        problem = f"AtomProfile {name} asks for {asked[0].path}: {words}"
        return (FieldProblem("spec.profile", problem, Reason.TEMPLATE_FORBIDDEN),)
    return tuple(_forbidden(right) for right in _not_allowed(own, site))


def _of_profile(plan: Plan, given: Given) -> list[Right]:
    """The rights that pods have from the AtomProfile's template alone."""
    if plan.profile is None or plan.profile.template is None:
        return []
    alone = pod_template(replace(plan, template=None, template_removed=()))
    return [*rights_of(alone, given), *unknown_fields(plan.profile.template)]


def _of_jobs(plan: Plan, site: Site) -> tuple[FieldProblem, ...]:
    """Judge spec.jobs.template and the annotations of spec.objects.job, which are laid over what
    comes of spec.template."""
    try:
        jobs = [job for job in (weights_job(plan), inspection_job(plan)) if job is not None]
    except OverlayError as error:
        return (FieldProblem(_JOBS, str(error)),)
    given = Given(job_account(plan), _secrets(plan))
    templates: list[Mapping[str, Any]] = [job.manifest["spec"]["template"] for job in jobs]
    found = [right for template in templates for right in rights_of(template, given)]
    found += unknown_fields(plan.jobs.template or {})
    asked = dict.fromkeys(right.below(_JOBS) for right in found)
    return tuple(_forbidden(right) for right in _not_allowed(asked, site))


def _secrets(plan: Plan) -> frozenset[str]:
    """Name the Secrets that typed fields of the spec, or its AtomProfile, name."""
    model, named = plan.model, set(secrets_of(rendered_template(plan)["spec"]))
    download = model.download
    tokens = (model.token_secret, download.token_secret if download else None)
    named |= {token[0] for token in tokens if token is not None}
    for bucket in (model.bucket, download.bucket if download else None):
        if bucket is not None and bucket.secret is not None:
            named.add(bucket.secret)
    profile = plan.profile.template if plan.profile is not None else None
    return frozenset(named) | secrets_of((profile or {}).get("spec") or {})


def _not_allowed(rights: Iterable[Right], site: Site) -> Iterator[Right]:
    return (right for right in rights if not site.allows(right.feature, right.value))


def _forbidden(right: Right) -> FieldProblem:
    return FieldProblem(right.path, _words(right), Reason.TEMPLATE_FORBIDDEN)


def _words(right: Right) -> str:
    feature, value = right.feature.value, right.value
    single = f" or {feature}/{value}" if value is not None else ""
    return (
        f"{feature} is not allowed here; leave it out, or ask whoever runs the operator to add"
        f" {feature}{single} to template.allowed of its chart"
    )
