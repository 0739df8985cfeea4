"""Values of vLLM production-stack's Helm chart: one deployment for each modelSpec.

Fields: vllm-project/production-stack, helm/values.yaml; forms: tutorials/assets/values-*.yaml. A
Helm value that is empty is unset. vllmConfig has vLLM's flags in camel case.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom_operator.importing.engine_line import LineContext, line_results
from atom_operator.importing.lora_flags import adapter
from atom_operator.importing.model_source import model_results, served_name
from atom_operator.importing.objects import fields_of, replica_results, valid_name
from atom_operator.importing.pod_parts import ACCOUNT, IMAGE, PULL_SECRETS, metadata, template
from atom_operator.importing.pod_parts import resources as resources_of
from atom_operator.importing.results import (
    Imported,
    Machine,
    Result,
    Setting,
    TranslationError,
    left,
    unneeded,
)
from atom_operator.importing.rules import (
    At,
    Rule,
    Rules,
    into,
    number,
    unless_empty,
    walk,
)
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule
from atom_operator.importing.variables import hub_token, variable_list

KIND = "production-stack values"
_ENGINE = "servingEngineSpec"
_PROBE = unneeded_rule("the operator renders the probes of the engine")
_VOLUME = left_rule("spec.cache.weights.claim keeps the weights on a claim of yours")
_SLICES = left_rule("devices are whole, or parts by spec.accelerator.claim.partition")
_RESTRICTED = unneeded_rule("the operator's pods are restricted; spec.template changes it")
_CLASS = left_rule("AMD's devices need no runtime class; leave it out")
_BEHAVIOUR = left_rule("replicas follow the load by spec.autoscaling's own targets")


def is_values(document: object) -> bool:
    """Return whether a document is of this kind."""
    return _ENGINE in fields_of(document) and "apiVersion" not in fields_of(document)


def deployments(at: At) -> Iterator[Imported]:
    """Translate the values: a deployment for each enabled model."""
    values = At("", at.value)
    models = values.below(_ENGINE).below("modelSpec").items()
    chosen = [each for each in models if each.object().get("enabled") is not False]
    if not chosen:
        raise TranslationError(
            f"{at.where}: {_ENGINE}.modelSpec: has no enabled model; give one with modelURL"
        )
    for index, model in enumerate(chosen):
        name = valid_name(str(model.object().get("name") or f"model-{index}"))
        context = LineContext(name)
        disabled = [each for each in models if each not in chosen] if index == 0 else []
        results = [
            *(unneeded(each.where, "the model is disabled") for each in disabled),
            *walk(values.below(_ENGINE), shared_rules(context), frozenset({"modelSpec"})),
            *_compact(walk(model, model_rules(model, context))),
            *walk(values, _around(str(model.object().get("name")), index == 0), _HIDDEN),
        ]
        yield Imported(name, None, KIND, model.where, results)


_HIDDEN = frozenset({_ENGINE})


def _compact(results: Iterator[Result]) -> Iterator[Result]:
    """Join the resources of a model, which the chart has in several fields."""
    machines: list[Machine] = []
    for result in results:
        if isinstance(result, Machine):
            machines.append(result)
        else:
            yield result
    devices = {name: count for each in machines for name, count in each.devices}
    memory = [each.memory for each in machines if each.memory is not None]
    if machines:
        on_cpu = any(each.on_cpu for each in machines)
        where = machines[0].where
        yield Machine(where, tuple(devices.items()), memory[-1] if memory else None, on_cpu)


def model_rules(model: At, context: LineContext) -> Rules:
    """Return the rules of an item of modelSpec."""
    own: Rules = {
        "name": unneeded_rule("it is the AtomDeployment's name"),
        "enabled": unneeded_rule("the model is enabled"),
        "modelURL": _model,
        "replicaCount": _replicas(model),
        "chatTemplate": left_rule("mount a template by spec.template, with --chat-template FILE"),
        "requestGPU": _devices(model),
        "requestGPUType": _device_type,
        "requestMemory": _memory,
        "limitMemory": _memory,
        "resources": resources_of,
        "vllmConfig": into(_flag_rules(context)),
        "lmcacheConfig": into(_LMCACHE),
        "hf_token": _token,
        "env": lambda env: variable_list(env, context),
        "envFromSecret": left_rule("name each variable in spec.engine.env by valueFrom"),
        "enableLoRA": _lora,
        "keda": lambda keda: _keda(keda, model),
        "podAnnotations": metadata("annotations"),
        "labels": metadata("labels"),
        "tolerations": template("spec.tolerations"),
        "affinity": template("spec.affinity"),
        "nodeSelectorTerms": _terms,
        "priorityClassName": template("spec.priorityClassName"),
    }
    return {**own, **{key: unless_empty(rule) for key, rule in {**_MODEL, **own}.items()}}


_MODEL: Rules = {
    "annotations": left_rule("spec.objects sets annotations of the Deployment"),
    "serviceAccountName": ACCOUNT,
    "repository": IMAGE,
    "tag": IMAGE,
    "imagePullSecret": PULL_SECRETS,
    "runtimeClassName": _CLASS,
    "requestCPU": unneeded_rule("the operator requests the host's cores by the devices"),
    "limitCPU": unneeded_rule("the operator requests the host's cores by the devices"),
    **dict.fromkeys(
        (
            *("requestGPUMem", "requestGPUMemPercentage", "requestGPUCores", "limitGPUMem"),
            *("limitGPUMemPercentage", "limitGPUCores"),
        ),
        _SLICES,
    ),
    **dict.fromkeys(
        (
            *("pvcStorage", "pvcAccessMode", "storageClass", "pvcMatchLabels", "pvcLabels"),
            *("pvcAnnotations", "extraVolumes", "extraVolumeMounts"),
        ),
        _VOLUME,
    ),
    "initContainer": left_rule("spec.cache.weights replaces downloads; else use spec.template"),
    "nodeName": left_rule("select nodes by spec.template.spec.nodeSelector"),
    "tolerationsPolicy": unneeded_rule("both lists of tolerations are taken over"),
    "shmSize": unneeded_rule("the operator sizes the shared memory"),
    "raySpec": left_rule("spec.parallelism.nodes spreads a copy over nodes, without Ray"),
    "strategy": left_rule("spec.rollout.strategy chooses; by default Auto"),
    "enableTool": unneeded_rule("tool calls are always on"),
    "toolCallParser": left_rule("the notation is found; else --tool-call-parser in extraArgs"),
}


def _model(at: At) -> Iterator[Result]:
    yield from model_results(at.text(), at.where)
    yield Setting("model.servedName", served_name(at.text()), at.where)


def _replicas(model: At) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        if fields_of(model.object().get("keda")).get("enabled") is True:
            yield unneeded(at.where, "the autoscaler sets the replicas")
        else:
            yield from number("replicas")(at)

    return rule


def _devices(model: At) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        kind = str(model.object().get("requestGPUType") or "nvidia.com/gpu")
        if not at.text().isdecimal():
            raise at.wrong("a whole number of devices")
        yield Machine(at.where, ((kind, int(at.text())),) if int(at.text()) else ())

    return rule


def _device_type(at: At) -> Iterator[Result]:
    yield unneeded(at.where, "it is read with requestGPU")


def _memory(at: At) -> Iterator[Result]:
    yield Machine(at.where, (), at.text())
    yield unneeded(at.where, "the operator requests the host's memory by the devices")


def _flag(name: str) -> str:
    """Return vLLM's flag of a field of vllmConfig."""
    dashed = "".join(f"-{letter.lower()}" if letter.isupper() else letter for letter in name)
    return f"--{dashed}"


