"""Groups of four and eight ranks say what one rank says: every family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.integration.ranks.test_tensor_parallel import FAMILIES, OPTIONS, PROMPT_LENGTHS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.expert_schedules import random_prompts
from tests.support.ranks.group_shapes import wide_checkpoint
from tests.support.ranks.rank_group import RankGroup

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=[4, 8])
def ranks(request: pytest.FixtureRequest) -> Iterator[RankGroup]:
    group = RankGroup(request.param)
    yield group
    group.close()


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_ranks_draw_what_one_does(family: str, ranks: RankGroup, tmp_path: Path) -> None:
    model = wide_checkpoint(tmp_path, family)
    prompts = random_prompts(7, *PROMPT_LENGTHS)
    drawing = {"temperature": 1.0, "seed": 3, "max_tokens": 6, "ignore_eos": True}
    alone = CoreDriver(model, **OPTIONS)
    together = ranks.driver(model, **OPTIONS)
    greedy = together.generate(prompts, max_tokens=6, ignore_eos=True)
    drawn = together.generate(prompts, **drawing)
    together.close()
    assert greedy == alone.generate(prompts, max_tokens=6, ignore_eos=True)
    assert drawn == alone.generate(prompts, **drawing)
    assert together.report.weights_bytes < alone.report.weights_bytes
