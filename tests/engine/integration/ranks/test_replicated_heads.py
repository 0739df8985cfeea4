"""More ranks than KV heads: each head is on several, and the tokens are one rank's."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.rank_group import RankGroup


def test_four_ranks_share_two_kv_heads(tmp_path: Path) -> None:
    model = str(make_tiny_checkpoint(tmp_path, "qwen3", kv_heads=2, extra={"vocab_size": 512}))
    draw = np.random.default_rng(7)
    prompts = [draw.integers(3, 300, size=length).tolist() for length in (1, 16, 40)]
    options = {"num_kv_blocks": 80, "max_num_seqs": 4, "max_num_batched_tokens": 48}
    drawing = {"temperature": 1.0, "seed": 3, "max_tokens": 6, "ignore_eos": True}
    alone = CoreDriver(model, **options)
    ranks = RankGroup(4)
    together = ranks.driver(model, **options)
    greedy = together.generate(prompts, max_tokens=6, ignore_eos=True)
    drawn = together.generate(prompts, **drawing)
    together.close()
    ranks.close()
    assert greedy == alone.generate(prompts, max_tokens=6, ignore_eos=True)
    assert drawn == alone.generate(prompts, **drawing)
    assert 2 * together.report.kv_bytes_per_token == alone.report.kv_bytes_per_token
