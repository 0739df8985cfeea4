"""Structured output as clients ask for it: OpenAI's response_format, vLLM's structured_outputs and
its older guided_* fields, all to one StructuredOutputsParams.

Parsing only: shapes and the choice between the fields. What a schema or grammar may be is checked
by StructuredOutputsParams, which is told the field so that errors name it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from atom.entrypoints.request_fields.request_body import StrictModel
from atom.errors import RequestError
from atom.structured_outputs import StructuredOutputsParams
from atom.structured_outputs.client_tag import MAX_TAGS, client_tag
from atom.structured_outputs.params import MAX_CHOICES

_Schema = str | dict[str, Any] | bool
_Choices = Annotated[list[str], Field(fail_fast=True, max_length=MAX_CHOICES)]


class JsonSchemaFormat(StrictModel):
    """A JSON schema that the answer keeps to."""

    name: str | None = None
    """For people; not shown to the model."""
    description: str | None = None
    """For people; not shown to the model."""
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    """JSON schema that the answer keeps to."""
    strict: bool | None = None
    """The schema is kept to either way."""


class ResponseFormat(StrictModel):
    """OpenAI's three types, with a schema where llama.cpp, Together and Fireworks put it as well;
    Fireworks' grammar, Together's regex, and vLLM's and SGLang's structural_tag."""

    type: Literal["text", "json_object", "json_schema", "grammar", "regex", "structural_tag"]
    """Which kind of form; text asks for none."""
    json_schema: JsonSchemaFormat | None = None
    """The schema of type json_schema."""
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    """The schema, in the position of llama.cpp, Together and Fireworks; with json_object too."""
    grammar: str | None = None
    """GBNF or Lark text of type grammar."""
    pattern: str | None = None
    """Regular expression of type regex, for the whole answer."""
    format: dict[str, Any] | None = None
    """Of a structural_tag: xgrammar's description."""
    structures: Annotated[list[dict[str, Any]], Field(max_length=MAX_TAGS)] | None = None
    """Of a structural_tag: begin, schema and end of each."""
    triggers: Annotated[list[str], Field(max_length=MAX_TAGS)] | None = None
    """Of a structural_tag: texts after which its structures begin."""
    at_least_one: bool | None = None
    """Of a structural_tag: the answer has one of the structures, or more."""


class StructuredOutputs(StrictModel):
    """Carries vLLM's `structured_outputs`: exactly one of the first six fields."""

    closed: ClassVar[bool] = True

    json_: _Schema | None = Field(default=None, alias="json")
    """JSON schema that the answer keeps to."""
    json_object: bool | None = None
    """The answer is a JSON object."""
    regex: str | None = None
    """Regular expression that the whole answer keeps to."""
    grammar: str | None = None
    """Grammar that the whole answer keeps to."""
    choice: _Choices | None = None
    """The answer is one of these texts."""
    structural_tag: str | dict[str, Any] | None = None
    """Structures within free text, in xgrammar's description."""
    disable_any_whitespace: bool | None = None
    """Keep JSON on one line."""
    disable_fallback: bool | None = None
    """Taken; there is one way to keep to a form here."""


class StructuredFields(StrictModel):
    """The fields of both endpoints that ask for structured output; at most one of them."""

    response_format: ResponseFormat | None = None
    """The form that the answer keeps to: any JSON, a JSON schema, a grammar, a regex."""
    structured_outputs: StructuredOutputs | None = None
    """vLLM's way to ask for a form: exactly one of its first six fields."""
    guided_json: _Schema | None = None
    """vLLM's older name of structured_outputs.json."""
    guided_regex: str | None = None
    """vLLM's older name of structured_outputs.regex."""
    guided_grammar: str | None = None
    """vLLM's older name of structured_outputs.grammar."""
    guided_choice: _Choices | None = None
    """vLLM's older name of structured_outputs.choice."""
    json_schema: _Schema | None = None
    """JSON schema that the answer keeps to; llama.cpp's and SGLang's place for it."""
    grammar: str | None = None
    """llama.cpp's field: GBNF that the whole answer keeps to."""
    ebnf: str | None = None
    """SGLang's field: a grammar that the whole answer keeps to."""
    regex: str | None = None
    """Regular expression that the whole answer keeps to."""
    structural_tag: str | dict[str, Any] | None = None
    """Structures within free text, in xgrammar's description."""

    def structured_outputs_params(self) -> StructuredOutputsParams | None:
        """Raises `RequestError` naming the field that cannot be served; None when none asks."""
        asked = self._asked()
        if not asked:
            return None
        if len(asked) > 1:
            raise RequestError(
                f"{asked[0]} and {asked[1]} both ask for structured output; send one of them",
                param=asked[1],
            )
        name = asked[0]
        if name == "response_format":
            return _of_format(self.response_format)
        if name == "structured_outputs":
            return _of_structured(self.structured_outputs)
        if name == "structural_tag":
            return StructuredOutputsParams(
                structural_tag=client_tag(self.structural_tag, name), field=name
            )
        kind = _KINDS.get(name) or name.removeprefix("guided_")
        return StructuredOutputsParams(**{kind: getattr(self, name)}, field=name)

    @property
    def asks_for_structure(self) -> bool:
        return bool(self._asked())

    @property
    def asks_for_one_line(self) -> bool:
        asked = self.structured_outputs
        return asked is not None and bool(asked.disable_any_whitespace)

    def _asked(self) -> list[str]:
        """Return the fields that ask for a structure, in their order."""
        given = self.model_fields_set
        if given.isdisjoint(_FIELDS):  # nearly always
            return []
        return [name for name in _FIELDS if name in given and _asks(getattr(self, name))]


_KINDS = {"json_schema": "json", "ebnf": "grammar"}
_TAG_FIELDS = {"type", "format", "structures", "triggers", "at_least_one"}
_FIELDS = tuple(StructuredFields.model_fields)


def _asks(value: object) -> bool:
    # llama.cpp's clients send an empty grammar for none.
    return value not in (None, "") and not (
        isinstance(value, ResponseFormat) and value.type == "text"
    )


def _of_format(asked: ResponseFormat | None) -> StructuredOutputsParams:
    assert asked is not None
    field = "response_format"
    if asked.type in ("grammar", "regex"):
        kind, place = ("grammar", "grammar") if asked.type == "grammar" else ("regex", "pattern")
        text = getattr(asked, place)
        if text is None:
            raise RequestError(
                f"response_format.{place}: is required for type {asked.type}", param=field
            )
        return StructuredOutputsParams(**{kind: text}, field=field)
    if asked.type == "structural_tag":
        tag = asked.model_dump(include=_TAG_FIELDS, exclude_none=True)
        return StructuredOutputsParams(structural_tag=client_tag(tag, field), field=field)
    described = asked.json_schema
    schema = asked.schema_ if described is None else described.schema_
    if schema is None:
        if asked.type == "json_object":
            return StructuredOutputsParams(json_object=True, field=field)
        raise RequestError(
            "response_format.json_schema.schema: is required for type json_schema", param=field
        )
    return StructuredOutputsParams(json=schema, field=field)


def _of_structured(asked: StructuredOutputs | None) -> StructuredOutputsParams:
    assert asked is not None
    tag = asked.structural_tag
    return StructuredOutputsParams(
        structural_tag=None if tag is None else client_tag(tag, "structured_outputs"),
        json=asked.json_,
        json_object=bool(asked.json_object),
        regex=asked.regex,
        grammar=asked.grammar,
        choice=asked.choice,
        disable_any_whitespace=bool(asked.disable_any_whitespace),
    )
