"""Eight ranks that share experts say what one rank says, each with requests of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.integration.ranks.test_expert_parallel import WITH_EXPERTS
from tests.engine.integration.ranks.test_tensor_parallel import OPTIONS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.ranks.expert_group import Arrival, ExpertGroup
from tests.support.ranks.expert_schedules import random_prompts
from tests.support.ranks.group_shapes import wide_checkpoint


@pytest.fixture(scope="module")
def eight() -> Iterator[ExpertGroup]:
    ranks = ExpertGroup(8)
    yield ranks
    ranks.close()


@pytest.mark.slow
@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_eight_ranks_say_what_one_does(family: str, eight: ExpertGroup, tmp_path: Path) -> None:
    model = wide_checkpoint(tmp_path, family)
    asked = [random_prompts(rank, 1, 15, 40) for rank in range(eight.size)]
    arrivals = [
        [Arrival(prompt, 8, turn=rank) for prompt in prompts] for rank, prompts in enumerate(asked)
    ]
    found = eight.run(model, arrivals, **OPTIONS)
    alone = CoreDriver(model, **OPTIONS)
    for rank, prompts in enumerate(asked):
        assert found[rank].tokens == alone.generate(prompts, max_tokens=8, ignore_eos=True)
        assert found[rank].weights_bytes < alone.report.weights_bytes
