"""DraftLengths: the number of drafts that each row's next step carries.

Pure numpy, torch-free. The scheduler asks for the lengths before a step, and reports the accepted
drafts after it. The chosen lengths do not change the tokens.
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from atom.speculation.step_cost import Costs
from atom.speculative_config import SpeculativeConfig

Slots = NDArray[np.intp]

# Priors of a row: the acceptance of its first draft after a rejection and after a full acceptance,
# and of any further draft after an accepted one; the weight of the priors in drafts; the share of
# earlier observations that is remembered from draft to draft.
_PRIOR_FIRST, _PRIOR_FURTHER, _PRIOR_WEIGHT = (0.2, 0.5), 0.7, 4.0
_MEMORY = 0.9
# A row for which no draft pays still tries one: at once, unless it costs more than so many steps,
# and then at intervals that grow by this factor, until the tries take this share of the steps.
_MOST_AT_ONCE, _RARER, _TIME_FOR_TRIES = 1.5, 4, 0.005
_LONGEST_RUN = 20.0  # consecutive fully accepted steps that are expected at most
_LEVELS = 100  # of a chance


class DraftLengths(Protocol):
    def enter(self, slot: int) -> None:
        """Reset the slot's statistics: another sequence has the slot."""

    def choose(self, slots: Slots, computed: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the number of drafts for the next step of each of these rows, which run together.
        computed: tokens that each slot has computed, by slot."""

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        """Learn from the drafted and the accepted tokens of each row."""

    def miss(self, slots: Slots) -> None:
        """Learn that no drafts were found for these rows, although they were to carry some."""


class FixedDraftLengths:
    """Lets every row carry as many drafts as there may be, always."""

    def __init__(self, most: int) -> None:
        self._most = most

    def enter(self, slot: int) -> None:
        """Do nothing: the lengths are fixed."""

    def choose(self, slots: Slots, computed: NDArray[np.int32]) -> NDArray[np.int32]:
        return np.full(len(slots), self._most, dtype=np.int32)

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        """Do nothing: the lengths are fixed."""

    def miss(self, slots: Slots) -> None:
        """Do nothing: the lengths are fixed."""


class AdaptiveDraftLengths:
    """Choose the number of drafts that pays, by the row's recent acceptance and the cost of a step.

    The first of k drafts is accepted with probability p. Each further draft is accepted with
    probability a, if all before it were: k drafts give 1 + p (1 + a + ... + a^(k-1)) tokens, where
    a step without drafts gives one. Repeated text stays repeated for a while. So p is kept
    separately for drafts after a fully accepted run and for drafts after a rejection. The value of
    drafting after a rejection includes the value of the run that the drafts may begin. The chosen k
    gives the most tokens beyond the cost, in steps without drafts, of a step in which all rows
    carry k drafts. A search that finds no drafts costs as much as carrying some.
    """

    def __init__(self, most: int, num_slots: int, cost: Costs) -> None:
        self._lengths = np.arange(most + 1, dtype=np.float64)
        self._cost = cost
        # Of first drafts, after a rejection, and after a full acceptance.
        self._first = (_Chances(num_slots), _Chances(num_slots))
        self._further = _Chances(num_slots)
        # By a chance in hundredths: tokens that k drafts give whose first one holds.
        self._tokens = np.zeros((_LEVELS, most + 1))
        chances = np.arange(_LEVELS)[:, None] / _LEVELS
        self._tokens[:, 1:] = np.cumsum(chances ** self._lengths[:-1], axis=1)
        self._goes_well = np.zeros(num_slots, dtype=np.bool_)  # the last drafts all held
        self._pause = np.zeros(num_slots, dtype=np.int64)  # steps after the last try; 0: none yet
        self._next_try = np.zeros(num_slots, dtype=np.int64)  # by steps; 0: none is set
        self._step = self._all_rest_until = 0

    def enter(self, slot: int) -> None:
        for chances, prior in zip(self._first, _PRIOR_FIRST, strict=True):
            chances.reset(slot, prior)
        self._further.reset(slot, _PRIOR_FURTHER)
        self._goes_well[slot] = False
        self._pause[slot] = self._next_try[slot] = self._all_rest_until = 0

    def choose(self, slots: Slots, computed: NDArray[np.int32]) -> NDArray[np.int32]:
        self._step += 1
        if self._step < self._all_rest_until:
            return np.zeros(len(slots), dtype=np.int32)
        next_try = self._next_try.take(slots)
        rests = next_try > self._step
        if rests.all():
            self._all_rest_until = int(next_try.min())
            return np.zeros(len(slots), dtype=np.int32)
        costs = self._cost.of_steps(len(slots), self._lengths, float(computed[slots].mean()))
        more = costs / costs[0] - 1.0
        chosen: NDArray[np.int32] = self._gains(slots, more).argmax(axis=1).astype(np.int32)
        chosen[rests] = 0
        none_pays = (chosen == 0) & ~rests
        if none_pays.any():
            chosen[none_pays] = self._tries(slots[none_pays], max(0.0, float(more[1])))
        return chosen

    def _gains(self, slots: Slots, more: NDArray[np.float64]) -> NDArray[np.float64]:
        """Compute the tokens of the rows' next step minus its cost, [R, K + 1] by the number of
        drafts. more: the extra cost of steps with so many drafts, as a share of the cost without
        drafts."""
        after_some, after_all = (chances.of.take(slots) for chances in self._first)
        levels = (self._further.of.take(slots) * _LEVELS + 0.5).astype(np.intp)
        tokens = self._tokens.take(np.minimum(levels, _LEVELS - 1), axis=0)
        held = after_all[:, None] * tokens - more
        run = held.max(axis=1) / np.maximum(1.0 - after_all, 1.0 / _LONGEST_RUN)
        failed = after_some[:, None] * tokens - more
        failed[:, 1:] += (after_some * run)[:, None]
        return np.where(self._goes_well.take(slots)[:, None], held, failed)

    def _tries(self, slots: Slots, more: float) -> NDArray[np.bool_]:
        """Return whether rows try a draft now, though it does not pay; sets when they do so
        next."""
        longest = 1 + math.ceil(more / _TIME_FOR_TRIES)
        pause = self._pause.take(slots)
        tries: NDArray[np.bool_] = self._next_try.take(slots) > 0
        if more <= _MOST_AT_ONCE:
            tries |= pause == 0
            pause = np.minimum(np.maximum(pause * np.where(tries, _RARER, 1), _RARER), longest)
        else:
            pause[:] = longest
        self._pause[slots] = pause
        self._next_try[slots] = self._step + pause
        return tries

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        some = drafted > 0
        slots, drafted, accepted = slots[some], drafted[some], accepted[some]
        hits = accepted > 0
        self._learn_first(slots, hits)
        self._goes_well[slots] = accepted == drafted
        if not hits.any():
            return
        slots, accepted = slots[hits], accepted[hits]
        self._next_try[slots] = self._all_rest_until = 0
        tried = np.minimum(accepted, drafted[hits] - 1)
        more = tried > 0
        self._further.learn(slots[more], tried[more], accepted[more] - 1)

    def miss(self, slots: Slots) -> None:
        self._learn_first(slots, np.zeros(len(slots), dtype=np.bool_))
        self._goes_well[slots] = False

    def _learn_first(self, slots: Slots, hits: NDArray[np.bool_]) -> None:
        went_well = self._goes_well.take(slots)
        self._first[1].learn(slots[went_well], 1, hits[went_well])
        self._first[0].learn(slots[~went_well], 1, hits[~went_well])


class _Chances:
    """The recent success rate of a kind of event, by slot."""

    def __init__(self, num_slots: int) -> None:
        self.of = np.zeros(num_slots)
        self._weight = np.zeros(num_slots)

    def reset(self, slot: int, prior: float) -> None:
        self.of[slot] = prior
        self._weight[slot] = _PRIOR_WEIGHT

    def learn(self, slots: Slots, tried: NDArray[np.int32] | int, true: NDArray[Any]) -> None:
        """Learn that `true` of `tried` trials of each slot succeeded."""
        if not len(slots):
            return
        weight = self._weight.take(slots) * _MEMORY + tried
        chance = self.of.take(slots)
        self.of[slots] = chance + (true - tried * chance) / weight
        self._weight[slots] = weight


def draft_lengths(config: SpeculativeConfig, num_slots: int, cost: Costs) -> DraftLengths:
    """Return the policy that the configuration selects: adaptive or fixed lengths."""
    if config.adaptive:
        return AdaptiveDraftLengths(config.num_tokens, num_slots, cost)
    return FixedDraftLengths(config.num_tokens)
