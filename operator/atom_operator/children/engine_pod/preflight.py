"""The init container that looks at the devices before the engine does. Pure.

It asks for the same devices as the engine: the kubelet hands them on to the next container. What it
finds wrong is its termination message, which reaches the Degraded condition. The check itself is
the engine package's atom.preflight.
"""

from __future__ import annotations

from typing import Any

from atom_operator.children.device_claim import devices_of_container
from atom_operator.domain import Accelerator, EngineOptions

PREFLIGHT_CONTAINER = "preflight"
_COMMAND = ["python3", "-m", "atom.preflight"]


def preflight_container(engine: EngineOptions, accelerator: Accelerator) -> dict[str, Any]:
    """Render a container that ends with 0 if as many devices as requested can be opened and have
    kernels."""
    devices, claims = devices_of_container(engine, accelerator)
    return {
        "name": PREFLIGHT_CONTAINER,
        "image": engine.serving.image,
        "command": [*_COMMAND, "--devices", str(engine.devices_per_pod)],
        "resources": {
            "requests": {"cpu": "100m", "memory": "64Mi", **devices},
            "limits": {"memory": "256Mi", **devices},
            **claims,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
