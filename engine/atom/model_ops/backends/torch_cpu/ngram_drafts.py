"""N-gram drafts on the CPU, where a row's tokens can be searched as bytes.

Most rows of most texts have no match at all, which one search for the shortest n-gram shows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from atom.model_ops.drafts import Drafts, Lookup
from atom.model_ops.slots import SlotTensors

_TOKEN_BYTES = 4


def draft_ngrams(
    slots: torch.Tensor, wanted: torch.Tensor, state: SlotTensors, lookup: Lookup, drafts: Drafts
) -> None:
    assert state.tokens is not None, "slots keep their tokens where matches are looked up"
    tokens, newest = state.tokens.numpy(), state.num_computed.numpy()
    told, counts, most = drafts.token_ids.numpy(), drafts.counts.numpy(), wanted.numpy()
    told[:], counts[:] = 0, 0
    ahead = np.arange(told.shape[1])
    for row, slot in enumerate(slots.tolist()):
        said = tokens[slot, : newest[slot] + 1]
        first = _behind_match(said, lookup) if most[row] else 0
        if first:
            # The continuation may run into the proposed tokens: a period continues.
            told[row] = said[first + ahead % (len(said) - first)]
            counts[row] = most[row]


def _behind_match(said: NDArray[np.int32], lookup: Lookup) -> int:
    """Return the index after the newest of the longest matches of the last tokens; 0 without a
    match."""
    text, first = said.tobytes(), 0
    for length in range(lookup.fewest, min(lookup.most, len(said) - 1) + 1):
        at = _newest_at(text, text[-length * _TOKEN_BYTES :])
        if at < 0:
            break
        first = at // _TOKEN_BYTES + length
    return first


def _newest_at(text: bytes, wanted: bytes) -> int:
    """Return the byte index of the last earlier occurrence of `wanted`, the end of the text; -1 if
    there is none."""
    end = len(text) - _TOKEN_BYTES
    while (at := text.rfind(wanted, 0, end)) >= 0 and at % _TOKEN_BYTES:
        end = at + len(wanted) - 1  # bytes of two tokens that look like it
    return at
