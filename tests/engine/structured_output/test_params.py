"""What a request may ask for, and every bound on it, before anything is compiled."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from atom.errors import RequestError
from atom.sampling_params import SamplingParams
from atom.structured_outputs import GrammarSpec, StructuredOutputsParams
from atom.structured_outputs.params import (
    MAX_CHOICES,
    MAX_GRAMMAR_CHARS,
    MAX_REGEX_CHARS,
    MAX_SCHEMA_CHARS,
)


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        StructuredOutputsParams(**fields).check_schema()
    return caught.value


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


def test_each_kind_names_what_is_compiled() -> None:
    assert StructuredOutputsParams(regex="a+").spec() == GrammarSpec("regex", "a+")
    assert StructuredOutputsParams(grammar="root ::= [0-9]").spec().kind == "grammar"
    assert json.loads(StructuredOutputsParams(json_object=True).spec().text) == {"type": "object"}
    choice = StructuredOutputsParams(choice=["yes", 'say "no"\n'])
    assert choice.spec() == GrammarSpec("choice", r'["yes", "say \"no\"\n"]')


def test_a_schema_is_the_same_as_object_and_as_text_and_keeps_its_order() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}}}
    spec = StructuredOutputsParams(json=schema).spec()
    assert spec == StructuredOutputsParams(json=json.dumps(schema)).spec()
    assert spec.text.index('"b"') < spec.text.index('"a"')
    assert StructuredOutputsParams(json=schema, disable_any_whitespace=True).spec() != spec


@pytest.mark.parametrize("schema", [{"type": "null"}, {"const": -(2**63) - 1}, True])
def test_it_survives_the_wire(schema: Any) -> None:
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    sent = msgspec.msgpack.encode(params)
    assert msgspec.msgpack.decode(sent, type=SamplingParams) == params


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "exactly one of .* got none"),
        ({"regex": "a", "choice": ["b"]}, "got regex and choice"),
        ({"json": {}, "json_object": True}, "got json and json_object"),
        ({"regex": ""}, "is empty"),
        ({"regex": "a" * (MAX_REGEX_CHARS + 1)}, "at most 4096"),
        ({"grammar": "a" * (MAX_GRAMMAR_CHARS + 1)}, "at most 65536"),
        ({"json": {"const": "a" * MAX_SCHEMA_CHARS}}, "at most 65536"),
        ({"choice": []}, "1 to 1024 texts, got 0"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "got 1025"),
        ({"choice": ["a", ""]}, "is empty"),
        ({"choice": ["a" * 1025]}, "at most 1024"),
        ({"choice": ["a" * 1000] * 100}, "together"),
        ({"choice": "yes"}, "list of texts"),
        ({"regex": "a\0"}, "NUL"),
        ({"choice": ["\ud800"]}, "surrogate"),
        ({"json": "{"}, "not valid JSON"),
        ({"json": "[" * 5000 + "]" * 5000}, "nested deeper than 64"),
        ({"json": nested(64)}, "nested deeper than 64"),
        ({"json": {"const": object()}}, "no JSON value"),
        ({"json": "3"}, "must be an object"),
    ],
)
def test_bounds_are_told_with_the_field(fields: dict[str, Any], words: str) -> None:
    error = refusal(**fields, field="guided_json")
    assert error.param == "guided_json"
    assert error.status == 400
    assert str(error).startswith("guided_json: ")
    with pytest.raises(RequestError, match=words):
        raise error


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (
            {"type": "string", "pattern": "(?!a)"},
            r"pattern at \$ is not kept: a negative lookahead",
        ),
        ({"$ref": "http://example.com/x.json"}, "leads elsewhere"),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "x"}}}, r"type at \$\.\$defs\.a must be"),
        ({"type": "string", "maxLength": -1}, "maxLength at .* 0 or more"),
        (
            {"type": "object", "properties": {"x": {"extends": {}}}},
            r"extends at \$\.properties\.x is not kept by this server; write allOf instead",
        ),
        (
            {"prefixItems": [{"type": "array", "items": 3}]},
            r"items at \$\.prefixItems\[0\] must be",
        ),
    ],
)
def test_a_keyword_that_is_not_kept_is_refused_by_place(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        raise refusal(json=schema)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {},
        {"title": "T", "description": "d", "default": {"not": 1}, "examples": [{"if": 2}]},
        {"enum": [{"not": 1}], "title": "values are not schemas"},
        {"type": "object", "properties": {"not": {"type": "string"}}, "required": ["not"]},
        {"type": ["string", "null"], "minLength": 3},
        {"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"type": "integer", "minimum": 0}}},
        {"type": "array", "uniqueItems": False},
        {"type": "null", "$defs": {"unused": {"type": "x"}}},
        nested(20),
    ],
)
def test_schemas_that_are_enforced_pass(schema: Any) -> None:
    StructuredOutputsParams(json=schema).check_schema()
