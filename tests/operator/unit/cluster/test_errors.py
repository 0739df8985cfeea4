"""What an answer of the API server means: try again, or say so and wait for a change."""

from __future__ import annotations

import pytest

from atom_operator.cluster.errors import RefusedError, TransientError, classify


@pytest.mark.parametrize("code", [None, 401, 404, 409, 410, 429, 500, 503])
def test_what_passes_by_itself_is_tried_again(code: int | None) -> None:
    assert isinstance(classify(code, "words"), TransientError)


@pytest.mark.parametrize("code", [400, 403, 413, 422])
def test_what_will_be_refused_again_is_said(code: int) -> None:
    error = classify(code, "words")
    assert isinstance(error, RefusedError)
    assert error.code == code


def test_an_apply_that_does_not_match_the_schema_is_refused_though_its_code_is_500() -> None:
    message = "failed to create typed patch object: .spec.template.spec.foo: field not declared"
    assert isinstance(classify(500, message), RefusedError)
