"""Forms that zod, pydantic, OpenAPI and MCP tools write, and each keyword's meaning: which values a
grammar takes, which it does not, and which schemas are refused, with the place and the keyword."""

from __future__ import annotations

import json
from typing import Any

import pytest

from atom.structured_outputs import GrammarSpec
from atom.structured_outputs.json_schema import check_schema
from tests.support.structured_output.grammar_draws import GrammarDraws


@pytest.fixture(scope="module")
def draws() -> GrammarDraws:
    return GrammarDraws()


def obj(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
TREE = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": obj(
            {"value": WHOLE, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
            "value",
        )
    },
}
SHARED = obj({"a": {"anyOf": [TEXT, WHOLE]}, "b": {"$ref": "#/properties/a/anyOf/1"}})
UNION = {
    "oneOf": [obj({"k": {"const": "a"}, "n": WHOLE}, "k"), obj({"k": {"const": "b"}}, "k")],
    "discriminator": {"propertyName": "k"},
}
BIG = 9223372036854775809

# (schema, values it takes, values it does not)
FORMS: list[tuple[Any, list[Any], list[Any]]] = [
    # references
    (TREE, [{"value": 1}, {"value": 1, "next": {"value": 2, "next": None}}], [{}, {"next": None}]),
    (SHARED, [{"a": "x", "b": 1}], [{"b": "x"}]),
    ({"$ref": "#/$defs/a~1b~0c%20d", "$defs": {"a/b~c d": WHOLE}}, [1], ["a"]),
    ({"$ref": "#/definitions/%C3%A9", "definitions": {"é": WHOLE}}, [1], ["a"]),
    ({"$ref": "#n", "$defs": {"x": {"$anchor": "n", "type": "null"}}}, [None], [1]),
    ({"$ref": "#n", "definitions": {"x": {"$id": "#n", "type": "null"}}}, [None], [1]),
    (
        {"$id": "http://e.com/root", "$ref": "item", "$defs": {"x": {"$id": "item", **TEXT}}},
        ["a"],
        [1],
    ),
    (
        {"$id": "http://e.com/a/b", "$ref": "c#/$defs/t",
         "$defs": {"x": {"$id": "c", "$defs": {"t": {"type": "null"}}}}},
        [None],
        [1],
    ),
    (obj({"c": {"type": "array", "items": {"$ref": "#"}}}), [{"c": [{}, {"c": []}]}], [{"c": [1]}]),
    (
        {"$dynamicAnchor": "T", **obj({"c": {"$dynamicRef": "#T"}})},
        [{"c": {"c": {}}}],
        [{"c": 1}],
    ),
    ({"$recursiveAnchor": True, **obj({"c": {"$recursiveRef": "#"}})}, [{"c": {}}], [{"c": 1}]),
    ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": WHOLE}}, [5], [4]),
    (
        {"$schema": "http://json-schema.org/draft-07/schema#", "$ref": "#/definitions/a",
         "minimum": 5, "definitions": {"a": WHOLE}},
        [4],
        ["a"],
    ),
    (obj({"p": {"$ref": "#/$defs/a", "description": "d"}}, "p", **{"$defs": {"a": TEXT}}),
     [{"p": "x"}], [{"p": 1}]),
    # what pydantic, zod, OpenAPI and MCP tools write
    (obj({"n": {"anyOf": [TEXT, {"type": "null"}], "default": None, "title": "N"}}),
     [{}, {"n": None}, {"n": "a"}], [{"n": 1}]),
    (obj({"x": {"allOf": [{"$ref": "#/$defs/A"}], "default": 1}}, **{"$defs": {"A": WHOLE}}),
     [{"x": 3}], [{"x": "3"}]),
    (UNION, [{"k": "a", "n": 1}, {"k": "b"}], [{"k": "c"}, {"k": "b", "n": 1}]),
    ({"type": "object", "additionalProperties": WHOLE}, [{}, {"a": 1, "b": 2}], [{"a": "x"}]),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": WHOLE},
     [{"a": 1}, {"a": 1, "b": 2}], [{"c": 1}]),
    ({"type": "object", "propertyNames": {"pattern": '^a"$'}}, [{'a"': 1}], [{"a": 1}]),
    ({"propertyNames": {"pattern": "^a$"}}, [{"a": 1}, 5], [{"b": 1}]),
    ({"type": "array", "prefixItems": [TEXT, WHOLE], "minItems": 2, "maxItems": 2},
     [["a", 1]], [["a"], [1, "a"], ["a", 1, 2]]),
    ({"type": "array", "items": [TEXT, WHOLE], "additionalItems": False},
     [["a", 1]], [["a", 1, 2]]),
    ({"type": "array", "items": [TEXT], "additionalItems": WHOLE}, [["a"], ["a", 1]], [["a", "b"]]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True, "minItems": 1},
     [["a"], ["c", "a"], ["b", "a", "c"]], [[], ["a", "a"]]),
    ({"type": ["string", "null"], "enum": ["a", None]}, ["a", None], ["b", "null"]),
    ({"type": "string", "nullable": True}, ["a", None], [1]),
    ({"type": "string", "enum": ["a", None], "nullable": True}, ["a", None], ["b"]),
    ({"type": ["integer", "string"], "minimum": 3, "maxLength": 1}, [3, "a"], [2, "ab"]),
    ({"required": ["a"]}, [{"a": 1}, {"a": None, "b": 1}, 5], [{}, {"b": 1}]),
    ({"type": "object", "required": ["a"]}, [{"a": 1}, {"a": 1, "z": 2}], [{}]),
    ({"type": "object", "properties": {}}, [{}], [{"a": 1}]),
    ({"type": "object"}, [{}, {"a": [1]}], [1]),
    (obj({"a": TEXT}, "a", "b"), [{"a": "x", "b": 1}], [{"a": "x"}]),
    (obj({"a": TEXT}, additionalProperties=True), [{"a": "x", "q": 1}, {"q": 1}], [{"a": 1}]),
    (
        {"allOf": [obj({"a": TEXT}, "a"), {"properties": {"b": WHOLE}, "required": ["b"]}]},
        [{"a": "x", "b": 1}],
        [{"a": "x"}, {"b": 1}],
    ),
    ({"allOf": [WHOLE, {"minimum": 3}, {"maximum": 4}]}, [3, 4], [2, 5]),
    (
        {**obj({"a": TEXT, "b": WHOLE}), "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": "x"}, {"b": 1}, {"a": "x", "b": 1}],
        [{}],
    ),
    (
        {**obj({"a": TEXT, "b": WHOLE}), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": "x"}, {"b": 1}],
        [{}, {"a": "x", "b": 1}],
    ),
    ({**obj({"a": TEXT, "b": TEXT}), "not": {"required": ["a", "b"]}}, [{}, {"a": ""}],
     [{"a": "", "b": ""}]),
    ({"not": {}, "anyOf": [True]}, [], []),
    (
        {**obj({"k": {"enum": ["a", "b"]}, "x": WHOLE}, "k"),
         "if": {"properties": {"k": {"const": "a"}}}, "then": {"required": ["x"]}},
        [{"k": "a", "x": 1}, {"k": "b"}],
        [{"k": "a"}],
    ),
    (obj({"a": TEXT, "b": TEXT}, dependentRequired={"a": ["b"]}), [{"b": ""}, {"a": "", "b": ""}],
     [{"a": ""}]),
    (obj({"a": TEXT, "b": TEXT}, dependencies={"a": ["b"]}), [{"b": ""}], [{"a": ""}]),
    (obj({"a": TEXT, "b": TEXT}, dependentSchemas={"a": {"required": ["b"]}}), [{}], [{"a": ""}]),
    ({"allOf": [obj({"a": TEXT})], "unevaluatedProperties": False}, [{"a": ""}], [{"b": ""}]),
    (obj({"a": TEXT}, unevaluatedProperties=WHOLE), [{"a": "", "z": 1}], [{"z": ""}]),
    ({"type": "object", "patternProperties": {"^a\nb$": WHOLE}}, [{"a\nb": 1}], [{"anb": 1}]),
    (obj({"xa": TEXT}, patternProperties={"^x": {"maxLength": 1}}), [{"xa": "a"}], [{"xa": "ab"}]),
    ({"type": "object", "additionalProperties": WHOLE, "minProperties": 1, "maxProperties": 2},
     [{"a": 1}, {"a": 1, "b": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "array", "minItems": 1, "maxItems": 2}, [[1], [None, "a"]], [[], [1, 2, 3]]),
    ({"type": "array", "maxItems": 0}, [[]], [[1]]),
    (True, [None, {"a": [1.5, "x"]}], []),
    ({"title": "T", "description": "d", "default": 3, "examples": [1], "$comment": "c",
      "readOnly": True, "deprecated": True, "x-y": {"type": "z"}, "type": "null"}, [None], [1]),
    (obj({"type": TEXT, "properties": WHOLE, "$ref": TEXT, "not": WHOLE}),
     [{"$ref": "a", "not": 1}], [{"not": "a"}]),
    ({"not": {"type": ["string", "number"]}}, [None, True, [1]], ["a", 1]),
    ({"type": ["string", "null"], "not": {"type": "null"}}, ["a"], [None]),
    ({"enum": ["a", "b", 1], "not": {"enum": ["b", 1]}}, ["a"], ["b", 1]),
    ({**obj({"k": {"type": "boolean"}, "x": TEXT}), "not": {"properties": {"k": {"const": True}}}},
     [{"k": False}, {"k": False, "x": ""}], [{}, {"k": True}]),
    ({**obj({"k": {"enum": ["a", "b"]}, "x": WHOLE}),
      "if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
      "then": {"required": ["x"]}, "else": {"properties": {"x": {"maximum": 3}}}},
     [{"k": "a", "x": 9}, {"k": "b", "x": 3}, {"x": 2}],
     [{"k": "a"}, {"k": "b", "x": 4}, {"x": 4}]),
    ({"if": True, "then": TEXT, "else": WHOLE}, ["a"], [1]),
    ({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": WHOLE},
     [{"a": 1}], [{"a": "x"}]),
    ({"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": WHOLE},
     [{"ab": 1}, {}], [{"abc": 1}]),
    ({"type": "array", "items": {"type": "string", "enum": ["a", "b"]}, "uniqueItems": True},
     [[], ["b", "a"]], [["a", "a"], ["c"]]),
    ({"type": "array", "items": TEXT, "uniqueItems": True, "maxItems": 1},
     [[], ["a"]], [["a", "b"]]),
    ({"type": "array", "contains": True}, [[1], [1, 2]], [[]]),
    (obj({"a": WHOLE, "b": obj({"self": {"$ref": "#/properties/b"}}, "self")}), [{}, {"a": 1}],
     [{"b": {}}]),
    # numbers
    ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, [0, -5, 2**53], [2**64]),
    ({"type": "number", "exclusiveMaximum": 0}, [-1, -0.5], [0, 1]),
    ({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 2}, [1], [0, 2]),
    ({"type": "integer", "minimum": 0.5}, [1, 10**40], [0, -1, 0.5]),
    ({"type": "integer", "minimum": 3, "exclusiveMinimum": True}, [4], [3]),
    ({"type": "number", "maximum": 3, "exclusiveMaximum": True}, [2.9, -7], [3, 3.5]),
    ({"type": "integer", "exclusiveMinimum": -3, "maximum": 9}, [-2, 0, 9], [-3, 10]),
    ({"type": "number", "minimum": -1.5, "maximum": 2.25}, [-1.5, 0, 2.25, 1.5], [-1.6, 2.26, 3]),
    ({"type": "number", "multipleOf": 0.5}, [1, 1.5, 20.5], [1.2, -0.2]),
    ({"type": "integer", "multipleOf": 7}, [0, 7, 14], [1, 13, -1]),
    ({"type": "integer", "multipleOf": 1000, "minimum": 1}, [1000, 25000], [0, 1500]),
    ({"const": 1.0}, [1], [2]),
    ({"const": False}, [False], [0, None]),
    ({"enum": [1, True]}, [1, True], [0, False]),
    ({"const": None}, [None], [0]),
    ({"const": {"a": [1, {"b": None}]}}, [{"a": [1, {"b": None}]}], [{"a": [1]}]),
    # texts
    ({"type": "string", "minLength": 1, "maxLength": 2}, ["a", "😀é", '"\n'], ["", "abc"]),
    ({"type": "string", "pattern": "^[a-z]+$", "maxLength": 3}, ["a", "abc"], ["", "abcd", "A"]),
    ({"type": "string", "pattern": "b", "minLength": 3}, ["abc", "bbb"], ["ab", "acd"]),
    ({"type": "string", "pattern": "^a", "enum": ["ab", "b"]}, ["ab"], ["b", "a"]),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}], "type": "string"}, ["ab", "xbya"], ["a", "b"]),
    ({"type": "string", "format": "date"},
     ["2024-02-29", "1999-12-31"], ["2023-02-29", "2024-13-01"]),
    ({"type": "string", "format": "uuid", "maxLength": 36},
     ["01234567-89ab-cdef-0123-456789ABCDEF"], ["0"]),
    ({"type": "string", "format": "int32"}, ["anything"], [1]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "taken", "left"), FORMS, ids=[json.dumps(form[0])[:60] for form in FORMS]
)
def test_a_schema_takes_the_values_that_fit(
    draws: GrammarDraws, schema: Any, taken: list[Any], left: list[Any]
) -> None:
    if not taken and not left:
        with pytest.raises(ValueError, match="leaves no value"):
            draws.schema(schema)
        return
    for one_line in (False, True):
        compiled = draws.schema(schema, one_line=one_line)
        for value in taken:
            assert draws.accepts(compiled, json.dumps(value, ensure_ascii=False)), value
        for value in left:
            assert not draws.accepts(compiled, json.dumps(value, ensure_ascii=False)), value


