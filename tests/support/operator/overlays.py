"""Overlays of a pod template made from Kubernetes' own schema, for generated tests.

`overlay` makes what a user may write: fields of the right type, nulls and directives among them.
`odd_values` puts something that cannot be read where a leaf, a list or an object should be.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

from atom_operator.api.pod_schema import ROOT, PodField, fields_of

# Some name what is rendered, some do not.
_KEYS: dict[str, list[Any]] = {
    "containers": ["engine", "side"],
    "initContainers": ["first", "preflight"],
    "volumes": ["cache", "tmp", "shm", "big"],
    "env": ["HOME", "HF_TOKEN", "HF_HOME", "X"],
    "ports": [8000, 9000],
    "volumeMounts": ["/cache", "/tmp", "/big"],
    "volumeDevices": ["/dev/a", "/dev/b"],
    "topologySpreadConstraints": ["kubernetes.io/hostname", "zone"],
    "imagePullSecrets": ["first", "second"],
    "hostAliases": ["10.0.0.1", "10.0.0.2"],
    "resourceClaims": ["nic"],
    "schedulingGates": ["queue"],
}
_ONE_OF = ("Volume", "EnvVar", "EnvVarSource", "LifecycleHandler", "Probe", "PodResourceClaim")
_UNIONS = {
    "EnvVar": {"value", "valueFrom"},
    "Probe": {"exec", "grpc", "httpGet", "tcpSocket"},
}
# Our tolerations are kept, which is the one deviation; what no template may say; and the two names
# of the account, which the API server keeps equal.
_LEFT_OUT = {"tolerations", "ephemeralContainers", "ownerReferences", "managedFields"}
_LEFT_OUT |= {"serviceAccount", "serviceAccountName"}
_DEPTH = 6
_ODD: tuple[Any, ...] = (
    *(7, -1, 1.5, True, "", "r7", "1e999999999", "x" * 300),
    *([], [7], ["a"], {}, {"a": 1}, [[]]),
)


def overlay(chance: random.Random, base: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a pod template, with directives where `base` has something to direct."""
    return {
        section: _struct(chance, PodField(type_name), base.get(section), 1)
        for section, type_name in (("metadata", "ObjectMeta"), ("spec", "PodSpec"))
        if section == "spec" or chance.random() < 0.3
    }


def _struct(chance: random.Random, field: PodField, base: Any, depth: int) -> dict[str, Any]:
    names = [name for name in fields_of(field.type) if name not in _LEFT_OUT]
    union = _UNIONS.get(field.type, set(names) if field.type in _ONE_OF else set())
    union -= {"name"}
    some = chance.sample(names, min(len(names), chance.randint(1, 4)))
    one = [name for name in some if name in union][:1]
    there = base if isinstance(base, Mapping) else {}
    result: dict[str, Any] = {}
    for name in some:
        if name in union and name not in one:
            continue
        if name in there and name not in union and chance.random() < 0.1:
            result[name] = None
        else:
            inner = fields_of(field.type)[name]
            result[name] = value(chance, name, inner, there.get(name), depth + 1)
    if there and depth > 2 and not union:
        _direct(chance, result, there)
    return result


def _direct(chance: random.Random, made: dict[str, Any], base: Mapping[str, Any]) -> None:
    """Now and then a directive about the whole object."""
    luck = chance.random()
    if luck < 0.05:
        made.clear()
        made["$patch"] = "delete"
    elif luck < 0.15:
        made["$retainKeys"] = sorted({*made, *list(base)[:2]})


def value(chance: random.Random, name: str, field: PodField, base: Any, depth: int) -> Any:
    """What may stand in a field; `base` is what stands there."""
    if field.container == "list":
        return _items(chance, name, field, base, depth)
    if field.container == "map":
        keys = chance.sample(["a.b/c", "team", "memory", "zone"], 2)
        return {key: _leaf(chance, field.type) for key in keys}
    if field.is_leaf:
        return _leaf(chance, field.type)
    return _struct(chance, field, base, depth) if depth < _DEPTH else {}


def _items(chance: random.Random, name: str, field: PodField, base: Any, depth: int) -> list[Any]:
    inner = PodField(field.type)
    if not field.merges or field.key is None:
        made = [value(chance, name, inner, None, depth + 1) for _ in range(chance.randint(0, 2))]
        return list(dict.fromkeys(made)) if field.is_leaf else made
    known = {item.get(field.key): item for item in base or ()}
    keys = _KEYS.get(name, ["a", "b"])
    result: list[Any] = []
    for key in chance.sample(keys, chance.randint(1, len(keys))):
        if key in known and key != "engine" and chance.random() < 0.2:
            result.append({field.key: key, "$patch": "delete"})
        else:
            made = _struct(chance, inner, known.get(key), depth + 1)
            result.append({**made, field.key: key} if "$patch" not in made else {field.key: key})
            retained = result[-1].get("$retainKeys")
            if retained is not None and field.key not in retained:
                retained.append(field.key)
    if base and name not in ("containers",) and chance.random() < 0.1:
        # Below a replacement the API server looks for no directives.
        result = [item for item in result if not any(name[0] == "$" for name in item)]
        result.append({"$patch": "replace"})
    return result


