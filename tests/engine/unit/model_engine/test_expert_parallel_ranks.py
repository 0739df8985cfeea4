"""Options of experts over ranks: what they come to, and what is refused with which remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from atom.config import Config, EngineOptions, build_config
from atom.eplb_config import EPLBConfig
from atom.errors import ConfigError
from atom.model_engine.runner import expert_parallel
from atom.model_engine.runner.expert_parallel import expert_ranks, open_dispatch
from atom.model_ops.expert_parallel.mori_dispatch import MoriShape
from atom.model_ops.parallel import ExpertRanks
from atom.speculative_config import SpeculativeConfig
from tests.support.models.tiny_model import make_tiny_checkpoint
from tests.support.ranks.thread_links import ThreadLinks, ThreadWorld

SHARED: dict[str, Any] = {
    "data_parallel_size": 2, "enable_dp_attention": True, "enable_expert_parallel": True,
}  # fmt: skip
MORI = {"expert_exchange": "mori"}


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    extra = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    return str(make_tiny_checkpoint(tmp_path_factory.mktemp("moe"), "qwen3_moe", extra=extra))


def _config(model: str, **options: Any) -> Config:
    return build_config(EngineOptions.of(model=model, **options))


def test_a_rank_has_its_turn_of_the_experts(mixture: str) -> None:
    config = _config(mixture, **SHARED, balance=EPLBConfig(redundant=2))
    second = replace(config, parallel=replace(config.parallel, data_parallel_rank=1))
    ranks = expert_ranks(second)
    assert ranks == ExpertRanks(2, 1, redundant=2, may_move=True)
    assert list(ranks.held(6)) == [4, 5, 0, 1]
    assert expert_ranks(_config(mixture)) is None
    grouped = expert_ranks(_config(mixture, tensor_parallel_size=2, enable_expert_parallel=True))
    assert grouped == ExpertRanks(2, 0)


def test_mori_is_asked_for_by_name_and_missing_here(mixture: str) -> None:
    config = _config(mixture, **SHARED, expert_exchange="mori")
    ranks = expert_ranks(config)
    assert ranks is not None
    with pytest.raises(ConfigError, match="install AMD's mori"):
        open_dispatch(config, ThreadLinks(ThreadWorld(2), 0), ranks, torch.float32)


def test_mori_knows_which_ranks_are_near(mixture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MoriShape] = []
    monkeypatch.setattr(expert_parallel, "open_mori", lambda links, shape: asked.append(shape))
    for nodes in (1, 2):
        config = _config(mixture, **SHARED, **MORI, nnodes=nodes)
        ranks = expert_ranks(config)
        assert ranks is not None
        open_dispatch(config, ThreadLinks(ThreadWorld(2), 0), ranks, torch.float32)
    assert [shape.ranks_per_node for shape in asked] == [2, 1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"enable_dp_attention": True}, "add --enable-expert-parallel"),
        ({"enable_expert_parallel": True}, "2 ranks or more"),
        ({"enable_expert_parallel": True, "data_parallel_size": 2}, "add --enable-dp-attention"),
        ({**SHARED, "data_parallel_size": 1}, "ask for 2 ranks or more"),
        ({**SHARED, "data_parallel_size": 4}, "6 experts are .* divide them: 1, 2, 3, 6"),
        ({**SHARED, "tensor_parallel_size": 2}, "not over 2 × 2"),
        ({**SHARED, "speculative": SpeculativeConfig()}, "draft no tokens"),
        ({**SHARED, "balance": EPLBConfig(redundant=1)}, "6 experts and 1 redundant ones"),
        ({**SHARED, "balance": EPLBConfig(redundant=8)}, "every other rank, 6; ask for fewer"),
        ({"balance": EPLBConfig()}, "enable_eplb moves experts between ranks"),
        ({"expert_exchange": "mori"}, "add --enable-dp-attention"),
        ({**SHARED, **MORI, "data_parallel_size": 3}, "1, 2, 4 or 8 ranks of a node, .* for 3"),
        ({**SHARED, **MORI, "data_parallel_size": 6, "nnodes": 2}, "ranks of a node, .* for 3"),
    ],
)
def test_what_does_not_go_together_is_refused(
    options: dict[str, Any], said: str, mixture: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        _config(mixture, **options)


def test_a_model_without_experts_has_none_to_divide(tmp_path: Path) -> None:
    model = str(make_tiny_checkpoint(tmp_path, "qwen3"))
    with pytest.raises(ConfigError, match="Qwen3ForCausalLM has no experts"):
        _config(model, **SHARED)
