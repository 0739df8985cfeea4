"""The numbers of ranks over which a model's matrices can be split, or its experts divided as
wholes, and the reasons against other numbers.

The rules are pure divisibility of the model's shape, of its quantisation's groups, and of the
number of its experts. This module does not know the limits of an engine version or a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atom.sizing.attention.kinds import EntriesAttention, LatentAttention, StateAttention
from atom.sizing.layers import LayerFacts
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Projection, Split
from atom.sizing.states import DeltaShape, StateKind
from atom.sizing.weights.layer_matrices import stored_projections

MAX_TENSOR_PARALLEL = 8  # devices of one fully connected node
_USUAL_RANKS = 8  # devices of one node: of larger numbers none is named that was not asked for


def tensor_parallel_problems(
    facts: ModelFacts, size: int, nodes: int = 1, *, expert_parallel: bool = False
) -> tuple[str, ...]:
    """Return the reasons why `size` ranks on `nodes` nodes cannot share this model; empty when they
    can."""
    most = MAX_TENSOR_PARALLEL * nodes
    if not 1 <= size <= most:
        return (f"tensor parallel size {size} is outside 1..{most}",)
    if facts.is_fallback and size > 1:
        return (f"transformers' class {facts.architecture} is computed by one rank",)
    problems: dict[str, None] = {}  # in order, each once
    for alike in facts.layer_counts:
        for name, value in _divided(alike.layer, expert_parallel):
            if value % size:
                problems[f"{name} {value} is not divisible by {size}"] = None
    if facts.vocab_size % size:
        problems[f"vocabulary size {facts.vocab_size} is not divisible by {size}"] = None
    if facts.inputs.per_layer_vocab_size % size:
        size_of_inputs = facts.inputs.per_layer_vocab_size
        problems[f"vocab_size_per_layer_input {size_of_inputs} is not divisible by {size}"] = None
    for alike in facts.layer_counts:
        kv_heads = alike.layer.attention.num_kv_heads
        whole = isinstance(alike.layer.attention, LatentAttention)
        if not whole and kv_heads % size and size % kv_heads:
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
    attention = layer.attention
    state = attention.net if isinstance(attention, StateAttention) else None
    if state is not None and state.kind is StateKind.SHORT_CONV:
        yield "channels of short convolutions", state.value_heads
    else:
        yield "attention heads", attention.num_heads
    if isinstance(attention, EntriesAttention):
        yield "groups of heads (o_groups)", attention.compressed.output_groups
    if state is not None and isinstance(state.shape, DeltaShape):
        yield "key heads of linear attention", state.key_heads
    experts = layer.mlp.experts
    if experts is None or layer.mlp.is_beside:
        yield "intermediate size", layer.mlp.intermediate_size
    if experts is None:
        return
    if expert_parallel:
        yield "number of experts", experts.count
    else:
        yield "expert intermediate size", experts.intermediate_size
    if experts.shared_intermediate_size:
        yield "shared experts' intermediate size", experts.shared_intermediate_size


def _broken_scales(facts: ModelFacts, size: int, expert_parallel: bool) -> Iterator[str]:
    """Yield a problem for each matrix of which a rank's share does not hold whole groups of
    elements that share a scale."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOptions:
    """The numbers of ranks that hold whole experts: of tensor parallelism, or of data parallelism
    with their own tokens. nodes: number of nodes with these ranks; redundant: copies of experts
    beyond one each; speculation: whether tokens are drafted."""

    tensor_parallel: int = 1
    data_parallel: int = 1
    nodes: int = 1
    redundant: int = 0
    speculation: bool = False


def expert_parallel_problem(facts: ModelFacts, asked: ExpertOptions) -> str | None:
    """Return the reason why the engine cannot divide the model's experts in this way, with the
    remedy; None if it can."""
    tensor, data = asked.tensor_parallel, asked.data_parallel
    if not expert_counts(facts):
        return f"{facts.architecture} has no experts to divide; leave it out"
    if tensor * data == 1:
        return "experts are divided over 2 ranks or more; ask for more devices, or leave it out"
    if tensor > 1 and data > 1:
        return (
            f"experts are divided over the ranks of a tensor parallel size, or of a data parallel "
            f"size, and not over {data} × {tensor}; ask for 1 of the one"
        )
    if data > 1 and asked.speculation:
        return "ranks of a data parallel size that share experts draft no tokens; leave one out"
    return _count_problem(facts, asked)


def expert_counts(facts: ModelFacts) -> tuple[int, ...]:
    """List how many experts the layers have that have any, each number once."""
    experts = (alike.layer.mlp.experts for alike in facts.layer_counts)
    return tuple(dict.fromkeys(each.count for each in experts if each is not None))


def _count_problem(facts: ModelFacts, asked: ExpertOptions) -> str | None:
    size, nodes, counts = (
        asked.data_parallel * asked.tensor_parallel,
        asked.nodes,
        expert_counts(facts),
    )
    valid = [
        ranks
        for ranks in range(nodes, max(_USUAL_RANKS * nodes, size) + 1, nodes)
        if all((count + asked.redundant) % ranks == 0 for count in counts)
    ]
    if size in valid:
        return _copies_problem(asked, min(counts))
    named = " and ".join(map(str, counts))
    copies = f" and {asked.redundant} redundant ones" if asked.redundant else ""
    over = f" over {nodes} nodes" if nodes > 1 else ""
    problem = (
        f"{size} ranks are not equally many on each of {nodes} nodes"
        if size % nodes
        else f"{named} experts{copies} are not equally many on each of {size} ranks"
    )
    sizes = ", ".join(map(str, valid)) or "none"
    return f"{problem}; numbers of ranks that divide them{over}: {sizes}"


def _copies_problem(asked: ExpertOptions, experts: int) -> str | None:
    most = experts * (asked.data_parallel - 1)
    if asked.redundant <= most:
        return None
    return (
        f"{asked.redundant} redundant experts are more than a copy of each on every other rank, "
        f"{most}; ask for fewer"
    )
