"""What ranks read of a checkpoint: each its part, and all parts together the whole."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build, Linear
from atom.model_ops.parallel import Ranks
from atom.sizing import ModelFacts
from atom.sizing.projection import Projection
from atom.sizing.weights.layer_matrices import projections
from tests.engine.ops.inputs import FLOAT32

FACTS = ModelFacts.from_hf_config(
    {
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 64,
    }
)
MATRICES = {
    matrix.name.rpartition(".")[2]: matrix
    for matrix in projections(FACTS.layer(0), FACTS.hidden_size, FACTS.experts_block)
}


def checkpoint() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    tensors = {}
    for matrix in MATRICES.values():
        tensors[f"{matrix.name}.weight"] = torch.randn(matrix.rows, matrix.columns, generator=draw)
        if matrix.bias:
            tensors[f"{matrix.name}.bias"] = torch.randn(matrix.rows, generator=draw)
    return tensors


def loaded(matrices: Sequence[Projection], ranks: Ranks) -> tuple[Linear, int]:
    """The layer as a rank fills it, and the bytes it reads."""
    tensors, read = checkpoint(), 0
    linear = Linear(matrices, Build(resolve_ops("cpu", FLOAT32).ops, ranks))
    module = matrices[0].name.rpartition(".")[0] + ".merged"
    for placement in linear.placements(module):
        whole = tensors[placement.name]
        assert tuple(whole.shape) == placement.shape
        part = whole[tuple(slice(*bounds) for bounds in placement.region)]
        placement.fill(part)
        read += part.nbytes
    return linear, read


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_shares_of_the_outputs_and_inputs_add_up(size: int) -> None:
    x = torch.randn(3, FACTS.hidden_size).double()
    gate, down = MATRICES["gate_proj"], MATRICES["down_proj"]
    inner, out, read = [], torch.zeros(3, FACTS.hidden_size).double(), 0
    for rank in range(size):
        linear, own = loaded((gate,), Ranks(size, rank))
        part = x @ linear.weight.double().t()
        inner.append(part)
        read += own
        linear, own = loaded((down,), Ranks(size, rank))
        out += part @ linear.weight.double().t()  # what an all-reduce adds up
        read += own
    tensors = checkpoint()
    whole = x @ tensors["mlp.gate_proj.weight"].double().t()
    torch.testing.assert_close(torch.cat(inner, dim=1), whole)
    torch.testing.assert_close(out, whole @ tensors["mlp.down_proj.weight"].double().t())
    assert read == sum(t.nbytes for name, t in tensors.items() if "gate" in name or "down" in name)


@pytest.mark.parametrize(("size", "kv_head"), [(2, [0, 1]), (4, [0, 0, 1, 1])])
def test_kv_heads_are_divided_and_then_held_by_several(size: int, kv_head: list[int]) -> None:
    tensors, head = checkpoint(), FACTS.layer(0).attention.head_dim
    matrices = [MATRICES[name] for name in ("q_proj", "k_proj", "v_proj")]
    for rank in range(size):
        linear, _ = loaded(matrices, Ranks(size, rank))
        queries = 8 // size * head
        assert linear.weight.shape[0] == queries + 2 * head
        first = kv_head[rank] * head
        keys = tensors["self_attn.k_proj.weight"][first : first + head]
        assert torch.equal(linear.weight[queries : queries + head], keys)
        assert linear.bias is not None
        bias = tensors["self_attn.v_proj.bias"][first : first + head]
        assert torch.equal(linear.bias[queries + head :], bias)
