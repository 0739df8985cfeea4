"""DraftLengths: how many drafts each row's next step carries.

Pure numpy, torch-free; asked by the scheduler before a step, and told what came of it. Whatever is
chosen, the tokens are the same.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.intp]


class DraftLengths(Protocol):
    def enter(self, slot: int) -> None:
        """Another sequence has the slot."""

    def choose(self, slots: Slots) -> NDArray[np.int32]:
        """How many drafts the next step of these rows, which it runs together, is to carry."""

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        """Of so many drafts of each row so many held."""


class FixedDraftLengths:
    """As many as there may be, always."""

    def __init__(self, most: int) -> None:
        self._most = most

    def enter(self, slot: int) -> None:
        """All rows are alike."""

    def choose(self, slots: Slots) -> NDArray[np.int32]:
        return np.full(len(slots), self._most, dtype=np.int32)

    def observe(
        self, slots: Slots, drafted: NDArray[np.int32], accepted: NDArray[np.int32]
    ) -> None:
        """Nothing follows from it."""