UNFIT: list[tuple[Any, str]] = [
    ({"enum": []}, r"enum at \$"),
    (False, r"false at \$"),
    ({"type": "integer", "minimum": 5, "maximum": 4}, r"type, minimum, maximum at \$"),
    ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, r"at \$"),
    ({"type": "number", "minimum": 3, "exclusiveMaximum": 3}, r"at \$"),
    ({"type": "integer", "minimum": 1, "maximum": 6, "multipleOf": 7}, r"multipleOf at \$"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, r"minLength, maxLength at \$"),
    ({"type": "string", "minLength": 5, "pattern": "^a{2}$"}, r"pattern at \$"),
    ({"type": "string", "pattern": "a^b"}, r"pattern at \$"),
    ({"allOf": [{"type": "string"}, {"type": "integer"}]}, r"allOf at \$"),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "^b"}], "type": "string"}, r"allOf, type at \$"),
    ({"type": "string", "enum": [1, None]}, r"type, enum at \$"),
    ({"const": 1, "enum": [2]}, r"const, enum at \$"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, r"minItems, maxItems at \$"),
    ({"type": "array", "items": False, "minItems": 1}, r"items, minItems at \$"),
    ({"type": "array", "items": {"enum": [1]}, "uniqueItems": True, "minItems": 2},
     r"minItems at \$"),
    (obj({"a": False}, "a"), r"required at \$"),
    (obj({"a": {"type": "string", "minLength": 2, "maxLength": 1}}, "a"), r"\$\.properties\.a"),
    ({"type": "object", "additionalProperties": False, "required": ["a"]}, r"at \$"),
    ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, r"maxProperties at \$"),
    ({"type": "object", "required": ["ab"], "propertyNames": {"maxLength": 1}}, r"at \$"),
    (obj({"a": WHOLE}, additionalProperties=False, minProperties=2), r"minProperties"),
    ({"$ref": "#/$defs/t", "$defs": {"t": obj({"t": {"$ref": "#/$defs/t"}}, "t")}},
     r"\$\.\$defs\.t"),
    ({"not": {}}, r"not at \$"),
    ({"oneOf": [TEXT, TEXT]}, r"oneOf at \$"),
    ({"anyOf": [False, {"enum": []}]}, r"anyOf at \$"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "words"), UNFIT, ids=[json.dumps(one)[:60] for one, _ in UNFIT])
