"""Words of other APIs and of SDKs' calls in a body: refused with the place where they belong."""

from __future__ import annotations

import json

import pytest

from atom.entrypoints.request_fields.field_check import UNSUPPORTED, check_fields
from atom.entrypoints.request_fields.field_row import Endpoint, FieldRow, Verdict
from atom.entrypoints.request_fields.foreign_words import FOREIGN_WORDS
from atom.errors import RequestError
from tests.support.server.request_fields import KINDS, TABLE

_CASES = [(row, endpoint) for row in FOREIGN_WORDS for endpoint in row.endpoints]


@pytest.mark.parametrize(
    ("row", "endpoint"), _CASES, ids=[f"{row.path} in {end}" for row, end in _CASES]
)
def test_a_word_of_another_api_is_told_with_its_place(row: FieldRow, endpoint: Endpoint) -> None:
    kind = KINDS[endpoint]
    for nothing in (None, *row.nothing):
        assert check_fields(json.dumps({row.path: nothing}).encode(), kind) == []
    body = json.dumps({row.path: {"structured_outputs": {"choice": ["a", "b"]}}}).encode()
    if row.verdict is Verdict.HARMLESS:
        assert check_fields(body, kind) == []
        return
    with pytest.raises(RequestError) as refusal:
        check_fields(body, kind)
    assert (refusal.value.param, refusal.value.code) == (row.path, UNSUPPORTED)
    assert row.note in str(refusal.value)


def test_a_place_that_a_remedy_names_is_a_field_of_the_request() -> None:
    """`send X` names a field that the endpoint takes."""
    for row in FOREIGN_WORDS:
        said = row.note.partition(", ")[0]
        if not said.startswith("send ") or " " in said.removeprefix("send "):
            continue
        named = said.removeprefix("send ")
        for endpoint in row.endpoints:
            taken = {
                each.path
                for each in TABLE
                if endpoint in each.endpoints and each.verdict is Verdict.HONOURED
            }
            assert named in taken, (endpoint, row.path, named)
