"""Which ranks can have a model's experts as wholes, and why not the others.

One table for engine and operator: what is asked for, and in words what stands in the way, with the
sizes that do. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.model_facts import ModelFacts

_USUAL_RANKS = 8  # devices of one node: of larger numbers none is named that was not asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOptions:
    """Describe how many ranks are to have whole experts each: of tensor parallelism, or of data
    parallelism with tokens of their own. nodes: that they are divided over; redundant: copies of
    experts beyond one each; speculation: whether tokens are drafted."""

    tensor_parallel: int = 1
    data_parallel: int = 1
    nodes: int = 1
    redundant: int = 0
    speculation: bool = False


def expert_parallel_problem(facts: ModelFacts, asked: ExpertOptions) -> str | None:
    """Return why the engine does not divide the model's experts so, with what it does; None when it
    does."""
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
