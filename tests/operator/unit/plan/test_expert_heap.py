"""A plan counts what MORI keeps where the spec's own arguments choose it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.operator.builders_operator import plan

GIB = 1024**3
MORI = ["--expert-exchange", "mori"]


def reserve(
    extra_args: list[str], env: list[dict[str, Any]] | None = None, *, expert: bool = True
) -> int:
    verdict = plan(
        model={"source": "hf://Qwen/Qwen3-30B-A3B"},
        accelerator={"type": "amd", "product": "MI300X"},
        parallelism={"data": 2, "expert": expert},
        engine={"extraArgs": extra_args, "env": env or []},
    )
    assert verdict.capacity.capacity is not None, verdict.capacity
    return int(verdict.capacity.capacity.device.reserve_bytes)


@pytest.mark.parametrize(
    ("size", "bytes_"),
    [
        (None, 4 * GIB),
        ("6G", 6 * GIB),
        ("2gib", 2 * GIB),
        ("512MB", GIB // 2),
        (str(3 * GIB), 3 * GIB),
        ("much", 4 * GIB),
    ],
)
def test_the_heap_is_as_large_as_the_variable_says(size: str | None, bytes_: int) -> None:
    env = [] if size is None else [{"name": "MORI_SHMEM_HEAP_SIZE", "value": size}]
    assert reserve(MORI, env) - reserve([], env) == bytes_


@pytest.mark.parametrize(
    "arguments",
    [["--expert-exchange=mori"], ["--expert-exchange", "torch", "--expert-exchange", "mori"]],
)
def test_the_last_word_counts(arguments: list[str]) -> None:
    assert reserve(arguments) - reserve([]) == 4 * GIB


def test_a_size_of_another_object_is_not_guessed() -> None:
    source = {"configMapKeyRef": {"name": "mori", "key": "heap"}}
    env = [{"name": "MORI_SHMEM_HEAP_SIZE", "valueFrom": source}]
    assert reserve(MORI, env) - reserve([], env) == 4 * GIB


@pytest.mark.parametrize(
    "arguments", [[*MORI, "--expert-exchange", "torch"], ["--expert-exchange", "triton"]]
)
def test_another_exchange_keeps_no_heap(arguments: list[str]) -> None:
    assert reserve(arguments) == reserve([])


def test_experts_that_stay_on_their_rank_need_none() -> None:
    assert reserve(MORI, expert=False) == reserve([], expert=False)
