"""NVIDIA's NIMService (apps.nvidia.com/v1alpha1).

Fields: NVIDIA/k8s-nim-operator, api/apps/v1alpha1/{nimservice,common}_types.go; forms:
config/samples/nim. A NIM's image has the model, so its location is that of the NIMCache's hf
source, of NIM_MODEL_NAME, or of the model of the catalogue with the image's name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from atom_operator.importing.engine_line import LineContext
from atom_operator.importing.model_source import model_results
from atom_operator.importing.objects import (
    fields_of,
    is_of_kind,
    name_of,
    namespace_of,
    object_results,
    replica_results,
)
from atom_operator.importing.pod_parts import (
    IMAGE,
    PLACEMENT,
    metadata,
    program,
    resources,
    template,
)
from atom_operator.importing.results import (
    Imported,
    Machine,
    Result,
    Setting,
    left,
    unneeded,
)
from atom_operator.importing.rules import At, Rules, into, number, walk
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule
from atom_operator.importing.variables import variable_list
from atom_operator.plan.model_facts import catalogue_sources

KIND = "NIMService"
_CACHE_KIND = "NIMCache"
_GROUP = "apps.nvidia.com"
_PROBE = unneeded_rule("the operator renders the probes of the engine")
_BY_TEMPLATE = "set it in spec.template.spec"


def is_nim_service(document: object) -> bool:
    """Return whether a document is of this kind."""
    return is_of_kind(document, _GROUP, KIND)


def is_nim_cache(document: object) -> bool:
    """Return whether a document is a NIMCache, which names the model of a NIMService."""
    return is_of_kind(document, _GROUP, _CACHE_KIND)


def deployments(at: At, caches: Sequence[At] = ()) -> Iterator[Imported]:
    """Translate a NIMService. caches: the NIMCaches of the same file."""
    name, spec = name_of(at), at.below("spec")
    results = [
        *_model(spec, caches),
        *object_results(at, rules(LineContext(name, is_named=True), spec)),
    ]
    yield Imported(name, namespace_of(at), KIND, at.where, results)


def rules(context: LineContext, spec: At) -> Rules:
    """Return the rules of the fields of spec."""
    own: Rules = {
        **PLACEMENT,
        "type": unneeded_rule("the model's architecture decides which APIs it has"),
        "image": IMAGE,
        "command": lambda _: _words(spec, context),
        "args": lambda _: () if spec.object().get("command") else _words(spec, context),
        "env": lambda env: variable_list(env, context),
        "authSecret": unneeded_rule("NVIDIA's key opens its own registry alone"),
        "storage": into(_STORAGE),
        "labels": metadata("labels"),
        "annotations": metadata("annotations"),
        "podAffinity": template("spec.affinity.podAffinity"),
        "resources": lambda at: _resources(at, spec),
        "draResources": left_rule("spec.accelerator.claim claims devices of AMD's DRA driver"),
        "expose": into(_EXPOSE),
        "router": left_rule("spec.gateway routes; name your Gateway in httpRoute.parentRefs"),
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "startupProbe": _PROBE,
        "scale": _scale,
        "metrics": _metrics,
        "replicas": number("replicas"),
        "userID": unneeded_rule("the operator's pods run as an unprivileged user"),
        "groupID": unneeded_rule("the operator's pods run as an unprivileged user"),
        "runtimeClass": left_rule("AMD's devices need no runtime class; leave it out"),
        "runtimeClassName": left_rule("AMD's devices need no runtime class; leave it out"),
        "inferencePlatform": unneeded_rule("the operator renders the pods itself"),
        "multiNode": into(_MULTI_NODE),
        "proxy": left_rule("set HTTPS_PROXY and NO_PROXY in spec.engine.env"),
        "initContainers": left_rule(f"{_BY_TEMPLATE}.initContainers"),
        "sidecarContainers": left_rule(f"{_BY_TEMPLATE}.containers"),
        "volumes": left_rule(f"{_BY_TEMPLATE}.volumes"),
        "volumeMounts": left_rule(f"{_BY_TEMPLATE}.containers, of the container engine"),
    }
    return own


def _model(spec: At, caches: Sequence[At]) -> Iterator[Result]:
    """Find the model's location; a setting of NIM_MODEL_NAME, which comes later, wins."""
    wanted = fields_of(fields_of(spec.object().get("storage")).get("nimCache")).get("name")
    for cache in caches:
        if name_of(cache) == wanted:
            source = fields_of(fields_of(fields_of(cache.value).get("spec")).get("source"))
            hub = fields_of(source.get("hf"))
            where = f"{cache.where}.spec.source.hf"
            if hub.get("namespace") and hub.get("modelName"):
                text = f"hf://{hub['namespace']}/{hub['modelName']}"
                yield from model_results(text, where)
                yield Setting(
                    "model.servedName", text.removeprefix("hf://"), where, is_default=True
                )
                if hub.get("revision"):
                    yield Setting("model.revision", hub["revision"], where)
                return
    repository = str(fields_of(spec.object().get("image")).get("repository") or "")
    found = _of_catalogue(repository)
    if found is not None:
        where = "spec.image.repository"
        note = (
            f"the NIM's image has the weights; {found} is the catalogue's model of the same name, "
            "compare its licence and weights"
        )
        yield Setting("model.source", found, where, note, is_default=True)
        name = "/".join(repository.split("/")[-2:])
        yield Setting("model.servedName", name, where, is_default=True)


