"""enter_rows: assign slots to rows; a row that cannot be set up does not affect the others.

A row's options were checked before (wire/request_bounds.py). A fault that the checks miss affects
that one request: its row runs with plain parameters, so that the batch keeps its shape, and the
request ends with an error.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from atom.model_engine.batch import NewRow
from atom.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_PLAIN = SamplingParams(temperature=0.0)
Failed = tuple[tuple[int, str], ...]


def enter_rows(rows: tuple[NewRow, ...], enter: Callable[[tuple[NewRow, ...]], None]) -> Failed:
    """Set rows up with `enter`, all at once or, if that fails, each alone. Returns the request ids
    of failed rows, and why. enter: may be called again for the same rows. Raises the error of
    `enter` for a row with plain parameters: that is no request's fault."""
    try:
        enter(rows)
    except Exception:
        return tuple(found for row in rows if (found := _entered_alone(row, enter)) is not None)
    return ()


def _entered_alone(
    row: NewRow, enter: Callable[[tuple[NewRow, ...]], None]
) -> tuple[int, str] | None:
    try:
        enter((row,))
    except Exception as error:
        logger.exception("request %d could not be set up", row.request_id)
        enter((replace(row, params=_PLAIN, seed=0),))
        return row.request_id, f"its parameters could not be set up: {type(error).__name__}"
    return None
