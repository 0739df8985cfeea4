"""A self-check holds layers that keep a state: right kernels agree in every step that it makes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from atom.model_engine.batch import ScheduledBatch
from atom.model_engine.runner.pages.layer_caches import CacheShape
from atom.model_engine.runner.self_check import check_batches, check_blocks
from atom.model_ops.backends import ResolvedOps
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Ops
from atom.model_ops.linear_attention import DeltaNetWeight, DeltaSlots, DeltaTokens, DeltaWeight
from atom.model_ops.self_check.shadowed_ops import ShadowedOps
from atom.model_ops.values import NormWeight
from atom.sizing.states import DeltaShape
from atom.utils.forward_context import AttentionMetaData
from tests.support.engine_core.front_half import build_test_config, write_model_folder

# Of a row whose tail is longer than its history, kernels and reference see different tokens.
SHAPE = DeltaShape(key_heads=1, value_heads=2, key_dim=16, value_dim=16, conv_width=4)


def drawn_batches(folder: Path, seed: int) -> Iterator[ScheduledBatch]:
    draw = random.Random(seed)
    config = build_test_config(
        write_model_folder(folder, context_tokens=120), max_num_seqs=draw.randint(2, 4),
        max_num_batched_tokens=draw.randint(32, 64), max_model_len=120,
    )  # fmt: skip
    return check_batches(config, CacheShape(check_blocks(config, 1), config.cache.block_size, 1))


def of_states(batch: ScheduledBatch, device: torch.device) -> AttentionMetaData:
    """What a layer with states sees of a step."""
    counts = torch.from_numpy(batch.num_scheduled_tokens)
    contexts = torch.from_numpy(batch.num_computed_tokens) + counts
    rows, total = len(counts), int(counts.sum())
    return AttentionMetaData(
        query_starts=torch.cat((torch.zeros(1), counts.cumsum(0))).to(device, torch.int32),
        context_lens=contexts.to(device, torch.int32),
        block_tables=torch.zeros(rows, 1, dtype=torch.int32, device=device),
        slot_mapping=torch.zeros(total, dtype=torch.int64, device=device),
        num_decodes=batch.num_decodes,
        max_query_len=int(counts.max()),
        max_context_len=int(contexts.max()),
        slots=torch.from_numpy(batch.slots).to(device),
    )


class CheckedNet:
    """A delta net whose operations are held; its slots are as a fresh cache leaves them."""

    def __init__(self, backend: Backend, dtype: torch.dtype, device: torch.device) -> None:
        def drawn(*size: int) -> torch.Tensor:
            return torch.randn(size).to(device, dtype)

        self._drawn, self._device, shape = drawn, device, SHAPE
        self.ops = SimpleNamespace(**backend.operations)
        if isinstance(getattr(self.ops.gated_delta_net, "__self__", None), ComposedOps):
            self.ops.gated_delta_net = ComposedOps(cast(Ops, self.ops)).gated_delta_net
        chosen = dict.fromkeys(backend.operations, backend.name)
        resolved = cast(ResolvedOps, SimpleNamespace(ops=self.ops, chosen=chosen))
        self.shadowed = ShadowedOps(resolved, dtype, lambda: True)
        heads, size = shape.value_heads, shape.value_dim
        self._weight = DeltaNetWeight(
            drawn(shape.conv_channels, shape.conv_width),
            DeltaWeight(torch.rand(heads, device=device).log(), torch.randn(heads, device=device)),
            NormWeight(drawn(size), 1e-6),
        )
        states = torch.full((6, heads, shape.key_dim, size), torch.nan, device=device)
        tails = torch.full((6, shape.conv_channels, shape.conv_width - 1), torch.nan, device=device)
        self._kept = DeltaSlots(shape, states, tails)

    def run(self, batches: Iterator[ScheduledBatch]) -> None:
        heads, size = SHAPE.value_heads, SHAPE.value_dim
        with self.shadowed.watching([cast(Ops, self.ops)]):
            for batch in batches:
                tokens = int(batch.num_scheduled_tokens.sum())
                inputs = (self._drawn(tokens, n) for n in (SHAPE.conv_channels, heads, heads))
                self.ops.gated_delta_net(
                    DeltaTokens(*inputs), self._drawn(tokens, heads * size), self._weight,
                    self._kept, of_states(batch, self._device),
                )  # fmt: skip


@pytest.mark.usefixtures("bfloat16")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [0, 1])
def test_right_kernels_agree_in_each_step(
    backend: Backend, device: torch.device, tmp_path: Path, dtype: torch.dtype, seed: int
) -> None:
    net = CheckedNet(backend, dtype, device)
    net.run(drawn_batches(tmp_path, seed))
    assert net.shadowed.differences == []
    held = net.shadowed.held
    assert held.get("gated_delta_net", held.get("gated_delta_rule", 0)) >= 4


@pytest.mark.parametrize("seed", [0, 1])
def test_a_row_that_goes_on_without_its_tail_is_found(
    composed: Backend, device: torch.device, tmp_path: Path, seed: int
) -> None:
    """The fault of a kernel in a chunk beside decodes alone."""
    right = composed.operations["gated_delta_net"]

    def wrong(*args: Any) -> torch.Tensor:
        kept, step = args[3], args[4]
        if 0 < step.num_decodes < len(step.slots):
            kept.tails[step.slots[-1], :, -1] = 0.0
        return cast(torch.Tensor, right(*args))

    operations = {**composed.operations, "gated_delta_net": wrong}
    net = CheckedNet(Backend(name="broken", operations=operations), torch.float32, device)
    net.run(drawn_batches(tmp_path, seed))
    found = net.shadowed.differences
    assert {each.op for each in found} == {"gated_delta_net"}
    assert "result" in {each.result for each in found}
    assert len({each.shape for each in found}) == 1
