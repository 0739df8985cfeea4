"""DraftLengths: how many drafts each row's next step carries.

Pure numpy, torch-free; asked by the scheduler before a step, and told what came of it. Whatever is
chosen, the tokens are the same.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from atom.speculation.step_cost import Costs
from atom.speculative_config import SpeculativeConfig

Slots = NDArray[np.intp]

# What a row's acceptance is taken for before anything is known, and how many drafted tokens that
# opinion weighs; how much of what was seen before a step's drafts is remembered after them.
_PRIOR, _PRIOR_WEIGHT, _MEMORY = 0.7, 2.0, 0.9
# A row whose drafts do not pay tries one again after so many steps; one for which nothing was found
# to draft is asked again after one step, then two, and so on, up to so many, and for one draft:
# what it is to carry is computed, found or not.
_RETRIED_AFTER, _ASKED_AFTER = 32, 16


class DraftLengths(Protocol):
    def enter(self, slot: int) -> None:
        """Another sequence has the slot."""

    def choose(self, slots: Slots, computed: NDArray[np.int32]) -> NDArray[np.int32]:
        """How many drafts the next step of these rows, which it runs together, is to carry.
        computed: tokens that each slot has behind it, by slot."""

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        """Of so many drafts of each row so many held."""

    def miss(self, slots: Slots) -> None:
        """Nothing was found to draft for these rows, which were to carry some."""


class FixedDraftLengths:
    """As many as there may be, always."""

    def __init__(self, most: int) -> None:
        self._most = most

    def enter(self, slot: int) -> None:
        """All rows are alike."""

    def choose(self, slots: Slots, computed: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.full(len(slots), self._most, dtype=np.int32)

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        """Nothing follows from it."""

    def miss(self, slots: Slots) -> None:
        """Nothing follows from it."""


class AdaptiveDraftLengths:
    """As many as pay, by how often a row's drafts held lately and what the step costs with them.

    A draft holds if all before it did, and each with the row's acceptance a: k drafts give
    1 + a + ... + a^k tokens. The k is chosen that gives most tokens for what a step costs in which
    all rows carry so many; none where that is 0, but for a try now and then. A row that carries
    none rests: until it is its turn again no step pays for more than knowing that.
    """

    def __init__(self, most: int, num_slots: int, cost: Costs) -> None:
        self._lengths = np.arange(most + 1, dtype=np.float64)
        self._cost = cost
        self._held = np.zeros(num_slots)
        self._tried = np.zeros(num_slots)  # tokens drafted up to the first that did not hold
        self._rests = np.zeros(num_slots, dtype=np.int32)  # steps until it is asked again
        self._poor = np.zeros(num_slots, dtype=np.bool_)  # rests, or has, since none pays
        self._misses = np.zeros(num_slots, dtype=np.int32)  # one after the other
        self._all_rest = 0  # steps for which nothing need be asked, unless a row enters

    def enter(self, slot: int) -> None:
        self._held[slot] = _PRIOR * _PRIOR_WEIGHT
        self._tried[slot] = _PRIOR_WEIGHT
        self._rests[slot] = self._misses[slot] = 0
        self._poor[slot] = False
        self._all_rest = 0

    def choose(self, slots: Slots, computed: NDArray[np.int32]) -> NDArray[np.int32]:
        if self._all_rest:
            self._all_rest -= 1
            return np.zeros(len(slots), dtype=np.int32)
        rests = self._rests[slots]
        if rests.all():
            self._all_rest = int(rests.min()) - 1
            self._rests[slots] = rests - 1 - self._all_rest
            return np.zeros(len(slots), dtype=np.int32)
        acceptance = (self._held[slots] / self._tried[slots]).clip(0.0, 0.99)
        tokens = np.cumsum(acceptance[:, None] ** self._lengths, axis=1)
        context = float(computed[slots].mean())
        cost = self._cost.of_steps(len(slots), self._lengths, context)
        chosen: NDArray[np.int32] = np.argmax(tokens / cost, axis=1).astype(np.int32)
        resting = rests > 0
        none_pays = (chosen == 0) & ~resting
        chosen[none_pays & self._poor[slots]] = 1
        chosen = np.where(self._misses[slots] > 0, np.minimum(chosen, 1), chosen)
        chosen[resting] = 0
        self._poor[slots] = np.where(resting, self._poor[slots], none_pays)
        self._rests[slots] = np.where(none_pays, _RETRIED_AFTER - 1, np.maximum(rests - 1, 0))
        return chosen

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        memory = np.where(drafted > 0, _MEMORY, 1.0)
        self._held[slots] = self._held[slots] * memory + accepted
        self._tried[slots] = self._tried[slots] * memory + np.minimum(accepted + 1, drafted)
        self._misses[slots[drafted > 0]] = 0

    def miss(self, slots: Slots) -> None:
        misses = np.minimum(self._misses[slots] + 1, _ASKED_AFTER.bit_length())
        self._misses[slots] = misses
        self._rests[slots] = np.minimum(1 << (misses - 1), _ASKED_AFTER)


def draft_lengths(config: SpeculativeConfig, num_slots: int, cost: Costs) -> DraftLengths:
    """What the configuration asks for."""
    if config.adaptive:
        return AdaptiveDraftLengths(config.num_tokens, num_slots, cost)
    return FixedDraftLengths(config.num_tokens)