_FLAG_FIELDS = (
    "enablePrefixCaching", "enableChunkedPrefill", "maxModelLen", "dtype", "tensorParallelSize",
    "pipelineParallelSize", "maxNumSeqs", "maxLoras", "gpuMemoryUtilization", "runner", "convert",
)  # fmt: skip


def _flag_rules(context: LineContext) -> Rules:
    versions = unneeded_rule("the engine is ATOM's")
    return {
        **{name: unless_empty(_flag_rule(name, context)) for name in _FLAG_FIELDS},
        "extraArgs": lambda at: line_results(at.items(), context),
        "v0": versions,
        "v1": versions,
    }


def _flag_rule(name: str, context: LineContext) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        flag = _flag(name)
        if isinstance(at.value, bool):
            words = [flag if at.value else f"--no-{flag[2:]}"]
        else:
            words = [flag, at.text()]
        yield from line_results([At(at.where, word) for word in words], context)

    return rule


def _token(at: At) -> Iterator[Result]:
    if isinstance(at.value, str):
        yield hub_token(at.where)
        return
    name, key = at.object().get("secretName"), at.object().get("secretKey")
    if name:
        reference = {"name": name, **({"key": key} if key else {})}
        yield Setting("model.tokenSecretRef", reference, at.where)


def _api_key(context: LineContext) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        if isinstance(at.value, str):
            yield from line_results([At(at.where, "--api-key"), At(at.where, "given")], context)
            return
        name, key = at.object().get("secretName"), at.object().get("secretKey")
        if name:
            reference = {"name": name, **({"key": key} if key else {})}
            yield Setting("engine.apiKeySecretRef", reference, at.where)

    return rule


