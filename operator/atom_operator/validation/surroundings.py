"""Rules about other systems that a replica depends on: autoscalers, groups, the engine.

Pure: the caller passes the cluster's served kinds and the abilities of the site's engines. Each
message names the remedy. Optional systems (monitoring, gateways) are never refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import Reason
from atom_operator.domain import FieldProblem
from atom_operator.integration_values import Site
from atom_operator.kinds import (
    HTTP_ROUTE,
    LEADER_WORKER_SET,
    PROVIDERS,
    RESOURCE_CLAIM_TEMPLATE,
    SCALED_OBJECT,
    Kind,
)


def validate_surroundings(
    spec: AtomDeploymentSpec, served: Set[Kind] | None, site: Site
) -> tuple[FieldProblem, ...]:
    """List every problem that depends on the cluster or on the engine images; empty when accepted.

    `served` None: nothing is known of a cluster, so nothing is missing in it."""
    return (
        *_ranks(spec, site),
        *_groups(spec, served, site),
        *_autoscaler(spec, served, site),
        *_canary(spec, served, site),
        *_claim(spec, served),
    )


def _ranks(spec: AtomDeploymentSpec, site: Site) -> Iterator[FieldProblem]:
    nodes, most = spec.parallelism.nodes or 1, site.engine_tensor_parallel
    size = spec.parallelism.tensor or 1
    if size > most * nodes:
        devices = "one device" if most == 1 else f"at most {most} devices of a node"
        yield FieldProblem(
            "spec.parallelism.tensor",
            f"{size} is not supported: this site's engine images run a copy of the model on"
            f" {devices}; set {most * nodes}"
            + (" (or leave it out)" if most == 1 else "")
            + " and raise spec.replicas for more throughput, or use an engine image that can do"
            " more and say so in the operator's chart (engine.maxTensorParallel)",
            Reason.UNSUPPORTED_BY_ENGINE,
        )


def _groups(
    spec: AtomDeploymentSpec, served: Set[Kind] | None, site: Site
) -> Iterator[FieldProblem]:
    nodes, field = spec.parallelism.nodes or 1, "spec.parallelism.nodes"
    if nodes == 1:
        return
    if not site.engine_multi_node:
        yield FieldProblem(
            field,
            f"{nodes} is not supported: this site's engine images run one pod per replica; set 1"
            " (or leave it out), or use an engine image that divides a model over several nodes and"
            " say so in the operator's chart (engine.multiNode)",
            Reason.UNSUPPORTED_BY_ENGINE,
        )
    if served is not None and LEADER_WORKER_SET not in served:
        yield _not_served(field, LEADER_WORKER_SET, "set 1")


def _autoscaler(
    spec: AtomDeploymentSpec, served: Set[Kind] | None, site: Site
) -> Iterator[FieldProblem]:
    asked = spec.autoscaling
    if asked is None or not asked.moves_replicas:
        return
    # Zero replicas and KEDA by name leave no other choice.
    needs_keda = asked.method == "KEDA" or asked.min_replicas == 0
    if needs_keda and served is not None and SCALED_OBJECT not in served:
        remedy = "set minReplicas to at least 1 and method to HPA"
        yield _not_served("spec.autoscaling", SCALED_OBJECT, remedy)
    with_keda = needs_keda or (asked.method != "HPA" and SCALED_OBJECT in (served or ()))
    if with_keda and asked.prometheus is None and site.addresses.prometheus is None:
        yield FieldProblem(
            "spec.autoscaling.prometheus",
            "KEDA has to know which Prometheus to ask; set serverAddress here, or"
            " autoscaling.prometheusAddress in the operator's chart",
        )


def _claim(spec: AtomDeploymentSpec, served: Set[Kind] | None) -> Iterator[FieldProblem]:
    missing = served is not None and RESOURCE_CLAIM_TEMPLATE not in served
    if spec.accelerator.claim is not None and missing:
        remedy = "take devices from the device plugin (leave claim out)"
        yield _not_served("spec.accelerator.claim", RESOURCE_CLAIM_TEMPLATE, remedy)


def _canary(
    spec: AtomDeploymentSpec, served: Set[Kind] | None, site: Site
) -> Iterator[FieldProblem]:
    if spec.canary is None:
        return
    if served is not None and HTTP_ROUTE not in served:
        yield _not_served("spec.canary", HTTP_ROUTE, "leave the canary out")
    analysis = spec.canary.analysis
    if analysis is not None and analysis.queries and site.addresses.prometheus is None:
        yield FieldProblem(
            "spec.canary.analysis.queries",
            "there is no Prometheus to ask: set autoscaling.prometheusAddress in the operator's"
            " chart, or judge by maxErrorPercent",
        )


def _not_served(field: str, kind: Kind, otherwise: str) -> FieldProblem:
    return FieldProblem(
        field,
        f"needs the CRD of {kind.kind} ({kind.api_version}), which this cluster does not serve;"
        f" install {PROVIDERS[kind]}, or {otherwise}",
        Reason.API_NOT_SERVED,
    )
