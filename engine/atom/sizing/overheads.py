"""Predicted memory beside weights and KV cache: activations and the runtime itself.

Upper estimates for a plan made before anything runs (the operator's); the engine replaces them by
what it measures. Knows only shapes; no device is asked.
"""

from __future__ import annotations

from typing import Literal

from atom.sizing.model_facts import ModelFacts

_MIB = 1024**2
_GIB = 1024**3

# A Python process that imported torch and serves HTTP measures 550-650 MiB of resident memory on
# x86-64; the allocator's slack makes it 700.
CPU_RUNTIME_BYTES = 700 * _MIB
# Context, kernels and collectives' buffers outside the allocator: 1-1.5 GiB are seen on ROCm.
GPU_RUNTIME_BYTES = 3 * _GIB // 2
# The driver reports slightly less than the nominal size, and the allocator fragments.
GPU_SAFETY_FRACTION = 0.02

_LOGITS_BYTES = 4  # logits are float32 whatever the model's dtype
_LOGITS_COPIES = 3  # raw, scaled by temperature, and the sampler's probabilities


def activation_bytes(
    facts: ModelFacts,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    dtype_bytes: int,
    tensor_parallel: int = 1,
) -> int:
    """Peak of one forward pass on one rank: the widest point of a layer, then the logits.

    The residual stream, its normed copy and the layer's output live through the widest point,
    which is either attention (q, k, v, output) or the MLP (gate, up, their product).
    """
    heads = -(-facts.num_attention_heads // tensor_parallel)
    attention = (2 * heads + 2 * facts.kv_heads_per_rank(tensor_parallel)) * facts.head_dim
    mlp = 3 * -(-facts.intermediate_size // tensor_parallel)
    width = 3 * facts.hidden_size + max(attention, mlp)
    layers = max_num_batched_tokens * width * dtype_bytes
    logits = max_num_seqs * facts.vocab_size * _LOGITS_BYTES * _LOGITS_COPIES
    return layers + logits


def runtime_overhead_bytes(device: Literal["cpu", "gpu"], total_bytes: int) -> int:
    """What the process occupies before it holds a tensor of ours, with a safety margin."""
    if device == "cpu":
        return CPU_RUNTIME_BYTES
    return GPU_RUNTIME_BYTES + int(total_bytes * GPU_SAFETY_FRACTION)
