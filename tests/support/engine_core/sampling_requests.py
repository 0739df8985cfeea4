"""Requests of every sampling control, drawn and greedy, among plain ones."""

from __future__ import annotations

from typing import Any

import numpy as np

from atom.sampling_params import SamplingParams

_CONTROLS: list[dict[str, Any]] = [
    {},
    {"top_k": 7, "top_p": 0.8},
    {"top_p": 0.7},
    {"min_p": 0.1},
    {"repetition_penalty": 1.3, "frequency_penalty": 0.5},
    {"presence_penalty": -0.7},
    {"logit_bias": {9: 4.0, 11: -100.0}, "top_k": 20},
    {"allowed_token_ids": tuple(range(4, 30)), "repetition_penalty": 1.1},
    {"bad_words_token_ids": tuple((a, b) for a in range(3, 15) for b in range(3, 15))},
    {"min_tokens": 12},
    {"logprobs": 2},
    {},
]


def mixed_requests(vocab_size: int, new_tokens: int) -> list[tuple[list[int], SamplingParams]]:
    """(prompt, parameters) of each; prompts of 1 to 89 tokens, the seeds given."""
    draw = np.random.default_rng(3)
    settings = [
        {"temperature": temperature, "seed": index, **control}
        for index, control in enumerate(_CONTROLS)
        for temperature in (0.0, 0.9)
    ]
    lengths = draw.integers(1, 90, size=len(settings)).tolist()
    return [
        (
            draw.integers(3, vocab_size, size=length).tolist(),
            SamplingParams(max_tokens=new_tokens, **setting),
        )
        for length, setting in zip(lengths, settings, strict=True)
    ]
