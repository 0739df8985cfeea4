"""KServe's InferenceService (serving.kserve.io/v1beta1) that serves a language model.

Fields: kserve/kserve, pkg/apis/serving/v1beta1/{predictor,component,inference_service}.go; the
flags of its Hugging Face server: docs/modelserving/v1beta1/llm/huggingface of kserve/website.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

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
from atom_operator.importing.pod_parts import container, metadata, mounts_of, pod
from atom_operator.importing.results import (
    Imported,
    Machine,
    Result,
    Setting,
    TranslationError,
    left,
)
from atom_operator.importing.rules import At, Rule, Rules, number, walk
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule

KIND = "InferenceService"
_MODEL_FOLDER = "/mnt/models"  # where KServe mounts storageUri
_MAIN = "kserve-container"
_OTHER_FRAMEWORKS = (
    "sklearn", "xgboost", "tensorflow", "pytorch", "triton", "onnx", "pmml", "lightgbm", "paddle",
)  # fmt: skip
# Flags of KServe's own server, by the flag of the engine with the same meaning.
_OWN_FLAGS = {
    "--model_id": "--model",
    "--model_name": "--served-model-name",
    "--model_revision": "--revision",
    "--max_length": "--max-model-len",
    "--http_port": "--port",
}
_NO_FLAGS = {
    "--model_dir": "spec.model.source names the model",
    "--backend": "the engine is ATOM's",
    "--task": "the model's architecture decides which APIs it has",
    "--grpc_port": "the API is HTTP",
    "--enable_docs_url": "/docs is there in any case",
    "--workers": "processes for HTTP are --api-server-count",
}
_PREDICTOR: Rules = {
    "scaleTarget": number("autoscaling.targetConcurrency"),
    "scaleMetric": left_rule("replicas follow running and waiting requests and the KV cache"),
    "scaleMetricType": left_rule("replicas follow running and waiting requests and the KV cache"),
    "autoScaling": left_rule("set spec.autoscaling"),
    "containerConcurrency": number("engine.maxNumSeqs"),
    "timeout": left_rule("--request-timeout-seconds in spec.engine.extraArgs bounds a request"),
    "canaryTrafficPercent": left_rule("spec.canary takes a share of the requests"),
    "logger": left_rule("prompts and answers are never logged; a gateway can"),
    "batcher": unneeded_rule("the engine batches continuously"),
    "labels": metadata("labels"),
    "annotations": metadata("annotations"),
    "deploymentStrategy": left_rule("spec.rollout.strategy chooses; by default Auto"),
}


def is_inference_service(document: object) -> bool:
    """Return whether a document is of this kind."""
    return is_of_kind(document, "serving.kserve.io", KIND)


def deployments(at: At) -> Iterator[Imported]:
    """Translate an InferenceService."""
    name = name_of(at)
    results = [
        Setting("model.servedName", name, "metadata.name", is_default=True),
        *object_results(
            at,
            {
                "predictor": lambda predictor: _predictor(predictor, name),
                "transformer": left_rule("the engine applies the chat template itself"),
                "explainer": left_rule("language models have no explainer here"),
            },
        ),
    ]
    yield Imported(name, namespace_of(at), KIND, at.where, results)


def _predictor(at: At, name: str) -> Iterator[Result]:
    fields = at.object()
    for framework in _OTHER_FRAMEWORKS:
        if fields.get(framework) is not None:
            raise _no_language_model(At(f"{at.where}.{framework}", None), framework)
    context = LineContext(
        name, {_MODEL_FOLDER: _storage(at), **mounts_of(fields, _MAIN)}, is_named=True
    )
    for server in ("model", "huggingface"):
        if fields.get(server) is not None:
            yield from _served_model(at.below(server), context)
    least, most = at.below("minReplicas"), at.below("maxReplicas")
    yield from replica_results(least, most)
    yield from walk(At(at.where, _known(fields)), rules(context))
    rest = {key: value for key, value in fields.items() if key not in _OF_PREDICTOR}
    yield from pod(At(at.where, rest), context, _MAIN)


def rules(context: LineContext) -> Rules:
    """Return the rules of the predictor's own fields; the others are of a PodSpec."""
    return {**_PREDICTOR, "storageUris": _storages, "workerSpec": _workers(context)}


