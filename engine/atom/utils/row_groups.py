"""Facts about a step's rows for attention kernels, from the rows' lengths alone.

Torch-free, pure; called where a step's metadata is made. Each backend decides whether it uses the
facts.
"""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from atom.utils.forward_context import EqualPrompts

# A row with more than this share of all cached tokens may be read for longer than all the others
# together take: one program reads about 100 GB/s of a card's 4,000, and a row has several programs.
_LONGEST_SHARE = 1 / 12
# Prompts that are worth a library's call (docs/results/gpu/attention.md). A library makes a plan
# for each length that it meets, which takes longer than many a step: so a group has a round length,
# and of a single prompt the library gets as much as has one of a few lengths.
_MIN_DENSE_TOKENS = 4096
_ROUND_TOKENS = 512


def are_even(contexts: NDArray[np.integer]) -> bool:
    """Return whether no row outlasts the others, so that attention without splits costs no time."""
    return len(contexts) > 0 and int(contexts.max()) <= int(contexts.sum()) * _LONGEST_SHARE


def long_prompts(
    num_computed: NDArray[np.integer], num_scheduled: NDArray[np.integer], first_row: int
) -> tuple[EqualPrompts, ...]:
    """Find, among the rows from `first_row` on, neighbours that compute whole prompts of one round
    length, and single long prompts."""
    token = int(num_scheduled[:first_row].sum())
    row = first_row
    groups: list[EqualPrompts] = []
    rows = zip(num_computed[first_row:].tolist(), num_scheduled[first_row:].tolist(), strict=True)
    for (computed, length), same in itertools.groupby(rows):
        count = len(list(same))
        if computed == 0 and count * length >= _MIN_DENSE_TOKENS:
            if count > 1 and length % _ROUND_TOKENS == 0:
                groups.append(EqualPrompts(row, count, token, length, length))
            elif length >= _MIN_DENSE_TOKENS:
                leading = leading_tokens(length)
                groups += [
                    EqualPrompts(row + index, 1, token + index * length, length, leading)
                    for index in range(count)
                ]
        row, token = row + count, token + count * length
    return tuple(groups)


def leading_tokens(length: int) -> int:
    """Return how many tokens of a single prompt of at least 4,096 tokens a dense attention
    computes: a power of two, or one and a half times one, since there are few of these."""
    power = 1 << (length.bit_length() - 1)
    return power + power // 2 if length >= power + power // 2 else power


def dense_lengths(most: int) -> list[int]:
    """Return the lengths of single prompts that a dense attention may get, up to `most` tokens."""
    powers = [_MIN_DENSE_TOKENS << shift for shift in range(max(0, most).bit_length())]
    lengths = [length for power in powers for length in (power, power + power // 2)]
    return [length for length in lengths if length <= most]
