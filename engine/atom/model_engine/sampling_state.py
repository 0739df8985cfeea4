"""SamplingState: how each slot's tokens are chosen, and what one step's sampling needs of it.

The host keeps every slot's parameters as columns. Most rows need no more than a temperature and a
seed, which the device has per slot; rows that want more (top-k, top-p, min-p) are named to the
sampler one by one, so that the others pay nothing for them. Owned by ModelRunner.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_engine.batch import NewRow
from atom.model_ops.backends.interface import LikelyLimits
from atom.model_ops.sampler import ShapedRows
from atom.utils.device import upload

_Slots = NDArray[np.int32]


class SamplingState:
    def __init__(self, num_slots: int, vocab_size: int, device: torch.device) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._temperature = np.zeros(num_slots, dtype=np.float32)
        self._top_k = np.full(num_slots, vocab_size, dtype=np.int64)
        self._top_p = np.ones(num_slots, dtype=np.float32)
        self._min_p = np.zeros(num_slots, dtype=np.float32)
        self._is_shaped = np.zeros(num_slots, dtype=np.bool_)

    def enter(self, rows: tuple[NewRow, ...]) -> None:
        """Take the parameters of rows that take a slot."""
        for row in rows:
            slot, params = row.slot, row.params
            self._temperature[slot] = params.temperature
            self._top_k[slot] = params.top_k if params.top_k > 0 else self._vocab_size
            self._top_p[slot] = params.top_p
            self._min_p[slot] = params.min_p
            self._is_shaped[slot] = params.temperature > 0 and (
                params.top_k > 0 or params.top_p < 1 or params.min_p > 0
            )

    def temperature(self, slots: _Slots) -> NDArray[np.float32]:
        return self._temperature[slots]

    def is_plain(self, slots: _Slots) -> bool:
        """Whether all of them only have a temperature and a seed."""
        return not self._is_shaped[slots].any()

    def shaped_rows(self, slots: _Slots) -> ShapedRows | None:
        """What the rows of `slots` (in this order) ask for beyond a draw; None if nothing."""
        rows = np.flatnonzero(self._is_shaped[slots])
        if len(rows) == 0:
            return None
        return ShapedRows(rows=upload(rows, self._device), limits=self._likely_limits(slots[rows]))

    def _likely_limits(self, slots: _Slots) -> LikelyLimits:
        top_k, top_p, min_p = self._top_k[slots], self._top_p[slots], self._min_p[slots]
        limited = top_k[top_k < self._vocab_size]
        temperature, on_device_top_p, on_device_min_p = upload(
            np.stack([self._temperature[slots], top_p, min_p]), self._device
        )
        return LikelyLimits(
            temperature=temperature,
            top_k=upload(top_k, self._device),
            top_p=on_device_top_p,
            min_p=on_device_min_p,
            largest_top_k=int(limited.max(initial=0)),
            any_top_p=bool((top_p < 1).any()),
            any_min_p=bool((min_p > 0).any()),
        )
