"""Compose files with a service that runs vLLM or SGLang.

Fields: the Compose specification (compose-spec/compose-spec, 05-services.md and deploy.md); forms:
published files that run vllm/vllm-openai and lmsysorg/sglang.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.importing.engine_line import LineContext
from atom_operator.importing.objects import fields_of, valid_name
from atom_operator.importing.pod_parts import text_program
from atom_operator.importing.program_line import program_line, split_line
from atom_operator.importing.results import (
    Imported,
    Machine,
    Result,
    TranslationError,
    changed,
    left,
    unneeded,
)
from atom_operator.importing.rules import At, Rules, number, walk
from atom_operator.importing.rules import left as left_rule
from atom_operator.importing.rules import unneeded as unneeded_rule
from atom_operator.importing.variables import variable, variable_map

KIND = "Compose service"
_IMAGE = re.compile(r"(vllm|sglang)", re.I)
_CPU_IMAGE = re.compile(r"(^|[-_/:])cpu\b")
_DEFAULT = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*:?-([^${}]*)\}")
_AMD_DEVICES = re.compile(r"/dev/(kfd|dri)")
_MACHINE = left_rule("a setting of the machine's containers; the operator renders the pods")
_KUBERNETES = unneeded_rule("Kubernetes and the operator do this themselves")


def is_compose(document: object) -> bool:
    """Return whether a document is of this kind."""
    fields = fields_of(document)
    return isinstance(fields.get("services"), Mapping) and "apiVersion" not in fields


def deployments(at: At) -> Iterator[Imported]:
    """Translate each service that runs a server."""
    file = At("", with_defaults(at.value))
    services = file.below("services")
    chosen = [name for name in services.object() if _serves(services.below(name))]
    if not chosen:
        raise TranslationError(
            f"{at.where}: services: none runs vLLM or SGLang; give the file that does, or the line "
            "as kubectl atom import 'vllm serve …'"
        )
    for index, name in enumerate(chosen):
        service = services.below(name)
        context = LineContext(valid_name(str(name)))
        results = [*service_results(service, context)]
        if index == 0:
            results += _beside(file, services, chosen)
        yield Imported(context.name, None, KIND, service.where, results)


def with_defaults(value: Any) -> Any:
    """Replace ${NAME:-default} by its default everywhere."""
    if isinstance(value, str):
        return _DEFAULT.sub(r"\1", value)
    if isinstance(value, Mapping):
        return {key: with_defaults(item) for key, item in value.items()}
    if isinstance(value, list):
        return [with_defaults(item) for item in value]
    return value


def _serves(service: At) -> bool:
    fields = service.object()
    words = [*_words(service.below("entrypoint")), *_words(service.below("command"))]
    image = str(fields.get("image") or "")
    return bool(_IMAGE.search(image)) or program_line(words, "") is not None


def _words(at: At) -> list[At]:
    if isinstance(at.value, str):
        return split_line(at.value, at.where)
    return at.items()


def service_results(service: At, context: LineContext) -> Iterator[Result]:
    """Translate one service."""
    fields = service.object()
    image = str(fields.get("image") or "")
    words = At(
        f"{service.where}.command",
        [word.text() for part in ("entrypoint", "command") for word in _words(service.below(part))],
    )
    yield from walk(service, rules(context), frozenset({"entrypoint", "command"}))
    if _CPU_IMAGE.search(image):
        yield Machine(service.where, on_cpu=True)
    yield from text_program(words, context, image)


def rules(context: LineContext) -> Rules:
    """Return the rules of a service's fields; every other field is of the machine."""
    return {
        "image": unneeded_rule("the engine's image is the operator's setting"),
        "build": left_rule("the engine's image is the operator's; spec.engine.image is another"),
        "environment": lambda at: _environment(at, context),
        "env_file": left_rule("put the variables into spec.engine.env"),
        "deploy": _deploy,
        "ports": left_rule("the Service NAME has port 8000; spec.gateway.httpRoute opens it"),
        "expose": unneeded_rule("the Service NAME has port 8000"),
        "volumes": left_rule("spec.cache keeps models and kernels on claims; models: pvc://"),
        "gpus": _gpus,
        "devices": _devices,
        "scale": number("replicas"),
        "mem_limit": _memory,
        "depends_on": left_rule("pods wait for nothing; clients try again"),
        "labels": left_rule("spec.template.metadata.labels sets labels of the pods"),
        "secrets": left_rule("name Secrets in spec.engine.env, or mount them by spec.template"),
        "configs": left_rule("mount ConfigMaps by spec.template"),
        **dict.fromkeys(
            (
                *("container_name", "restart", "healthcheck", "networks", "init", "stdin_open"),
                *("tty", "ipc", "shm_size", "pull_policy", "logging", "hostname", "profiles"),
                *("stop_grace_period", "runtime", "group_add", "ulimits"),
            ),
            _KUBERNETES,
        ),
        **dict.fromkeys(
            (
                *("privileged", "cap_add", "cap_drop", "security_opt", "user", "network_mode"),
                *("extra_hosts", "working_dir", "sysctls", "cpus", "mem_reservation", "extends"),
                *("dns", "tmpfs", "read_only", "platform", "userns_mode", "pid", "annotations"),
            ),
            _MACHINE,
        ),
    }


