"""The image that holds a model, under the engine's own path: a volume of it, or a sidecar. Pure.

If the API server takes no image volumes, a container of the image runs beside the engine (a
"modelcar") and leaves a link to its own root, /proc/PID/root, in a folder that both mount. That
works because containers of a pod of ours share their processes and have one user. It begins before
the engine and ends after it, and holds only the files.
"""

from __future__ import annotations

from typing import Any

from atom_operator.constants import MODEL_IMAGE_DIRECTORY
from atom_operator.domain import ModelImage

MODELS_VOLUME = "models"
_CONTAINER = "model-image"
_RESOURCES = {
    "requests": {"cpu": "10m", "memory": "16Mi"},
    "limits": {"cpu": "100m", "memory": "64Mi"},
}


def image_volume(image: ModelImage) -> dict[str, Any]:
    """Return the volume under the models' path."""
    if image.by_volume:
        return {"name": MODELS_VOLUME, "image": {"reference": image.reference}}
    return {"name": MODELS_VOLUME, "emptyDir": {}}


def image_mount() -> dict[str, Any]:
    """Return the mount of a container that reads the model."""
    return {"name": MODELS_VOLUME, "mountPath": MODEL_IMAGE_DIRECTORY, "readOnly": True}


def image_sidecar(image: ModelImage | None) -> list[dict[str, Any]]:
    """Render the image's container beside the engine; empty if the image is a volume."""
    if image is None or image.by_volume:
        return []
    link = f"{MODEL_IMAGE_DIRECTORY}{image.folder}"
    make = f"mkdir -p {link.rpartition('/')[0]} && ln -sfn /proc/$$/root{image.folder} {link}"
    return [
        {
            "name": _CONTAINER,
            "image": image.reference,
            "restartPolicy": "Always",
            "command": ["sh", "-c", f"{make} && exec sleep infinity"],
            # The engine begins when the files are there.
            "startupProbe": {
                "exec": {"command": ["sh", "-c", f"test -d {link}/"]},
                "periodSeconds": 1,
                "failureThreshold": 60,
            },
            "resources": {kind: dict(amounts) for kind, amounts in _RESOURCES.items()},
            "volumeMounts": [{"name": MODELS_VOLUME, "mountPath": MODEL_IMAGE_DIRECTORY}],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
        }
    ]
