"""Write what Kubernetes says of a pod template's fields: types, and how their lists are merged.

`python -m tools.generate_pod_schema SWAGGER` reads a release's api/openapi-spec/swagger.json and
writes operator/atom_operator/api/pod_template.json, one line for each type. Merge keys and patch
strategies are the API's own metadata (x-kubernetes-patch-*).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OUTPUT = (
    Path(__file__).resolve().parent.parent
    / "operator"
    / "atom_operator"
    / "api"
    / "pod_template.json"
)
_ROOT = "io.k8s.api.core.v1.PodTemplateSpec"
_LEAVES = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "string",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("swagger", type=Path, help="api/openapi-spec/swagger.json of a release")
    document = json.loads(parser.parse_args(arguments).swagger.read_text(encoding="utf-8"))
    OUTPUT.write_text(_text(_types(document)), encoding="utf-8")
    return 0


def _types(document: Mapping[str, Any]) -> dict[str, Any]:
    """Every type below the pod template by its short name, with its fields."""
    definitions, found, open_names = document["definitions"], {}, [_ROOT]
    while open_names:
        name = open_names.pop()
        if _short(name) in found:
            continue
        fields = definitions[name].get("properties") or {}
        found[_short(name)] = {key: _field(fields[key]) for key in sorted(fields)}
        open_names += [
            reference
            for field in fields.values()
            if (reference := _reference(_element(field))) and reference not in _LEAVES
        ]
    return dict(sorted(found.items()))


def _field(field: Mapping[str, Any]) -> dict[str, str]:
    """`type` is a leaf's, or the name of another type; `in`: it is of each item of a list or
    map."""
    result = {"type": _type(_element(field))}
    if field.get("type") == "array":
        result["in"] = "list"
    elif isinstance(field.get("additionalProperties"), dict):
        result["in"] = "map"
    strategy = field.get("x-kubernetes-patch-strategy")
    if strategy:
        result["strategy"] = strategy
    if key := field.get("x-kubernetes-patch-merge-key"):
        result["key"] = key
    return result


def _element(field: Mapping[str, Any]) -> Mapping[str, Any]:
    inner: Any = field.get("items") or field.get("additionalProperties")
    return inner if isinstance(inner, dict) else field


def _reference(element: Mapping[str, Any]) -> str | None:
    reference = element.get("$ref")
    return reference.rsplit("/", 1)[-1] if reference else None


def _type(element: Mapping[str, Any]) -> str:
    reference = _reference(element)
    if reference is None:
        return str(element["type"])
    return _LEAVES.get(reference, _short(reference))


def _short(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def _text(types: Mapping[str, Any]) -> str:
    lines = (f'"{name}": {json.dumps(fields)}' for name, fields in types.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main())
