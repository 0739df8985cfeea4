"""The Service in front of the pods, and the ServiceAccount that they run as. Pure."""

from __future__ import annotations

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import Manifest, Plan


def service(plan: Plan) -> Manifest:
    """One stable address for all replicas that are ready; or for the frontend, as long as one of
    its pods is."""
    led_to_frontend = plan.integrations.frontend is not None and plan.frontend_serves
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": naming.metadata(plan, plan.key.name),
        "spec": {
            "type": "ClusterIP",
            "selector": (
                naming.frontend_labels(plan.key.name)
                if led_to_frontend
                else naming.serving_labels(plan)
            ),
            "ports": [
                {
                    "name": constants.ENGINE_PORT_NAME,
                    "port": constants.ENGINE_PORT,
                    "targetPort": constants.ENGINE_PORT_NAME,
                    "protocol": "TCP",
                }
            ],
        },
    }


def service_account(plan: Plan) -> Manifest:
    """An identity without rights: the engine never talks to the API server."""
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": naming.metadata(plan, plan.key.name),
        "automountServiceAccountToken": False,
    }
    if plan.pull_secrets:
        account["imagePullSecrets"] = [{"name": name} for name in plan.pull_secrets]
    return account