def _lora(at: At) -> Iterator[Result]:
    if at.value is True:
        yield Setting("engine.lora", {}, at.where)
    else:
        yield unneeded(at.where, "adapters are off without spec.engine.lora")


def _terms(at: At) -> Iterator[Result]:
    path = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    yield from template(f"{path}.nodeSelectorTerms")(at)


def _offloading(at: At) -> Iterator[Result]:
    text = at.text()
    if text not in ("0", ""):
        yield Setting("cache.kv.hostMemory", f"{text}Gi", at.where)


def _role(at: At) -> Iterator[Result]:
    yield left(at.where, "spec.disaggregation divides prefill and decode in one AtomDeployment")


_LMCACHE: Rules = {
    "enabled": unneeded_rule("spec.cache.kv turns the tiers of the KV cache on"),
    "cpuOffloadingBufferSize": _offloading,
    "maxLocalCpuSize": _offloading,
    "localCpu": unneeded_rule("spec.cache.kv.hostMemory is the tier in the host's memory"),
    "diskOffloadingBufferSize": left_rule("spec.cache.kv.disk keeps blocks in files"),
    "maxLocalDiskSize": left_rule("spec.cache.kv.disk keeps blocks in files"),
    "logLevel": unneeded_rule("the engine's log tells of the tiers"),
    "kvRole": _role,
}


def _keda(at: At, model: At) -> Iterator[Result]:
    if at.object().get("enabled") is not True:
        yield unneeded(at.where, "autoscaling is off")
        return
    yield from replica_results(at.below("minReplicaCount"), at.below("maxReplicaCount"))
    yield from walk(
        at,
        {
            "cooldownPeriod": number("autoscaling.cooldownSeconds"),
            "pollingInterval": _BEHAVIOUR,
            "idleReplicaCount": left_rule("autoscaling.idle: Sleep frees devices at rest"),
            "initialCooldownPeriod": _BEHAVIOUR,
            "fallback": _BEHAVIOUR,
            "triggers": left_rule("spec.autoscaling has targets, and prometheus names the server"),
            "advanced": _BEHAVIOUR,
        },
        frozenset({"enabled", "minReplicaCount", "maxReplicaCount"}),
    )


