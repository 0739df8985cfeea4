"""Read YAML and JSON as kubectl reads them, which differs from PyYAML in scalars and in keys. Pure.

kubectl converts YAML 1.1 to JSON (sigs.k8s.io/yaml): 22:00 and 2026-01-01 are strings, 1e3 and 8.0
are whole numbers, y and on are true, keys become strings, and a repeated key is an error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from typing import Any

import yaml

_BOOLEANS = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "off", "Off", "OFF"), False),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?(0[bB][01_]+|0[oO]?[0-7_]*|0[xX][0-9a-fA-F_]+|[1-9][0-9_]*)")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_EXACT = 2.0**53  # whole numbers below have one float each
_BASES = {"x": 16, "b": 2, "o": 8}


def read_documents(text: str) -> list[Any]:
    """List the documents of a file that are not empty. Raises yaml.YAMLError for text that is
    neither YAML nor JSON, and for an object that has the same key twice."""
    if text.lstrip().startswith(("{", "[")):
        try:
            return [json.loads(text, object_pairs_hook=_without_repeats, parse_float=_float)]
        except json.JSONDecodeError:
            pass  # flow YAML, or several documents
        except RecursionError as error:
            raise yaml.YAMLError("its values are nested too deeply") from error
    try:
        return [item for item in yaml.load_all(text, _Loader) if item is not None]
    except RecursionError as error:
        raise yaml.YAMLError("its values are nested too deeply") from error


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise yaml.YAMLError(f'the key "{key}" occurs twice in one object; keep one of them')
        found[key] = value
    return found


class _Loader(yaml.SafeLoader):
    """SafeLoader with kubectl's scalars and keys; it builds no object but lists and dicts."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        own = [self._key(key) for key, _ in node.value if not _is_merge(key)]
        repeated = next((key for position, key in enumerate(own) if key in own[:position]), None)
        if repeated is not None:
            raise yaml.constructor.ConstructorError(
                None, None, f'the key "{repeated}" occurs twice in one object', node.start_mark
            )
        self.flatten_mapping(node)
        return {
            self._key(key): self.construct_object(value, deep=True) for key, value in node.value
        }

    def _key(self, node: yaml.Node) -> str:
        value = self.construct_object(node, deep=True)
        if isinstance(value, (dict, list)):
            raise yaml.constructor.ConstructorError(
                None, None, "a key must be a string", node.start_mark
            )
        return value if isinstance(value, str) else json.dumps(value)


def _is_merge(key: yaml.Node) -> bool:
    return key.tag == "tag:yaml.org,2002:merge"


def _boolean(loader: _Loader, node: yaml.ScalarNode) -> bool:
    return _BOOLEANS[str(loader.construct_scalar(node))]


def _integer(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node)).replace("_", "")
    sign, digits = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    base = _BASES.get(digits[1:2].lower())
    if base is not None:
        return sign * int(digits[2:], base)
    return sign * int(digits, 8 if len(digits) > 1 and digits.startswith("0") else 10)


def _number(loader: _Loader, node: yaml.ScalarNode) -> float:
    return _float(str(loader.construct_scalar(node)))


def _float(text: str) -> float:
    """Return the number; kubectl sends 8.0 and 1e3 as the whole numbers that they are."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


_ALL_STARTS = [*"-+.0123456789"]
for _tag, _pattern, _starts in (
    ("bool", re.compile(f"^(?:{'|'.join(_BOOLEANS)})$"), [*"yYnNtTfFoO"]),
    ("int", re.compile(f"^(?:{_INTEGER.pattern})$"), _ALL_STARTS),
    ("float", re.compile(f"^(?:{_NUMBER.pattern})$"), _ALL_STARTS),
    ("merge", re.compile(r"^<<$"), ["<"]),
    ("null", re.compile(r"^(?:~|null|Null|NULL|)$"), ["~", "n", "N", ""]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _starts)
_Loader.add_constructor("tag:yaml.org,2002:bool", _boolean)
_Loader.add_constructor("tag:yaml.org,2002:int", _integer)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)
