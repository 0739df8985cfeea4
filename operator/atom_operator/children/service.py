"""The Service in front of the pods, and the ServiceAccount that they run as. Pure."""

from __future__ import annotations

from atom_operator import constants
from atom_operator.children import naming
from atom_operator.domain import Identity, Manifest, Plan


def service(plan: Plan) -> Manifest:
    """Render the Service: one stable address for all ready replicas; or for the frontend, as long
    as one of its pods is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": naming.metadata(plan.identity, plan.identity.key.name),
        "spec": {
            "type": "ClusterIP",
            "selector": (
                naming.frontend_labels(plan.identity.key.name)
                if plan.rollout.frontend_serves
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


def service_account(identity: Identity) -> Manifest:
    """Render an identity without rights: the engine never talks to the API server."""
    account: Manifest = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": naming.metadata(identity, identity.key.name),
        "automountServiceAccountToken": False,
    }
    if identity.pull_secrets:
        account["imagePullSecrets"] = [{"name": name} for name in identity.pull_secrets]
    return account
