"""Shrink a configuration of a transformers' class to a few narrow layers, one of each kind.

Flags stay as they are: activations, norms, biases, caps, and the fields that name kinds of layers.
Only sizes change, and windows, so that a short prompt is longer than each of them.
"""

from __future__ import annotations

from typing import Any

HIDDEN, VOCABULARY, WINDOW = 64, 160, 5
_HEADS, _INNER, _POSITIONS = 4, 96, 256
_MOST_LAYERS = 6
_INNER_NAMES = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size")
_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_WINDOWS = ("sliding_window", "attention_chunk_size")


def tiny_config(config: Any) -> Any:
    """Return a narrow configuration of the same class with the same flags."""
    names = dict(config.attribute_map)
    fields = dict(config.to_dict())

    def put(name: str, value: object) -> None:
        own = names.get(name, name)
        if own in fields:
            fields[own] = value

    layers = config.num_hidden_layers
    heads = config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    kept = _kept_layers(fields, layers)
    for key, value in fields.items():
        if isinstance(value, list | tuple) and len(value) == layers:
            fields[key] = [value[index] for index in kept]
    put("num_hidden_layers", len(kept))
    put("hidden_size", HIDDEN)
    if fields.get("word_embed_proj_dim") is not None:
        fields["word_embed_proj_dim"] = HIDDEN
    put("num_attention_heads", _HEADS)
    put("num_key_value_heads", _HEADS if kv_heads == heads else 1 if kv_heads == 1 else 2)
    if fields.get("head_dim") is not None:
        fields["head_dim"] = HIDDEN // _HEADS
    for name in _INNER_NAMES:
        if fields.get(name) is not None:
            fields[name] = _INNER
    put("vocab_size", VOCABULARY)
    put("max_position_embeddings", _POSITIONS)
    for name in _TOKEN_IDS:
        if fields.get(name) is not None:
            fields[name] = 1
    for name in _WINDOWS:
        if fields.get(name) is not None:
            fields[name] = WINDOW
    fields["dtype"] = "float32"
    return type(config).from_dict(fields)


def _kept_layers(fields: dict[str, Any], layers: int) -> list[int]:
    """Return the first layer of each kind by the lists that name a value for each layer, and at
    least two layers."""
    lists = [
        value
        for value in fields.values()
        if isinstance(value, list | tuple) and len(value) == layers
    ]
    first: dict[str, int] = {}
    for index in range(layers):
        first.setdefault(repr([value[index] for value in lists]), index)
    kept = sorted(first.values())[:_MOST_LAYERS]
    others = [index for index in range(layers) if index not in kept]
    return sorted([*kept, *others[: max(0, 2 - len(kept))]])
