"""Refuse models and options that prevent reproducible answers: one table for engine and operator.

Reproducible runs have their own kernels, which compute each row independently of the others
(model_ops/backends/batch_invariant*). This module refuses by name, before a device is used, the
features that these kernels do not compute. The kernels themselves refuse what depends on the device
(a compiler, a mask, a dtype). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atom.sizing.attention.kinds import EntriesAttention, GroupedAttention, LatentAttention
from atom.sizing.model_facts import ModelFacts
from atom.sizing.projection import Split
from atom.sizing.weights.layer_matrices import projections

# Leaves of a sum over a matrix's inputs: up to so many ranks add them up in the same tree.
LEAVES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ReproducibleOptions:
    """The options that reproducible answers restrict. quantization: the format for a plain
    checkpoint's matrices; names_backends: whether the user names operations' backends; lora:
    whether requests may use adapters; expert_parallel: whether ranks hold whole experts."""

    quantization: str | None = None
    names_backends: bool = False
    lora: bool = False
    expert_parallel: bool = False
    kv_cache_dtype: str = "auto"


def reproducible_problems(facts: ModelFacts, asked: ReproducibleOptions) -> tuple[str, ...]:
    """List the settings that prevent reproducible answers, each with the option to drop; empty if
    there are none."""
    return (*_of_options(asked), *_of_model(facts, asked))


def order_of_sums(facts: ModelFacts, ranks: int, gpu: str) -> str:
    """Name the order in which reproducible ranks sum up. If the names of two engines of the same
    model are equal, both compute the same bits of a KV cache, whatever their numbers of ranks. gpu:
    the kind of device, empty for a CPU. Different kinds of GPUs have different bits, and the orders
    of one rank and of several GPUs have not been proven equal."""
    if not gpu and ranks in (1, 2, LEAVES) and _has_leaves(facts):
        return "tree"
    own = f"{ranks} rank{'s' if ranks > 1 else ''}"
    return f"{own} of {gpu}" if gpu else own


def _has_leaves(facts: ModelFacts) -> bool:
    """Return whether all sums that ranks share have equal leaves: experts have none."""
    layers = [alike.layer for alike in facts.layer_counts]
    if any(layer.mlp.experts is not None for layer in layers):
        return False
    matrices = (
        matrix
        for layer in layers
        for matrix in projections(layer, facts.hidden_size, facts.experts_block)
    )
    return all(each.columns % LEAVES == 0 for each in matrices if each.split is Split.INPUTS)


def _of_options(asked: ReproducibleOptions) -> Iterator[str]:
    if asked.names_backends:
        yield "operations have one backend, which is given; drop --backend and --op-backend"
    if asked.quantization is not None:
        yield (
            f"products of {asked.quantization} matrices are tuned by the number of rows; drop "
            "--quantization and --online-quant-config"
        )
    if asked.lora:
        yield "adapters' products are grouped by the rows of a step; drop --enable-lora"
    if asked.expert_parallel:
        yield (
            "ranks add what each other's experts found in an order of their own; drop "
            "--enable-expert-parallel, --enable-dp-attention and --expert-exchange"
        )
    if asked.kv_cache_dtype == "fp8":
        yield "attention over an fp8 cache has no kernel of fixed order; drop --kv-cache-dtype fp8"


def _of_model(facts: ModelFacts, asked: ReproducibleOptions) -> Iterator[str]:
    if facts.quantization is not None and asked.quantization is None:
        yield (
            f"the checkpoint is quantised ({facts.quantization}), and its products are tuned by "
            "the number of rows; use the plain checkpoint, or drop --reproducible"
        )
    if facts.keeps_states:
        yield (
            "its layers keep states, which chunks and drafts sum up in another order; drop "
            "--reproducible"
        )
    if facts.is_encoder:
        yield "attention in both directions has no kernel of fixed order; drop --reproducible"
    kinds = [alike.layer.attention for alike in facts.layer_counts]
    if any(isinstance(kind, EntriesAttention) for kind in kinds):
        yield "its layers attend to entries that sum up tokens; drop --reproducible"
    if any(isinstance(kind, GroupedAttention) and kind.softmax.index for kind in kinds):
        yield "its layers choose spans of tokens by an indexer; drop --reproducible"
    if any(isinstance(kind, LatentAttention) and kind.latent.index for kind in kinds):
        yield "its layers choose tokens by an indexer; drop --reproducible"