def _leaf(chance: random.Random, kind: str) -> Any:
    match kind:
        case "integer" | "number":
            return chance.randint(1, 9)
        case "boolean":
            return chance.random() < 0.5
        case "quantity":
            return chance.choice(["1", "500m", "4Gi"])
        case _:
            return chance.choice(["one", "two", "r7"])


def said_to_kubectl(
    overlay: Mapping[str, Any], base: Any, field: PodField | None = None
) -> dict[str, Any]:
    """The patch that says the same to `kubectl patch --type strategic`: what our overlay implies
    (of fields that exclude each other the rendered one goes) is spelled out, as `kubectl apply`
    does."""
    field = field or PodField(ROOT)
    there = base if isinstance(base, Mapping) else {}
    result: dict[str, Any] = {}
    for name, item in overlay.items():
        inner = fields_of(field.type).get(name, PodField("any"))
        result[name] = _said(item, there.get(name), inner)
    union = _UNIONS.get(field.type, set(fields_of(field.type)) if field.type in _ONE_OF else set())
    union = union - {"name"}
    if field.type not in ("Volume", "PodResourceClaim") and union & set(overlay):
        result |= dict.fromkeys(union & set(there) - set(overlay))
    return result


def _said(item: Any, base: Any, field: PodField) -> Any:
    if isinstance(item, Mapping) and not field.is_leaf and field.container is None:
        return said_to_kubectl(item, base, field)
    if not isinstance(item, list) or not field.merges or field.key is None:
        return item
    known = {one.get(field.key): one for one in base or ()}
    if {"$patch": "replace"} in item:
        return item
    return [_said_item(one, known.get(one.get(field.key)), field) for one in item]


def _said_item(item: Mapping[str, Any], base: Any, field: PodField) -> Mapping[str, Any]:
    if base is None or "$patch" in item:
        return item
    said = said_to_kubectl(item, base, PodField(field.type))
    if field.retains_keys and "$retainKeys" not in said:
        said["$retainKeys"] = [name for name in said if not name.startswith("$")]
    return said


def odd_values(template: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Overlays, each with something odd in one place of `template`, and where that is."""
    for path in _places(template):
        for odd in _ODD:
            yield f"{'.'.join(map(str, path))}={odd!r:.40}", _with(template, path, odd)


def odd_fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Overlays, each with something odd in one field that Kubernetes gives a pod, whether or not it
    is rendered, or in one field of an item or an object there; and where that is."""
    for section, type_name in (("metadata", "ObjectMeta"), ("spec", "PodSpec")):
        for odd in (*_ODD, None):
            yield f"{section}={odd!r:.40}", {section: odd}
        for name, field in fields_of(type_name).items():
            for odd in (*_ODD, None):
                yield f"{section}.{name}={odd!r:.40}", {section: {name: odd}}
            for inner in fields_of(field.type) if field.container != "map" else ():
                for odd in (
                    7,
                    "x",
                    [],
                    [7],
                    [[]],
                    None,
                    {"a": {"b": 1}},
                    [{}],
                    [{"$patch": "replace"}],
                ):
                    within: Any = {inner: odd}
                    if field.container == "list":
                        within = [{field.key: "engine", **within} if field.key else within]
                    where = f"{section}.{name}.{inner}={odd!r:.40}"
                    yield where, {section: {name: within}}


def odd_directives() -> Iterator[tuple[str, dict[str, Any]]]:
    """Overlays with directives that say nothing of use, at each level, and what they say."""
    for name in ("$patch", "$retainKeys", "$setElementOrder/containers", "$other"):
        for odd in (
            7,
            "x",
            "replace",
            "delete",
            [],
            [7],
            [[]],
            [{}],
            [{"name": []}],
            {"a": 1},
            None,
        ):
            for where, overlay in {
                "": {name: odd},
                "spec": {"spec": {name: odd}},
                "item": {"spec": {"containers": [{"name": "engine", name: odd}]}},
                "list": {"spec": {"containers": [{name: odd}, {"name": "engine"}]}},
                "twice": {"spec": {"volumes": [{name: odd}, {"name": "cache"}, {"name": "cache"}]}},
            }.items():
                yield f"{where}.{name}={odd!r:.40}", overlay


def _places(node: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    entries = node.items() if isinstance(node, Mapping) else ()
    if isinstance(node, list):
        entries = list(enumerate(node))
    for name, inner in entries:
        yield from _places(inner, (*path, name))


def _with(node: Any, path: tuple[Any, ...], odd: Any) -> Any:
    if not path:
        return odd
    copied = list(node) if isinstance(node, list) else dict(node)
    copied[path[0]] = _with(node[path[0]], path[1:], odd)
    return copied
