"""The deployments that a text holds: which documents there are, and of which kind each is. Pure.

The kind is found by apiVersion and kind, or by the shape. Errors of YAML are told by line and
column alone: the text itself may be secret.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from atom_operator.importing.objects import fields_of
from atom_operator.importing.results import Finding, Imported, TranslationError, left
from atom_operator.importing.rules import At
from atom_operator.importing.sources import (
    command_line,
    compose,
    kserve_inference,
    kserve_llm,
    kubeai,
    nim,
    production_stack,
)
from atom_operator.served_schema.kubectl_yaml import read_documents

_SOURCES: Sequence[tuple[Callable[[object], bool], Callable[[At], Iterator[Imported]]]] = (
    (kserve_inference.is_inference_service, kserve_inference.deployments),
    (kserve_llm.is_llm_inference_service, kserve_llm.deployments),
    (kubeai.is_model, kubeai.deployments),
    (production_stack.is_values, production_stack.deployments),
    (compose.is_compose, compose.deployments),
)
FORMS = (
    "a KServe InferenceService or LLMInferenceService, a KubeAI Model, an NVIDIA NIMService, "
    "production-stack values, a Compose file, or a line of vllm serve or sglang"
)


def deployments(text: str, where: str) -> tuple[list[Imported], list[Finding]]:
    """Return the deployments of a text, and findings about its other documents. where: the name of
    the file. Raises `TranslationError`."""
    found = _documents(text, where)
    if found is None:
        return list(command_line.deployments(text, where)), []
    objects = [_at(where, index, item, len(found)) for index, item in enumerate(found)]
    caches = [each for each in objects if nim.is_nim_cache(each.value)]
    imported: list[Imported] = []
    beside: list[Finding] = []
    for each in objects:
        read = _read(each, caches)
        if read is None:
            beside.append(_other(each))
        else:
            imported += read
    if not imported:
        kinds = ", ".join(sorted({_kind(each.value) for each in objects})) or "nothing"
        raise TranslationError(f"{where}: holds {kinds}; give {FORMS}")
    return imported, beside


def _read(at: At, caches: Sequence[At]) -> list[Imported] | None:
    if nim.is_nim_service(at.value):
        return list(nim.deployments(at, caches))
    for is_of_kind, read in _SOURCES:
        if is_of_kind(at.value):
            return list(read(at))
    return None


def _documents(text: str, where: str) -> list[Any] | None:
    """Return the documents of YAML or JSON, the items of lists included; None for a line."""
    try:
        found = read_documents(text)
    except yaml.YAMLError as error:
        if command_line.has_program(text):
            return None
        raise TranslationError(f"{where}: {_place(error)}; give {FORMS}") from None
    if any(isinstance(item, str) for item in found) and command_line.has_program(text):
        return None
    if not found:
        raise TranslationError(f"{where}: is empty; give {FORMS}")
    for item in found:
        if not isinstance(item, Mapping):
            raise TranslationError(f"{where}: holds no object; give {FORMS}")
    return [
        each
        for item in found
        for each in (item["items"] if isinstance(item.get("items"), list) else [item])
    ]


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return "is neither YAML nor JSON"
    return f"line {mark.line + 1}, column {mark.column + 1}: is neither YAML nor JSON; correct it"


def _at(where: str, index: int, item: Any, count: int) -> At:
    return At(where if count == 1 else f"{where}, document {index + 1}", item)


def _kind(document: object) -> str:
    kind = fields_of(document).get("kind")
    return kind if isinstance(kind, str) and kind else "an object without a kind"


def _other(at: At) -> Finding:
    if nim.is_nim_cache(at.value):
        return left(at.where, "NIMCache: spec.cache.weights downloads a model into a claim once")
    return left(at.where, f"{_kind(at.value)}: is no deployment; keep it if it is still needed")
