"""KServe's LLMInferenceService (serving.kserve.io/v1alpha1 and v1alpha2).

Fields: kserve/kserve, pkg/apis/serving/v1alpha2/llm_inference_service_types.go; forms:
docs/samples/llmisvc. The container `main` runs vLLM; VLLM_ADDITIONAL_ARGS has further flags.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atom_operator.importing.engine_line import LineContext
from atom_operator.importing.lora_flags import adapter
from atom_operator.importing.model_source import adapter_source, model_results
from atom_operator.importing.objects import (
    fields_of,
    is_of_kind,
    name_of,
    namespace_of,
    object_results,
    replica_results,
)
from atom_operator.importing.pod_parts import metadata, mounts_of, pod
from atom_operator.importing.results import (
    Imported,
    Machine,
    Result,
    Setting,
    left,
    unneeded,
)
from atom_operator.importing.rules import At, Rule, Rules, into, mapped, number, walk
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule

KIND = "LLMInferenceService"
_MAIN = "main"
_MODEL_FOLDER = "/mnt/models"
_NODES = left_rule("spec.parallelism.nodes sets the number of nodes of a replica")
_SCALING_BY = left_rule("replicas follow the load by spec.autoscaling's own targets")
_ROLE_FIELDS = (
    "engine.maxNumSeqs",
    "engine.maxNumBatchedTokens",
    "engine.gpuMemoryUtilization",
    "engine.schedulingPolicy",
)


def is_llm_inference_service(document: object) -> bool:
    """Return whether a document is of this kind."""
    return is_of_kind(document, "serving.kserve.io", KIND)


def deployments(at: At) -> Iterator[Imported]:
    """Translate an LLMInferenceService."""
    name = name_of(at)
    spec = at.below("spec")
    uri = fields_of(spec.object().get("model")).get("uri")
    mounts = mounts_of(fields_of(spec.object().get("template")), _MAIN)
    context = LineContext(
        name, {_MODEL_FOLDER: str(uri or ""), **mounts}, str(uri or "") or None, is_named=True
    )
    results = [
        Setting("model.servedName", name, "metadata.name", is_default=True),
        *object_results(at, rules(context)),
    ]
    yield Imported(name, namespace_of(at), KIND, at.where, results)


def rules(context: LineContext) -> Rules:
    """Return the rules of the fields of spec."""
    return {
        **workload_rules(context),
        "model": into(_model_rules(context)),
        "speculator": into(_SPECULATOR),
        "router": into(_ROUTER),
        "prefill": lambda at: _prefill(at, context),
        "runtime": unneeded_rule("the engine is ATOM's"),
        "trustRemoteCode": unneeded_rule("a model's own code is never run, and none is needed"),
        "storageInitializer": unneeded_rule(
            "pods download the model, or spec.cache.weights does it once"
        ),
        "tracing": left_rule("--otlp-traces-endpoint URL in spec.engine.extraArgs sends spans"),
        "baseRefs": left_rule(
            "the LLMInferenceServiceConfig is not read; import its fields too, or write an "
            "AtomProfile"
        ),
    }


def workload_rules(context: LineContext) -> Rules:
    """Return the rules of a WorkloadSpec, which the spec has and prefill is."""
    return {
        "replicas": number("replicas"),
        "scaling": _scaling,
        "parallelism": into(_PARALLELISM),
        "labels": metadata("labels"),
        "annotations": metadata("annotations"),
        "template": lambda at: pod(at, context, _MAIN),
        "worker": lambda at: _worker(at, context),
        "rolloutStrategy": left_rule("spec.rollout.strategy chooses; by default Auto"),
        "kvCacheOffloading": into(_OFFLOADING),
    }


_PARALLELISM: Rules = {
    "tensor": number("parallelism.tensor"),
    "data": number("parallelism.data"),
    "expert": mapped("parallelism.expert"),
    "pipeline": left_rule("a copy is divided by parallelism.tensor, over parallelism.nodes"),
    "dataLocal": left_rule("parallelism.nodes divides the copies of data over nodes"),
    "dataRPCPort": unneeded_rule("the operator sets the ports between ranks"),
}


def _bytes(at: At) -> Iterator[Result]:
    yield Setting("cache.kv.hostMemory", at.text(), at.where)


_DISK = left_rule("spec.cache.kv.disk has size and claim; its folder is the operator's")
_OFFLOADING: Rules = {
    "cpuBytesToUse": _bytes,
    "cpu": into(
        {
            "size": _bytes,
            "evictionPolicy": left_rule("--kv-offload-policy in spec.engine.extraArgs"),
            "blockSize": left_rule("blocks of all tiers have spec.engine.blockSize tokens"),
        }
    ),
    "evictionPolicy": left_rule("--kv-offload-policy in spec.engine.extraArgs"),
    "secondaryTiers": _DISK,
    "fileSystem": _DISK,
    "objectStore": left_rule("the tiers are the host's memory and files; spec.cache.kv"),
}


def _method(at: At) -> Iterator[Result]:
    yield Setting("engine.speculative.method", at.text(), at.where)


def _draft(at: At) -> Iterator[Result]:
    source = adapter_source(at.text())
    if source is None:
        yield left(at.where, "give the draft model as hf://ORG/NAME or path:///FOLDER")
    else:
        yield Setting("engine.speculative.draftModel", source, at.where)


_SPECULATOR: Rules = {
    "model": into({"uri": _draft}),
    "config": into(
        {
            "method": _method,
            "num_speculative_tokens": number("engine.speculative.tokens"),
            "draft_tensor_parallel_size": unneeded_rule("drafts run on the model's own devices"),
        }
    ),
}


def _model_rules(context: LineContext) -> Rules:
    return {
        "uri": lambda at: model_results(at.text(), at.where),
        "name": mapped("model.servedName"),
        "criticality": left_rule("the Gateway's InferenceObjective sets priorities"),
        "lora": into(
            {
                "adapters": lambda at: _adapters(at, context),
                "maxRank": number("engine.lora.maxLoraRank"),
                "maxAdapters": number("engine.lora.maxLoras"),
                "maxCpuAdapters": number("engine.lora.maxCpuLoras"),
            }
        ),
    }


def _adapters(at: At, context: LineContext) -> Iterator[Result]:
    for item in at.items():
        fields = item.object()
        name, uri = str(fields.get("name") or ""), str(fields.get("uri") or "")
        yield from adapter(name, uri, item.where, context.mounts)
        for key in fields:
            if key not in ("name", "uri"):
                yield left(f"{item.where}.{key}", "an adapter has a name and a location alone")


def _scaling(at: At) -> Iterator[Result]:
    yield from replica_results(at.below("minReplicas"), at.below("maxReplicas"))
    own: Rules = {"wva": _SCALING_BY, "hpa": _SCALING_BY, "keda": _SCALING_BY}
    yield from walk(at, own, frozenset({"minReplicas", "maxReplicas"}))


def _worker(at: At, context: LineContext) -> Iterator[Result]:
    yield from _NODES(at)
    for result in pod(at, context, _MAIN):
        if isinstance(result, (Setting, Machine)):
            result = unneeded(result.where, "the pods of a group are alike: set it in template")
        yield result


def _prefill(at: At, context: LineContext) -> Iterator[Result]:
    """Translate the prefill pods. Only some options may differ between the roles."""
    yield Setting("disaggregation.prefill", {}, at.where)
    for result in walk(at, workload_rules(context)):
        if isinstance(result, Setting):
            yield from _of_role(result)
        elif isinstance(result, Machine):
            yield unneeded(result.where, "devices of the role follow its parallelism")
        else:
            yield result


def _of_role(setting: Setting) -> Iterator[Result]:
    path, root = setting.path, setting.path.partition(".")[0]
    alike = path in _ROLE_FIELDS or path in ("parallelism.tensor", "parallelism.data")
    if alike or root in ("replicas", "autoscaling", "template"):
        yield Setting(f"disaggregation.prefill.{path}", setting.value, setting.where)
    else:
        yield left(setting.where, f"both roles have spec.{path}; set it for the deployment")


def _route(at: At) -> Iterator[Result]:
    if not at.object():
        yield unneeded(at.where, "spec.gateway.httpRoute is the route; see router.gateway")
        return
    yield left(at.where, "spec.gateway.httpRoute has parentRefs, hostnames and matches")


def _gateway(at: At) -> Iterator[Result]:
    references = [item for item in at.below("refs").items() if isinstance(item.value, Mapping)]
    if not references:
        yield left(at.where, "name your Gateway in spec.gateway.httpRoute.parentRefs")
        return
    names = ("name", "namespace", "sectionName")
    parents = [
        {key: each.value[key] for key in names if each.value.get(key)} for each in references
    ]
    yield Setting("gateway.httpRoute.parentRefs", parents, at.where)


_PICKER: Rule = left_rule("spec.gateway.pickerTemplate changes the endpoint picker's pods")


def _scheduler(at: At) -> Iterator[Result]:
    yield Setting(
        "gateway.prefixAware",
        True,
        at.where,
        "the endpoint picker routes to the pod that has the prompt's prefix",
    )
    yield from walk(
        at,
        {
            **dict.fromkeys(("template", "labels", "annotations", "replicas"), _PICKER),
            "config": left_rule("the operator renders the picker's configuration"),
            "pool": left_rule("the operator renders the InferencePool"),
        },
    )


_ROUTER: Rules = {
    "route": _route,
    "gateway": _gateway,
    "ingress": left_rule("an Ingress to the Service NAME, port 8000, is yours to write"),
    "scheduler": _scheduler,
}
