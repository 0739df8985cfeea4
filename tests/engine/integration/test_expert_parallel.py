"""Ranks that share experts say what one rank says, whatever the others have to do meanwhile.

One rank's tokens are the measure, which other tests hold against transformers. Ranks are processes
over gloo, started once for all models; each has requests of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.engine.integration.test_tensor_parallel import FAMILIES, OPTIONS
from tests.support.core_driver import CoreDriver
from tests.support.expert_group import Arrival, ExpertGroup
from tests.support.tiny_model import make_tiny_checkpoint

WITH_EXPERTS = (
    "experts",
    "sinks, windows, biases of experts",
    "latent attention with experts",
)


@pytest.fixture(scope="module")
def pair() -> Iterator[ExpertGroup]:
    ranks = ExpertGroup(2)
    yield ranks
    ranks.close()


def checkpoint(folder: Path, family: str, **shape: int) -> str:
    settings = {**FAMILIES[family], **shape}
    extra = {"vocab_size": 384, **settings.pop("extra", {})}
    return str(make_tiny_checkpoint(folder, **settings, extra=extra))


def _prompts(seed: int, *lengths: int) -> list[list[int]]:
    draw = np.random.default_rng(seed)
    return [draw.integers(3, 300, size=length).tolist() for length in lengths]


@pytest.mark.parametrize("family", WITH_EXPERTS)
def test_two_ranks_say_what_one_does(family: str, pair: ExpertGroup, tmp_path: Path) -> None:
    """The first has prompts of every length, the second comes later and goes on for longer."""
    model = checkpoint(tmp_path, family)
    first, second = _prompts(1, 1, 15, 40, 100), _prompts(2, 16, 30)
    arrivals = [
        [Arrival(prompt, 6) for prompt in first],
        [Arrival(prompt, 14, turn=3) for prompt in second],
    ]
    found = pair.run(model, arrivals, **OPTIONS)
    alone = CoreDriver(model, **OPTIONS)
    assert found[0].tokens == alone.generate(first, max_tokens=6, ignore_eos=True)
    assert found[1].tokens == alone.generate(second, max_tokens=14, ignore_eos=True)
    assert found[0].served > 0
    assert all(rank.weights_bytes < alone.report.weights_bytes for rank in found)
    assert not any(rank.blocks_held for rank in found)
