"""BERT (Devlin et al. 2018): learned positions, segments, and a norm after each sum.

The head of labels reads the pooler's output, the first token's state through a matrix and tanh.
"""

from __future__ import annotations

from atom.config import ModelConfig
from atom.models.decoder.spec import EncoderSpec, HeadSpec, ModelSpec
from atom.models.encoders.build_spec import encoder_spec, facts_of, pooled_tokens

_HEAD = HeadSpec(dense="pooler.dense", labels="classifier")
# The heads of other tasks, and a table of positions' numbers that older checkpoints have.
_UNUSED = ("cls.", "embeddings.position_ids", "model.embeddings.position_ids")
_POOLER = ("pooler.", "model.pooler.")


def spec(config: ModelConfig) -> ModelSpec:
    """Build a BERT's spec from config.json."""
    raw, facts = config.hf_config, facts_of(config)
    has_head = facts.head is not None
    encoder = EncoderSpec(
        facts=facts,
        activation=config.facts.hidden_act,
        eps=float(raw.get("layer_norm_eps", 1e-12)),
        norms_sums=True,
        norm_bias=True,
        pooled=pooled_tokens(config),
        head=_HEAD if has_head else None,
        unused=_UNUSED if has_head else (*_UNUSED, *_POOLER),
    )
    return encoder_spec(config, encoder)
