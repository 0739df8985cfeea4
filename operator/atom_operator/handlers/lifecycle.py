"""Start, log in and stop."""

from __future__ import annotations

from typing import Any

import kopf

from atom_operator import constants
from atom_operator.cluster.errors import ClusterError
from atom_operator.domain import JOB
from atom_operator.handlers.runtime import Runtime

_RETRY_SECONDS = 5.0
# An hour-long watch that the server never ends would hide a dead connection.
_WATCH_SERVER_SECONDS = 300  # kopf puts it into the URL as it is, and the API wants an integer
_WATCH_CLIENT_SECONDS = 330.0


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: Runtime, **_: Any) -> None:
    """Configure kopf and start the workers; waits for the API server and the CRD."""
    configure(settings)
    try:
        await memo.start()
    except ClusterError as error:
        message = f"cannot list AtomDeployments: {error}; is the CRD installed?"
        raise kopf.TemporaryError(message, delay=_RETRY_SECONDS) from error


def configure(settings: kopf.OperatorSettings) -> None:
    """kopf only watches for us: no events, no peering, no annotations, no discovery of new CRDs."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True
    settings.watching.server_timeout = _WATCH_SERVER_SECONDS
    settings.watching.client_timeout = _WATCH_CLIENT_SECONDS
    settings.watching.connect_timeout = 10.0
    settings.watching.label_selectors[JOB.group, JOB.version, JOB.plural] = constants.LABEL_JOB_FOR


@kopf.on.login()
def log_in(**kwargs: Any) -> kopf.ConnectionInfo | None:
    """In a pod by its service account, elsewhere by the kubeconfig."""
    return kopf.login_with_service_account(**kwargs) or kopf.login_with_kubeconfig(**kwargs)


@kopf.on.cleanup()
async def stop(memo: Runtime, **_: Any) -> None:
    """Stop the workers and close the connections."""
    await memo.stop()