_READ = ("model", "huggingface", "minReplicas", "maxReplicas")
_OF_PREDICTOR = frozenset({*_READ, *_PREDICTOR, "storageUris", "workerSpec"})


def _known(fields: object) -> dict[str, object]:
    return {
        key: value
        for key, value in fields_of(fields).items()
        if key in _OF_PREDICTOR and key not in _READ
    }


def _storage(at: At) -> str:
    """Return the location that KServe mounts as the model's folder; empty if there is none."""
    for server in ("model", "huggingface"):
        uri = fields_of(at.object().get(server)).get("storageUri")
        if uri:
            return str(uri)
    return ""


def _served_model(at: At, context: LineContext) -> Iterator[Result]:
    fields = at.object()
    own: Rules = {
        "modelFormat": _format,
        "storageUri": lambda uri: model_results(uri.text(), uri.where),
        "storage": left_rule("give the bucket as --model s3://BUCKET/PREFIX, with spec.model.s3"),
        "runtime": unneeded_rule("the engine is ATOM's"),
        "runtimeVersion": unneeded_rule("the engine is ATOM's"),
        "protocolVersion": left_rule("the API is OpenAI's, below /v1"),
    }
    yield from walk(At(at.where, {k: v for k, v in fields.items() if k in own}), own)
    known = replace(context, model=str(fields.get("storageUri") or "") or None)
    rest = {key: value for key, value in fields.items() if key not in own}
    if isinstance(rest.get("args"), list):
        rest["args"] = [*_translated(at.below("args"))]
        yield from _own_flags(at.below("args"))
    yield from container(At(at.where, rest), known)


def _translated(args: At) -> Iterator[object]:
    """Yield the words of the line without the flags that only KServe's server has. A word that is
    left out keeps its place, so that paths of the others stay right."""
    skips = False
    for word in args.items():
        flag, equals, value = word.text().partition("=")
        own = _own(flag)
        if own in _NO_FLAGS or (skips and not flag.startswith("-")):
            skips = not equals
            yield ""
        else:
            skips = False
            yield f"{_OWN_FLAGS.get(own, flag)}{equals}{value}"


def _own_flags(args: At) -> Iterator[Result]:
    for word in args.items():
        own = _own(word.text().partition("=")[0])
        if own in _NO_FLAGS:
            yield left(word.where, f"{own}: {_NO_FLAGS[own]}; leave it out")


def _own(flag: str) -> str:
    """Write a flag as KServe's server does: --model_name."""
    return f"--{flag[2:].replace('-', '_')}" if flag.startswith("--") else flag


def _format(at: At) -> Iterator[Result]:
    name = str(at.object().get("name") or "")
    if name.lower() in _OTHER_FRAMEWORKS:
        raise _no_language_model(at, name)
    yield from unneeded_rule("the engine reads Hugging Face's checkpoints and GGUF files")(at)


def _no_language_model(at: At, name: str) -> TranslationError:
    return TranslationError(
        f"{at.where}: {name} is no engine of language models, and this operator has no other; keep "
        "the InferenceService where it is"
    )


def _storages(at: At) -> Iterator[Result]:
    first, *rest = at.items() or [at]
    yield from model_results(str(fields_of(first.value).get("uri") or ""), first.where)
    for item in rest:
        yield left(item.where, "a model has one location; adapters are spec.adapters")


def _workers(context: LineContext) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        own: Rules = {
            "pipelineParallelSize": left_rule(
                "a copy is divided by parallelism.tensor, over parallelism.nodes"
            ),
            "tensorParallelSize": number("parallelism.tensor"),
        }
        yield from walk(At(at.where, {k: v for k, v in at.object().items() if k in own}), own)
        rest = {key: value for key, value in at.object().items() if key not in own}
        for result in pod(At(at.where, rest), context, "worker-container"):
            if isinstance(result, (Setting, Machine)):
                result = left(result.where, "the pods of a group are alike; set it for all of them")
            yield result

    return rule
