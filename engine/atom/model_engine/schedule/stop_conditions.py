"""StopConditions: which rows end with the token they just got, and for which reason.

The order of the reasons (docs/guides/scheduling.md, What ends an answer): the model's end tokens,
then the request's own stop tokens, then its length. Stop strings are matched where text is made.
Columns of the row table decide for all rows at once; only rows with stop tokens are checked one by
one. Used by Scheduler only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from atom.model_engine.batch import Slots
from atom.model_engine.request import FinishReason
from atom.model_engine.schedule.row_table import RowTable
from atom.model_engine.sequence import Sequence

_NO_TOKENS: frozenset[int] = frozenset()


class StopConditions:
    def __init__(self, rows: RowTable, eos_token_ids: Iterable[int]) -> None:
        self._rows = rows
        self._eos = tuple(sorted(eos_token_ids))
        self._stop_tokens: dict[int, frozenset[int]] = {}  # slots with stop tokens

    def enter(self, sequence: Sequence) -> None:
        """Record the stop tokens of a sequence that has taken its slot."""
        if sequence.params.stop_token_ids:
            self._stop_tokens[sequence.slot] = frozenset(sequence.params.stop_token_ids)

    def leave(self, slot: int) -> None:
        self._stop_tokens.pop(slot, None)

    def ended(
        self, slots: Slots, lengths: NDArray[np.int32], tokens: NDArray[np.int32]
    ) -> NDArray[np.bool_]:
        """Return per row whether `tokens`, which come after `lengths` tokens, end it."""
        ended: NDArray[np.bool_] = lengths >= self._rows.last_position[slots]
        for eos in self._eos:  # one or a few: cheaper than a set operation of numpy
            hit = tokens == eos
            if np.count_nonzero(hit):
                ended |= hit & ~self._rows.ignore_eos[slots]
        if self._stop_tokens:
            ended |= self._hit_stop_tokens(slots, tokens)
        return ended

    def _hit_stop_tokens(self, slots: Slots, tokens: NDArray[np.int32]) -> NDArray[np.bool_]:
        return np.fromiter(
            (
                token in self._stop_tokens.get(slot, _NO_TOKENS)
                for slot, token in zip(slots.tolist(), tokens.tolist(), strict=True)
            ),
            dtype=np.bool_,
            count=len(slots),
        )

    def reason(self, sequence: Sequence, token: int) -> tuple[FinishReason, str]:
        """Return why a row that ended with `token` did, and the detail of it."""
        if token in self._eos and not sequence.params.ignore_eos:
            return FinishReason.STOP, "eos"
        if token in sequence.params.stop_token_ids:
            return FinishReason.STOP, f"stop_{token}"
        return FinishReason.LENGTH, "max_tokens"
