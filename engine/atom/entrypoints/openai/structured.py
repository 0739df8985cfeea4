"""Structured output as clients ask for it: OpenAI's response_format, vLLM's structured_outputs and
its older guided_* fields, all to one StructuredOutputsParams.

Parsing only: shapes and the choice between the fields. What a schema or grammar may be is checked
by StructuredOutputsParams, which is told the field so that errors name it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from atom.errors import RequestError
from atom.structured_outputs import StructuredOutputsParams
from atom.structured_outputs.params import MAX_CHOICES

_STRICT = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
_Schema = str | dict[str, Any] | bool
_Choices = Annotated[list[str], Field(fail_fast=True, max_length=MAX_CHOICES)]


class JsonSchemaFormat(BaseModel):
    """name, description: for people and models with a place for them. strict: the schema is kept to
    either way."""

    model_config = _STRICT
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    model_config = _STRICT
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's: exactly one of the first five. Unknown keys are refused: they would change the answer
    if they were known."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    json_: _Schema | None = Field(default=None, alias="json")
    json_object: bool | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: _Choices | None = None
    disable_any_whitespace: bool | None = None
    disable_fallback: bool | None = None  # there is one way to do it here


class StructuredFields(BaseModel):
    """The fields of both endpoints that ask for structured output; at most one of them."""

    model_config = _STRICT

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: _Schema | None = None
    guided_regex: str | None = None
    guided_grammar: str | None = None
    guided_choice: _Choices | None = None

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
        kind = name.removeprefix("guided_")
        return StructuredOutputsParams(**{kind: getattr(self, name)}, field=name)

    @property
    def asks_for_structure(self) -> bool:
        return bool(self._asked())

    @property
    def asks_for_one_line(self) -> bool:
        asked = self.structured_outputs
        return asked is not None and bool(asked.disable_any_whitespace)

    def _asked(self) -> list[str]:
        """The fields that ask for a structure, in their order."""
        given = self.model_fields_set
        if given.isdisjoint(_FIELDS):  # nearly always
            return []
        return [name for name in _FIELDS if name in given and _asks(getattr(self, name))]


_FIELDS = tuple(StructuredFields.model_fields)


def _asks(value: object) -> bool:
    return value is not None and not (isinstance(value, ResponseFormat) and value.type == "text")


def _of_format(response_format: ResponseFormat | None) -> StructuredOutputsParams:
    assert response_format is not None
    field = "response_format"
    if response_format.type == "json_object":
        return StructuredOutputsParams(json_object=True, field=field)
    described = response_format.json_schema
    schema = None if described is None else described.schema_
    if schema is None:
        raise RequestError(
            "response_format.json_schema.schema: is required for type json_schema", param=field
        )
    return StructuredOutputsParams(json=schema, field=field)


def _of_structured(asked: StructuredOutputs | None) -> StructuredOutputsParams:
    assert asked is not None
    return StructuredOutputsParams(
        json=asked.json_,
        json_object=bool(asked.json_object),
        regex=asked.regex,
        grammar=asked.grammar,
        choice=asked.choice,
        disable_any_whitespace=bool(asked.disable_any_whitespace),
    )
