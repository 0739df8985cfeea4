"""The list of models as Anthropic's clients page through it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from atom.entrypoints.anthropic.answers import ModelInfo, ModelPage
from atom.errors import RequestError

_DEFAULT_LIMIT, _MOST = 20, 1000


def model_info(name: str, *, created: int, max_model_len: int) -> ModelInfo:
    """Describe a served model. created: seconds since 1970."""
    return ModelInfo(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=max_model_len,
        max_tokens=max_model_len,
    )


def model_page(
    models: Sequence[ModelInfo],
    *,
    limit: str | None = None,
    after_id: str | None = None,
    before_id: str | None = None,
) -> ModelPage:
    """Cut a page of models, behind or before one of them. Raises `RequestError` for a wrong
    limit."""
    most = _DEFAULT_LIMIT if limit is None else int(limit) if limit.isdecimal() else 0
    if not 1 <= most <= _MOST:
        raise RequestError(f"limit: must be a number from 1 to {_MOST}", param="limit")
    names = [model.id for model in models]
    start = names.index(after_id) + 1 if after_id in names else 0
    end = names.index(before_id) if before_id in names else len(models)
    if before_id in names:
        start = max(start, end - most)
    shown = models[start : min(end, start + most)]
    more = start > 0 if before_id in names else start + len(shown) < end
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return ModelPage(shown, more, first, last)
