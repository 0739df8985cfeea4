"""What ranks read of quantised matrices: each its part, and all parts together the whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from atom.errors import ModelError
from atom.model_loader.weight_loader import fill_dummy
from atom.model_ops.backends import resolve_ops
from atom.model_ops.linear import Build, Linear
from atom.model_ops.parallel import Ranks
from atom.model_ops.placement import Placement
from atom.model_ops.quantised.dequantise import plain
from atom.model_ops.quantised.sorted_inputs import sort_inputs
from atom.sizing import ModelFacts
from atom.sizing.projection import Projection
from atom.sizing.quantization.config import read_quantization
from atom.sizing.weights.layer_matrices import stored_projections
from tests.engine.ops.inputs import FLOAT32
from tests.support.models.quantised_checkpoint import LAYOUTS, Layout

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 1024,
    "num_hidden_layers": 1,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 32,
    "max_position_embeddings": 64,
}


def matrices_of(layout: Layout, **changes: Any) -> dict[str, Projection]:
    config = {**CONFIG, "quantization_config": {**layout.config, **changes}}
    facts = ModelFacts.from_hf_config(config)
    return {
        matrix.name.rpartition(".")[2]: matrix
        for matrix in stored_projections(facts, facts.layer(0))
    }


def stored(matrix: Projection, layout: Layout) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A matrix' tensors by name, and what they stand for."""
    draw = torch.Generator().manual_seed(matrix.rows + matrix.columns)
    tensors, values = layout.store(torch.randn(matrix.rows, matrix.columns, generator=draw))
    named = {f"{matrix.name}.{last}": tensor for last, tensor in tensors.items()}
    return {**named, f"{matrix.name}.bias": torch.zeros(matrix.rows)}, values


def fill(placement: Placement, tensors: dict[str, torch.Tensor]) -> int:
    """As the loader does; the bytes that are read."""
    parts = []
    for each in (placement, *placement.companions):
        whole = tensors[next(name for name in each.names if name in tensors)]
        assert whole.dtype in each.dtypes
        parts.append(whole[tuple(slice(*bounds) for bounds in each.region)].clone())
    placement.fill(*parts)
    return sum(part.nbytes for part in parts)


def loaded(
    matrices: Sequence[Projection], ranks: Ranks, layout: Layout
) -> tuple[torch.Tensor, int]:
    """The numbers that a rank holds, and the bytes it read."""
    tensors: dict[str, torch.Tensor] = {}
    for matrix in matrices:
        tensors |= stored(matrix, layout)[0]
    linear = Linear(matrices, Build(resolve_ops("cpu", FLOAT32, "torch_ref").ops, ranks))
    module = matrices[0].name.rpartition(".")[0] + ".merged"
    read = sum(fill(placement, tensors) for placement in linear.placements(module))
    return plain(linear.w, torch.float32), read


@pytest.mark.sampled(10)
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_of_the_ranks_are_the_whole(name: str, size: int) -> None:
    layout = LAYOUTS[name]
    matrices = matrices_of(layout)
    gate, up, down = (matrices[f"{part}_proj"] for part in ("gate", "up", "down"))
    wanted = [stored(matrix, layout)[1] for matrix in (gate, up, down)]
    halves, columns = [], []
    for rank in range(size):
        merged, _ = loaded((gate, up), Ranks(size, rank), layout)
        halves.append(merged.unflatten(0, (2, -1)))
        columns.append(loaded((down,), Ranks(size, rank), layout)[0])
    assert torch.equal(torch.cat(halves, dim=1), torch.stack(wanted[:2]))
    assert torch.equal(torch.cat(columns, dim=1), wanted[2])


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_rank_holds_what_is_planned_for_it(name: str, size: int) -> None:
    """Of a matrix that is divided by outputs, and of one by inputs."""
    matrices = matrices_of(LAYOUTS[name])
    for matrix in (matrices["gate_proj"], matrices["down_proj"]):
        ops = resolve_ops("cpu", FLOAT32, "torch_ref").ops
        linear = Linear((matrix,), Build(ops, Ranks(size, size - 1)))
        held = sum(parameter.nbytes for parameter in linear.parameters())
        assert matrix.quantization is not None
        rows, columns = matrix.on_rank(size)
        assert held == matrix.quantization.matrix_bytes(rows, columns, matrix.columns)


