"""Plan → the whole desired state, in the order in which it is created. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.children import naming
from atom_operator.children.accepted_spec import accepted_spec, revision_specs
from atom_operator.children.autoscaling.autoscaler import autoscaler
from atom_operator.children.beside_engines.frontend import frontend, workers_service
from atom_operator.children.beside_engines.picker import endpoint_picker
from atom_operator.children.canary import canary_deployment
from atom_operator.children.config_map import (
    adapters_config_map,
    inspected_config_map,
    plan_config_map,
)
from atom_operator.children.device_claim import resource_claim_template
from atom_operator.children.gateway import http_route, inference_pool
from atom_operator.children.grafana_dashboard import dashboard_config_map
from atom_operator.children.learned import learned_config_map
from atom_operator.children.monitoring import pod_monitor, prometheus_rule
from atom_operator.children.network import network_policy
from atom_operator.children.pod_disruption_budget import disruption_budget
from atom_operator.children.ready_revision import ready_revision
from atom_operator.children.service import service, service_account
from atom_operator.children.workload import pod_revision, workload
from atom_operator.domain import (
    ATOM_DEPLOYMENT,
    CONFIG_MAP,
    CONTROLLER_REVISION,
    DISRUPTION_BUDGET,
    SERVICE,
    SERVICE_ACCOUNT,
    ChildKey,
    Kind,
    Manifest,
    Plan,
    RevisionInForce,
    Target,
)
from atom_operator.kinds import (
    AUTOSCALER,
    HTTP_ROUTE,
    INFERENCE_POOL,
    NETWORK_POLICY,
    POD_MONITOR,
    PROMETHEUS_RULE,
    RESOURCE_CLAIM_TEMPLATE,
    SCALED_OBJECT,
)


def render(
    plan: Plan, target: Target | None = None, serving: RevisionInForce | None = None
) -> dict[ChildKey, Manifest]:
    """Render every child that should exist; `target`: the pods to run, if they are not the plan's
    own. All objects beside the pods are rendered for the revision that is `serving`, which is the
    target's unless other pods serve until its first one does.

    A pod's prerequisites come first, so that the first pod already finds them. Raises OverlayError
    if spec.template cannot be merged.
    """
    target = target or Target(pod_revision(plan))
    serving = serving or RevisionInForce(target.pods, plan)
    ready, beside, identity = target.last_ready, serving.plan, plan.identity
    has_account = identity.own_account is None or beside.identity.own_account is None
    manifests: tuple[tuple[Kind, Manifest | None], ...] = (
        (SERVICE_ACCOUNT, service_account(identity) if has_account else None),
        (CONFIG_MAP, plan_config_map(plan)),
        (CONFIG_MAP, inspected_config_map(identity, plan.model)),
        (CONFIG_MAP, _adapters(beside) or _adapters(plan)),
        (CONFIG_MAP, learned_config_map(identity, plan.model.evidence)),
        (SERVICE, service(beside)),
        (DISRUPTION_BUDGET, disruption_budget(identity, plan.scale, plan.integrations)),
        *_guards(plan, beside),
        *((CONTROLLER_REVISION, record) for record in revision_specs(identity, target.specs)),
        (CONTROLLER_REVISION, _accepted(plan) if plan.spec.asked else None),
        (CONTROLLER_REVISION, ready_revision(identity, ready) if ready else None),
        # The autoscaler of a suspended workload is paused before it sees too few replicas.
        *(_autoscaler(plan) if plan.scale.suspended else ()),
        workload(plan, target.pods, target.rollback),
        *_integrations(serving),
        *(() if plan.scale.suspended else _autoscaler(plan)),
        (ATOM_DEPLOYMENT, canary_deployment(identity, plan.canary) if plan.canary else None),
    )
    return {
        ChildKey(kind, str(manifest["metadata"]["name"])): naming.with_words(identity, manifest)
        for kind, manifest in manifests
        if manifest is not None
    }


def _adapters(plan: Plan) -> Manifest | None:
    return adapters_config_map(plan.identity, plan.engine, plan.model)


def _accepted(plan: Plan) -> Manifest:
    return accepted_spec(plan.identity, plan.spec, plan.pods.profile)


def _guards(plan: Plan, beside: Plan) -> Iterator[tuple[Kind, Manifest]]:
    """Yield the objects that must exist before the first pod, and as long as other pods serve."""
    template = resource_claim_template(plan.identity, plan.engine, plan.accelerator)
    if template is not None:
        yield RESOURCE_CLAIM_TEMPLATE, template
    if plan.integrations.network is not None:
        yield NETWORK_POLICY, network_policy((plan, beside), plan.integrations.network)


def _integrations(serving: RevisionInForce) -> Iterator[tuple[Kind, Manifest]]:
    """Yield the objects by which other systems find the pods."""
    plan, asked = serving.plan, serving.plan.integrations
    selected = naming.serving_labels(plan)
    if asked.frontend is not None:
        yield from frontend(serving, asked.frontend)
    transfer = plan.engine.serving.transfer
    if transfer is not None and transfer.computes_prompts:
        yield SERVICE, workers_service(plan)  # for the frontends of the decode pods
    if asked.picker_program is not None:
        yield from endpoint_picker(serving, asked.picker_program)
    if asked.endpoint_picker is not None:
        yield INFERENCE_POOL, inference_pool(plan.identity, selected, asked.endpoint_picker)
    if asked.http_route is not None:
        yield HTTP_ROUTE, http_route(serving, asked.http_route)
    if asked.monitoring.pods is not None:
        yield POD_MONITOR, pod_monitor(plan.identity, selected, asked.monitoring.pods)
    if asked.monitoring.alerts is not None:
        yield PROMETHEUS_RULE, prometheus_rule(plan, asked.monitoring.alerts)
    if asked.monitoring.dashboard is not None:
        yield CONFIG_MAP, dashboard_config_map(plan, asked.monitoring.dashboard)


def _autoscaler(plan: Plan) -> Iterator[tuple[Kind, Manifest]]:
    """Yield the autoscaler, which is created once its target leaves the number of replicas alone,
    and stays while its target is suspended or starts again."""
    wanted = plan.integrations.autoscaling
    comes = not plan.scale.owns_replicas or plan.scale.autoscaler_stands
    if wanted is not None and comes:
        yield SCALED_OBJECT if wanted.method == "KEDA" else AUTOSCALER, autoscaler(plan, wanted)
