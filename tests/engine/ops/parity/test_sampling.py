"""Every backend draws the reference's tokens: the same noise, the same ties, the same filters."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.interface import LogitFilters, SamplingTensors

gpu = pytest.mark.gpu
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def parameters(rows: int, device: torch.device, *, greedy_every: int = 0) -> SamplingTensors:
    draw = torch.Generator().manual_seed(rows)
    temperature = torch.rand(rows, generator=draw) + 0.3
    if greedy_every:
        temperature[::greedy_every] = 0
    return SamplingTensors(
        temperature=temperature.to(device),
        seed=torch.randint(-(2**63), 2**63 - 1, (rows,), generator=draw).to(device),
        position=torch.randint(0, 5000, (rows,), generator=draw).to(device),
        all_greedy=greedy_every == 1,
        any_greedy=greedy_every > 0,
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "vocab"), [(1, 5), (12, 5000), pytest.param(256, 151936, marks=gpu)]
)
def test_draws_equal_the_reference(
    backend: Backend, reference: Backend, device: torch.device, rows: int, vocab: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    logits = (torch.randn(rows, vocab, device=device) * 3).to(dtype)
    sampling = parameters(rows, device, greedy_every=4)
    expected = reference.operations["sample"](logits.clone(), sampling)
    tokens = backend.operations["sample"](logits.clone(), sampling)
    assert tokens.dtype == torch.int64
    assert torch.equal(tokens, expected)


@pytest.mark.parametrize(
    ("rows", "chunk"), [(12, 1280), pytest.param(256, 75968, marks=gpu)], ids=["small", "qwen3"]
)
def test_the_best_of_shards_is_what_the_reference_draws_of_all(
    backend: Backend, reference: Backend, device: torch.device, rows: int, chunk: int
) -> None:
    logits = torch.randn(rows, 2 * chunk, device=device) * 3
    sampling = parameters(rows, device, greedy_every=4)
    expected = reference.operations["sample"](logits.clone(), sampling)
    found = [
        backend.operations["sample_vocab_shard"](part.contiguous(), number * chunk, sampling)
        for number, part in enumerate(logits.split(chunk, dim=1))
    ]
    tokens, scores = (torch.stack(each, dim=1) for each in zip(*found, strict=True))
    winner = scores.argmax(dim=1, keepdim=True)
    assert torch.equal(tokens.gather(1, winner).squeeze(1), expected)
    assert len(set(winner.flatten().tolist())) == 2


def test_draws_over_flat_logits_equal_the_reference(
    backend: Backend, reference: Backend, device: torch.device
) -> None:
    """Here the noise alone decides."""
    rows, vocab = 20, 5000
    logits = torch.zeros(rows, vocab, device=device)
    sampling = parameters(rows, device)
    tokens = backend.operations["sample"](logits.clone(), sampling)
    assert torch.equal(tokens, reference.operations["sample"](logits.clone(), sampling))
    assert len(set(tokens.tolist())) > rows // 2


@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_takes_the_first_of_equal_maxima(
    backend: Backend, device: torch.device, dtype: torch.dtype
) -> None:
    logits = torch.full((3, 9000), -1.0, dtype=dtype, device=device)
    logits[0, [17, 18, 8999]] = 2.0
    logits[1, [8998, 8999]] = 2.0
    sampling = parameters(3, device, greedy_every=1)
    assert backend.operations["sample"](logits, sampling).tolist() == [17, 8998, 0]


def filters(rows: int, vocab: int, device: torch.device, top_k: int, top_p: float, min_p: float):
    """Filters on two rows of three."""
    limited = torch.arange(rows, device=device) % 3 > 0
    return LogitFilters(
        temperature=torch.linspace(0.3, 2.0, rows, device=device),
        top_k=torch.where(limited, top_k or vocab, vocab),
        top_p=torch.where(limited, top_p, 1.0),
        min_p=torch.where(limited, min_p, 0.0),
        candidates=top_k or (vocab if top_p < 1 else 0),
        any_top_p=top_p < 1,
        any_min_p=min_p > 0,
    )


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p"),
    [(3, 1.0, 0.0), (0, 0.6, 0.0), (50, 0.9, 0.0), (0, 1.0, 0.1), (40, 0.8, 0.05), (900, 0.7, 0.0)],
)
@pytest.mark.parametrize("vocab", [1000, 9000, pytest.param(151936, marks=gpu)])
def test_filtered_logits_are_the_references(
    backend: Backend, reference: Backend, device: torch.device, vocab: int, top_k: int,
    top_p: float, min_p: float,
) -> None:  # fmt: skip
    """Logits in steps of 1/16, as half precision has them: many are equal."""
    rows = 30 if device.type == "cuda" else 6  # the interpreter is slow
    logits = (torch.randn(rows, vocab, device=device) * 48).round() / 16
    asked = filters(rows, vocab, device, top_k, top_p, min_p)
    expected = reference.operations["filter_logits"](logits.clone(), asked)
    kept = backend.operations["filter_logits"](logits.clone(), asked)
    assert torch.equal(kept, expected)
    assert (kept[1] == -torch.inf).any()
    assert torch.equal(kept[0], logits[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [-12.0, 0.0])
def test_filtered_logits_of_half_precision_are_those_of_its_float32(
    backend: Backend, reference: Backend, device: torch.device, shift: float, dtype: torch.dtype
) -> None:
    logits = (torch.randn(6, 9000, device=device) * 2 + shift).to(dtype)
    asked = filters(6, 9000, device, top_k=70, top_p=0.9, min_p=0.0)
    expected = reference.operations["filter_logits"](logits.float(), asked)
    kept = backend.operations["filter_logits"](logits.clone(), asked)
    assert torch.equal(kept.float(), expected)


def test_impossible_tokens_are_never_drawn(backend: Backend, device: torch.device) -> None:
    logits = torch.full((12, 5000), -torch.inf, device=device)
    logits[:, [3, 4500]] = 0.0
    tokens = backend.operations["sample"](logits, parameters(12, device))
    assert set(tokens.tolist()) == {3, 4500}
