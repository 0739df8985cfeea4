"""Which tensor-parallel sizes a model can be split into, and why not the others.

Pure divisibility of the model's shape; what an engine version or a node supports is not known
here.
"""

from __future__ import annotations

from atom.sizing.model_facts import ModelFacts

MAX_TENSOR_PARALLEL = 8  # devices of one fully connected node


def tensor_parallel_problems(facts: ModelFacts, size: int) -> tuple[str, ...]:
    """Reasons why `size` ranks cannot share this model; empty when they can."""
    if not 1 <= size <= MAX_TENSOR_PARALLEL:
        return (f"tensor parallel size {size} is outside 1..{MAX_TENSOR_PARALLEL}",)
    problems = []
    for name, value in (
        ("attention heads", facts.num_attention_heads),
        ("intermediate size", facts.intermediate_size),
        ("vocabulary size", facts.vocab_size),
    ):
        if value % size:
            problems.append(f"{name} {value} is not divisible by {size}")
    kv_heads = facts.num_kv_heads
    if kv_heads % size and size % kv_heads:
        problems.append(f"{kv_heads} KV heads can be neither divided nor replicated over {size}")
    return tuple(problems)


def valid_tensor_parallel_sizes(facts: ModelFacts) -> tuple[int, ...]:
    """Every size up to MAX_TENSOR_PARALLEL that the model can be split into, ascending."""
    sizes = range(1, MAX_TENSOR_PARALLEL + 1)
    return tuple(size for size in sizes if not tensor_parallel_problems(facts, size))
