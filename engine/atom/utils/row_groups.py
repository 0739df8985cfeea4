"""What the host can tell attention kernels about a step's rows, from their lengths alone.

Torch-free, pure; called where a step's metadata is made. Whether a backend makes use of it is the
backend's business.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from atom.utils.forward_context import EqualPrompts

# A row with more than this share of all cached tokens may be read for longer than all the others
# together take: one program reads about 100 GB/s of a card's 4,000, and a row has several programs.
_LONGEST_SHARE = 1 / 12
# Prompts of one length that are worth a library's call (docs/results/gpu-log.md).
_MIN_GROUP_TOKENS = 4096
_MIN_PROMPT_TOKENS = 512


def are_even(contexts: NDArray[np.integer]) -> bool:
    """Whether no row outlasts the others, so that splitting none of them costs nothing."""
    return len(contexts) > 0 and int(contexts.max()) <= int(contexts.sum()) * _LONGEST_SHARE


def long_prompts(
    num_computed: NDArray[np.integer], num_scheduled: NDArray[np.integer], first_row: int
) -> tuple[EqualPrompts, ...]:
    """Groups of neighbouring rows from `first_row` on that compute whole prompts of one length."""
    token = int(num_scheduled[:first_row].sum())
    row = first_row
    groups: list[EqualPrompts] = []
    rows = zip(num_computed[first_row:].tolist(), num_scheduled[first_row:].tolist(), strict=True)
    for (computed, length), same in itertools.groupby(rows):
        count = len(list(same))
        if computed == 0 and length >= _MIN_PROMPT_TOKENS and count * length >= _MIN_GROUP_TOKENS:
            groups.append(EqualPrompts(row, count, token, length))
        row, token = row + count, token + count * length
    return tuple(groups)
