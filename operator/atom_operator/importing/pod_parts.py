"""Parts of pods that several kinds of input have: containers, resources, placement. Pure.

Field names: PodSpec and Container of Kubernetes' core/v1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.importing.engine_line import LineContext, line_results
from atom_operator.importing.program_line import program_line, split_line
from atom_operator.importing.results import Machine, Result, Setting, left, unneeded
from atom_operator.importing.rules import At, Rule, Rules, walk
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule
from atom_operator.importing.variables import variable, variable_list

_NVIDIA = re.compile(r"nvidia", re.I)
_CPU_IMAGE = re.compile(r"(^|[-_/:])cpu\b")
_BY_TEMPLATE = "set it in spec.template.spec"
_PLACE = "spec.template, of the container engine"
_IN_CONTAINER = f"set it in {_PLACE}"
_RESOURCE = f"the resource is set in {_PLACE}"
_PROBES = unneeded_rule("the operator renders the probes of the engine")
# Resources with one of these endings count whole devices or parts of them.
_DEVICE = re.compile(r"^[a-z0-9.-]+/[A-Za-z0-9._-]+$")
_HOSTS = ("cpu", "memory", "ephemeral-storage")


def template(path: str) -> Rule:
    """Take a field of the pods over into spec.template, unless it selects NVIDIA's nodes."""

    def rule(at: At) -> Iterator[Result]:
        if _NVIDIA.search(str(at.value)):
            yield left(
                at.where,
                "selects nodes with NVIDIA GPUs; spec.accelerator.product selects those with the "
                "AMD product",
            )
        else:
            yield Setting(f"template.{path}", at.value, at.where)

    return rule


def metadata(what: str) -> Rule:
    """Take labels or annotations of the pods over."""
    return template(f"metadata.{what}")


ACCOUNT = left_rule(
    "the operator creates an account without rights; spec.serviceAccountName needs the chart's "
    "template.allowed"
)
IMAGE = unneeded_rule("the engine's image is the operator's setting; spec.engine.image is another")
PULL_SECRETS = unneeded_rule(
    "they are of another image's registry; spec.engine.imagePullSecrets are of the engine's"
)

PLACEMENT: Rules = {
    "nodeSelector": template("spec.nodeSelector"),
    "tolerations": template("spec.tolerations"),
    "affinity": template("spec.affinity"),
    "topologySpreadConstraints": template("spec.topologySpreadConstraints"),
    "priorityClassName": template("spec.priorityClassName"),
    "schedulerName": template("spec.schedulerName"),
}
_POD: Rules = {
    **PLACEMENT,
    "serviceAccountName": ACCOUNT,
    "serviceAccount": ACCOUNT,
    "imagePullSecrets": PULL_SECRETS,
    "terminationGracePeriodSeconds": unneeded_rule(
        "spec.rollout.drainSeconds sets how long answers may end"
    ),
    "initContainers": left_rule(
        "spec.cache.weights and model images (oci://) replace downloads; else set it in "
        "spec.template.spec"
    ),
    "volumes": left_rule(
        "models on claims are pvc:// sources; set other volumes in spec.template.spec"
    ),
    "securityContext": unneeded_rule(
        "the operator's pods are restricted; spec.template changes it"
    ),
    "runtimeClassName": left_rule("AMD's devices need no runtime class; leave it out"),
}
_CONTAINER: Rules = {
    "name": unneeded_rule("the container is named engine"),
    "image": IMAGE,
    "imagePullPolicy": left_rule(_IN_CONTAINER),
    "resources": lambda at: resources(at),
    "ports": unneeded_rule("the operator sets the port; the Service has port 8000"),
    "livenessProbe": _PROBES,
    "readinessProbe": _PROBES,
    "startupProbe": _PROBES,
    "envFrom": left_rule("name each variable in spec.engine.env by valueFrom"),
    "volumeMounts": left_rule("models on claims are pvc:// sources; set others in spec.template"),
    "securityContext": unneeded_rule(
        "the operator's pods are restricted; spec.template changes it"
    ),
}


