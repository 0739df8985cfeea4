"""The CustomResourceDefinitions, generated from the models: structural schema, CEL, columns.

Pure: models in, dict out. tools/generate_crds.py writes the result; a test compares.
JSON Schema 2020-12 becomes the OpenAPI v3 subset of a structural schema: references are inlined,
titles dropped, `X | null` becomes optional X, exclusive bounds become flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic import BaseModel

from atom_operator import constants
from atom_operator.api.v1alpha1 import (
    AtomDeploymentSpec,
    AtomDeploymentStatus,
    AtomProfileSpec,
    AtomProfileStatus,
)
from atom_operator.api.v1alpha1.common import cel_rule

_CREATED = ".metadata.creationTimestamp"
_DROPPED = ("title", "$defs", "additionalProperties")
_NAME_PATTERN = rf"^[a-z]([-a-z0-9]{{0,{constants.MAX_NAME_LENGTH - 2}}}[a-z0-9])?$"
_NAME_RULE = cel_rule(
    f"self.metadata.name.matches('{_NAME_PATTERN}')",
    f"metadata.name must be at most {constants.MAX_NAME_LENGTH} characters of a-z, 0-9 and '-',"
    " start with a letter and end with a letter or digit",
)


def build_crd() -> dict[str, Any]:
    """Render the whole manifest of atomdeployments.serving.atom.dev."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{constants.PLURAL}.{constants.GROUP}"},
        "spec": {
            "group": constants.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": constants.KIND,
                "listKind": f"{constants.KIND}List",
                "plural": constants.PLURAL,
                "singular": constants.SINGULAR,
                "shortNames": [constants.SHORT_NAME],
                "categories": ["all"],
            },
            "versions": [
                {
                    "name": constants.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": _printer_columns(),
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "schema": {"openAPIV3Schema": _root_schema()},
                }
            ],
        },
    }


def build_profile_crd() -> dict[str, Any]:
    """Render the whole manifest of atomprofiles.serving.atom.dev, which belong to no namespace."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{constants.PROFILE_PLURAL}.{constants.GROUP}"},
        "spec": {
            "group": constants.GROUP,
            "scope": "Cluster",
            "names": {
                "kind": constants.PROFILE_KIND,
                "listKind": f"{constants.PROFILE_KIND}List",
                "plural": constants.PROFILE_PLURAL,
                "singular": constants.PROFILE_KIND.lower(),
            },
            "versions": [
                {
                    "name": constants.VERSION,
                    "served": True,
                    "storage": True,
                    "additionalPrinterColumns": [
                        _column("Deployments", "integer", ".status.deployments"),
                        _column("Waiting", "integer", ".status.waiting"),
                        _column("Age", "date", _CREATED),
                    ],
                    "subresources": {"status": {}},
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "What is laid below the specs of AtomDeployments.",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": structural_schema(AtomProfileSpec),
                                "status": structural_schema(AtomProfileStatus),
                            },
                        }
                    },
                }
            ],
        },
    }


# Of an object that no operator has looked at yet: kstatus takes one without a status for current.
UNSEEN: Final[Mapping[str, Any]] = {"observedGeneration": -1, "conditions": []}


def _root_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "A model served by ATOM engine pods.",
        "required": ["spec"],
        "x-kubernetes-validations": [_NAME_RULE],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural_schema(AtomDeploymentSpec),
            "status": {**structural_schema(AtomDeploymentStatus), "default": dict(UNSEEN)},
        },
    }


def _printer_columns() -> list[dict[str, Any]]:
    ready = '.status.conditions[?(@.type=="Ready")]'
    return [
        _column("Ready", "string", f"{ready}.status"),
        _column("Replicas", "string", ".status.serving"),
        _column("Reason", "string", f"{ready}.reason"),
        _column("Model", "string", ".spec.model.source"),
        _column("KV-Tokens", "integer", ".status.capacity.kvTokens"),
        _column("Max-Seqs", "integer", ".status.capacity.maxSequences"),
        _column("Age", "date", _CREATED),
        _column("Accelerator", "string", ".spec.accelerator.type", 1),
        _column("Revision", "string", ".status.revision", 1),
        _column("URL", "string", ".status.url", 1),
        _column("Drafts-Kept-%", "integer", ".status.speculation.acceptedPercent", 1),
    ]


def _column(name: str, kind: str, path: str, priority: int = 0) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "type": kind, "jsonPath": path}
    return {**entry, "priority": priority} if priority else entry


def structural_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Convert the model's schema to the form that Kubernetes accepts in a CRD."""
    schema = model.model_json_schema(by_alias=True)
    definitions = cast("dict[str, Any]", schema.get("$defs", {}))
    return _convert(schema, definitions)


def _convert(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    merged = _inline(node, definitions)
    result = {key: value for key, value in merged.items() if key not in _DROPPED}
    if "description" in result:
        result["description"] = " ".join(result["description"].split())
    if "const" in result:
        result["enum"] = [result.pop("const")]
    if result.get("type") == "integer":
        result["format"] = "int64"
    for bound, flag in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if flag in result:
            result[bound], result[flag] = result[flag], True
    if "properties" in result:
        result["properties"] = {
            name: _convert(child, definitions) for name, child in result["properties"].items()
        }
    if isinstance(merged.get("additionalProperties"), dict):  # a map, and not "nothing else"
        result["additionalProperties"] = _convert(merged["additionalProperties"], definitions)
    if "items" in result:
        result["items"] = _convert(result["items"], definitions)
    # A default of null means "absent", and a default object would be written into every spec.
    if result.get("default", 0) is None or isinstance(result.get("default"), dict):
        del result["default"]
    return result


def _inline(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the node's reference and its `anyOf [X, null]` by X; outer keys win."""
    merged = dict(node)
    while "$ref" in merged or "anyOf" in merged:
        if "$ref" in merged:
            inner = definitions[merged.pop("$ref").rsplit("/", 1)[-1]]
        else:
            options = [item for item in merged.pop("anyOf") if item.get("type") != "null"]
            if len(options) != 1:
                raise TypeError(f"a structural schema has no unions: {node}")
            (inner,) = options
        merged = {**inner, **merged}
    return merged
