"""The steps of a self-check are such as the scheduler makes: each row begins, or goes on."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.self_check import check_batches, check_blocks
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.front_half import build_test_config, write_model_folder


def has_chunk_beside_decodes(batch: ScheduledBatch) -> bool:
    chunks = batch.num_scheduled_tokens[batch.num_decodes :]
    return 0 < batch.num_decodes < len(batch.slots) and bool((chunks > 1).all())


@pytest.mark.parametrize("seed", range(12))
def test_a_row_begins_or_goes_on_after_its_computed_tokens(seed: int, tmp_path: Path) -> None:
    """A state holds every token that its row has computed, and can give none of them back."""
    draw = random.Random(seed)
    rows, longest = draw.choice([1, 2, 3, 5]), draw.choice([24, 26, 60, 120, 400])
    most_tokens = draw.choice([rows, 16, 48, 100, 300])
    drafts = SpeculativeConfig(num_tokens=draw.randint(1, 6)) if draw.random() < 0.5 else None
    config = build_test_config(
        write_model_folder(tmp_path, context_tokens=longest), max_model_len=longest,
        max_num_seqs=rows, max_num_batched_tokens=max(most_tokens, rows),
        speculative=drafts,
    )  # fmt: skip
    blocks = check_blocks(config, 1)
    batches = list(check_batches(config, CacheShape(blocks, config.cache.block_size, 1)))
    held: dict[int, int] = {}
    for batch in batches:
        counts = zip(
            batch.slots.tolist(), batch.num_computed_tokens.tolist(),
            batch.num_scheduled_tokens.tolist(), strict=True,
        )  # fmt: skip
        assert len(batch.slots) <= rows
        assert batch.num_scheduled_tokens.sum() <= config.scheduler.max_num_batched_tokens
        for row, (slot, computed, scheduled) in enumerate(counts):
            assert computed in (0, held.get(slot)), f"slot {slot} has {held.get(slot)} tokens"
            assert computed + scheduled < longest
            # Of a decode's tokens only the first is certain; the others are drafts.
            held[slot] = computed + (1 if row < batch.num_decodes else scheduled)
    if rows > 1 and longest > 30 and most_tokens > 40:
        assert any(map(has_chunk_beside_decodes, batches))
