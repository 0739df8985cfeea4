"""Ranks that share a model carry the same drafts, and say what one rank says without any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atom.speculative_config import SpeculativeConfig
from tests.support.core_driver import CoreDriver
from tests.support.rank_group import RankGroup
from tests.support.tiny_model import make_tiny_checkpoint

OPTIONS: dict[str, Any] = {
    "num_kv_blocks": 80, "max_num_seqs": 8, "max_num_batched_tokens": 48, "max_model_len": 256,
}  # fmt: skip


def test_two_ranks_with_drafts_say_what_one_says_without(tmp_path: Path) -> None:
    model = str(make_tiny_checkpoint(tmp_path, "qwen3", extra={"vocab_size": 384}))
    prompts = [[5 + number, 7, 9, 7, 9] * 6 for number in range(5)]
    wanted = {"temperature": 0.7, "seed": 3, "max_tokens": 40, "ignore_eos": True}
    wanted |= {"allowed_token_ids": (7, 9, 11), "repetition_penalty": 1.05}
    expected = CoreDriver(model, **OPTIONS).generate(prompts, **wanted)
    drafts = SpeculativeConfig(num_tokens=4, fewest_matched=1, adaptive=False)
    pair = RankGroup(2)
    try:
        together = pair.driver(model, speculative=drafts, **OPTIONS)
        assert together.generate(prompts, **wanted) == expected
        assert together.scheduler.stats().accepted_tokens_total > 0
        together.close()
    finally:
        pair.close()