def test_a_schema_that_nothing_fits_is_refused_with_the_place(
    draws: GrammarDraws, schema: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        draws.schema(schema)


REFUSED: list[tuple[Any, str]] = [
    ({"$ref": "#"}, r"at \$ refers to itself with nothing in between"),
    ({"anyOf": [TEXT, {"$ref": "#"}]}, r"at \$ refers to itself"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
     r"refers to itself"),
    ({"$ref": "#/$defs/x"}, r"\$ref at \$ leads nowhere: there is no '/\$defs/x'"),
    ({"$ref": "#/anyOf/2", "anyOf": [True]}, r"\$ref at \$ leads nowhere"),
    ({"$ref": "#/anyOf/01", "anyOf": [True, True]}, r"\$ref at \$ leads nowhere"),
    ({"$ref": "#/$defs/~2", "$defs": {}}, r"neither ~0 nor ~1"),
    ({"$ref": "#/enum", "enum": [1]}, r"which is no schema"),
    ({"$ref": "other.json"}, r"leads elsewhere .* put what it names under \$defs"),
    ({"$ref": "http://json-schema.org/draft-07/schema#"}, r"leads elsewhere"),
    ({"$ref": "#x"}, r"there is no anchor 'x'"),
    ({"$dynamicRef": "#T", "$defs": {"a": {"$dynamicAnchor": "T"}, "b": {"$dynamicAnchor": "T"}}},
     r"\$dynamicRef at \$ may mean several places"),
    ({"type": "array", "items": TEXT, "uniqueItems": True},
     r"uniqueItems at \$ is kept for items of an enum of up to 5 values only"),
    ({"type": "array", "items": WHOLE, "uniqueItems": True}, r"uniqueItems at \$ is kept"),
    ({"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 101},
      "uniqueItems": True}, r"uniqueItems at \$ is kept"),
    ({"type": "array", "items": {"type": "number", "minimum": 1, "maximum": 2},
      "uniqueItems": True}, r"uniqueItems at \$ is kept"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 3},
     r"minItems at \$ asks for 3 different items"),
    ({"type": "array", "items": WHOLE, "contains": {"const": 5}}, r"contains at \$ is not kept"),
    ({"type": "string", "not": {"enum": ["a", "b"]}}, r"not at \$ is kept for types"),
    ({"type": "string", "not": {"pattern": "a"}}, r"not at \$ is kept for types"),
    (obj({"k": TEXT}, **{"if": {"properties": {"k": {"const": "a"}}}, "then": False}),
     r"if at \$ is kept for types"),
    ({"not": {"type": "integer"}}, r"not at \$ of type integer is not kept"),
    (obj({"a": TEXT}, propertyNames={"pattern": "a"}), r"propertyNames at \$ is kept for one of"),
    ({"type": "object", "patternProperties": {"^x": WHOLE, "y$": {"minimum": 3}}},
     r"patternProperties at \$ has patterns that one member's name may fit at once"),
    (obj({"a": WHOLE, "b": WHOLE, "c": WHOLE}, minProperties=2, maxProperties=2),
     r"minProperties, maxProperties at \$ is kept if every named member is required"),
    ({"anyOf": [obj({"a": TEXT}), WHOLE], "unevaluatedProperties": False},
     r"unevaluatedProperties at \$ is kept beside properties, \$ref and allOf only"),
    ({"allOf": [{"prefixItems": [TEXT]}], "unevaluatedItems": False},
     r"unevaluatedItems at \$ is kept beside its own prefix only"),
    ({"enum": [BIG]}, r"enum at \$ has a number that a double does not hold"),
    ({"const": {"a": [-(2**70)]}}, r"const at \$ has a number that a double does not hold"),
    ({"type": "integer", "minimum": BIG}, r"minimum at \$ has a number"),
    ({"type": "integer", "multipleOf": 1001}, r"multipleOf at \$ is kept for whole numbers up to"),
    ({"type": "integer", "multipleOf": 7, "maximum": -1}, r"multipleOf at \$ is kept from 0 on"),
    ({"type": "number", "multipleOf": 0.1, "minimum": 0, "maximum": 1}, r"multipleOf at \$"),
    ({"type": "array", "minItems": 5000}, r"minItems at \$ is above 4096"),
    ({"type": "array", "contains": TEXT, "minContains": 2}, r"minContains at \$"),
    ({"type": "array", "contains": TEXT, "maxContains": 2}, r"maxContains at \$"),
    ({"type": "number", "multipleOf": 0.01},
     r"multipleOf at \$ .* use an integer of a smaller unit"),
    ({"oneOf": [obj({"a": TEXT}), obj({"b": {"type": "array", "items": TEXT}})]},
     r"oneOf at \$ has parts that one answer may fit at once; write anyOf"),
    ({"oneOf": [WHOLE, {"type": "number"}]}, r"oneOf at \$ has parts"),
    ({"oneOf": [obj({}, additionalProperties=TEXT), obj({}, additionalProperties=True)]},
     r"oneOf at \$ has parts that one answer may fit at once; write anyOf"),
    ({"type": "object", "additionalProperties": TEXT, "minProperties": 3}, r"minProperties at \$"),
    (obj({"p": {"type": "string", "pattern": "^(?=.*[A-Z]).+$"}}),
     r"pattern at \$\.properties\.p is not kept: a lookahead is not kept by this server; write"),
    ({"type": "object", "patternProperties": {r"\bx": TEXT}},
     r"patternProperties at \$ .* boundary"),
    (obj({"p": {"type": "text"}}),
     r"type at \$\.properties\.p must be one or more of null, boolean"),
    (obj({"p": {"required": True}}), r"required at \$\.properties\.p must be a list of names"),
    ({"minimum": "3"}, r"minimum at \$ must be a number"),
    ({"exclusiveMinimum": True}, r"exclusiveMinimum at \$ is true, as in draft 4"),
    ({"properties": []}, r"properties at \$ must be an object of schemas"),
    ({"anyOf": []}, r"anyOf at \$ must be a list of one or more schemas"),
    ({"divisibleBy": 2}, r"divisibleBy at \$ is not kept by this server; write multipleOf instead"),
    ({"allOf": [{"anyOf": [obj({f"a{at}": TEXT}), obj({f"b{at}": TEXT})]} for at in range(12)]},
     r"too many alternatives"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "words"), REFUSED, ids=[json.dumps(one)[:60] for one, _ in REFUSED]
)
def test_what_is_not_kept_is_refused_by_place_and_keyword(
    draws: GrammarDraws, schema: Any, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        draws.schema(schema)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"const": NaN}', "NaN is no number"),
        ('{"const": 1e99999}', "more than 400 digits"),
        ('{"const": ' + "1" * 401 + "}", "more than 400 digits"),
        (r'{"const": "\ud800"}', "surrogate"),
    ],
)
def test_a_value_that_no_answer_can_have_is_refused(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_schema(text)


@pytest.mark.parametrize("text", ['{"enum": [1e400]}', '{"const": 0.1234567890123456789}'])
def test_a_decimal_that_is_no_double_is_refused(draws: GrammarDraws, text: str) -> None:
    with pytest.raises(ValueError, match="a double does not hold"):
        draws.compile(GrammarSpec("json", text))


def test_members_come_in_the_order_of_the_schema(draws: GrammarDraws) -> None:
    compiled = draws.schema(obj({"b": TEXT, "a": TEXT}, "a"))
    assert draws.accepts(compiled, '{"b": "", "a": ""}')
    assert not draws.accepts(compiled, '{"a": "", "b": ""}')


def test_a_named_member_cannot_be_given_twice_under_another_spelling(draws: GrammarDraws) -> None:
    compiled = draws.schema(obj({"a": WHOLE}, additionalProperties=TEXT))
    assert draws.accepts(compiled, '{"a": 1, "b": "x"}')
    assert not draws.accepts(compiled, '{"a": 1, "a": "x"}')
    assert not draws.accepts(compiled, r'{"a": 1, "\u0061": "x"}')


def test_a_clients_options_of_the_library_are_left_out(draws: GrammarDraws) -> None:
    schema = {**obj({"a": TEXT}, "a"), "x-guidance": {"key_separator": "=", "lenient": True}}
    assert draws.accepts(draws.schema(schema), '{"a": ""}')
    with pytest.raises(ValueError, match=r"not at \$"):
        draws.schema({**schema, "not": {"minimum": 1}})


def test_white_space_stands_between_parts_within_a_bound(draws: GrammarDraws) -> None:
    schema = obj({"a": {"type": "array", "items": WHOLE}}, "a")
    loose, compact = draws.schema(schema), draws.schema(schema, one_line=True)
    assert draws.accepts(loose, '{\n  "a" :\t[1,2 ]\n}')
    assert draws.accepts(loose, '{"a":[1' + " " * 10 + "]}")
    assert not draws.accepts(loose, '{"a":[1' + " " * 11 + "]}")
    assert draws.accepts(compact, '{"a": [1, 2]}')
    assert not draws.accepts(compact, '{"a":[1,2]}')
