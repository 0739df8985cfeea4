"""The nano workload: 256 requests at once, prompts and outputs of 100 to 1,024 tokens, seed 0.

The one load that small engines publish figures for, drawn exactly as they draw it: 142,827 tokens
in, 133,966 out. Pure; used by the benchmarks that compare with published figures.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

NUM_REQUESTS = 256
PROMPT_TOKENS = 142_827
OUTPUT_TOKENS = 133_966
_LEAST_TOKENS, _MOST_TOKENS = 100, 1024
_LARGEST_TOKEN_ID = 10_000


@dataclass(frozen=True, slots=True)
class NanoRequest:
    prompt: list[int]
    output_tokens: int


def nano_requests() -> list[NanoRequest]:
    draw = random.Random(0)
    prompts = [
        [
            draw.randint(0, _LARGEST_TOKEN_ID)
            for _ in range(draw.randint(_LEAST_TOKENS, _MOST_TOKENS))
        ]
        for _ in range(NUM_REQUESTS)
    ]
    outputs = [draw.randint(_LEAST_TOKENS, _MOST_TOKENS) for _ in range(NUM_REQUESTS)]
    assert (sum(map(len, prompts)), sum(outputs)) == (PROMPT_TOKENS, OUTPUT_TOKENS)
    return [NanoRequest(prompt, count) for prompt, count in zip(prompts, outputs, strict=True)]
