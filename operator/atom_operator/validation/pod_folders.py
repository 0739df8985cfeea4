"""Check that a spec's pods have the folder of --batch-dir, all of them the same. Pure.

Servers may share a folder of batches. In a container's own file system it would be read-only, and
end with the container. A volume that each pod has for itself is a folder of one server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import ENGINE_CONTAINER

_FLAG = "--batch-dir"
_OF_ONE_POD = ("emptyDir", "ephemeral", "hostPath")  # volumes that other pods do not see


def batch_folder_problem(spec: AtomDeploymentSpec, flag: str) -> str | None:
    """Return why the spec's pods cannot have the folder of the argument `flag`, with the remedy;
    None if they can."""
    folder = _folder(spec.engine.extra_args or ())
    mounted = None if folder is None else _volume_over(spec.template or {}, folder)
    if mounted is None:
        return (
            f"{flag} needs a volume, and the container's file system is read-only; mount one there "
            f"with spec.template (container {ENGINE_CONTAINER})"
        )
    own = next((kind for kind in _OF_ONE_POD if kind in mounted), None)
    several = ", ".join(_makes_several(spec))
    if own is not None and several:
        return (
            f"{flag} is on a volume that each pod has for itself ({own}), and clients would find a "
            f"batch at one pod and not at another; mount a claim that all pods share "
            f"(ReadWriteMany), or change {several}"
        )
    apart = ", ".join(_sends_elsewhere(spec))
    if apart:
        return f"{flag}: clients reach pods that keep no batches; leave out {apart}"
    return None


def _folder(arguments: list[str] | tuple[str, ...]) -> PurePosixPath | None:
    for word, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == _FLAG:
            return PurePosixPath(value if equals else after)
    return None


def _volume_over(template: Mapping[str, Any], folder: PurePosixPath) -> Mapping[str, Any] | None:
    """Return the volume of a pod template that has the folder; None if none of its own has it."""
    pod = _mapping(template.get("spec"))
    volumes = {each.get("name"): each for each in _mappings(pod.get("volumes"))}
    for container in _mappings(pod.get("containers")):
        if container.get("name") != ENGINE_CONTAINER:
            continue
        for mount in _mappings(container.get("volumeMounts")):
            path = PurePosixPath(str(mount.get("mountPath", "")))
            if not mount.get("readOnly") and (path == folder or path in folder.parents):
                return volumes.get(mount.get("name"), {})
    return None


def _makes_several(spec: AtomDeploymentSpec) -> Iterator[str]:
    """Yield the fields with which several pods answer for the folder at a time."""
    if (spec.replicas or 0) > 1:
        yield "spec.replicas (to 1)"
    for name in ("autoscaling", "canary"):
        if getattr(spec, name) is not None:
            yield f"spec.{name} (leave it out)"


def _sends_elsewhere(spec: AtomDeploymentSpec) -> Iterator[str]:
    """Yield the fields with which clients reach other pods than the engine's."""
    for name in ("frontend", "disaggregation"):
        if getattr(spec, name) is not None:
            yield f"spec.{name}"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
