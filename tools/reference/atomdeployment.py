"""The pages of the AtomDeployment and the AtomProfile: every field of the CRDs' schemas, with its
bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.api.crd import build_crd, build_profile_crd
from tools.reference.markdown import code, codes, head, table

_HEAD = """
Every field of an `AtomDeployment` (`serving.atom.dev/v1alpha1`), from the schema of its
CustomResourceDefinition. `kubectl explain atomdeployment.spec` prints the same on a cluster.
A field without a default is left to the operator, and its text says to what. `[]` is each item of a
list, `.*` each value of a map.
"""
_PROFILE_HEAD = """
Every field of an `AtomProfile` (`serving.atom.dev/v1alpha1`), from the schema of its
CustomResourceDefinition; [how it is laid below a spec](../guides/site-profiles.md). `[]` is each
item of a list, `.*` each value of a map.
"""
Schema = Mapping[str, Any]


def page() -> str:
    return head("AtomDeployment", _HEAD) + _tables(build_crd())


def profile_page() -> str:
    return head("AtomProfile", _PROFILE_HEAD) + _tables(build_profile_crd())


def _tables(crd: Mapping[str, Any]) -> str:
    top = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    parts: list[str] = []
    for name in (name for name in ("spec", "status") if name in top):
        for part, schema in top[name]["properties"].items():
            path = f"{name}.{part}"
            rows = list(_rows(path, schema))
            parts.append(f"\n## {path}\n{table(('field', 'type', 'default', 'meaning'), rows)}")
        parts += _rules(name, top[name])
    return "".join(parts)


def _rows(path: str, schema: Schema) -> Iterator[tuple[str, str, str, str]]:
    default = code(schema["default"]) if schema.get("default") not in (None, "") else ""
    rules = "; ".join(rule["message"] for rule in schema.get("x-kubernetes-validations", ()))
    meaning = schema.get("description", "")
    if rules:
        meaning = f"{meaning} *Checked:* {rules}.".strip()
    yield code(path), _type(schema), default, meaning
    for name, below in schema.get("properties", {}).items():
        yield from _rows(f"{path}.{name}", below)
    for suffix, below in (("[]", schema.get("items")), (".*", schema.get("additionalProperties"))):
        # Plain items are said by the list's own row.
        if isinstance(below, Mapping) and ("properties" in below or "description" in below):
            yield from _rows(f"{path}{suffix}", below)


def _rules(name: str, schema: Schema) -> Iterator[str]:
    rules = [rule["message"] for rule in schema.get("x-kubernetes-validations", ())]
    if rules:
        yield f"\n## Rules over {name}\n" + "".join(f"- {rule}\n" for rule in rules)


def _type(schema: Schema) -> str:
    if "enum" in schema:
        return codes(schema["enum"])
    if schema.get("x-kubernetes-int-or-string"):
        return "quantity"
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and isinstance(schema.get("additionalProperties"), Mapping):
        return f"map of {_type(schema['additionalProperties'])}"
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f"{kind}, {least} to {most}"
    return str(kind)
