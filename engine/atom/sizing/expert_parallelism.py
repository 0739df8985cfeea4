"""Which ranks can have a model's experts as wholes, and why not the others.

One table for engine and operator: what is asked for, and in words what stands in the way, with the
sizes that do. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom.sizing.model_facts import ModelFacts

MAX_EXPERT_RANKS = 8  # devices of one fully connected node


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertOptions:
    """What an engine is started with, of what decides where experts are. redundant: copies of
    experts beyond one each; speculation: whether tokens are drafted."""

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    dp_attention: bool = False
    redundant: int = 0
    speculation: bool = False


def expert_parallel_problem(facts: ModelFacts, asked: ExpertOptions) -> str | None:
    """Why these ranks cannot share the model's experts; None when they can, or none are to."""
    if not asked.expert_parallel:
        if asked.dp_attention:
            return (
                "enable_dp_attention is for ranks that share experts; add "
                "--enable-expert-parallel, or leave it out for ranks with whole models"
            )
        return None
    if not expert_counts(facts):
        return (
            f"enable_expert_parallel: {facts.architecture} has no experts; leave it out, and "
            "use --tensor-parallel-size or --data-parallel-size alone"
        )
    return _ranks_problem(asked) or _count_problem(facts, asked)


def expert_counts(facts: ModelFacts) -> tuple[int, ...]:
    """Of the layers that have experts, how many, each number once."""
    experts = (alike.layer.mlp.experts for alike in facts.layer_counts)
    return tuple(dict.fromkeys(each.count for each in experts if each is not None))


def valid_expert_ranks(facts: ModelFacts, redundant: int = 0) -> tuple[int, ...]:
    """Every number of ranks that the model's experts can be divided over, ascending."""
    counts = expert_counts(facts)
    sizes = range(1, MAX_EXPERT_RANKS + 1)
    return tuple(size for size in sizes if all((count + redundant) % size == 0 for count in counts))


def _ranks_problem(asked: ExpertOptions) -> str | None:
    if asked.dp_attention and asked.tensor_parallel > 1:
        return (
            f"enable_dp_attention with tensor_parallel_size {asked.tensor_parallel}: ranks that "
            "share experts have one device each in this version; use --tensor-parallel-size 1, or "
            "leave out --enable-dp-attention and --data-parallel-size"
        )
    if asked.data_parallel > 1 and not asked.dp_attention:
        return (
            f"enable_expert_parallel with data_parallel_size {asked.data_parallel}: ranks of data "
            "parallelism share experts only with --enable-dp-attention; add it, or leave out "
            "--enable-expert-parallel"
        )
    if asked.dp_attention and asked.data_parallel == 1:
        return (
            "enable_dp_attention needs ranks: use --data-parallel-size of 2 or more, or leave it "
            "out"
        )
    if asked.dp_attention and asked.speculation:
        return (
            "enable_dp_attention: ranks that share experts do not draft tokens in this version; "
            "leave out the speculation, or --enable-dp-attention"
        )
    if asked.data_parallel * asked.tensor_parallel == 1:
        return "enable_expert_parallel needs ranks to divide experts over; leave it out"
    return None


def _count_problem(facts: ModelFacts, asked: ExpertOptions) -> str | None:
    size = asked.data_parallel * asked.tensor_parallel
    valid = valid_expert_ranks(facts, asked.redundant)
    if size in valid:
        return None
    counts = " and ".join(str(count) for count in expert_counts(facts))
    copies = f" and {asked.redundant} redundant ones" if asked.redundant else ""
    sizes = ", ".join(str(size) for size in valid)
    return (
        f"enable_expert_parallel: {counts} experts{copies} are not equally many on each of {size} "
        f"ranks; numbers of ranks that divide them: {sizes}"
    )
