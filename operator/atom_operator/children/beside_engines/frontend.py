"""The frontend servers of a model's engines: their Deployment, and how they find the pods. Pure.

They hold the clients' connections and compute nothing: each request goes to an engine pod, and
continues on another one, after the received tokens, if that pod dies. Their pods are of the
engine's image and are made from its finished template, without devices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.children.beside_engines.frontend_container import frontend_container
from atom_operator.children.beside_engines.inherited import (
    engine_of,
    inherited_metadata,
    inherited_of_pod,
)
from atom_operator.children.beside_engines.overlaid import overlaid
from atom_operator.children.model_sources.model_image import image_sidecar
from atom_operator.children.monitoring import frontend_monitor
from atom_operator.children.network import frontend_policy
from atom_operator.children.overlay import copied
from atom_operator.children.workload import spread_over_hosts, stop_seconds
from atom_operator.domain import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    SERVICE,
    Identity,
    Kind,
    Manifest,
    Plan,
    RevisionInForce,
)
from atom_operator.integration_values import Frontend
from atom_operator.kinds import NETWORK_POLICY, POD_MONITOR


def frontend(serving: RevisionInForce, wanted: Frontend) -> Iterator[tuple[Kind, Manifest]]:
    """Yield the frontend's objects, the prerequisites of its pods first."""
    plan = serving.plan
    if plan.integrations.network is not None:
        yield NETWORK_POLICY, frontend_policy(plan.identity, plan.integrations.network)
    yield SERVICE, workers_service(plan)
    if wanted.replicas > 1:
        yield DISRUPTION_BUDGET, _disruption_budget(plan.identity)
    yield DEPLOYMENT, _deployment(serving, wanted)
    if plan.integrations.monitoring.pods is not None:
        yield POD_MONITOR, frontend_monitor(plan.identity, plan.integrations.monitoring.pods)


def _head(identity: Identity, kind: Kind, name: str) -> Manifest:
    return naming.component_head(identity, kind, name, constants.FRONTEND_COMPONENT)


def workers_service(plan: Plan) -> Manifest:
    """Render a headless Service: its name resolves to all serving pods."""
    identity, selected = plan.identity, naming.serving_labels(plan)
    port = {
        "name": constants.ENGINE_PORT_NAME,
        "port": constants.ENGINE_PORT,
        "targetPort": constants.ENGINE_PORT_NAME,
        "protocol": "TCP",
    }
    spec = {"clusterIP": "None", "selector": dict(selected), "ports": [port]}
    return {**_head(identity, SERVICE, naming.workers_name(identity.key)), "spec": spec}


def _disruption_budget(identity: Identity) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": naming.frontend_labels(identity.key.name)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return {**_head(identity, DISRUPTION_BUDGET, naming.frontend_name(identity.key)), "spec": spec}


def _deployment(serving: RevisionInForce, wanted: Frontend) -> Manifest:
    plan = serving.plan
    labels = naming.frontend_labels(plan.identity.key.name)
    return {
        **_head(plan.identity, DEPLOYMENT, naming.frontend_name(plan.identity.key)),
        "spec": {
            "replicas": wanted.replicas,
            "revisionHistoryLimit": 3,
            "selector": {"matchLabels": labels},
            # A pod that goes takes the connections that it holds along, after its drain.
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": frontend_template(serving, wanted),
        },
    }


def frontend_template(serving: RevisionInForce, wanted: Frontend) -> Manifest:
    """Return the pod template of the servers; raises OverlayError."""
    plan, finished = serving.plan, copied(serving.pods.template)
    container = frontend_container(plan, engine_of(finished), wanted)
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    volumes = finished["spec"].get("volumes") or ()
    own = naming.frontend_labels(plan.identity.key.name)
    spec: dict[str, Any] = {
        # Without its affinity: these pods need no devices.
        **inherited_of_pod(finished),
        "serviceAccountName": plan.identity.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,
        "terminationGracePeriodSeconds": stop_seconds(plan.engine),
        "topologySpreadConstraints": [spread_over_hosts(own)],
        "containers": [container],
        "volumes": [item for item in volumes if item["name"] in mounted],
    }
    if beside := image_sidecar(plan.model.location.image):
        spec["initContainers"] = beside
    metadata = inherited_metadata(plan.identity.key, plan.integrations, finished)
    metadata["labels"] = {
        **metadata["labels"],
        **own,
        constants.LABEL_PART_OF: "atom-platform",
    }
    template = {"metadata": metadata, "spec": spec}
    return overlaid(template, wanted.template, constants.FRONTEND_COMPONENT, own)
