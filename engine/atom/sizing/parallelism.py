"""Which tensor-parallel sizes a model can be split into, and why not the others.

Pure divisibility of the model's shape; what an engine version or a node supports is not known
here.
"""

from __future__ import annotations

from atom.sizing.model_facts import ModelFacts

MAX_TENSOR_PARALLEL = 8  # devices of one fully connected node


def tensor_parallel_problems(facts: ModelFacts, size: int, nodes: int = 1) -> tuple[str, ...]:
    """Reasons why `size` ranks on `nodes` nodes cannot share this model; empty when they can."""
    most = MAX_TENSOR_PARALLEL * nodes
    if not 1 <= size <= most:
        return (f"tensor parallel size {size} is outside 1..{most}",)
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


def valid_tensor_parallel_sizes(facts: ModelFacts, nodes: int = 1) -> tuple[int, ...]:
    """Every size that the model can be split into, ascending; the same on each of `nodes`."""
    sizes = range(nodes, MAX_TENSOR_PARALLEL * nodes + 1, nodes)
    return tuple(size for size in sizes if not tensor_parallel_problems(facts, size, nodes))
