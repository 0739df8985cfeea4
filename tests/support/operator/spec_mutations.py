"""Every field of the AtomDeployment's spec with values to change it to, read from the CRD's schema.

A field that is added to the API is mutated without a word here; only what a schema cannot tell (a
ConfigMap that exists, a useful overlay) is listed in `_BETTER`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.api.crd import build_crd

_BETTER: Mapping[str, tuple[Any, ...]] = {
    "model.source": ("path:///models/other", "hf://Qwen/Qwen3-8B", "pvc://claim/models/tiny"),
    "model.config": ({}, {"architectures": ["Unheard"]}),
    "engine.extraArgs": (["--log-level", "debug"], ["--model=other"]),
    "engine.env": ([{"name": "A", "value": "1"}], []),
    "accelerator.resourceName": ("amd.com/cpx_nps4",),
    "accelerator.memory": ("64Gi",),
    "template": (
        {"spec": {"priorityClassName": "batch"}},
        {"metadata": {"labels": {"team": "a"}}, "spec": {"containers": [{"name": "side"}]}},
        {"spec": {"containers": "many"}},
    ),
}


@dataclass(frozen=True, slots=True)
class Mutation:
    """Set `path` (dotted, below spec) to `value`."""

    path: str
    value: Any

    def __str__(self) -> str:
        return f"{self.path}={self.value!r}"[:80]

    def of(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """`spec` with the change, and with the siblings that its schema then requires."""
        result = copy.deepcopy(dict(spec))
        *outer, name = self.path.split(".")
        node, schema = result, _spec_schema()
        for part in outer:
            schema = schema["properties"][part]
            fresh = part not in node
            node = node.setdefault(part, {})
            if fresh:
                for needed in schema.get("required", ()):
                    node[needed] = next(_values(schema["properties"][needed]))
        node[name] = self.value
        return result


def mutations() -> list[Mutation]:
    """Of every field, in the schema's order."""
    return list(_of(_spec_schema(), ""))


@functools.cache
def _spec_schema() -> dict[str, Any]:
    (version,) = build_crd()["spec"]["versions"]
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def _of(schema: Mapping[str, Any], prefix: str) -> Iterator[Mutation]:
    for name, field in schema["properties"].items():
        path = f"{prefix}{name}"
        if field.get("properties") and path not in _BETTER:
            yield from _of(field, f"{path}.")
        else:
            yield from (Mutation(path, value) for value in _BETTER.get(path) or _values(field))


def _values(field: Mapping[str, Any]) -> Iterator[Any]:
    kind = field.get("type")
    if "enum" in field:
        yield from field["enum"]
    elif kind == "boolean":
        yield from (True, False)
    elif kind == "integer":
        least, most = field.get("minimum", 0), field.get("maximum", 1000)
        yield from sorted({least, min(most, least + 1), min(most, 32), most})
    elif kind == "number":
        yield from (field.get("minimum", 0.5), 0.25)
    elif kind == "string":
        yield "changed"[: field.get("maxLength", 100)]
    elif kind == "array":
        yield [next(_values(field["items"]))]
    elif field.get("properties"):
        required = field.get("required") or list(field["properties"])[:1]
        yield {name: next(_values(field["properties"][name])) for name in required}
    else:
        yield {"changed": "value"}