def shared_rules(context: LineContext) -> Rules:
    """Return the rules of servingEngineSpec beside modelSpec."""
    rules: Rules = {
        "enableEngine": unneeded_rule("the deployment is made"),
        "labels": left_rule("spec.template.metadata.labels sets labels of the pods"),
        "extraPorts": left_rule("the engine has one port, 8000"),
        "vllmApiKey": _api_key(context),
        "containerPort": unneeded_rule("the operator sets the port"),
        "servicePort": left_rule("the Service NAME has port 8000"),
        "configs": left_rule("name each variable in spec.engine.env by valueFrom"),
        "strategy": left_rule("spec.rollout.strategy chooses; by default Auto"),
        "startupProbe": _PROBE,
        "livenessProbe": _PROBE,
        "readinessProbe": _PROBE,
        "tolerations": template("spec.tolerations"),
        "runtimeClassName": _CLASS,
        "schedulerName": template("spec.schedulerName"),
        "imagePullPolicy": left_rule("set it in spec.template, of the container engine"),
        "securityContext": _RESTRICTED,
        "containerSecurityContext": _RESTRICTED,
        "sidecar": unneeded_rule("adapters are loaded by the operator; no sidecar is needed"),
        "serviceMonitor": _monitor,
    }
    return {name: unless_empty(rule) for name, rule in rules.items()}


def _monitor(at: At) -> Iterator[Result]:
    if at.object().get("enabled") is not True:
        yield unneeded(at.where, "monitoring is off")
        return
    yield Setting("monitoring.podMonitor", {}, at.where)
    yield left(at.where, "labels and interval are in spec.monitoring.podMonitor")


def _routing(at: At) -> Iterator[Result]:
    if at.value in ("prefixaware", "kvaware"):
        yield Setting(
            "gateway.prefixAware",
            True,
            at.where,
            "an endpoint picker behind a Gateway routes by the caches' contents",
        )
    elif at.value == "disaggregated_prefill":
        yield from _role(at)
    else:
        yield unneeded(at.where, "the Service and the frontends balance the load")


def _around(name: str, first: bool) -> Rules:
    """Return the rules of the values beside the engine. They are reported with the first model."""
    if not first:
        silent: Rule = lambda _: ()  # noqa: E731
        rest: Rules = dict.fromkeys(_AROUND, silent)
    else:
        rest = _AROUND
    return {
        **rest,
        "routerSpec": _router(first),
        "loraAdapters": lambda at: _adapters(at, name, first),
    }


_AROUND: Rules = {
    "cacheserverSpec": left_rule("spec.cache.kv has the tiers of the KV cache; no server"),
    "loraController": unneeded_rule("the operator loads adapters"),
    "sharedStorage": left_rule("spec.cache.weights.claim and engine.lora.claims name claims"),
    "sharedPvcStorage": left_rule("spec.cache.weights.claim and engine.lora.claims name claims"),
    "lookupServerSpec": left_rule("spec.cache.kv has the tiers of the KV cache; no server"),
    "grafanaDashboards": left_rule("spec.monitoring.dashboard renders a dashboard"),
    "servingEngineService": left_rule("the Service NAME has port 8000"),
}


def _router(first: bool) -> Rule:
    def rule(at: At) -> Iterator[Result]:
        routing = at.below("routingLogic")
        if routing.value is not None:
            yield from _routing(routing)
        rest = [key for key in at.object() if key != "routingLogic"]
        if rest and first:
            yield left(
                at.where,
                "no router is needed for one model; spec.frontend and spec.gateway replace it",
            )

    return rule


def _adapters(at: At, name: str, first: bool) -> Iterator[Result]:
    for item in at.items():
        fields = item.object()
        if fields.get("baseModel") != name:
            continue
        source = fields_of(fields.get("adapterSource"))
        is_hub = source.get("type") == "huggingface"
        location = source.get("repository") if is_hub else source.get("adapterPath")
        served = str(source.get("adapterName") or fields.get("name") or "")
        yield from adapter(served, str(location or ""), item.where)
        for key in fields:
            if key not in ("name", "baseModel", "adapterSource"):
                yield left(f"{item.where}.{key}", "every pod has every adapter of spec.adapters")
        if source.get("credentials"):
            yield left(
                f"{item.where}.adapterSource.credentials",
                "spec.model.tokenSecretRef is the token of adapters too",
            )