def _environment(at: At, context: LineContext) -> Iterator[Result]:
    if not isinstance(at.value, list):
        yield from variable_map(at, context)
        return
    for item in at.items():
        name, equals, value = item.text().partition("=")
        where = f"{at.where}[{name}]"
        if equals:
            yield from variable(name, At(where, value), context)
        else:
            yield left(where, "its value is the shell's; put it into spec.engine.env")


def _deploy(at: At) -> Iterator[Result]:
    yield from walk(
        at,
        {
            "replicas": number("replicas"),
            "resources": _resources,
            "update_config": left_rule("spec.rollout.strategy chooses; by default Auto"),
            **dict.fromkeys(("restart_policy", "mode", "endpoint_mode"), _KUBERNETES),
            **dict.fromkeys(("placement", "labels", "rollback_config"), _MACHINE),
        },
    )


def _resources(at: At) -> Iterator[Result]:
    yield from walk(at, {}, frozenset(("limits", "reservations")))
    for part in ("limits", "reservations"):
        amounts = at.below(part)
        for name, value in amounts.object().items():
            field = At(f"{amounts.where}.{name}", value)
            if name == "devices":
                yield from _reserved(field)
            elif name == "memory":
                yield from _memory(field)
            else:
                yield unneeded(field.where, "the operator requests the host's cores by the devices")


def _reserved(at: At) -> Iterator[Result]:
    for item in at.items():
        fields = item.object()
        listed = fields.get("device_ids")
        count = len(listed) if isinstance(listed, list) else fields.get("count", "all")
        kind = "amd.com/gpu" if fields.get("driver") in ("amd", "rocm") else "nvidia.com/gpu"
        if isinstance(count, int) and not isinstance(count, bool):
            yield Machine(item.where, ((kind, count),))
        else:
            yield changed(item.where, "all devices: spec.parallelism decides how many a pod has")


def _gpus(at: At) -> Iterator[Result]:
    if isinstance(at.value, list):
        yield from _reserved(at)
    else:
        yield changed(at.where, "all devices: spec.parallelism decides how many a pod has")


def _devices(at: At) -> Iterator[Result]:
    for item in at.items():
        if isinstance(item.value, str) and _AMD_DEVICES.match(item.value):
            yield unneeded(item.where, "the device plugin gives pods their devices")
        else:
            yield left(item.where, "set devices by spec.accelerator")


def _memory(at: At) -> Iterator[Result]:
    text = at.text().strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([bkmg])?b?", text, re.I)
    unit = {"k": "Ki", "m": "Mi", "g": "Gi"}.get((match[2] or "").lower(), "") if match else ""
    if match is None:
        yield left(at.where, "is no size; spec.accelerator.memory is a pod's on cpu")
    else:
        yield Machine(at.where, (), f"{match[1]}{unit}")
        yield unneeded(at.where, "the operator requests the host's memory by the devices")


def _beside(file: At, services: At, chosen: list[Any]) -> list[Result]:
    found: list[Result] = [
        left(f"{services.where}.{name}", "a service beside the server; write its Deployment")
        for name in services.object()
        if name not in chosen
    ]
    found += [
        left(name, "a part of the Compose file has no counterpart; the cluster has its own")
        for name, value in file.object().items()
        if name not in ("services", "version", "name") and value and not str(name).startswith("x-")
    ]
    return found