def pod(at: At, context: LineContext, main: str | None) -> Iterator[Result]:
    """Translate a PodSpec. main: name of the container that serves; without it, the first one."""
    yield from walk(at, _with_rest(_POD, _BY_TEMPLATE, at), frozenset({"containers"}))
    containers = at.below("containers").items()
    chosen = [each for each in containers if each.object().get("name") == main] or containers[:1]
    for each in containers:
        if each in chosen:
            yield from container(each, context)
        else:
            yield left(each.where, f"a container beside the engine; {_BY_TEMPLATE}.containers")


def container(
    at: At, context: LineContext, hidden: frozenset[str] = frozenset()
) -> Iterator[Result]:
    """Translate a Container. hidden: fields that the caller has read."""
    own = hidden | {"command", "args", "env"}
    yield from walk(at, _with_rest(_CONTAINER, _IN_CONTAINER, at), own)
    image = str(at.object().get("image") or "")
    if _CPU_IMAGE.search(image):
        yield Machine(at.where, on_cpu=True)
    if "env" not in hidden:
        yield from variable_list(at.below("env"), context)
    words = [*at.below("command").items(), *at.below("args").items()]
    # Without an image a runtime, which is a server, gets the arguments.
    yield from program(words, context, image or "vllm")


def program(words: list[At], context: LineContext, image: str) -> Iterator[Result]:
    """Translate the words that start a container's server."""
    if not words:
        return
    found = program_line(words, image)
    if found is None:
        yield left(
            words[0].where,
            "starts no vLLM, SGLang or ATOM server, so its words were not read; give its line as "
            "kubectl atom import 'vllm serve …'",
        )
        return
    yield from found.beside
    for word in found.variables:
        name, _, value = word.text().partition("=")
        yield from variable(name, At(f"{word.where}[{name}]", value), context)
    yield from line_results(found.words, context)


def text_program(at: At, context: LineContext, image: str) -> Iterator[Result]:
    """Translate a command that is one text or a list of words."""
    words = split_line(at.value, at.where) if isinstance(at.value, str) else at.items()
    yield from program(words, context, image)


def _with_rest(rules: Rules, remedy: str, at: At) -> Rules:
    """Add a rule for every other field, which spec.template can have."""
    rest = left_rule(remedy)
    return {**dict.fromkeys(map(str, at.object()), rest), **rules}


def resources(at: At) -> Iterator[Result]:
    """Translate the resources of a container."""
    devices: dict[str, int] = {}
    memory: str | None = None
    for part in ("requests", "limits"):
        amounts = at.below(part)
        for name, value in amounts.object().items():
            field = At(f"{amounts.where}[{name}]", value)
            if name == "memory":
                memory = field.text()
            elif _DEVICE.fullmatch(str(name)):
                yield from _device(str(name), field, devices)
            elif name not in _HOSTS:
                yield left(field.where, _RESOURCE)
    if devices or memory is not None:
        yield Machine(at.where, tuple(devices.items()), memory)
    if at.object().get("requests") or at.object().get("limits"):
        yield unneeded(
            at.where,
            "the operator requests CPU and memory of the host by the devices; "
            "spec.template changes it",
        )
    for name in at.object():
        if name not in ("requests", "limits"):
            yield left(f"{at.where}.{name}", "set devices by spec.accelerator; claim: {} for DRA")


def _device(name: str, at: At, devices: dict[str, int]) -> Iterator[Result]:
    text = at.text()
    if not text.isdecimal():
        yield left(at.where, "must be a whole number of devices; correct it")
    elif "gpu" in name.lower() or name.startswith(("amd.com/", "nvidia.com/")):
        if int(text):
            devices[name] = int(text)
    else:
        yield left(at.where, _RESOURCE)


def mounts_of(spec: Mapping[str, Any], main: str | None) -> dict[str, str]:
    """Return the folders of a pod's serving container that are on claims, with their locations."""
    claims = {
        volume.get("name"): claim["claimName"]
        for volume in _objects(spec.get("volumes"))
        if isinstance(claim := volume.get("persistentVolumeClaim"), Mapping)
        and claim.get("claimName")
    }
    containers = list(_objects(spec.get("containers")))
    chosen = [each for each in containers if each.get("name") == main] or containers[:1]
    return {
        str(mount["mountPath"]): "/".join(
            filter(None, (f"pvc://{claims[mount['name']]}", str(mount.get("subPath") or "")))
        )
        for each in chosen
        for mount in _objects(each.get("volumeMounts"))
        if mount.get("name") in claims and mount.get("mountPath")
    }


def _objects(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, Mapping))
