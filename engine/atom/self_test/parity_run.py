"""Compare a small model on the card with the same model on the CPU, through whole engines.

The card answers first. The CPU, in float32, then computes the probability of each of the card's
tokens; so tokens with nearly equal probabilities do not spoil the comparison. Weights are generated
here, so no network is needed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from atom.model_engine.llm_engine import Completion, LLMEngine
from atom.sampling_params import SamplingParams

# Heads and sizes that AITER's kernels take, too.
_HIDDEN, _MIDDLE, _HEADS, _KV_HEADS, _HEAD, _VOCABULARY, _LAYERS = 512, 1024, 8, 1, 128, 512, 2
_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": _HIDDEN,
    "intermediate_size": _MIDDLE,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": _HEADS,
    "num_key_value_heads": _KV_HEADS,
    "head_dim": _HEAD,
    "vocab_size": _VOCABULARY,
    "max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
# Within a block of the cache, at its end, and over several.
PROMPTS = tuple(
    [3 + (7 * place + length) % 500 for place in range(length)] for length in (5, 16, 100)
)
_NEW_TOKENS = 24
# Of a log-probability, in bfloat16 over two layers: some tens of its roundings.
CLOSE = 0.15

Answer = Callable[[Path, str, Sequence[list[int]], SamplingParams], list[Completion]]


@dataclass(frozen=True, slots=True)
class ParityRun:
    """Distances of the card's answers from the CPU's. furthest: of their log-probabilities;
    least_likely: how much likelier than the card's choice the CPU finds another token; error: why
    there is no answer."""

    tokens: int
    furthest: float
    least_likely: float
    error: str | None = None

    @property
    def passed(self) -> bool:
        return self.error is None and self.furthest <= CLOSE and self.least_likely <= CLOSE

    def __str__(self) -> str:
        if self.error is not None:
            return f"parity run: {self.error}"
        said = "as on the CPU" if self.passed else "NOT as on the CPU"
        return (
            f"parity run: {self.tokens} tokens {said}; log-probabilities differ by "
            f"{self.furthest:.3f} at most, and its choices fall behind by {self.least_likely:.3f} "
            f"(limit {CLOSE})"
        )


def answer_on(
    folder: Path, device: str, prompts: Sequence[list[int]], asked: SamplingParams
) -> list[Completion]:
    """Answer prompts with a separate engine, and close the engine."""
    dtype = "float32" if device == "cpu" else "bfloat16"
    with LLMEngine(
        str(folder), device=device, dtype=dtype, max_model_len=256, max_num_seqs=8, num_kv_blocks=64
    ) as engine:
        return engine.generate(prompts, asked, use_tqdm=False)


def parity_run(device: str, answer: Answer = answer_on) -> ParityRun:
    """Compare the engine on this device with the CPU's. Errors of either are reported, not
    raised."""
    with tempfile.TemporaryDirectory(prefix="atom-parity-") as made:
        folder = write_model(Path(made))
        try:
            asked = SamplingParams(
                temperature=0.0, max_tokens=_NEW_TOKENS, ignore_eos=True, logprobs=0
            )
            theirs = answer(folder, device, PROMPTS, asked)
            whole = [
                prompt + item["token_ids"] for prompt, item in zip(PROMPTS, theirs, strict=True)
            ]
            scored = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1)
            ours = answer(folder, "cpu", whole, scored)
        except Exception as error:  # any failure of the card is a result
            return ParityRun(0, 0.0, 0.0, f"{type(error).__name__}: {error}"[:2000])
    return compare(theirs, ours)


def compare(theirs: Sequence[Completion], ours: Sequence[Completion]) -> ParityRun:
    """Compare answers with another engine's probabilities for the same tokens as a prompt."""
    apart, behind = [0.0], [0.0]
    for item, scored in zip(theirs, ours, strict=True):
        chosen, told = item["logprobs"] or [], scored["prompt_logprobs"] or []
        for theirs_there, ours_there in zip(chosen, told[-len(chosen) :], strict=True):
            assert ours_there is not None, "only a prompt's first token has none"
            apart.append(abs(theirs_there.logprob - ours_there.logprob))
            best = max(value for _, value in ours_there.top_logprobs)
            behind.append(best - ours_there.logprob)
    return ParityRun(len(apart) - 1, max(apart), max(behind))


def write_model(folder: Path) -> Path:
    """Write a checkpoint of random weights, the same each time."""
    (folder / "config.json").write_text(json.dumps(_CONFIG))
    words = WordLevel({f"t{token}": token for token in range(_VOCABULARY)}, unk_token="t0")
    Tokenizer(words).save(str(folder / "tokenizer.json"))
    draw = torch.Generator().manual_seed(0)

    def matrix(outputs: int, inputs: int) -> torch.Tensor:
        drawn = torch.randn(outputs, inputs, generator=draw)
        return drawn.mul_(inputs**-0.5).bfloat16()

    tensors = {
        "model.embed_tokens.weight": matrix(_VOCABULARY, _HIDDEN) * 20,
        "model.norm.weight": torch.ones(_HIDDEN).bfloat16(),
        "lm_head.weight": matrix(_VOCABULARY, _HIDDEN) * 2,
    }
    for layer in range(_LAYERS):
        here = f"model.layers.{layer}"
        for name, outputs, inputs in (
            ("self_attn.q_proj", _HEADS * _HEAD, _HIDDEN),
            ("self_attn.k_proj", _KV_HEADS * _HEAD, _HIDDEN),
            ("self_attn.v_proj", _KV_HEADS * _HEAD, _HIDDEN),
            ("self_attn.o_proj", _HIDDEN, _HEADS * _HEAD),
            ("mlp.gate_proj", _MIDDLE, _HIDDEN),
            ("mlp.up_proj", _MIDDLE, _HIDDEN),
            ("mlp.down_proj", _HIDDEN, _MIDDLE),
        ):
            tensors[f"{here}.{name}.weight"] = matrix(outputs, inputs)
        for name, size in (
            ("input_layernorm", _HIDDEN),
            ("post_attention_layernorm", _HIDDEN),
            ("self_attn.q_norm", _HEAD),
            ("self_attn.k_norm", _HEAD),
        ):
            tensors[f"{here}.{name}.weight"] = torch.ones(size).bfloat16()
    save_file(tensors, folder / "model.safetensors")
    return folder
