"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT's layers, with positions
that begin behind the row of padding, and a head of labels of its own form."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.models.decoder.spec import EncoderSpec, HeadSpec, ModelSpec
from atom.models.encoders.build_spec import encoder_spec, facts_of, pooled_tokens

_HEAD = HeadSpec(dense="classifier.dense", labels="classifier.out_proj")
_UNUSED = (
    *("lm_head.", "pooler.", "model.pooler."),
    *("embeddings.position_ids", "model.embeddings.position_ids"),
)


def spec(config: ModelConfig) -> ModelSpec:
    """Build a RoBERTa's spec from config.json."""
    raw, facts = config.hf_config, facts_of(config)
    encoder = EncoderSpec(
        facts=facts,
        activation=config.facts.hidden_act,
        eps=float(raw.get("layer_norm_eps", 1e-12)),
        norms_sums=True,
        norm_bias=True,
        pooled=pooled_tokens(config),
        head=None if facts.head is None else _HEAD,
        unused=_UNUSED,
    )
    return encoder_spec(config, encoder)
