"""Fields of objects as server-side apply merges them: who owns which, lists by their keys.

Used by FakeCluster, which keeps the objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from atom_operator.domain import Manifest

Path = tuple[str, ...]

# Lists that the API server merges item by item; all others belong to whoever wrote them last.
_LIST_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "ownerReferences": "uid",
}


def copied(value: Any) -> Any:
    """A copy of what JSON can say, many times faster than copy.deepcopy."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def leaves(node: Any, path: Path = ()) -> Iterable[Path]:
    if isinstance(node, dict) and node:
        for name, value in node.items():
            yield from leaves(value, (*path, name))
    elif _is_keyed(path[-1], node):
        for item in node:
            yield from leaves(item, (*path, f"[{item[_LIST_KEYS[path[-1]]]}]"))
    else:
        yield path


def _is_keyed(name: str, value: Any) -> bool:
    key = _LIST_KEYS.get(name)
    return key is not None and isinstance(value, list) and all(key in item for item in value)


def merge(stored: Manifest, wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        if isinstance(value, dict):
            child = stored.get(name)
            stored[name] = child if isinstance(child, dict) else {}
            merge(stored[name], value)
        elif _is_keyed(name, value):
            stored[name] = _merge_items(stored.get(name) or [], value, _LIST_KEYS[name])
        else:
            stored[name] = copied(value)


def _merge_items(stored: list[Any], wanted: list[Any], key: str) -> list[Any]:
    before, asked = {item[key]: item for item in stored}, {item[key]: item for item in wanted}
    merged = {name: before.get(name, {}) for name in _merged_order(list(before), list(asked))}
    for name, item in asked.items():
        merge(merged[name], item)
    return list(merged.values())


def _merged_order(before: list[str], asked: list[str]) -> list[str]:
    """The order of structured-merge-diff: what is applied keeps its own, others' items come as
    soon as theirs allows. So an apply and a replacement write the same list."""
    order: list[str] = []
    place = 0
    for number, name in enumerate(asked):
        shared = next((item for item in asked[number:] if item in before), None)
        while place < len(before) and before[place] not in (shared, name):
            if before[place] not in asked:
                order.append(before[place])
            place += 1
        place += before[place : place + 1] == [name]
        order.append(name)
    return [*order, *(item for item in before[place:] if item not in asked)]


def remove(stored: Manifest, path: Path) -> None:
    """Remove a field, and the maps that are empty without it."""
    nodes: list[Any] = [stored]
    for depth, name in enumerate(path[:-1]):
        nodes.append(_step(nodes[-1], name, path[depth - 1]))
        if nodes[-1] is None:
            return
    for node, name in zip(reversed(nodes), reversed(path), strict=True):
        if not isinstance(node, dict):
            return
        node.pop(name, None)
        if node:
            return


def value_at(stored: Any, path: Path) -> Any:
    """Return the value of a field, or None if there is none."""
    node = stored
    for depth, name in enumerate(path):
        node = _step(node, name, path[depth - 1])
    return node


def _step(node: Any, name: str, list_name: str) -> Any:
    if isinstance(node, list):
        key = _LIST_KEYS[list_name]
        return next((item for item in node if f"[{item.get(key)}]" == name), None)
    return node.get(name) if isinstance(node, dict) else None


def drop_nameless_items(node: Any) -> None:
    """An item whose identity was removed is gone, and so are a list and a map that are empty
    without it."""
    if not isinstance(node, dict):
        return
    for name, value in list(node.items()):
        was_full = bool(value)
        if name in _LIST_KEYS and isinstance(value, list) and value:
            node[name] = [item for item in value if _LIST_KEYS[name] in item]
            if not node[name]:
                del node[name]
        for child in value if isinstance(value, list) else [value]:
            drop_nameless_items(child)
        if isinstance(value, dict) and not value and was_full:
            del node[name]
