"""Ranks that share experts under arrivals, aborts, drains and kills, in any order: nothing hangs,
no token is wrong, no block stays held, and a group whose rank was killed ends by its name.

Model-free and in one process, with every turn drawn from a seed; with real processes and models:
tests/engine/integration/ranks/test_expert_parallel*.py.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from atom.config import Config, EngineOptions, NodePlace, build_config
from tests.support.engine_core.front_half import write_model_folder
from tests.support.ranks.lockstep_schedules import MAX_TOKENS, End, Tally, play


@pytest.fixture(scope="module")
def configs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Config]:
    """By number of ranks."""
    folder = write_model_folder(tmp_path_factory.mktemp("mixture"))
    place = folder / "config.json"
    experts = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    named = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"}
    place.write_text(json.dumps({**json.loads(place.read_text()), **named, **experts}))
    return {ranks: _config(str(folder), ranks) for ranks in (2, 3)}


def _far(configs: dict[int, Config]) -> dict[int, Config]:
    """Configurations with a node for each rank, by number of ranks."""

    def spread(config: Config) -> Config:
        nodes = NodePlace(count=config.parallel.data_parallel_size)
        return replace(config, parallel=replace(config.parallel, nodes=nodes))

    return {ranks: spread(config) for ranks, config in configs.items()}


def _config(model: str, ranks: int) -> Config:
    """Few blocks, so that rows are preempted; a budget that cuts prompts into chunks."""
    options = EngineOptions.of(
        model=model, device="cpu", data_parallel_size=ranks, enable_dp_attention=True,
        enable_expert_parallel=True, max_model_len=32, block_size=1, num_kv_blocks=40,
        max_num_seqs=4, max_num_batched_tokens=16,
    )  # fmt: skip
    assert options.model.max_model_len is not None
    assert options.model.max_model_len >= 18 + MAX_TOKENS
    return build_config(options)


def test_random_schedules_with_drains_and_kills(configs: dict[int, Config]) -> None:
    tally = Tally()
    for seed in range(50):
        play(configs if seed % 2 else _far(configs), seed, tally)
    assert tally.ends.keys() == set(End)
    assert min(tally.answers, tally.aborts, tally.errors) > 0


@pytest.mark.slow
@pytest.mark.parametrize("on", ["one node", "a node each"])
def test_a_thousand_random_schedules_with_drains_and_kills(
    configs: dict[int, Config], on: str
) -> None:
    tally = Tally()
    for seed in range(1000):
        play(configs if on == "one node" else _far(configs), seed, tally)
    assert min(tally.ends.values()) > 100
