"""KubeAI's Model (kubeai.org/v1). Fields: kubeai-project/kubeai, api/k8s/v1/model_types.go; forms:
manifests/models of the same repository. A resourceProfile is NAME:COUNT or NAME:COUNT:HOSTS."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import get_args

from atom_operator.api.v1alpha1.accelerator import ProductName
from atom_operator.importing.engine_line import LineContext, line_results
from atom_operator.importing.lora_flags import adapter
from atom_operator.importing.machines import AMD_GPU
from atom_operator.importing.model_source import model_results
from atom_operator.importing.objects import (
    is_of_kind,
    name_of,
    namespace_of,
    object_results,
    replica_results,
)
from atom_operator.importing.pod_parts import IMAGE, template
from atom_operator.importing.results import (
    Imported,
    Machine,
    Result,
    Setting,
    TranslationError,
    changed,
    left,
    unneeded,
)
from atom_operator.importing.rules import At, Rule, Rules, into, number
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule
from atom_operator.importing.variables import variable_map

KIND = "Model"
_PROFILE = re.compile(r"([^:]+):(\d+)(?::(\d+))?")
_NO_LANGUAGE_MODEL = ("FasterWhisper",)


def is_model(document: object) -> bool:
    """Return whether a document is of this kind."""
    return is_of_kind(document, "kubeai.org", KIND)


def deployments(at: At) -> Iterator[Imported]:
    """Translate a Model."""
    name = name_of(at)
    results = [
        Setting("model.servedName", name, "metadata.name", is_default=True),
        *object_results(at, rules(LineContext(name, model="url", is_named=True), at.below("spec"))),
    ]
    yield Imported(name, namespace_of(at), KIND, at.where, results)


def rules(context: LineContext, spec: At) -> Rules:
    """Return the rules of the fields of spec."""
    disabled = spec.object().get("autoscalingDisabled") is True
    return {
        "url": _url,
        "adapters": _adapters,
        "features": unneeded_rule("the model's architecture decides which APIs it has"),
        "engine": _engine,
        "resourceProfile": _profile,
        "cacheProfile": left_rule("spec.cache.weights downloads the model into a claim once"),
        "image": IMAGE,
        "args": lambda args: line_results(args.items(), context),
        "env": lambda env: variable_map(env, context),
        "envFrom": left_rule("name each variable in spec.engine.env by valueFrom"),
        "replicas": number("replicas") if disabled else _by_autoscaler,
        "minReplicas": _least(spec, disabled),
        "maxReplicas": _most(spec, disabled),
        "autoscalingDisabled": unneeded_rule("without spec.autoscaling, replicas stay"),
        "targetRequests": number("autoscaling.targetConcurrency"),
        "scaleDownDelaySeconds": number("autoscaling.cooldownSeconds"),
        "owner": unneeded_rule("/v1/models names no owner"),
        "loadBalancing": into({"strategy": _strategy, "prefixHash": _hash_ring}),
        "files": left_rule("mount a ConfigMap by spec.template"),
        "priorityClassName": template("spec.priorityClassName"),
        "jsonPatches": left_rule("spec.template and spec.templateRemove change the pods"),
    }


_hash_ring: Rule = left_rule("the endpoint picker follows the caches; there is no ring to set")


def _by_autoscaler(at: At) -> Iterator[Result]:
    yield unneeded(at.where, "the autoscaler of the source set it; minReplicas is taken over")


def _url(at: At) -> Iterator[Result]:
    yield from model_results(at.text().partition("?")[0], at.where)
    if "?" in at.text():
        yield left(at.where, "what follows ? in the url has no counterpart; leave it out")


def _adapters(at: At) -> Iterator[Result]:
    for item in at.items():
        fields = item.object()
        yield from adapter(str(fields.get("name") or ""), str(fields.get("url") or ""), item.where)
        for key in fields:
            if key not in ("name", "url"):
                yield left(f"{item.where}.{key}", "an adapter has a name and a location alone")


def _engine(at: At) -> Iterator[Result]:
    if at.text() in _NO_LANGUAGE_MODEL:
        raise TranslationError(
            f"{at.where}: {at.text()} serves speech, and this engine serves language models; keep "
            "the Model where it is"
        )
    yield unneeded(at.where, "the engine is ATOM's")


def _profile(at: At) -> Iterator[Result]:
    found = _PROFILE.fullmatch(at.text())
    if found is None:
        yield left(at.where, "must be NAME:COUNT; set spec.accelerator")
        return
    name, count, hosts = found.groups()
    if name.startswith("cpu"):
        yield Machine(at.where, on_cpu=True)
        yield changed(at.where, "set the pod's memory in spec.accelerator.memory; default: 4Gi")
        return
    product = next((each for each in get_args(ProductName) if each.lower() in name.lower()), None)
    if product is not None:
        yield Setting("accelerator.product", product, at.where)
    yield Machine(at.where, ((name if product is None else AMD_GPU, int(count)),))
    if hosts and hosts != "1":
        yield Setting("parallelism.nodes", int(hosts), at.where)


def _least(spec: At, disabled: bool) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        if disabled:
            yield unneeded(at.where, "autoscaling is disabled")
            return
        yield from replica_results(at, spec.below("maxReplicas"))
        if spec.object().get("maxReplicas") is None:
            yield changed(at.where, "without maxReplicas nothing scales; set spec.autoscaling")

    return rule


def _most(spec: At, disabled: bool) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        if disabled:
            yield unneeded(at.where, "autoscaling is disabled")
        elif spec.object().get("minReplicas") is None:
            yield from replica_results(spec.below("minReplicas"), at)

    return rule


def _strategy(at: At) -> Iterator[Result]:
    if at.value == "PrefixHash":
        yield Setting(
            "gateway.prefixAware",
            True,
            at.where,
            "an endpoint picker behind a Gateway routes by the caches' contents",
        )
    else:
        yield unneeded(at.where, "the Service and the frontends balance the load")
