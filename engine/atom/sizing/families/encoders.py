"""Readers of text encoders: BERT, RoBERTa with XLM-RoBERTa, and ModernBERT. Pure.

Their layers attend in both directions within a prompt, which one step computes. So the cache has
the keys and values of every token, also in layers whose heads see a window.
"""

from __future__ import annotations

from dataclasses import replace

from msgspec import structs

from atom.sizing.attention.kinds import NO_ROPE, Matrices, Rope
from atom.sizing.config_fields import Config, count, flag, positive
from atom.sizing.errors import ModelFactsError
from atom.sizing.families.checkpoint_names import NamePairs
from atom.sizing.families.reading import grouped, slides
from atom.sizing.layers import EncoderFacts, LabelHead, LayerFacts, MlpFacts

_NORM_VECTORS = 2  # of a LayerNorm: weight and bias
_EMBEDDING_PARTS: NamePairs = (
    ("embeddings.word_embeddings", "embed_tokens"),
    ("embeddings.position_embeddings", "embed_positions"),
    ("embeddings.token_type_embeddings", "embed_types"),
    ("embeddings.LayerNorm", "embed_norm"),
)
_LAYER_PARTS: NamePairs = (
    ("encoder.layer", "layers"),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.o_proj"),
    ("attention.output.LayerNorm", "attention_norm"),
    ("intermediate.dense", "mlp.up_proj"),
    ("output.dense", "mlp.down_proj"),
    ("output.LayerNorm", "output_norm"),
)


def bert(config: Config, index: int) -> LayerFacts:
    """Read a layer of BERT or RoBERTa: norms with biases after each sum, and biases everywhere."""
    _check_bert(config)
    attention = structs.replace(
        grouped({**config, "num_key_value_heads": None}, qkv_bias=True, output_bias=True),
        rope=NO_ROPE,
    )
    mlp = MlpFacts(intermediate_size=positive(config, "intermediate_size"), bias=True, gated=False)
    return LayerFacts(attention=attention, mlp=mlp, norms=2 * _NORM_VECTORS)


def _check_bert(config: Config) -> None:
    """Raise ModelFactsError for settings of the class that no sentence encoder has."""
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise ModelFactsError(
            f"config.json: position_embedding_type is {kind!r}, which is not supported; "
            "supported: absolute",
            field="position_embedding_type",
        )
    if flag(config, "is_decoder"):
        raise ModelFactsError(
            "config.json: is_decoder is true, and a BERT that generates is not supported; use the "
            "checkpoint of an encoder",
            field="is_decoder",
        )


def bert_encoder(config: Config) -> EncoderFacts:
    return EncoderFacts(
        norm_vectors=_NORM_VECTORS,
        positions=positive(config, "max_position_embeddings"),
        token_types=positive(config, "type_vocab_size", default=2),
    )


def bert_classifier(config: Config) -> EncoderFacts:
    return replace(bert_encoder(config), head=LabelHead(labels=label_count(config), vectors=1))


def bert_names(config: Config) -> NamePairs:
    return (("bert", "model"), *_EMBEDDING_PARTS, *_LAYER_PARTS)


def roberta_fields(config: Config) -> Config:
    """Rename RoBERTa's fields: its table of positions has rows for padding before the first."""
    rows, before = positive(config, "max_position_embeddings", default=512), _padding_rows(config)
    if rows <= before:
        raise ModelFactsError(
            f"config.json: max_position_embeddings is {rows}, and positions begin at row {before} "
            "(pad_token_id + 1); correct one of them",
            field="max_position_embeddings",
        )
    return {**config, "max_position_embeddings": rows - before}


def _padding_rows(config: Config) -> int:
    return count(config, "pad_token_id", default=1) + 1


def roberta_encoder(config: Config) -> EncoderFacts:
    before = _padding_rows(config)
    return EncoderFacts(
        norm_vectors=_NORM_VECTORS,
        positions=positive(config, "max_position_embeddings") + before,
        first_position=before,
        token_types=positive(config, "type_vocab_size", default=2),
    )


def roberta_classifier(config: Config) -> EncoderFacts:
    return replace(roberta_encoder(config), head=LabelHead(labels=label_count(config), vectors=1))


def roberta_names(config: Config) -> NamePairs:
    return (("roberta", "model"), *_EMBEDDING_PARTS, *_LAYER_PARTS)


def modernbert(config: Config, index: int) -> LayerFacts:
    """Read a layer of ModernBERT: norms before, a gated MLP, and a rope for each kind of layer. The
    first layer's input is normed already."""
    bias = flag(config, "attention_bias")
    attention = structs.replace(
        grouped({**config, "num_key_value_heads": None}, qkv_bias=bias, output_bias=bias),
        matrices=Matrices(qkv_bias=bias, output_bias=bias, fused=True),
        rope=Rope("a window" if sees_window(config, index) else "all tokens"),
    )
    mlp = MlpFacts(
        intermediate_size=positive(config, "intermediate_size", default=1152),
        bias=flag(config, "mlp_bias"),
        fused=True,
    )
    norms = (2 if index else 1) * _modern_norm(config)
    return LayerFacts(attention=attention, mlp=mlp, norms=norms)


def sees_window(config: Config, index: int) -> bool:
    """Return whether a layer of ModernBERT attends to a window around each token."""
    every = positive(config, "global_attn_every_n_layers", default=3)
    return slides(config, index, default=bool(index % every))


def _modern_norm(config: Config) -> int:
    """Return the vectors of a LayerNorm of ModernBERT."""
    return 2 if flag(config, "norm_bias") else 1


def modernbert_encoder(config: Config) -> EncoderFacts:
    return EncoderFacts(norm_vectors=2 * _modern_norm(config))


def modernbert_classifier(config: Config) -> EncoderFacts:
    pooling = config.get("classifier_pooling") or "cls"
    if pooling not in ("cls", "mean"):
        raise ModelFactsError(
            f"config.json: classifier_pooling is {pooling!r}; supported: cls, mean",
            field="classifier_pooling",
        )
    vectors = int(flag(config, "classifier_bias")) + _modern_norm(config)
    head = LabelHead(
        labels=label_count(config),
        vectors=vectors,
        pooling="mean" if pooling == "mean" else "cls",
    )
    return replace(modernbert_encoder(config), head=head)


def modernbert_names(config: Config) -> NamePairs:
    return (
        ("embeddings.tok_embeddings", "embed_tokens"),
        ("embeddings.norm", "embed_norm"),
        ("attn.Wqkv", "self_attn.qkv_proj"),
        ("attn.Wo", "self_attn.o_proj"),
        ("attn_norm", "attention_norm"),
        ("mlp.Wi", "mlp.gate_up_proj"),
        ("mlp.Wo", "mlp.down_proj"),
    )


def label_count(config: Config) -> int:
    """Return the number of labels, as transformers derives it: of their names, else two."""
    names = config.get("id2label")
    if names is None:
        return positive(config, "num_labels", default=2)
    if not isinstance(names, dict) or not names:
        raise ModelFactsError(
            f"config.json: id2label is {names!r}; it must be an object with a name for each label",
            field="id2label",
        )
    return len(names)
