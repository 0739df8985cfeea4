"""TokenBans: the tokens that rows must not choose, or should choose more or less often.

allowed_token_ids, logit_bias and bad words of one token become one row of additions to the logits;
min_tokens forbids the tokens that would end the sequence while the host's count, which is exact
even a step late, requires it; longer bad words are listed for the device to compare with the
answer's last tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow, Slots
from atom.model_engine.runner.slots.slot_table import SlotTable
from atom.model_engine.runner.slots.token_history import WINDOW
from atom.model_ops.sampling.draws_ahead import DrawsAhead
from atom.model_ops.sampling.forbidden_tokens import BadWords, ForbiddenTokens
from atom.sampling_params import SamplingParams
from atom.utils.device import upload


@dataclass(frozen=True, slots=True)
class _Words:
    """A row's bad words of more than one token: prefixes [P, WINDOW] int32, last_tokens [P]."""

    prefixes: NDArray[np.int32]
    last_tokens: NDArray[np.int64]


class TokenBans:
    def __init__(
        self,
        num_slots: int,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        device: torch.device,
    ) -> None:
        self._device = device
        self._eos = tuple(eos_token_ids)
        self._bias = SlotTable(num_slots, vocab_size, torch.float32, device)
        self._least_total = np.zeros(num_slots, dtype=np.int32)  # length from which it may end
        self._ends: dict[int, NDArray[np.int64]] = {}  # of slots with a least length
        self._words: dict[int, _Words] = {}

    def enter(self, row: NewRow) -> bool:
        """Take a new row's; whether it has any but the ends that min_tokens forbids for a while."""
        slot, params = row.slot, row.params
        ends = {*params.stop_token_ids, *(() if params.ignore_eos else self._eos)}
        self._least_total[slot] = row.num_prompt_tokens + params.min_tokens if ends else 0
        self._ends[slot] = np.array(sorted(ends), dtype=np.int64)
        has_bias = self._enter_bias(slot, params)
        words = [word for word in params.bad_words_token_ids if len(word) > 1]
        self._words.pop(slot, None)
        if words:
            self._words[slot] = _listed(words)
        return has_bias or bool(words)

    def must_go_on(self, slots: Slots, positions: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which rows must not end with the token that they draw at `positions`."""
        return positions < self._least_total[slots]

    def bias(self, slots: Slots) -> torch.Tensor | None:
        """Collect [n, V] float32 to add to the rows' logits; None when no row has any."""
        rows = self._bias.rows_of(slots)
        if not rows.any():
            return None
        return self._bias.rows.index_select(0, upload(rows, self._device))

    def forbidden(
        self, slots: Slots, positions: NDArray[np.int32], ahead: DrawsAhead | None = None
    ) -> ForbiddenTokens | None:
        """Return the tokens that may not be drawn at `positions` because the answer must not end
        yet; for draws ahead, the device decides which of these bans hold."""
        rows = np.flatnonzero(self.must_go_on(slots, positions))
        if len(rows) == 0:
            return None
        ends = [self._ends[slot] for slot in slots[rows].tolist()]
        counts = [len(tokens) for tokens in ends]
        leasts = np.repeat(self._least_total[slots[rows]], counts).astype(np.int64)
        listed = np.stack([np.repeat(rows, counts), np.concatenate(ends), leasts])
        row, token_ids, least = upload(listed, self._device)
        holds = None if ahead is None else ahead.positions[row] < least
        return ForbiddenTokens(row, token_ids, holds)

    def bad_words(
        self, slots: Slots, recent: SlotTable, ahead: DrawsAhead | None = None
    ) -> BadWords | None:
        """Return the rows' bad words of several tokens; `recent` has their newest tokens."""
        found = [
            (row, self._words[slot])
            for row, slot in enumerate(slots.tolist())
            if slot in self._words
        ]
        if not found:
            return None
        counts = [len(words.last_tokens) for _, words in found]
        rows = np.repeat(np.array([row for row, _ in found], dtype=np.int64), counts)
        last_tokens = np.concatenate([words.last_tokens for _, words in found])
        on_device = upload(np.stack([rows, last_tokens]), self._device)
        prefixes = np.concatenate([words.prefixes for _, words in found])
        newest = recent.rows.index_select(0, upload(recent.rows_of(slots), self._device))
        return BadWords(
            rows=on_device[0],
            prefixes=upload(prefixes, self._device),
            last_tokens=on_device[1],
            recent=newest if ahead is None else ahead.newest(newest),
        )

    def _enter_bias(self, slot: int, params: SamplingParams) -> bool:
        """Write the slot's additions; whether it has any."""
        banned = [word[0] for word in params.bad_words_token_ids if len(word) == 1]
        if params.allowed_token_ids is None and not params.logit_bias and not banned:
            self._bias.release(slot)
            return False
        bias = self._bias.take(slot)
        if params.allowed_token_ids is None:
            bias.zero_()
        else:
            bias.fill_(-torch.inf)
            bias.index_fill_(0, self._tokens(params.allowed_token_ids), 0.0)
        if params.logit_bias:
            values = np.array(list(params.logit_bias.values()), dtype=np.float32)
            tokens = self._tokens(params.logit_bias)
            bias.index_add_(0, tokens, upload(values, self._device))
        if banned:
            bias.index_fill_(0, self._tokens(banned), -torch.inf)
        return True

    def _tokens(self, token_ids: Iterable[int]) -> torch.Tensor:
        return upload(np.fromiter(token_ids, dtype=np.int64), self._device)


def _listed(words: list[tuple[int, ...]]) -> _Words:
    prefixes = np.full((len(words), WINDOW), -1, dtype=np.int32)
    for index, word in enumerate(words):
        prefixes[index, WINDOW - len(word) + 1 :] = word[:-1]
    return _Words(prefixes, np.array([word[-1] for word in words], dtype=np.int64))
