"""Tiny models whose heads, groups and sizes AITER's kernels take, run through its adapters.

The engine's device is the CPU; the backend believes in a card of a given architecture, whose AITER
is the double. What AITER does not compute is the reference's, as it would be Triton's on a card.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from tests.support.engine_core.core_driver import CoreDriver
from tests.support.fake_aiter import FakeAiter, installed
from tests.support.models.quantised_checkpoint import (
    GPT_OSS_LAYOUT,
    LAYOUTS,
    MXFP4_WEIGHTS,
    make_quantised_checkpoint,
)
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

_LAYOUTS = {**LAYOUTS, "mxfp4": GPT_OSS_LAYOUT, "quark-mxfp4-weights": MXFP4_WEIGHTS}
NEW_TOKENS = 3
# Within a block of 16, at its end, over several, and in chunks of 48.
PROMPT_LENGTHS = (1, 15, 33, 100)
# Of a log-probability, in float16: some hundred roundings of values of this size.
CLOSE = 0.05


@contextmanager
def amd_card(
    monkeypatch: pytest.MonkeyPatch, generation: str, architecture: str = "gfx942", **options: Any
) -> Iterator[FakeAiter]:
    """Let backends find a card of this architecture, and AITER of this generation."""
    with monkeypatch.context() as patch, installed(generation, architecture, **options) as fake:
        patch.setattr("atom.utils.device.amd_architecture", lambda: architecture)
        patch.setattr("atom.model_ops.backends._PREFERENCES", {"cpu": ("aiter", "torch_ref")})
        with _marked_memory():
            yield fake


@contextmanager
def _marked_memory() -> Iterator[None]:
    """Fill what nothing was written to with NaN, so that reading it shows."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@dataclass(frozen=True)
class Model:
    """A checkpoint, and transformers' model of the same values, which computes in float32."""

    folder: Path
    oracle: Any

    @property
    def prompts(self) -> list[list[int]]:
        draw = np.random.default_rng(7)
        size = self.oracle.config.vocab_size
        return [draw.integers(3, size, size=count).tolist() for count in PROMPT_LENGTHS]


def make_model(folder: Path, **options: Any) -> Model:
    """In float16 unless a dtype is given."""
    sizes = {
        "dtype": torch.float16,
        "heads": 8,
        "kv_heads": 1,
        "head_dim": 128,
        "hidden": 64,
        "intermediate": 64,
    }
    make_tiny_checkpoint(folder, **{**sizes, **options})
    return Model(folder, _oracle(folder))


def make_quantised_model(
    folder: Path, layout: str, architecture: Architecture, **options: Any
) -> Model:
    sizes = {"heads": 8, "kv_heads": 1, "head_dim": 128, "hidden": 128, "intermediate": 128}
    quantised, plain = make_quantised_checkpoint(
        folder,
        _LAYOUTS[layout],
        architecture,
        sizes={**sizes, **options.pop("sizes", {})},
        **options,
    )
    return Model(quantised, _oracle(plain))


def _oracle(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def driver_of(model: Model, *, dtype: str = "float16", **options: Any) -> CoreDriver:
    return CoreDriver(
        str(model.folder),
        dtype=dtype,
        max_num_batched_tokens=48,
        max_num_seqs=8,
        max_model_len=128,
        num_kv_blocks=64,
        **options,
    )


def worst_error(model: Model, driver: CoreDriver) -> float:
    """Largest difference to transformers: of the log-probability of a generated token, and of how
    much less likely it is than transformers' own choice there. The prompts are computed twice,
    the second time behind what is cached of them."""
    worst = 0.0
    for _ in range(2):
        generated = driver.generate(
            model.prompts, max_tokens=NEW_TOKENS, ignore_eos=True, logprobs=0
        )
        for prompt, tokens, told in zip(model.prompts, generated, driver.logprobs, strict=True):
            with torch.inference_mode():
                logits = model.oracle(torch.tensor([prompt + tokens])).logits[0].float()
            expected = logits.log_softmax(-1)[len(prompt) - 1 : -1]
            for row, token, entry in zip(expected, tokens, told, strict=True):
                if not np.isfinite(entry.logprob):
                    return float("inf")
                own = float(row[token])
                worst = max(worst, abs(own - entry.logprob), float(row.max()) - own)
    return worst
