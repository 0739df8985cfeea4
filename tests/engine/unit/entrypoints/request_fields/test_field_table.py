"""The request fields are whole: every field of other servers is declared by a request model, or has
a row that states its effect."""

from __future__ import annotations

import pkgutil
import types
from collections.abc import Iterator
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import pytest
from pydantic import BaseModel
from typing_extensions import is_typeddict

from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict
from tests.support.peers import FIELD_LISTS, fields_of
from tests.support.server.request_fields import KINDS, TABLE

_WRAPPERS = (Annotated, Required, NotRequired)


def rows_of(endpoint: Endpoint) -> dict[str, FieldRow]:
    return {row.path: row for row in TABLE if endpoint in row.endpoints}


def ancestors(path: str) -> Iterator[str]:
    """The field itself and the ones it is in."""
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        outer = ".".join(parts[:count])
        yield outer
        yield outer.removesuffix("[]")


def is_said(path: str, rows: dict[str, FieldRow]) -> bool:
    """Whether the table says what becomes of a field: itself, or what holds it and is refused, or
    belongs whole to its sender."""
    if path in rows:
        return True
    outer = (rows[each] for each in ancestors(path) if each in rows)
    return any(row.opaque or row.verdict is not Verdict.HONOURED for row in outer)


def objects_in(kind: Any) -> Iterator[tuple[str, Any]]:
    """Every typed object that a value of this type may hold, and the brackets of its lists."""
    if is_typeddict(kind) or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        yield "", kind
        return
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        for choice in get_args(kind):
            yield from objects_in(choice)
    elif origin in _WRAPPERS:
        yield from objects_in(get_args(kind)[0])
    elif origin is not None and origin is not dict:
        for item in get_args(kind):
            for brackets, found in objects_in(item):
                yield f"[]{brackets}", found


# Blocks and tools of other types are refused whole, by their type.
TAKEN = {
    "text", "thinking", "redacted_thinking", "tool_use", "tool_result", "tool_reference",
    "tool_addition", "tool_removal", "tool_definition", "custom",
}  # fmt: skip


def is_refused_by_type(kind: Any, place: str) -> bool:
    of_block = place.startswith(("messages[].content[]", "tools[]"))
    if not of_block or place.endswith("cache_control."):
        return False
    named = _literals(dict(members_of(kind)).get("type"))
    return bool(named) and not named & TAKEN


def _literals(annotation: Any) -> set[str]:
    if get_origin(annotation) is Literal:
        return set(get_args(annotation))
    return {each for part in get_args(annotation) for each in _literals(part)}


def members_of(kind: Any) -> Iterator[tuple[str, Any]]:
    if is_typeddict(kind):
        yield from get_type_hints(kind).items()
        return
    for name, field in kind.model_fields.items():
        yield field.alias or name, field.annotation


def paths_of(kind: Any, prefix: str = "", outer: tuple[Any, ...] = ()) -> Iterator[str]:
    for name, annotation in members_of(kind):
        yield prefix + name
        for brackets, found in objects_in(annotation):
            place = f"{prefix}{name}{brackets}."
            if found not in outer and not is_refused_by_type(found, place):
                yield from paths_of(found, place, (*outer, kind))


@pytest.mark.parametrize("peer", FIELD_LISTS)
def test_every_field_of_another_server_is_in_the_table(peer: str) -> None:
    tables = {endpoint: rows_of(endpoint) for endpoint in Endpoint}
    fields = fields_of(peer)
    assert fields
    missing = [
        f"{endpoint} {path}"
        for endpoint, path in fields
        if not is_said(path, tables[Endpoint(endpoint)])
    ]
    assert not missing


@pytest.mark.parametrize(
    ("fields", "endpoint"),
    [
        (
            "openai.types.chat.completion_create_params.CompletionCreateParamsStreaming",
            Endpoint.CHAT,
        ),
        (
            "openai.types.completion_create_params.CompletionCreateParamsStreaming",
            Endpoint.COMPLETIONS,
        ),
        (
            "openai.types.responses.response_create_params.ResponseCreateParamsStreaming",
            Endpoint.RESPONSES,
        ),
        (
            "openai.types.responses.input_token_count_params.InputTokenCountParams",
            Endpoint.RESPONSES_INPUT_TOKENS,
        ),
        ("openai.types.EmbeddingCreateParams", Endpoint.EMBEDDINGS),
        ("anthropic.types.message_create_params.MessageCreateParamsStreaming", Endpoint.MESSAGES),
        (
            "anthropic.types.beta.message_create_params.MessageCreateParamsStreaming",
            Endpoint.MESSAGES,
        ),
        (
            "anthropic.types.message_count_tokens_params.MessageCountTokensParams",
            Endpoint.COUNT_TOKENS,
        ),
    ],
)
def test_every_field_of_the_official_clients_is_in_the_table(
    fields: str, endpoint: Endpoint
) -> None:
    rows, paths = rows_of(endpoint), set(paths_of(pkgutil.resolve_name(fields)))
    assert len(paths) >= 5
    assert not [path for path in sorted(paths) if not is_said(path, rows)]


def test_a_path_of_several_kinds_of_an_object_has_the_texts_of_all() -> None:
    note = rows_of(Endpoint.CHAT)["tool_choice.type"].note
    assert note == ("allowed_tools: a choice among several tools. function: one tool by its name.")


def test_each_field_of_an_endpoint_has_one_row_that_says_why() -> None:
    for endpoint in Endpoint:
        paths = [row.path for row in TABLE if endpoint in row.endpoints]
        assert len(paths) == len(set(paths)), sorted(p for p in paths if paths.count(p) > 1)
    assert all(row.note for row in TABLE)
    assert {row.endpoints for row in TABLE if row.path == "model"} == {tuple(KINDS)}
