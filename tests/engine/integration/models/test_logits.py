"""Logits equal transformers', of prompts and of decodes: latent attention, experts, sinks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

from atom.model_ops.embed_head import ParallelLMHead
from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import make_tiny_checkpoint

NEW_TOKENS = 10
FAMILIES = (
    "deepseek", "mixtral", "qwen2-moe", "qwen3-moe", "qwen3-next", "qwen3.5", "lfm2",
    "glm4-moe", "glm5", "mimo", "minimax", "gpt-oss", "llama4", "gemma4", "phi", "hunyuan",
)  # fmt: skip


@pytest.fixture(params=[name for name in CHECKPOINTS if name.startswith(FAMILIES)])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return make_tiny_checkpoint(tmp_path, **CHECKPOINTS[request.param])


@pytest.fixture
def logits(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """All that the engine computes from here on."""
    seen: list[torch.Tensor] = []
    compute = ParallelLMHead.forward

    def recorded(head: ParallelLMHead, hidden: torch.Tensor) -> torch.Tensor:
        result = compute(head, hidden)
        seen.append(result.clone())
        return result

    monkeypatch.setattr(ParallelLMHead, "forward", recorded)
    return seen


@pytest.mark.sampled(22)
@pytest.mark.singles
@pytest.mark.parametrize("backend", ["auto", "torch_ref"])
def test_logits_equal_transformers(
    checkpoint: Path, logits: list[torch.Tensor], backend: str
) -> None:
    driver = CoreDriver(
        str(checkpoint), backend=backend, max_num_batched_tokens=48, max_num_seqs=4, block_size=16
    )
    draw = np.random.default_rng(3)
    prompt = draw.integers(3, driver.vocab_size, size=110).tolist()
    (new,) = driver.generate([prompt], max_tokens=NEW_TOKENS, ignore_eos=True, prompt_logprobs=1)
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt + new])).logits[0]
    got = torch.cat(logits)
    # Chunks: every position whose next token is known; then each position that was sampled at.
    prompts, decodes = got.split([len(prompt) - 1, NEW_TOKENS])
    assert (prompts - expected[: len(prompt) - 1]).abs().max() <= 1e-4
    assert (decodes - expected[len(prompt) - 1 : -1]).abs().max() <= 1e-4
