"""Experts are read whole or in part, whether a checkpoint has a matrix for each or stacks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build
from atom.model_ops.moe.experts import Experts
from atom.model_ops.parallel import Ranks
from atom.model_ops.placement import Placement
from atom.sizing import ModelFacts
from atom.sizing.layers import Stacking
from atom.sizing.projection import Projection
from atom.sizing.weights.layer_matrices import projections
from tests.engine.ops.inputs import FLOAT32

EXPERTS, HIDDEN, INNER = 3, 10, 8
SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_local_experts": EXPERTS,
    "num_experts_per_tok": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}
GATES, UPS = torch.randn(2, EXPERTS, INNER, HIDDEN)
DOWNS = torch.randn(EXPERTS, HIDDEN, INNER)
BIASES = torch.randn(EXPERTS, 2, INNER)  # gates', then ups'
DOWN_BIASES = torch.randn(EXPERTS, HIDDEN)


def mixtral() -> dict[str, torch.Tensor]:
    """A matrix for each expert, without biases."""
    return {
        f"layers.0.block_sparse_moe.experts.{expert}.{name}.weight": stack[expert]
        for name, stack in (("w1", GATES), ("w3", UPS), ("w2", DOWNS))
        for expert in range(EXPERTS)
    }


def gpt_oss() -> dict[str, torch.Tensor]:
    """Stacks of transposed matrices, gates and ups in turn."""
    in_turn = torch.stack((GATES, UPS), dim=2).flatten(1, 2)  # [E, 2·I, H]
    return {
        "layers.0.mlp.experts.gate_up_proj": in_turn.mT.contiguous(),
        "layers.0.mlp.experts.gate_up_proj_bias": BIASES.mT.flatten(1).contiguous(),
        "layers.0.mlp.experts.down_proj": DOWNS.mT.contiguous(),
        "layers.0.mlp.experts.down_proj_bias": DOWN_BIASES,
    }


CHECKPOINTS = {"MixtralForCausalLM": mixtral(), "GptOssForCausalLM": gpt_oss()}


def matrices(architecture: str) -> list[Projection]:
    facts = ModelFacts.from_hf_config({**SHAPE, "architectures": [architecture]})
    found = projections(facts.layer(0), facts.hidden_size, facts.experts_block)
    return [matrix for matrix in found if matrix.copies > 1]


def placements(experts: Experts) -> Iterator[Placement]:
    for name in ("gate_up_proj", "down_proj"):
        yield from getattr(experts, name).placements(f"layers.0.mlp.experts.{name}")


def loaded(architecture: str, ranks: Ranks) -> Experts:
    tensors = CHECKPOINTS[architecture]
    experts = Experts(
        matrices(architecture),
        Activation.SILU,
        Build(resolve_ops("cpu", FLOAT32, backend="torch_ref").ops, ranks),
        stacking=Stacking.IN_TURN if architecture == "GptOssForCausalLM" else Stacking.APART,
    )
    wanted = list(placements(experts))
    assert {placement.name for placement in wanted} == set(tensors)
    for placement in wanted:
        whole = tensors[placement.name]
        assert tuple(whole.shape) == placement.shape
        placement.fill(whole[tuple(slice(*bounds) for bounds in placement.region)])
    return experts


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("architecture", CHECKPOINTS)
def test_each_rank_has_its_part_of_every_expert(architecture: str, size: int) -> None:
    for rank in range(size):
        w = loaded(architecture, Ranks(size, rank)).w
        own = slice(rank * INNER // size, (rank + 1) * INNER // size)
        assert torch.equal(w.gate_up.data, torch.cat((GATES[:, own], UPS[:, own]), dim=1))
        assert torch.equal(w.down.data, DOWNS[:, :, own])
        if architecture == "GptOssForCausalLM":
            assert w.gate_up.bias is not None
            assert torch.equal(w.gate_up.bias, BIASES[:, :, own].flatten(1))
            assert w.down.bias is not None
            assert torch.equal(w.down.bias, DOWN_BIASES)
