"""Drafts that the host foretold, on the device: against the tokens that the host lacked."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from atom.model_engine.batch import NO_TOKEN, Continuations
from atom.model_engine.runner.speculation.continuation_proposer import ContinuationProposer
from atom.speculation.proposer import make_drafts
from tests.engine.speculation.test_ngram_drafts import state_of

MOST = 3


def expected(text: list[int], known: int, foretold: list[int], wanted: int) -> list[int]:
    """The drafts of a row whose text the host knew up to `known`."""
    lacked = text[known:]
    if foretold[: len(lacked)] != lacked:
        return []
    return foretold[len(lacked) :][:wanted]


@pytest.mark.parametrize("seed", range(40))
def test_drafts_are_what_is_foretold_behind_the_newest_token(seed: int) -> None:
    draw = random.Random(seed)
    texts = [[draw.randrange(2) for _ in range(draw.randrange(1, 30))] for _ in range(8)]
    proposer = ContinuationProposer(state_of(texts), MOST)
    for _ in range(3):  # what was foretold for an earlier step means nothing
        slots = draw.sample(range(len(texts)), draw.randrange(1, len(texts) + 1))
        known = [max(1, len(texts[slot]) - draw.randrange(MOST + 2)) for slot in slots]
        paths = []
        for slot, count in zip(slots, known, strict=True):
            right = texts[slot][count:][: draw.randrange(MOST + 2)]
            wrong = [draw.randrange(2) for _ in range(draw.randrange(1, 2 * MOST))]
            paths.append((right + wrong)[: 1 + 2 * MOST])
        longest = max(map(len, paths))
        padded = [path + [NO_TOKEN] * (longest - len(path)) for path in paths]
        proposer.foretell(
            Continuations(
                np.array(slots, dtype=np.intp),
                np.array(known, dtype=np.int32),
                np.array(padded, dtype=np.int32),
            )
        )
        wanted = [draw.randrange(MOST + 1) for _ in slots]
        drafts = make_drafts(proposer, torch.tensor(slots), torch.tensor(wanted), MOST)
        told = zip(drafts.token_ids.tolist(), drafts.counts.tolist(), strict=True)
        rows = zip(slots, known, paths, wanted, strict=True)
        assert [tokens[:count] for tokens, count in told] == [
            expected(texts[slot], count, path, most) for slot, count, path, most in rows
        ]
        assert bool((drafts.token_ids >= 0).all()), "padding is from the vocabulary"


def test_a_row_without_a_continuation_and_padding_have_no_drafts() -> None:
    proposer = ContinuationProposer(state := state_of([[1, 2, 3]]), MOST)
    slots = torch.tensor([0, state.padding_slot])
    drafts = make_drafts(proposer, slots, torch.tensor([MOST, MOST]), MOST)
    assert drafts.counts.tolist() == [0, 0]
