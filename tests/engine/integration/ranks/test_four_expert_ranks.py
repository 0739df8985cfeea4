"""Four ranks that share experts say what one rank says, in random schedules."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.integration.ranks.test_expert_parallel import WITH_EXPERTS
from tests.engine.integration.ranks.test_tensor_parallel import FAMILIES, OPTIONS
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.expert_group import ExpertGroup
from tests.support.ranks.expert_schedules import Schedules

# Of which each rank has two.
EXPERTS = {"num_local_experts": 8, "num_experts": 8}


@pytest.fixture(scope="module")
def four() -> Iterator[ExpertGroup]:
    ranks = ExpertGroup(4)
    yield ranks
    ranks.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_four_ranks_say_what_one_does(family: str, four: ExpertGroup, tmp_path: Path) -> None:
    settings = FAMILIES[family]
    extra = {key: EXPERTS.get(key, value) for key, value in settings["extra"].items()}
    shape = {**settings, "extra": {"vocab_size": 384, **extra}}
    model = str(make_tiny_checkpoint(tmp_path, **shape))
    schedules = Schedules(model, **OPTIONS)
    for seed in range(20):
        schedules.play(four, model, seed)
