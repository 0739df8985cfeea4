"""Check that each of a spec's pods has the folder of --batch-dir for itself. Pure.

A folder of batches belongs to one server. In a container's own file system it would be read-only,
and end with the container.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.constants import ENGINE_CONTAINER

_FLAG = "--batch-dir"
_NOT_TWO_AT_ONCE = ("InPlace", "Recreate")


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
    several = ", ".join(_makes_several(spec, is_shared="emptyDir" not in mounted))
    if several:
        return (
            f"{flag} is a folder of one server, and clients would find a batch at one pod and not "
            f"at another; set spec.replicas to 1 and change {several}"
        )
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


def _makes_several(spec: AtomDeploymentSpec, *, is_shared: bool) -> Iterator[str]:
    """Yield the fields with which several servers have the folder, or answer for it. is_shared:
    pods of two revisions would have the same volume."""
    if (spec.replicas or 0) > 1:
        yield "spec.replicas"
    for name in ("autoscaling", "canary", "frontend", "disaggregation"):
        if getattr(spec, name) is not None:
            yield f"spec.{name} (leave it out)"
    if is_shared and spec.rollout.strategy not in _NOT_TWO_AT_ONCE:
        yield "spec.rollout.strategy (to InPlace or Recreate)"


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
