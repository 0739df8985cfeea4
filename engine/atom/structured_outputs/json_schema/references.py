"""SchemaDocument: one schema, its places, and the targets of its references.

Resolves `$ref` by JSON pointer (through arrays too, with ~0, ~1 and percent-escapes), by anchor and
by `$id`; it never reads anything outside the schema. `$dynamicRef` and `$recursiveRef` are resolved
if they can have only one target. Pure.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote, urljoin

from atom.structured_outputs.json_schema.keywords import Path, refusal, subschemas

_DIALECTS = {"draft-03": 3, "draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019,
           "2020-12": 2020}  # fmt: skip
_INDEX = re.compile(r"0|[1-9]\d*")
_WRONG_TILDE = re.compile(r"~(?![01])")


class SchemaDocument:
    """A schema with its references resolved. dialect: the year or number that `$schema` names; None
    if there is none."""

    def __init__(self, root: Any) -> None:
        self._made: dict[Path, Any] = {}
        self._root = root
        said = root.get("$schema") if isinstance(root, dict) else None
        dialects = (year for name, year in _DIALECTS.items() if name in str(said))
        self.dialect: int | None = next(dialects, None)
        self._resources: dict[str, Path] = {"": ()}
        self._anchors: dict[tuple[str, str], Path] = {}
        self._dynamic: dict[str, list[Path]] = {}
        self._recursive: list[Path] = []
        self._index()

    @property
    def refs_stand_alone(self) -> bool:
        """Return whether the keywords beside `$ref` are ignored, as they were up to draft 7."""
        return self.dialect is not None and self.dialect <= 7

    def at(self, path: Path) -> Any:
        """Return the value at a path, including converted ones."""
        if path in self._made:
            return self._made[path]
        found = self._root
        for part in path:
            found = found[part]
        self._made[path] = found
        return found

    def make(self, path: Path, schema: Any) -> Path:
        """Give a schema that is written nowhere a path, below the place it follows from."""
        self._made[path] = schema
        return path

    def target(self, path: Path, keyword: str) -> Path:
        """Return the target of the reference at a path. Raises `SchemaError`."""
        reference = self.at(path)[keyword]
        if keyword == "$recursiveRef":
            return self._recursive_target(path, reference)
        base = self._base(path)
        uri, _, fragment = reference.partition("#")
        resource = urljoin(base, uri).rstrip("#") if uri else base
        if resource not in self._resources:
            raise refusal(
                path,
                keyword,
                f"leads elsewhere ({reference!r}); only places in the schema itself, such as "
                f"#/$defs/name, are read: put what it names under $defs",
            )
        fragment = unquote(fragment)
        if fragment == "":
            return self._resources[resource]
        if fragment.startswith("/"):
            return self._pointer(path, keyword, self._resources[resource], fragment)
        return self._anchor(path, keyword, resource, fragment)

    def _pointer(self, path: Path, keyword: str, start: Path, pointer: str) -> Path:
        missing = refusal(path, keyword, f"leads nowhere: there is no {pointer!r} in the schema")
        if _WRONG_TILDE.search(pointer):
            raise refusal(path, keyword, f"has a ~ that is neither ~0 nor ~1 in {pointer!r}")
        found, reached = self.at(start), start
        for token in pointer.split("/")[1:]:
            name: str | int = token.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and _INDEX.fullmatch(token):
                name = int(token)
                if name >= len(found):
                    raise missing
            elif not isinstance(found, dict) or name not in found:
                raise missing
            found, reached = found[name], (*reached, name)
        if not isinstance(found, (dict, bool)):
            raise refusal(path, keyword, f"leads to {pointer!r}, which is no schema")
        return reached

    def _anchor(self, path: Path, keyword: str, resource: str, name: str) -> Path:
        dynamic = self._dynamic.get(name, [])
        if keyword == "$dynamicRef" and len(dynamic) > 1:
            raise refusal(
                path,
                keyword,
                f"may mean several places (#{name} is a $dynamicAnchor of {len(dynamic)} schemas); "
                f"name one of them with $ref",
            )
        if (resource, name) not in self._anchors:
            raise refusal(path, keyword, f"leads nowhere: there is no anchor {name!r}")
        return self._anchors[resource, name]

    def _recursive_target(self, path: Path, reference: str) -> Path:
        if reference != "#":
            raise refusal(path, "$recursiveRef", "must be #")
        if len(self._recursive) > 1:
            raise refusal(
                path,
                "$recursiveRef",
                "may mean several places; name one of them with $ref",
            )
        return self._resources[self._base(path)]

    def _base(self, path: Path) -> str:
        """Return the URI of the resource that contains a place."""
        base, found = "", self._root
        for part in (None, *path):
            found = found if part is None else self._below(found, part)
            identity = self._identity(found)
            if identity and not identity.startswith("#"):
                base = urljoin(base, identity).partition("#")[0]
        return base if base in self._resources else ""

    @staticmethod
    def _below(found: Any, part: str | int) -> Any:
        try:
            return found[part]
        except (KeyError, IndexError, TypeError):  # a converted schema, without its own place
            return None

    def _identity(self, schema: Any) -> str | None:
        if not isinstance(schema, dict):
            return None
        found = schema.get("$id", schema.get("id") if self.dialect in (3, 4) else None)
        return found if isinstance(found, str) else None

    def _index(self) -> None:
        """Find every `$id` and anchor."""
        pending: list[tuple[Path, Any, str]] = [((), self._root, "")]
        for path, schema, base in pending:
            if not isinstance(schema, dict):
                continue
            identity = self._identity(schema)
            if identity and identity.startswith("#"):
                self._anchors[base, identity[1:]] = path
            elif identity and not (self.refs_stand_alone and "$ref" in schema):
                base = urljoin(base, identity).partition("#")[0]
                self._resources[base] = path
            for keyword in ("$anchor", "$dynamicAnchor"):
                if isinstance(schema.get(keyword), str):
                    self._anchors[base, schema[keyword]] = path
            if isinstance(schema.get("$dynamicAnchor"), str):
                self._dynamic.setdefault(schema["$dynamicAnchor"], []).append(path)
            if schema.get("$recursiveAnchor") is True:
                self._recursive.append(path)
            pending.extend(((*path, *below), one, base) for below, one in subschemas(schema))
