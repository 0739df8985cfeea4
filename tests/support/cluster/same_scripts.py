"""Scripts that the cluster in memory and the real one play alike: drawn from a seed, as data.

A write script is the operator's own calls and another client's, on a few objects. A workload script
is what happens to one Deployment. The pods of a workload script fit no node, and the script makes
them ready by their status, so that no container starts.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from atom_operator.domain import CONFIG_MAP, DEPLOYMENT, Kind, Manifest

_NAMES = ("a", "b")
_LABELS = ("app", "team")
_VALUES = ("1", "2")
_IMAGES = ("web:1", "web:2", "web:3")
_NOWHERE = {"serving.atom.dev/test": "nowhere"}


@dataclass(frozen=True, slots=True)
class Step:
    """One action of a script, with its arguments by name."""

    action: str
    arguments: tuple[tuple[str, Any], ...] = ()

    @property
    def given(self) -> dict[str, Any]:
        return dict(self.arguments)

    def __str__(self) -> str:
        words = ", ".join(f"{name}={value!r}" for name, value in self.arguments)
        return f"{self.action}({words})"


def step(action: str, **arguments: Any) -> Step:
    return Step(action, tuple(arguments.items()))


# --- writes ------------------------------------------------------------------------------------


def draw_writes(seed: int, length: int = 14) -> list[Step]:
    """Draw calls of the operator and of another client on ConfigMaps and Deployments."""
    draw = random.Random(seed)
    actions = ("apply", "apply", "apply", "apply_as_other", "apply_as_other", "make", "replace")
    return [_write(draw, draw.choice((*actions, "delete", "list"))) for _ in range(length)]


def _write(draw: random.Random, action: str) -> Step:
    kind = draw.choice((CONFIG_MAP, DEPLOYMENT))
    if action == "list":
        return step(action, kind=kind, labels={draw.choice(_LABELS): draw.choice(_VALUES)})
    name = draw.choice(_NAMES)
    if action == "delete":
        return step(action, kind=kind, name=name)
    if action == "replace":
        manifest = _manifest(draw, kind, name)
        # The version of a Deployment is its controller's too.
        return step(action, kind=kind, manifest=manifest, stale=_yes(draw) and kind is CONFIG_MAP)
    return step(action, kind=kind, manifest=_manifest(draw, kind, name))


def _manifest(draw: random.Random, kind: Kind, name: str) -> Manifest:
    metadata: Manifest = {"name": name}
    for field in ("labels", "annotations"):
        if found := _some(draw, _LABELS):
            metadata[field] = found
    manifest = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
    if kind is CONFIG_MAP:
        return {**manifest, "data": _some(draw, ("red", "green", "blue"))}
    labels = {"fixed": name}
    pod = {"containers": _containers(draw), "nodeSelector": _NOWHERE, "volumes": _volumes(draw)}
    spec = {
        "replicas": 0,
        "paused": True,  # its controller makes nothing
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": {**labels, **_some(draw, _LABELS)}}, "spec": pod},
    }
    return {**manifest, "spec": spec}


def _some(draw: random.Random, names: tuple[str, ...]) -> dict[str, str]:
    return {name: draw.choice(_VALUES) for name in names if draw.random() < 0.5}


def _containers(draw: random.Random) -> list[Manifest]:
    return [_container(draw, name) for name in ("engine", "side") if name == "engine" or _yes(draw)]


def _container(draw: random.Random, name: str) -> Manifest:
    found: Manifest = {"name": name, "image": draw.choice(_IMAGES)}
    if _yes(draw):
        found["args"] = draw.sample(("--x", "--y", "--z"), draw.randint(1, 3))
    if environment := _some(draw, ("LEVEL", "MODE", "ZONE")):
        found["env"] = [{"name": key, "value": value} for key, value in environment.items()]
    return found


def _volumes(draw: random.Random) -> list[Manifest]:
    return [{"name": name, "emptyDir": {}} for name in ("cache", "shm", "tmp") if _yes(draw)]


def _yes(draw: random.Random) -> bool:
    return draw.random() < 0.5


# --- workloads ---------------------------------------------------------------------------------


def draw_workload(seed: int, length: int = 7) -> list[Step]:
    """Draw what happens to one Deployment after its creation."""
    draw = random.Random(seed)
    most = draw.choice((None, None, 3, 5))
    steps = [step("quota", pods=most)] if most else []
    steps.append(step("create", manifest=_workload(draw)))
    actions = ("scale", "template", "template", "ready", "ready", "ready", "end", "bounds", "pause")
    return [*steps, *(_happening(draw, draw.choice(actions)) for _ in range(length))]


def _happening(draw: random.Random, action: str) -> Step:
    if action == "scale":
        return step(action, replicas=draw.randint(0, 6))
    if action == "template":
        return step(action, image=draw.choice(_IMAGES))
    if action == "ready":
        return step(action, image=draw.choice(("", *_IMAGES)), count=draw.randint(1, 4))
    if action == "end":
        return step(action, image=draw.choice(("", *_IMAGES)), ready=_yes(draw))
    if action == "pause":
        return step(action, paused=_yes(draw))
    return step(action, **_bounds(draw))


def _bounds(draw: random.Random) -> dict[str, int | str]:
    surge = draw.choice((0, 1, 2, "25%", "50%"))
    away = draw.choice((1, 2, "50%") if surge == 0 else (0, 1, 2, "25%", "50%"))
    return {"maxSurge": surge, "maxUnavailable": away}


def _workload(draw: random.Random) -> Manifest:
    labels = {"app": "web"}
    pod = {"containers": [{"name": "web", "image": _IMAGES[0]}], "nodeSelector": _NOWHERE}
    spec = {
        "replicas": draw.randint(1, 5),
        "progressDeadlineSeconds": 2_000_000,  # what takes long on a busy machine is no failure
        "selector": {"matchLabels": labels},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": _bounds(draw)},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": {"name": "web"},
        "spec": spec,
    }
