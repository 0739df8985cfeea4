"""Requests whose answers must be the same bits always, and the ways in which an engine may compute
them."""

from __future__ import annotations

from typing import Any

import numpy as np

from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from tests.support.engine_core.core_driver import CoreDriver

OPTIONS: dict[str, Any] = {
    "reproducible": True, "num_kv_blocks": 256, "max_num_seqs": 16, "max_model_len": 192,
    "max_num_batched_tokens": 512, "block_size": 16,
}  # fmt: skip
_DRAFTS = SpeculativeConfig(num_tokens=3, fewest_matched=1, most_matched=3, adaptive=False)
WAYS: dict[str, dict[str, Any]] = {
    "batch": {},
    "chunks": {"max_num_batched_tokens": 24},
    "pieces": {"max_num_batched_tokens": 64, "long_prefill_token_threshold": 7},
    "no prefix cache": {"enable_prefix_caching": False},
    "drafts": {"speculative": _DRAFTS},
    "a step behind": {"depth": 1},
}
# In which of them requests are preempted, and in which not.
MEMORIES: dict[str, dict[str, Any]] = {
    "enough memory": {},
    "little memory": {"num_kv_blocks": 14, "max_model_len": 128},
}
_ASKS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 1},
    {"temperature": 0.8, "seed": 2, "top_k": 9, "top_p": 0.8},
    {"temperature": 0.9, "seed": 3, "top_p": 0.7, "min_p": 0.02},
    {"temperature": 0.7, "seed": 4, "repetition_penalty": 1.2},
    {"temperature": 0.0, "logit_bias": {9: 100.0}},  # as a draft from the text would say
)

# Of one request: its tokens, and of each of them what is told of log-probabilities.
Answer = tuple[list[int], list[Any]]


def reproducible_requests(count: int, tokens: int) -> list[tuple[list[int], SamplingParams]]:
    """Prompts of 1 to 90 tokens, some of which begin alike and repeat themselves."""
    draw = np.random.default_rng(5)
    shared = draw.integers(3, 60, size=48).tolist()
    made = []
    for number in range(count):
        own = draw.integers(3, 60, size=1 + 7 * number % 41).tolist()
        prompt = (shared if number % 3 == 0 else []) + own
        ask = {"max_tokens": tokens, "ignore_eos": True, "logprobs": 2}
        made.append((prompt, SamplingParams(**ask, **_ASKS[number % len(_ASKS)])))
    return made


def answers(driver: CoreDriver, requests: list[tuple[list[int], SamplingParams]]) -> list[Answer]:
    """Answer all requests at once."""
    return list(zip(driver.generate_each(requests), driver.logprobs, strict=True))


def alone(driver: CoreDriver, requests: list[tuple[list[int], SamplingParams]]) -> list[Answer]:
    """Answer one request after the other."""
    return [answers(driver, [request])[0] for request in requests]


def differing(found: list[Answer], expected: list[Answer]) -> tuple[int, int]:
    """Count tokens, and entries of log-probabilities, that are not the same bits."""
    pairs = list(zip(found, expected, strict=True))
    return (
        sum(a != b for (one, _), (two, _) in pairs for a, b in zip(one, two, strict=True)),
        sum(a != b for (_, one), (_, two) in pairs for a, b in zip(one, two, strict=True)),
    )