@pytest.mark.parametrize("name", ["fp8-blocks", "compressed-int8", "awq", "quark-mxfp4"])
def test_a_rank_reads_its_share_alone(name: str) -> None:
    layout = LAYOUTS[name]
    down = matrices_of(layout)["down_proj"]
    _, whole = loaded((down,), Ranks(), layout)
    _, part = loaded((down,), Ranks(4, 1), layout)
    assert part <= whole / 4 + 4 * down.rows + down.rows * 4  # scales of outputs, and the bias


@pytest.mark.parametrize("name", ["fp8-blocks", "compressed-fp8-rows", "gptq", "quark-mxfp4"])
@pytest.mark.parametrize(("size", "kv_head"), [(2, [0, 1]), (4, [0, 0, 1, 1])])
def test_kv_heads_that_share_blocks_with_others_are_found(
    name: str, size: int, kv_head: list[int]
) -> None:
    """Heads of 32 rows in blocks of 128: four share a scale, and two KV heads are half a block."""
    layout = LAYOUTS[name]
    matrices = matrices_of(layout)
    qkv = [matrices[f"{part}_proj"] for part in "qkv"]
    whole = [stored(matrix, layout)[1] for matrix in qkv]
    for rank in range(size):
        numbers, _ = loaded(qkv, Ranks(size, rank), layout)
        queries = 8 // size * 32
        assert torch.equal(numbers[:queries], whole[0][rank * queries : (rank + 1) * queries])
        first = kv_head[rank] * 32
        assert torch.equal(numbers[queries : queries + 32], whole[1][first : first + 32])
        assert torch.equal(numbers[queries + 32 :], whole[2][first : first + 32])


@pytest.mark.parametrize("name", ["fp8-blocks", "compressed-int8", "awq", "quark-mxfp4"])
def test_rows_of_heads_may_be_stored_in_another_order(name: str) -> None:
    layout = LAYOUTS[name]
    q = matrices_of(layout)["q_proj"]
    order = torch.cat((torch.arange(0, 32, 2), torch.arange(1, 32, 2)))
    tensors, wanted = stored(q, layout)
    linear = Linear(
        (q,), Build(resolve_ops("cpu", FLOAT32, "torch_ref").ops), orders={q.name: order}
    )
    for placement in linear.placements("self_attn.merged"):
        fill(placement, tensors)
    expected = wanted.unflatten(0, (-1, 32))[:, order].flatten(0, 1)
    assert torch.equal(plain(linear.w, torch.float32), expected)


def test_matrices_of_one_product_must_have_one_format() -> None:
    matrices = matrices_of(LAYOUTS["fp8-blocks"])
    k = replace(matrices["k_proj"], quantization=None)
    with pytest.raises(
        ModelError,
        match=r"self_attn\.q_proj as fp8 in blocks of 128 x 128 \(fp8\)"
        r" and self_attn\.k_proj as plain, which are one product",
    ):
        Linear((matrices["q_proj"], k), Build(resolve_ops("cpu", FLOAT32).ops))


def test_a_group_that_does_not_divide_is_refused_by_name() -> None:
    matrices = matrices_of(LAYOUTS["awq"], group_size=96)
    with pytest.raises(
        ModelError,
        match=r"mlp\.down_proj: its 1024 of 1024 inputs are no whole "
        r"groups of the 96 .* checkpoint with smaller groups",
    ):
        Linear((matrices["down_proj"],), Build(resolve_ops("cpu", FLOAT32).ops))


def test_a_share_of_half_a_group_is_refused_with_what_to_change() -> None:
    scheme = read_quantization({"quantization_config": LAYOUTS["fp8-blocks"].config})
    assert scheme is not None
    down = replace(matrices_of(LAYOUTS["fp8-blocks"])["down_proj"], quantization=scheme.default)
    with pytest.raises(ModelError, match=r"another tensor-parallel size"):
        Linear((down,), Build(resolve_ops("cpu", FLOAT32).ops, Ranks(16, 3)))


@pytest.mark.parametrize("name", ["gptq-ordered", "compressed-int4-ordered"])
def test_random_matrices_have_groups_of_equal_size(name: str) -> None:
    """What benchmarks measure is then what checkpoints have."""
    down = matrices_of(LAYOUTS[name])["down_proj"]
    linear = Linear((down,), Build(resolve_ops("cpu", FLOAT32, "torch_ref").ops, Ranks()))
    fill_dummy(linear, 0)
    sorted_weight = sort_inputs(linear.w)
    assert sorted_weight.scales is not None
    assert sorted_weight.scales.groups is not None
    assert sorted_weight.scales.groups.whole
    assert torch.equal(plain(sorted_weight, torch.float32), plain(linear.w, torch.float32))