def _of_catalogue(repository: str) -> str | None:
    name = _plain(repository.rpartition("/")[2])
    return next(
        (each for each in catalogue_sources() if _plain(each.rpartition("/")[2]) == name), None
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _words(spec: At, context: LineContext) -> Iterator[Result]:
    words = [*spec.below("command").items(), *spec.below("args").items()]
    yield from program(words, context, "vllm")


def _resources(at: At, spec: At) -> Iterator[Result]:
    for result in resources(at):
        yield result
        if isinstance(result, Machine) and result.devices:
            nodes = fields_of(fields_of(spec.object().get("multiNode")).get("parallelism"))
            if not nodes.get("tp"):
                # A NIM chooses its profile by the devices of the pod.
                count = sum(count for _, count in result.devices)
                yield Setting("parallelism.tensor", count, result.where)


_STORAGE: Rules = {
    "nimCache": unneeded_rule("spec.model.source names the model; spec.cache.weights keeps it"),
    "pvc": left_rule("spec.cache.weights.claim keeps the weights on a claim"),
    "hostPath": left_rule("spec.cache.weights.claim keeps the weights on a claim"),
    "emptyDir": unneeded_rule("pods have a folder for downloads"),
    "readOnly": unneeded_rule("pods mount claims with weights read-only"),
    "sharedMemorySizeLimit": unneeded_rule("the operator sizes the shared memory"),
}
_EXPOSE: Rules = {
    "service": unneeded_rule("the Service NAME has port 8000"),
    "ingress": left_rule("an Ingress to the Service NAME, port 8000, is yours to write"),
    "router": left_rule("spec.gateway routes; name your Gateway in httpRoute.parentRefs"),
}
_MULTI_NODE: Rules = {
    "parallelism": into(
        {
            "tp": number("parallelism.tensor"),
            "pp": left_rule("a copy is divided by parallelism.tensor, over parallelism.nodes"),
        }
    ),
    "mpi": unneeded_rule("ranks find each other by the operator's settings"),
    "backendType": unneeded_rule("the operator makes a LeaderWorkerSet"),
}


def _scale(at: At) -> Iterator[Result]:
    fields = at.object()
    if fields.get("enabled") is not True:
        yield unneeded(at.where, "autoscaling is off")
        return
    group = at.below("hpa")
    yield from replica_results(group.below("minReplicas"), group.below("maxReplicas"))
    yield from walk(
        group,
        {
            "metrics": left_rule("replicas follow running and waiting requests and the KV cache"),
            "behavior": left_rule("spec.autoscaling.cooldownSeconds delays the removal of pods"),
        },
        frozenset({"minReplicas", "maxReplicas"}),
    )
    for key in fields:
        if key not in ("enabled", "hpa"):
            yield left(f"{at.where}.{key}", "spec.objects sets annotations of the autoscaler")


def _metrics(at: At) -> Iterator[Result]:
    if at.object().get("enabled") is not True:
        yield unneeded(at.where, "monitoring is off")
        return
    yield Setting("monitoring.podMonitor", {}, at.where)
    yield from walk(
        at,
        {"serviceMonitor": left_rule("spec.monitoring.podMonitor has labels and interval")},
        frozenset({"enabled"}),
    )
