"""The fields of a pod template as Kubernetes publishes them: types, and how their lists are merged.

The data, pod_template.json, is the API's own metadata (tools/generate_pod_schema.py). A newer
cluster has fields that the file lacks: they are not checked here, and the API server judges them.
Pure; read by the overlay and by the admission of spec.template.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

ROOT = "PodTemplateSpec"
LEAVES = frozenset({"string", "integer", "number", "boolean", "quantity", "int-or-string", "any"})


@dataclass(frozen=True, slots=True)
class PodField:
    """Describe one field. `type` names a leaf or another type; for lists and maps, that of their
    items."""

    type: str
    container: Literal["list", "map"] | None = None
    merges: bool = False  # a list whose items are merged rather than replaced
    retains_keys: bool = False  # an item keeps only the keys that the overlay names
    key: str | None = None  # which identifies an item of a list that is merged

    @property
    def is_leaf(self) -> bool:
        return self.type in LEAVES


_UNKNOWN = PodField("any")
_REPLACE = {"$patch": "replace"}  # of a whole list, as a separate item


def field_of(type_name: str, name: str) -> PodField:
    """Return the field `name` of a type; one of which nothing is known where Kubernetes had
    none."""
    return fields_of(type_name).get(name, _UNKNOWN)


def fields_of(type_name: str) -> Mapping[str, PodField]:
    """Return every field of a type; none for leaves and unknown types."""
    return _types().get(type_name, {})


def lacking_keys(template: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the path of every item of an overlay that lacks the key by which its list is merged,
    and the key."""
    yield from _lacking(template, PodField(ROOT), "")


def _lacking(value: Any, field: PodField, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for number, item in enumerate(value):
            where = f"{path}[{number}]"
            identified = field.merges and field.key is not None and item != _REPLACE
            if identified and isinstance(item, Mapping) and item.get(str(field.key)) is None:
                yield where, str(field.key)
            yield from _lacking(item, PodField(field.type), where)
    elif isinstance(value, Mapping) and field.container != "map":
        for name, inner in value.items():
            yield from _lacking(inner, field_of(field.type, name), f"{path}.{name}".lstrip("."))


@cache
def _types() -> Mapping[str, Mapping[str, PodField]]:
    text = files("atom_operator.api").joinpath("pod_template.json").read_text(encoding="utf-8")
    types: Mapping[str, Mapping[str, Any]] = json.loads(text)
    return {
        name: {field: _field(entry) for field, entry in fields.items()}
        for name, fields in types.items()
    }


def _field(entry: Mapping[str, Any]) -> PodField:
    strategies = entry.get("strategy", "").split(",")
    return PodField(
        type=entry["type"],
        container=entry.get("in"),
        merges="merge" in strategies,
        retains_keys="retainKeys" in strategies,
        key=entry.get("key"),
    )
