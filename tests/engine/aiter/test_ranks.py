"""Ranks that add up by AITER's kernel, with the norm behind the sum, say what transformers says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atom.collectives.group import ALONE, Group
from atom.model_ops.backends import load_backend
from atom.model_ops.backends.aiter_ops import rank_group
from atom.model_ops.backends.aiter_ops.library import load_library
from tests.support.aiter.aiter_models import CLOSE, amd_card, make_model, worst_error
from tests.support.aiter.aiter_mutations import Change, constant, drop, put, rename, swap, wider
from tests.support.aiter.aiter_rank_group import AiterRankGroup
from tests.support.fake_aiter import GENERATIONS, ranks

_OPTIONS: dict[str, Any] = {
    "dtype": "float16", "max_num_batched_tokens": 48, "max_num_seqs": 8, "max_model_len": 128,
    "num_kv_blocks": 64,
}  # fmt: skip


@pytest.fixture(scope="module")
def pair() -> Iterator[AiterRankGroup]:
    ranks = AiterRankGroup(2)
    yield ranks
    ranks.close()


@pytest.mark.parametrize("generation", GENERATIONS)
def test_two_ranks_give_what_transformers_gives(
    generation: str, pair: AiterRankGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(tmp_path, architecture="qwen3", kv_heads=2)
    with pair.card(monkeypatch, generation) as aiter:
        driver = pair.driver(str(model.folder), **_OPTIONS)
        assert worst_error(model, driver) < CLOSE
        driver.close()
    layers = model.oracle.config.num_hidden_layers
    fused, alone = aiter.called("custom_fused_ar_rms"), aiter.called("custom_all_reduce")
    # Of each step: a sum for the embedding, and one for each attention and MLP.
    assert len(fused) == 2 * layers * len(alone) > 0
    assert not [call for call in aiter.calls if call.positional], "adapters pass keywords alone"


def test_what_aiter_does_not_add_up_is_the_groups_own(
    pair: AiterRankGroup, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lacking = ["aiter.dist.device_communicators.custom_all_reduce.CustomAllreduce"]
    with amd_card(monkeypatch, "2026-08", lacking=lacking), caplog.at_level("INFO"):
        join = load_backend("aiter").join
        assert join is not None
        own = pair.group
        assert join(own, torch.device("cpu"), 128) is own
    assert "aiter 2026-08 has no CustomAllreduce" in caplog.text


def test_a_group_of_another_size_keeps_its_own_sums(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with amd_card(monkeypatch, "2026-08"), caplog.at_level("INFO"):
        join = load_backend("aiter").join
        assert join is not None
        assert join(ALONE, torch.device("cpu"), 128) is ALONE
    assert "over 2, 4, 6, 8 ranks, not 1" in caplog.text


@pytest.mark.parametrize(
    ("x", "fits"),
    [
        (torch.zeros(3, 8, dtype=torch.float16), True),
        (torch.zeros(3, 8), False),
        (torch.zeros(3, 5, dtype=torch.float16), False),  # no multiple of 16 bytes
        (torch.zeros(0, 8, dtype=torch.float16), False),
        (torch.zeros(8, 3, dtype=torch.float16).t(), False),
    ],
)
def test_ranks_decide_by_shape_and_dtype(x: torch.Tensor, fits: bool) -> None:
    assert rank_group._fits(x) is fits


def _sums(group: Group) -> None:
    """Of two ranks, of which the other has twice what this one has."""
    torch.manual_seed(0)
    x, residual, weight = (torch.randn(*size).half() for size in ((3, 64), (3, 64), (64,)))
    done = group.add_and_norm(x, residual, weight, 0.5)
    assert done is not None
    total = 3 * x.float() + residual.float()
    normed = total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 0.5) * weight.float()
    torch.testing.assert_close(done[0].float(), normed, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(done[1].float(), total, atol=4e-3, rtol=4e-3)
    torch.testing.assert_close(group.reduce(x).float(), 3 * x.float(), atol=4e-3, rtol=4e-3)


def _two_ranks(monkeypatch: pytest.MonkeyPatch, mistake: tuple[str, Change] | None) -> Group:
    """One process, for which another is made up."""

    def all_gather(everyone: list[torch.Tensor], x: torch.Tensor, group: Any) -> None:
        everyone[0].copy_(x)
        everyone[1].copy_(2 * x)

    hosts = SimpleNamespace(
        new_group=lambda backend: backend,
        get_backend=lambda group: group,
        get_world_size=lambda group: 2,
        all_gather=all_gather,
    )
    monkeypatch.setattr(rank_group, "dist", hosts)
    monkeypatch.setattr(ranks, "dist", hosts)
    library = load_library()
    if mistake is not None:
        found = _mistaken(library.found["CustomAllreduce"], *mistake)
        library = replace(library, found={**library.found, "CustomAllreduce": found})
    pair: Any = SimpleNamespace(rank=0, size=2, nodes=1, enter=lambda: None)
    return rank_group.join(library, pair, torch.device("cpu"), 128)


def _mistaken(original: Any, method: str, change: Change) -> Any:
    def make(**given: Any) -> Any:
        made = original(**(change(given) if method == "" else given))
        if method:
            right = getattr(made, method)
            setattr(made, method, lambda **given: right(**change(given)))
        return made

    return make


_FUSED, _PLAIN = "custom_fused_ar_rms", "custom_all_reduce"
MISTAKES: dict[str, tuple[str, Change]] = {
    "a group of devices": ("", constant("group", "nccl")),
    "no room": ("", constant("max_size", 0)),
    "no epsilon": (_FUSED, constant("eps", 0.0)),
    "epsilon by another name": (_FUSED, rename("eps", "epsilon")),
    "residual and input swapped": (_FUSED, swap("input", "residual_inp")),
    "no residual": (_FUSED, put("residual_inp", torch.zeros_like)),
    "a float32 weight": (_FUSED, put("weight", wider)),
    "another weight": (_FUSED, put("weight", lambda w: w.roll(1))),
    "no stage": (_FUSED, drop("use_1stage")),
    "the weight less one": (_FUSED, constant("gemma_norm", True)),
    "rounded to eight bits": (_PLAIN, constant("open_fp8_quant", True)),
    "a part of the sum": (_PLAIN, put("input", lambda x: x[:1])),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with amd_card(monkeypatch, "2026-08"):
        _sums(_two_ranks(monkeypatch, None))
        with pytest.raises((AssertionError, TypeError, RuntimeError)):
            _sums(_two_ranks(monkeypatch, MISTAKES[name]))
