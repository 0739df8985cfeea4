"""What was captured once stays right as contexts, tables and slots change between replays."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atom.model_ops.activations import Activation
from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.interface import SamplingTensors
from atom.model_ops.routing import Routing
from atom.model_ops.values import ExpertsWeight, LinearWeight, NormWeight, RouterWeight, Stream
from tests.engine.ops.inputs import paged_case
from tests.engine.ops.mla_inputs import REAL, latent_case
from tests.engine.ops.parity.attention.test_sparse_mla import PUBLISHED, index_case, with_slots

pytestmark = pytest.mark.gpu


def test_attention_and_sampling_replayed_on_new_contents_equal_eager(
    backend: Backend, device: torch.device
) -> None:
    if not backend.capturable:
        pytest.skip(f"{backend.name} is not captured into graphs here")
    rows = 6
    case = paged_case(
        [(300 - 41 * i, 1) for i in range(rows)], device=device, dtype=torch.bfloat16,
        heads=(8, 2), head_dim=64, max_context=2048,
    )  # fmt: skip
    projection = torch.randn(2000, 8 * 64, dtype=torch.bfloat16, device=device)
    sampling = SamplingTensors(
        temperature=torch.tensor([0.0, 0.8] * (rows // 2), device=device),
        seed=torch.arange(rows, device=device),
        position=torch.arange(rows, device=device),
    )

    def step() -> torch.Tensor:
        ops = backend.operations
        hidden = ops["paged_attention"](case.q, case.shape, case.cache, case.step)
        return ops["sample"](ops["linear"](hidden, LinearWeight(projection)), sampling)

    eager_first = step().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tokens = step()
    graph.replay()
    assert torch.equal(tokens, eager_first)
    # Other lengths (one of them padding), other tables, other positions; NaN behind the lengths.
    case.step.context_lens.copy_(torch.tensor([1, 59, 0, 95, 130, 17], device=device))
    case.step.block_tables[:2] = case.step.block_tables[:2].flip(0)
    case.q.copy_(torch.randn_like(case.q))
    sampling.position.add_(100)
    graph.replay()
    assert torch.equal(tokens, step())


def test_experts_replayed_for_other_tokens_equal_eager(
    backend: Backend, device: torch.device
) -> None:
    if not backend.capturable:
        pytest.skip(f"{backend.name} is not captured into graphs here")

    def random(*size: int) -> torch.Tensor:
        return torch.randn(size, dtype=torch.bfloat16, device=device) * size[-1] ** -0.5

    router = RouterWeight(LinearWeight(random(32, 256)))
    up, down = LinearWeight(random(32, 192, 256)), LinearWeight(random(32, 256, 96))
    w = ExpertsWeight(up, down, Activation.SILU)
    norm = NormWeight(torch.ones(256, dtype=torch.bfloat16, device=device), 1e-6)
    for rows in (1, 24, 300):  # programs of pairs, of experts, and in order
        x = torch.randn(rows, 256, dtype=torch.bfloat16, device=device)

        def step(x: torch.Tensor = x) -> torch.Tensor:
            routed = backend.operations["route"](x, router, Routing(top_k=4))
            stream = backend.operations["add_experts"](Stream(x.clone()), x, w, routed, None)
            return backend.operations["norm"](stream, norm)[0]

        eager_first = step().clone()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = step()
        graph.replay()
        assert torch.equal(out, eager_first)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(out, step())


def test_latent_attention_replayed_on_new_contents_equals_eager(
    backend: Backend, device: torch.device
) -> None:
    if not backend.capturable:
        pytest.skip(f"{backend.name} is not captured into graphs here")
    case = latent_case(
        [(300 - 41 * i, 1) for i in range(6)], device=device, dtype=torch.bfloat16, shape=REAL,
        max_context=2048,
    )  # fmt: skip
    attend = backend.operations["mla_attention"]

    def step() -> torch.Tensor:
        return attend(case.tokens, case.shape, case.up, case.cache, case.step)

    eager_first = step().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    assert torch.equal(out, eager_first)
    case.step.context_lens.copy_(torch.tensor([1, 59, 0, 95, 130, 17], device=device))
    case.step.block_tables[:2] = case.step.block_tables[:2].flip(0)
    case.tokens.q.copy_(torch.randn_like(case.tokens.q))
    graph.replay()
    assert torch.equal(out, step())


def test_a_selection_replayed_on_new_contents_equals_eager(
    backend: Backend, device: torch.device
) -> None:
    if not backend.capturable:
        pytest.skip(f"{backend.name} is not captured into graphs here")
    latent = with_slots(
        latent_case(
            [(300 - 41 * i, 1) for i in range(6)], device=device, dtype=torch.bfloat16, shape=REAL,
            max_context=2048,
        )
    )  # fmt: skip
    case = index_case(latent, replace(PUBLISHED, top_k=64), whole=False, dtype=torch.bfloat16)

    def step() -> torch.Tensor:
        selected = case.selected(backend)
        attend = backend.operations["sparse_mla_attention"]
        found: torch.Tensor = attend(*latent.arguments[:4], selected)
        return found

    eager_first = step().clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = step()
    graph.replay()
    assert torch.equal(out, eager_first)
    case.step.context_lens.copy_(torch.tensor([1, 59, 0, 95, 130, 64], device=device))
    case.step.slot_mapping.fill_(-1)
    case.step.block_tables[:2] = case.step.block_tables[:2].flip(0)
    case.tokens.q.copy_(torch.randn_like(case.tokens.q))
    graph.replay()
    assert torch.equal(out, step())
