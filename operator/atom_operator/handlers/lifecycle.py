"""Start and stop: kopf's process holds the runtime, and logs in by its own defaults."""

from __future__ import annotations

from typing import Any

import kopf

from atom_operator.cluster.errors import ClusterError
from atom_operator.handlers.runtime import Runtime

_RETRY_SECONDS = 5.0


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
    """kopf is the process alone: no events, no peering, no discovery of new CRDs."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.peering.standalone = True


@kopf.on.cleanup()
async def stop(memo: Runtime, **_: Any) -> None:
    """Stop the workers and close the connections."""
    await memo.stop()
