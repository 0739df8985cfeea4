"""A body's fields checked against the known ones, at every depth: refused ones, and unknown ones.

A name that is one typo away from a field's is refused, since that field would have changed the
answer; other unknown names are ignored, and reported to the client. No object is built for an
ignored value, however large it is. Called by body.py for bodies whose shapes are right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec

from atom.entrypoints.request_fields.field_row import FieldRow, Verdict
from atom.entrypoints.request_fields.field_table import OTHER_FIELDS
from atom.entrypoints.request_fields.honoured_fields import honoured_fields
from atom.entrypoints.request_fields.request_body import RequestBody
from atom.errors import RequestError

UNSUPPORTED = "unsupported_parameter"  # an error's code
MOST_UNKNOWN = 16  # that are inspected and reported
_LONGEST_NOTHING_BYTES = 64  # of a value that asks for nothing, however it is spelled
_LONGEST_NAME = 64
_LONGEST_PATH = 96
_SHORTEST_LIKE = 4  # names of fewer entries are like too many others
_OBJECT, _LIST = b"{["
_Place = tuple[str | int, ...]
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
_objects = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_list = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(slots=True)
class _Level:
    """Hold the field rules of one object. plain: fields without a message. rows: refused ones.
    levels: objects, or lists of objects, with known fields. closed: others are refused."""

    plain: set[str] = field(default_factory=set)
    rows: dict[str, FieldRow] = field(default_factory=dict)
    levels: dict[str, _Level] = field(default_factory=dict)
    closed: bool = False

    @property
    def names(self) -> Iterator[str]:
        yield from (*self.plain, *self.rows, *self.levels)


def check_fields(data: bytes | bytearray, kind: type[RequestBody]) -> list[str]:
    """Return the paths of unknown fields. Raises `RequestError` for a field that is refused, or
    that is misspelled, and for invalid JSON."""
    unknown: list[str] = []
    try:
        _check_object(_object.decode(data), _levels_of(kind), (), unknown)
    except (msgspec.DecodeError, RecursionError) as error:
        # In a field that is not looked at, such as a NaN.
        raise RequestError(f"the body is not valid JSON: {error}", code="invalid_json") from None
    return unknown


def _check_object(
    found: dict[str, msgspec.Raw], level: _Level, place: _Place, unknown: list[str]
) -> None:
    left = found.keys() - level.plain
    for name in left if len(left) < 2 else [name for name in found if name in left]:
        inner = level.levels.get(name)
        if inner is not None:
            value = memoryview(found[name])
            if value[0] == _OBJECT or value[0] == _LIST:  # else a text, or nothing
                _check_value(value, inner, (*place, name), unknown)
        elif name in level.rows:
            _refuse_if_asked(found[name], level.rows[name], _written((*place, name)))
        elif len(unknown) < MOST_UNKNOWN:
            path = _written((*place, name))
            _refuse_if_misspelled(name, level, path)
            unknown.append(path[:_LONGEST_PATH])


def _check_value(value: memoryview, level: _Level, place: _Place, unknown: list[str]) -> None:
    """Check a value: an object, or a list of them."""
    if value[0] == _OBJECT:
        _check_object(_object.decode(value), level, place, unknown)
        return
    try:
        items = _objects.decode(value)
    except msgspec.ValidationError:  # some are texts
        parts = [memoryview(item) for item in _list.decode(value)]
        items = [_object.decode(part) if part[0] == _OBJECT else {} for part in parts]
    for index, item in enumerate(items):
        _check_object(item, level, (*place, index), unknown)


def _written(place: _Place) -> str:
    """Write a place in a body as a client would: messages[0].content[1].type."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return "".join(parts).removeprefix(".")


def _refuse_if_asked(value: msgspec.Raw, row: FieldRow, path: str) -> None:
    if _asks_nothing(memoryview(value), row.nothing):
        return
    nothing = " or ".join(msgspec.json.encode(item).decode() for item in row.nothing)
    instead = f" or send {nothing}" if nothing else ""
    raise RequestError(
        f"{path} is not supported by this server: {row.note}; leave it out{instead}",
        param=_top(path),
        code=UNSUPPORTED,
    )


def _asks_nothing(value: memoryview, nothing: Iterable[Any]) -> bool:
    if len(value) > _LONGEST_NOTHING_BYTES:
        return False
    asked = msgspec.json.decode(value)
    # Types count: False is not 0 (logprobs 0 still asks for the chosen token's).
    return asked is None or any(type(asked) is type(item) and asked == item for item in nothing)


def _refuse_if_misspelled(name: str, level: _Level, path: str) -> None:
    meant = like(name, tuple(sorted(level.names))) if len(name) <= _LONGEST_NAME else None
    if meant is not None:
        raise RequestError(
            f"{path} is no field of this request; did you mean {meant}? Correct it, or leave it "
            f"out",
            param=_top(path),
            code="unknown_parameter",
        )
    if level.closed:
        raise RequestError(
            f"{path} is no field of this request; leave it out",
            param=_top(path),
            code="unknown_parameter",
        )


def _top(path: str) -> str:
    return path.partition(".")[0].partition("[")[0]


def like(name: str, known: tuple[str, ...]) -> str | None:
    """Return the known name of which this one is a misspelling: one entry more, less, other or at
    another's place, or written with other capitals or signs."""
    bare = _bare(name)
    if len(bare) < _SHORTEST_LIKE:
        return None
    spellings = _spellings(known)
    return next((spellings[each] for each in _without_one(bare) if each in spellings), None)


@cache
def _spellings(known: tuple[str, ...]) -> dict[str, str]:
    """Return each known name, whole and without each of its entries."""
    found: dict[str, str] = {}
    for name in known:
        if len(_bare(name)) >= _SHORTEST_LIKE:
            for each in _without_one(_bare(name)):
                found.setdefault(each, name)
    return found | {_bare(name): name for name in known}


def _without_one(bare: str) -> Iterator[str]:
    yield bare
    yield from (bare[:index] + bare[index + 1 :] for index in range(len(bare)))


def _bare(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


@cache
def _levels_of(kind: type[RequestBody]) -> _Level:
    top = _Level()
    others = (row for row in OTHER_FIELDS if kind.endpoint in row.endpoints)
    rows = (*honoured_fields(kind), *others)
    for row in sorted(rows, key=lambda row: row.path.count(".")):
        *outer, name = row.path.replace("[]", "").split(".")
        level = top
        for part in outer:
            level.plain.discard(part)
            level = level.levels.setdefault(part, _Level())
        if row.verdict is Verdict.REFUSED:
            level.rows[name] = row
        else:
            level.plain.add(name)
        if row.closed:
            level.levels[name] = _Level(closed=True)
            level.plain.discard(name)
    return top
