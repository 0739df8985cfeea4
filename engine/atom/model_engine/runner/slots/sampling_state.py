"""SamplingState: the sampling controls of each slot, and the inputs of one step's sampling.

Every slot's parameters are columns (slot_columns.py). Most rows need only a temperature and a seed,
which the device has per slot. Rows that need more are listed for the sampler one by one
(`ShapedRows`), so the others have no extra cost. Owned by StepRunner.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow, Slots
from atom.model_engine.runner.slots.slot_columns import NO_LOGPROBS, SlotState
from atom.model_engine.runner.slots.token_bans import TokenBans
from atom.model_engine.runner.slots.token_history import TokenHistory
from atom.model_ops.backends.interface import LogitFilters
from atom.model_ops.drafts import DrawnRuns
from atom.model_ops.sampling.draws_ahead import DrawsAhead
from atom.model_ops.sampling.penalties import Penalties
from atom.model_ops.sampling.sampler import ShapedRows
from atom.sampling_params import SamplingParams
from atom.utils.device import upload

# Number of logits that are shaped at once; more rows take turns, so that their memory is bounded (a
# few times 64 MiB) whatever the batch.
_SHAPED_NUMBERS = 1 << 24

_FEW = 1024
# Columns that a shaped row's logits need, in the order in which they go to the device.
_SHAPING = ("temperature", "top_p", "min_p", "repetition", "presence", "frequency")


class SamplingNeeds(Enum):
    """The most that any row of a step needs at sampling."""

    DRAW = "a draw under a temperature"
    FILTERED = "a draw within top-k, top-p or min-p"
    MORE = "changed logits, or log-probabilities"


class SamplingState:
    def __init__(
        self,
        state: SlotState,
        vocab_size: int,
        eos_token_ids: Iterable[int],
        device: torch.device,
    ) -> None:
        self._columns = state.host
        num_slots = len(state.host["temperature"])
        self._device = device
        self._vocab_size = vocab_size
        self._rows_at_once = max(1, _SHAPED_NUMBERS // vocab_size)
        self._is_filtered = np.zeros(num_slots, dtype=np.bool_)
        self._is_changed = np.zeros(num_slots, dtype=np.bool_)
        self._history = TokenHistory(num_slots, vocab_size, device)
        self._bans = TokenBans(num_slots, vocab_size, eos_token_ids, device)

    def enter(self, rows: tuple[NewRow, ...]) -> None:
        """Record the sampling options of new rows that their columns do not hold."""
        for row in rows:
            slot, params = row.slot, row.params
            self._history.enter(row)
            self._is_filtered[slot] = _filters_tokens(params)
            self._is_changed[slot] = self._bans.enter(row) or params.penalizes

    def temperature(self, slots: Slots) -> NDArray[np.float32]:
        temperatures: NDArray[np.float32] = self._columns["temperature"][slots]
        return temperatures

    def needs(self, slots: Slots, positions: NDArray[np.int32]) -> SamplingNeeds:
        """Return the most demanding need of these rows, which are about to draw the tokens at
        `positions`."""
        reported = self._columns["num_logprobs"][slots] != NO_LOGPROBS
        if (reported | self._changed(slots, positions)).any():
            return SamplingNeeds.MORE
        return SamplingNeeds.FILTERED if self._is_filtered[slots].any() else SamplingNeeds.DRAW

    def reports(self, slots: Slots) -> bool:
        """Return whether any of the rows reports log-probabilities."""
        return bool((self._columns["num_logprobs"][slots] != NO_LOGPROBS).any())

    def logprob_rows(self, slots: Slots) -> tuple[NDArray[np.intp], int]:
        """Return which of the rows report log-probabilities, and the most likely tokens that any
        wants."""
        wanted = self._columns["num_logprobs"][slots]
        return np.flatnonzero(wanted != NO_LOGPROBS), int(wanted.max(initial=0))

    def shaped_rows(
        self, slots: Slots, positions: NDArray[np.int32], ahead: DrawsAhead | None = None
    ) -> list[ShapedRows]:
        """Group the rows of `slots` (in this order) that need more than a plain draw, by kind and
        in bounded sizes; no row is in two groups. `ahead`: set if rows are draws that follow other
        draws of the step."""
        if ahead is not None:  # the device decides which bans of draws ahead no longer hold
            positions = positions - ahead.host_lead
        rows = np.flatnonzero(self._is_filtered[slots] | self._changed(slots, positions))
        if len(rows) == 0:
            return []
        needs_order = self._needs_order(slots[rows])
        groups = [
            kind[start : start + self._rows_at_once]
            for kind in (rows[~needs_order], rows[needs_order])
            for start in range(0, len(kind), self._rows_at_once)
        ]
        return [self._shaped_rows(group, slots[group], positions[group], ahead) for group in groups]

    def record(self, slots: Slots, token_ids: torch.Tensor) -> None:
        """Record the tokens [R] int64 that the rows of `slots` got, on the device."""
        self._history.append(slots, token_ids)

    def record_runs(self, slots: Slots, drawn: DrawnRuns, counts: torch.Tensor, most: int) -> None:
        """Record that the rows of `slots` got `counts` [R] int64 on the device of the drawn tokens,
        `most` at most."""
        self._history.append_runs(slots, drawn, counts, most)

    def _needs_order(self, slots: Slots) -> NDArray[np.bool_]:
        """Return the rows whose limits take more than a few of the likeliest tokens to find: kept
        apart, so that the others do not pay for a sorted vocabulary."""
        top_k = self._columns["top_k"][slots]
        alone: NDArray[np.bool_] = (top_k == self._vocab_size) & (self._columns["top_p"][slots] < 1)
        return alone | ((top_k > _FEW) & (top_k < self._vocab_size))

    def _changed(self, slots: Slots, positions: NDArray[np.int32]) -> NDArray[np.bool_]:
        """Return which rows' logits differ from the model's."""
        return self._is_changed[slots] | self._bans.must_go_on(slots, positions)

    def _shaped_rows(
        self,
        rows: NDArray[np.intp],
        slots: Slots,
        positions: NDArray[np.int32],
        ahead: DrawsAhead | None,
    ) -> ShapedRows:
        on_device = upload(rows, self._device)
        ahead = ahead and ahead.of(on_device)
        columns = np.stack([self._columns[name][slots] for name in _SHAPING])
        floats = upload(columns, self._device)
        recent = self._history.recent
        return ShapedRows(
            rows=on_device,
            bias=self._bans.bias(slots),
            forbidden=self._bans.forbidden(slots, positions, ahead),
            bad_words=self._bans.bad_words(slots, recent, ahead),
            penalties=self._penalties(slots, floats, ahead),
            filters=self._filters(slots, columns, floats),
        )

    def _penalties(
        self, slots: Slots, floats: torch.Tensor, ahead: DrawsAhead | None
    ) -> Penalties | None:
        table = self._history.occurrences
        rows = table.rows_of(slots)
        if not rows.any():
            return None
        occurrences = table.rows.index_select(0, upload(rows, self._device))
        if ahead is not None:
            occurrences = ahead.counted(occurrences)
        return Penalties(occurrences, repetition=floats[3], presence=floats[4], frequency=floats[5])

    def _filters(
        self, slots: Slots, columns: NDArray[np.float32], floats: torch.Tensor
    ) -> LogitFilters | None:
        top_k, top_p, min_p = self._columns["top_k"][slots], columns[1], columns[2]
        limited = top_k[top_k < self._vocab_size]
        any_top_p, any_min_p = bool((top_p < 1).any()), bool((min_p > 0).any())
        if not (len(limited) or any_top_p or any_min_p):
            return None
        candidates = int(limited.max(initial=0))
        if self._needs_order(slots).any():
            candidates = self._vocab_size
        return LogitFilters(
            temperature=floats[0],
            top_k=upload(top_k, self._device),
            top_p=floats[1],
            min_p=floats[2],
            candidates=candidates,
            any_top_p=any_top_p,
            any_min_p=any_min_p,
        )


def _filters_tokens(params: SamplingParams) -> bool:
    """Return whether only likely tokens may be drawn; a greedy row takes the likeliest anyway."""
    limited = params.top_k > 0 or params.top_p < 1 or params.min_p > 0
    return limited and not params.greedy
