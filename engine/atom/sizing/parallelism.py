"""Which tensor-parallel sizes a model can be split into, and why not the others.

Pure divisibility of the model's shape and of its quantisation's groups; what an engine version or a
node supports is not known here.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing.layers import LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection, Split
from atom.sizing.states import DeltaShape, StateKind
from atom.sizing.weights import stored_projections

MAX_TENSOR_PARALLEL = 8  # devices of one fully connected node


def tensor_parallel_problems(
    facts: ModelFacts, size: int, nodes: int = 1, *, expert_parallel: bool = False
) -> tuple[str, ...]:
    """Reasons why `size` ranks on `nodes` nodes cannot share this model; empty when they can."""
    most = MAX_TENSOR_PARALLEL * nodes
    if not 1 <= size <= most:
        return (f"tensor parallel size {size} is outside 1..{most}",)
    problems: dict[str, None] = {}  # in order, each once
    for alike in facts.layer_counts:
        for name, value in _divided(alike.layer, expert_parallel):
            if value % size:
                problems[f"{name} {value} is not divisible by {size}"] = None
    if facts.vocab_size % size:
        problems[f"vocabulary size {facts.vocab_size} is not divisible by {size}"] = None
    for alike in facts.layer_counts:
        kv_heads = alike.layer.attention.num_kv_heads
        if alike.layer.attention.latent is None and kv_heads % size and size % kv_heads:
            problems[f"{kv_heads} KV heads can be neither divided nor replicated over {size}"] = (
                None
            )
    if not problems and size > 1:
        problems = dict.fromkeys(_broken_scales(facts, size, expert_parallel))
    return tuple(problems)


def valid_tensor_parallel_sizes(
    facts: ModelFacts, nodes: int = 1, *, expert_parallel: bool = False
) -> tuple[int, ...]:
    """List every size that the model can be split into, ascending; the same on each of `nodes`."""
    sizes = range(nodes, MAX_TENSOR_PARALLEL * nodes + 1, nodes)
    return tuple(
        size
        for size in sizes
        if not tensor_parallel_problems(facts, size, nodes, expert_parallel=expert_parallel)
    )


def _divided(layer: LayerFacts, expert_parallel: bool) -> Iterator[tuple[str, int]]:
    state = layer.attention.state
    if state is not None and state.kind is StateKind.SHORT_CONV:
        yield "channels of short convolutions", state.value_heads
    else:
        yield "attention heads", layer.attention.num_heads
    if state is not None and isinstance(state.shape, DeltaShape):
        yield "key heads of linear attention", state.key_heads
    experts = layer.mlp.experts
    if experts is None:
        yield "intermediate size", layer.mlp.intermediate_size
        return
    if expert_parallel:
        yield "number of experts", experts.count
    else:
        yield "expert intermediate size", experts.intermediate_size
    if experts.shared_intermediate_size:
        yield "shared experts' intermediate size", experts.shared_intermediate_size


def _broken_scales(facts: ModelFacts, size: int, expert_parallel: bool) -> Iterator[str]:
    """A rank's share of a matrix must hold whole groups of elements that share a scale."""
    told: set[int] = set()  # gate, up and down of one width are one problem
    for alike in facts.layer_counts:
        layer = alike.layer
        for matrix in stored_projections(facts, layer):
            stored = matrix.quantization
            if stored is None or _stays_whole(matrix, expert_parallel):
                continue
            rows, columns = matrix.on_rank(size)
            outputs = matrix.split is Split.OUTPUTS
            share = rows if outputs else columns
            multiple = stored.output_multiple if outputs else stored.input_multiple
            if share % multiple and share not in told:
                told.add(share)
                yield (
                    f"1/{size} of {matrix.name} is {share} wide, which is no multiple of the "
                    f"quantisation's {multiple}"
                )


def _stays_whole(matrix: Projection, expert_parallel: bool) -> bool:
    return (
        matrix.split is Split.NOTHING
        or not matrix.quantizable
        or (expert_parallel and matrix.copies > 1)
    )
