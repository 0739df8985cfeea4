"""CallNotation: a family's notation of calls, as formats of xgrammar's structural tags.

Formats are plain values with marks as text; `structural_tag.with_tokens` replaces the marks that
are tokens of a vocabulary. Pure; used by the families' table and `structural_tag`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from atom.answer_parsing.argument_types import argument_types, only_string

Format = dict[str, Any]
ANY_TEXT: Format = {"type": "any_text"}
ANNOTATIONS = frozenset(
    [
        "type",
        "title",
        "description",
        "default",
        "examples",
        "$comment",
        "deprecated",
        "readOnly",
        "writeOnly",
    ]
)


def _as_json(arguments: Any, place: int) -> str:
    """Write arguments as JSON; a text that is no object stays as it is."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class CallNotation:
    """The notation in which a family writes calls. begin: a call of this tool up to its arguments;
    arguments: by their schema; end: after them. separator: between calls; section: around all of
    them. single: an answer ends with its first call. values: writes the arguments of a call that
    was made, an object or text that is not one, and the call's index."""

    begin: Callable[[str], str]
    arguments: Callable[[Mapping[str, Any]], Format]
    end: str = ""
    separator: str = ""
    section: tuple[str, str] = ("", "")
    single: bool = False
    values: Callable[[Any, int], str] = _as_json

    def written(self, calls: Sequence[tuple[str, Any]]) -> str:
        """Write calls with their arguments, as the model would have written them."""
        opening, closing = self.section
        each = (
            f"{self.begin(name)}{self.values(arguments, place)}{self.end}"
            for place, (name, arguments) in enumerate(calls)
        )
        return f"{opening}{self.separator.join(each)}{closing}"

    def call(self, tool: str, schema: Mapping[str, Any]) -> Format:
        """Write the tag of one call."""
        return tag(self.begin(tool), _named(self.arguments(schema), tool), self.end)


@dataclass(frozen=True, slots=True)
class ParameterNotation:
    """The notation of one argument. begin: up to its value; end: after it; bare: whether a value of
    this schema is written without a string's quotes; string_end: after a quoted value, before
    `end`."""

    begin: Callable[[str, bool], str]
    end: str = ""
    string_end: str = ""


def as_object(arguments: Any) -> Mapping[str, Any]:
    """Return the arguments as an object; a text that is not an object becomes one of its values."""
    return arguments if isinstance(arguments, Mapping) else {"arguments": arguments}


def parameter_values(notation: ParameterNotation, separator: str = "") -> Callable[[Any, int], str]:
    """Write arguments one by one: texts without quotes, and others as JSON."""

    def one(key: str, value: Any) -> str:
        bare = isinstance(value, str)
        written = value if bare else json.dumps(value, ensure_ascii=False)
        end = notation.string_end if bare else ""
        return f"{notation.begin(key, bare)}{written}{end}{notation.end}"

    return lambda arguments, place: separator.join(
        one(*item) for item in as_object(arguments).items()
    )


def text(value: str) -> Format:
    return {"type": "const_string", "value": value}


def sequence(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "sequence", "elements": list(elements)}


def one_of(*elements: Format) -> Format:
    return elements[0] if len(elements) == 1 else {"type": "or", "elements": list(elements)}


def optional(content: Format) -> Format:
    return {"type": "optional", "content": content}


def tag(begin: str, content: Format, end: str) -> Format:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _named(content: Any, tool: str) -> Any:
    """Add the tool's name to each schema, for errors."""
    if isinstance(content, dict):
        found = {key: _named(value, tool) for key, value in content.items()}
        return {**found, "tool": tool} if found.get("type") == "json_schema" else found
    return [_named(each, tool) for each in content] if isinstance(content, list) else content


def json_value(schema: Any, *, one_line: bool = False) -> Format:
    """Write the grammar of a JSON value; `schema` as JSON text, which keeps its numbers exact, or
    the value itself."""
    written = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False)
    return {"type": "json_schema", "json_schema": written, "one_line": one_line}


def parameters(schema: Mapping[str, Any], notation: ParameterNotation) -> Format:
    """Write the format of arguments one by one, in the schema's order: the properties it names, and
    no others."""
    properties = schema.get("properties")
    required = schema.get("required") or ()
    found = []
    for key in properties if isinstance(properties, Mapping) else ():
        argument = parameter(schema, key, notation)
        found.append(argument if key in required else optional(argument))
    return sequence(*found) if found else text("")


def in_turn(
    schema: Mapping[str, Any], argument: Callable[[Mapping[str, Any], str], Format], separator: str
) -> Format:
    """Write arguments with a separator between them, required ones first. argument: writes one of
    them, by its name."""
    properties = schema.get("properties") or {}
    needed = [key for key in properties if key in (schema.get("required") or ())]
    free = [key for key in properties if key not in needed]

    def more(key: str) -> Format:
        return optional(sequence(text(separator), argument(schema, key)))

    if needed:
        first, *others = (argument(schema, key) for key in needed)
        behind = [sequence(text(separator), other) for other in others]
        return sequence(first, *behind, *map(more, free))
    beginnings = [
        sequence(argument(schema, key), *map(more, free[place + 1 :]))
        for place, key in enumerate(free)
    ]
    return one_of(*beginnings, text("")) if beginnings else text("")


def parameter(root: Mapping[str, Any], key: str, notation: ParameterNotation) -> Format:
    """Write the format of one argument, from its schema."""
    schema, types = root["properties"][key], argument_types(root, key)
    bare, other = notation.begin(key, True), notation.begin(key, False)
    string_end = notation.string_end + notation.end
    plain = isinstance(schema, Mapping) and set(schema) <= ANNOTATIONS
    if plain and (only_string(types) or not types):
        string = tag(bare, ANY_TEXT, string_end)
    else:
        string = sequence(text(bare), argument_value(root, key, bare=True), text(string_end))
    if only_string(types) or (bare == other and (not types or "string" in types)):
        return string
    value = sequence(text(other), argument_value(root, key, bare=False), text(notation.end))
    return value if types and "string" not in types else one_of(string, value)


def argument_value(root: Mapping[str, Any], key: str, *, bare: bool) -> Format:
    """Write the format of a property's value; bare: without a string's quotes."""
    value: Format = {**json_value(root["properties"][key]), "bare": bare}
    if "$ref" in value["json_schema"]:  # within the whole schema, the target of references
        value = {**json_value(root), "bare": bare, "at": ["properties", key]}
    return value
