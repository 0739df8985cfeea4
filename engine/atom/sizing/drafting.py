"""Reasons why layers or another model cannot draft for a model: one table for engine, operator and
advisor, from config.json alone.

The engine refuses such a pair before it reads weights, the operator before a pod exists. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from atom.sizing.architectures import ARCHITECTURES, DRAFT_FAMILIES
from atom.sizing.attention.kinds import EntriesAttention, GroupedAttention
from atom.sizing.engine_support import (
    DRAFT_CHECKPOINT_METHODS,
    LAYER_METHODS,
    unsupported,
)
from atom.sizing.mask_rule import CAUSAL
from atom.sizing.model_facts import ModelFacts

_AUX_LAYERS = 3
_LEAST_LAYERS = 7  # three different ones give auxiliary hidden states
_MOST_PADDING = 1024  # ids that pad one vocabulary further than another; Qwen2.5's by 128


def default_aux_layers(num_layers: int) -> tuple[int, ...]:
    """Return the layers whose inputs a draft model of EAGLE-3 sees if its config.json names
    none."""
    return (2, num_layers // 2, num_layers - 3)


def spread_problems(experts_spread: bool) -> Iterator[str]:
    """Yield why layers do not draft for a model whose experts are spread over ranks."""
    if experts_spread:
        yield (
            f"layers that draft (methods {', '.join(LAYER_METHODS)}) do not run where ranks share "
            "experts; use method ngram, or leave expert parallelism out"
        )


def draft_problems(method: str, facts: ModelFacts, draft: ModelFacts | None) -> Iterator[str]:
    """Yield the reasons why a method of layers cannot draft for a model; none if it can. draft: of
    the checkpoint that drafts, None for the model's own layers."""
    if draft is None and method in DRAFT_CHECKPOINT_METHODS:
        yield f"method {method} needs a draft model; name its folder or hub id"
    elif draft is None:
        yield from mtp_problems(facts)
    elif method == "eagle3":
        yield from eagle3_problems(facts, draft)
    else:
        yield from draft_model_problems(facts, draft)


def mtp_problems(facts: ModelFacts) -> Iterator[str]:
    """Yield the reasons why a model's own layers cannot draft for it; none if they can."""
    row = ARCHITECTURES.get(facts.architecture)
    if row is not None and row.mtp_lacking:
        yield (
            f"method mtp is not supported for {facts.architecture}: {row.mtp_lacking}; use method "
            "ngram"
        )
    elif not facts.mtp_layers:
        yield (
            "method mtp drafts with the checkpoint's own layer, and this model's config.json names "
            "none (num_nextn_predict_layers); leave it out, or use method ngram"
        )
    elif len(facts.mtp_layers) > 1:
        yield (
            f"method mtp drafts with one layer, and this model's config.json names "
            f"{len(facts.mtp_layers)} (num_nextn_predict_layers); use method ngram"
        )


def eagle3_problems(facts: ModelFacts, draft: ModelFacts) -> Iterator[str]:
    """Yield the reasons why a draft model cannot draft for a model; none if it can."""
    if draft.architecture not in DRAFT_FAMILIES:
        yield (
            f"the draft model's architecture {draft.architecture} does not draft by method eagle3, "
            f"which supports {', '.join(DRAFT_FAMILIES)}; a whole model does by method draft_model"
        )
        return
    if draft.num_layers != 1:
        yield f"the draft model has {draft.num_layers} layers; one is supported"
    if draft.hidden_size != facts.hidden_size:
        yield (
            f"the draft model's hidden_size {draft.hidden_size} is not the model's "
            f"{facts.hidden_size}, whose embedding it uses; use the one made for this model"
        )
    if draft.inputs.joined_size != _AUX_LAYERS * facts.hidden_size:
        yield (
            f"the draft model joins {draft.inputs.joined_size} elements of hidden states, of this "
            f"model {_AUX_LAYERS} × {facts.hidden_size}; use the one made for it"
        )
    if draft.vocab_size > facts.vocab_size:
        yield (
            f"the draft model's draft_vocab_size {draft.vocab_size} is more than the model's "
            f"vocab_size {facts.vocab_size}"
        )
    if any(alike.layer.streams for alike in facts.layer_counts):
        yield (
            f"{facts.architecture} has several residual streams, and a draft model joins hidden "
            "states of one; use method ngram"
        )
    if facts.num_layers < _LEAST_LAYERS:
        yield (
            f"three layers of the model give auxiliary hidden states, which takes "
            f"{_LEAST_LAYERS} at least; it has {facts.num_layers}"
        )
    if draft.quantization is not None:
        yield f"the draft model is quantised ({draft.quantization}); use a plain one"
    yield from _cache_problems(facts, draft)


def draft_model_problems(facts: ModelFacts, draft: ModelFacts) -> Iterator[str]:
    """Yield the reasons why a whole model cannot draft for a model; none if it can."""
    name = draft.architecture
    if name in DRAFT_FAMILIES:
        yield f"{name} drafts from the states of a model; use method eagle3"
        return
    lacking = [refusal.message for refusal in unsupported(draft)]
    yield from lacking
    if lacking:
        return
    if abs(draft.vocab_size - facts.vocab_size) > _MOST_PADDING:
        yield (
            f"the draft model's vocab_size {draft.vocab_size} is not the model's "
            f"{facts.vocab_size}, also with padding of up to {_MOST_PADDING}; use a draft model "
            "with the same vocabulary"
        )
    if draft.vision is not None:
        yield f"the draft model {name} reads images; use a model of text"
    if not _keeps_plain_keys(draft):
        yield (
            f"the draft model {name} has layers that keep something else than keys and values of "
            "each token; use a model whose layers all have grouped-query attention"
        )
    if any(isinstance(each.layer.attention, EntriesAttention) for each in facts.layer_counts):
        yield (
            f"{facts.architecture} keeps compressed entries, whose blocks a draft model's keys do "
            "not share; use method ngram"
        )


def _keeps_plain_keys(draft: ModelFacts) -> bool:
    """Return whether every layer keeps the keys and values of its own tokens, and nothing else."""
    if draft.is_fallback or draft.is_encoder:
        return False
    kinds = [alike.layer.attention for alike in draft.layer_counts]
    return all(isinstance(each, GroupedAttention) and not each.softmax.index for each in kinds)


def _cache_problems(facts: ModelFacts, draft: ModelFacts) -> Iterator[str]:
    """Yield a reason if the draft's layers, which share the pool's tensors, cache other sizes of a
    token."""
    layers = [alike.layer.attention for alike in (*facts.layer_counts, *draft.layer_counts)]
    windows = [each for each in layers if each.mask != CAUSAL]
    kept = {(each.num_kv_heads, each.head_dim) for each in layers if each.keeps_tokens}
    own = draft.layers[0].attention
    if windows and len(kept) > 1:
        yield (
            f"the draft model keeps {own.num_kv_heads} KV heads of {own.head_dim}, other than the "
            "model, whose layers with sliding windows share blocks with it; use method ngram"
        )
