"""Suggest the field or value that a user most likely meant. Pure; called for refused manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Any

_LIKE = 0.7  # difflib's ratio from which two names count as the same one misspelt


def nearest(name: str, known: Iterable[str], like: float = _LIKE) -> str | None:
    """Return the known name that equals `name` but for case, '_' and '-', else the most similar
    one; None if no ratio of similarity (0 to 1) reaches `like`."""
    by_form = {_form(each): each for each in known}
    form = _form(name)
    if form in by_form:
        return by_form[form]
    close = get_close_matches(form, by_form, n=1, cutoff=like)
    return by_form[close[0]] if close else None


def place_of(name: str, schema: Mapping[str, Any], path: str) -> str | None:
    """Return the path of the first field below `path` whose name equals `name` but for case, '_'
    and '-'; None if the schema has none. Finds a field that was written one level too high."""
    wanted = _form(name)
    found = (place for field, place in _fields(schema, path) if _form(field) == wanted)
    return next((place.removeprefix(".") for place in found), None)


def did_you_mean(found: str | None) -> str:
    """Return the clause that follows a refusal; empty without a suggestion."""
    return f"; did you mean {found}?" if found is not None else ""


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield the name and path of every field, those near the root first."""
    level = [(schema, path)]
    while level:
        below = []
        for node, place in level:
            for name, child in node.get("properties", {}).items():
                yield name, f"{place}.{name}"
                below.append((child, f"{place}.{name}"))
            if isinstance(node.get("items"), Mapping):
                below.append((node["items"], f"{place}[]"))
        level = below


def _form(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
