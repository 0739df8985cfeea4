"""The results of each operation: what it returns, and what it writes to caches, states and logits.

A result is by name. Only what the contract (interface.py) defines is compared: of a cache the slots
of the call's tokens, of states those of its rows, of slots all but the padding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom.model_ops.backends.op_names import DRAFT_OPS, FUSED_OPS, OPS
from atom.model_ops.index_values import IndexCache
from atom.model_ops.quantised.cached_heads import gather_heads
from atom.model_ops.quantised.cached_latents import gather_entries, gather_index_keys
from atom.model_ops.values import LatentCache, LayerCache, Pending, Stream
from atom.utils.forward_context import AttentionMetaData

Results = dict[str, torch.Tensor]
Reader = Callable[[tuple[Any, ...], Any], Results]


def _returned(args: tuple[Any, ...], out: Any) -> Results:
    return {"result": out}


def _summed(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    """Return the sum of a product that may be left in parts."""
    parts = out.dim() == 3
    return {"result": out.sum(0) if parts else out}


def _stream(stream: Stream) -> Results:
    if stream.pending is None:
        return {"residual": stream.residual}
    pending = stream.pending
    if stream.pending_is is Pending.PARTS:
        pending = pending.sum(0)
    return {"residual": stream.residual, "addend": pending}


def _added(args: tuple[Any, ...], out: Stream) -> Results:
    return _stream(out)


def _normed(args: tuple[Any, ...], out: tuple[torch.Tensor, Stream]) -> Results:
    return {"result": out[0], **_stream(out[1])}


def _in_place(args: tuple[Any, ...], out: None) -> Results:
    return {"result": args[0]}


def _kept(slots: torch.Tensor) -> torch.Tensor:
    return slots[slots >= 0].long()


def _heads(cache: LayerCache, slots: torch.Tensor) -> Results:
    keys, values = gather_heads(cache, _kept(slots), torch.float32, slots=True)
    return {"cached keys": keys, "cached values": values}


def _rope_store(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    return {"queries": out, **_heads(args[3], args[4])}


def _attended(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    step: AttentionMetaData = args[4]
    return {"result": out, **_heads(args[3], step.slot_mapping)}


def _latent_store(args: tuple[Any, ...], out: Any) -> Results:
    cache: LatentCache = args[3]
    stored = gather_entries(cache, _kept(args[4]), torch.float32, slots=True)
    return {"queries": out.q, "entries": out.entries, "cached entries": stored}


def _selected(args: tuple[Any, ...], out: torch.Tensor | None) -> Results:
    cache: IndexCache = args[3]
    slots = _kept(args[4].slot_mapping)
    found = {"cached keys": gather_index_keys(cache, slots, torch.float32)}
    return found if out is None else {"selected": out.sort(dim=-1).values, **found}


def _of_rows(states: torch.Tensor, step: AttentionMetaData) -> torch.Tensor:
    """Return the states of the step's rows, but not the padding slot's."""
    assert step.slots is not None, "rows of layers with states have slots"
    slots = step.slots[(step.slots >= 0) & (step.slots < len(states) - 1)]
    return states[slots]


def _convolved(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    return {"result": out, "states": _of_rows(args[2], args[3])}


def _ruled(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    return {"result": out, "states": _of_rows(args[3], args[4])}


def _delta_net(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    kept, step = args[3], args[4]
    states, tails = _of_rows(kept.states, step), _of_rows(kept.tails, step)
    return {"result": out, "states": states, "tails": tails}


def _routed(args: tuple[Any, ...], out: Any) -> Results:
    """Return the weight of every expert for every token: experts are in any order."""
    experts = args[1].matrix.outputs
    weights = out.weights.new_zeros(len(out.ids), experts)
    return {"weights": weights.scatter_(1, out.ids.long(), out.weights)}


def _drawn(args: tuple[Any, ...], out: tuple[torch.Tensor, torch.Tensor]) -> Results:
    return {"tokens": out[0], "scores": out[1]}


def _tensors(value: Any) -> Results:
    """Return the tensors of a record of results."""
    names = getattr(type(value), "__dataclass_fields__", {})
    found = {name: getattr(value, name) for name in names}
    return {name: part for name, part in found.items() if isinstance(part, torch.Tensor)}


def _prepared(args: tuple[Any, ...], out: Any) -> Results:
    """Return a decode step's inputs, block tables as far as the rows' contexts reach."""
    found, block_size = _tensors(out), args[-1]
    tables = out.block_tables
    columns = torch.arange(tables.shape[-1], device=tables.device)
    reached = columns < -(-out.context_lens[:, None] // block_size)
    return {**found, "block_tables": tables * reached}


def _committed(args: tuple[Any, ...], out: None) -> Results:
    state = args[2]
    return {
        "last_token": state.last_token[:-1],
        "num_computed": state.num_computed[:-1],
    }


def _drafted(args: tuple[Any, ...], out: None) -> Results:
    return _tensors(args[4])


def _accepted(args: tuple[Any, ...], out: torch.Tensor) -> Results:
    drawn, state = args[0], args[2]
    return {"counts": out[drawn.slots < state.padding_slot], **_committed(args, None)}


def _laid_out(args: tuple[Any, ...], out: None) -> Results:
    layout = args[0]
    real = layout.slots < args[1].padding_slot
    return {"first": layout.first[real], "token_slots": layout.token_slots}


READERS: dict[str, Reader] = {
    "embedding": _returned,
    "linear": _returned,
    "rms_norm": _returned,
    "norm": _normed,
    "act_and_mul": _returned,
    "route": _routed,
    "experts": _returned,
    "qk_norm_rope_store": _rope_store,
    "paged_attention": _returned,
    "mla_rope_store": _latent_store,
    "mla_attention": _returned,
    "compressed_attention": _returned,
    "select_tokens": _selected,
    "select_spans": _selected,
    "span_attention": _returned,
    "sparse_mla_attention": _returned,
    "short_convolution": _convolved,
    "gated_delta_rule": _ruled,
    "state_space_dual": _ruled,
    "add_lora": _returned,
    "expert_products": _returned,
    "sample": _returned,
    "sample_vocab_shard": _drawn,
    "filter_logits": _returned,
    "apply_token_mask": _in_place,
    "prepare_decode": _prepared,
    "prepare_drafted": _prepared,
    "commit_tokens": _committed,
    "rotate_heads": _in_place,
    "draft_ngrams": _drafted,
    "lay_out_drafts": _laid_out,
    "accept_drafts": _accepted,
    "linear_parts": _summed,
    "gated_linear": _returned,
    "add": _added,
    "add_experts": _added,
    "norm_experts": _added,
    "norm_linear": _normed,
    "norm_gated_linear": _normed,
    "linear_lora": _returned,
    "norm_linear_lora": _normed,
    "attention": _attended,
    "gated_delta_net": _delta_net,
}
# Matrices are held by the products with them; a step of a graph is received from a ring that the
# host fills meanwhile.
NOT_HELD = ("prepare_linear", "prepare_experts", "receive_step")
assert READERS.keys() == {*OPS, *DRAFT_OPS, *FUSED_OPS}.difference(NOT_HELD)
