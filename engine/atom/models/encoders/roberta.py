"""RoBERTa (Liu et al. 2019) and XLM-RoBERTa (Conneau et al. 2019): BERT's layers, with positions
that begin behind the row of padding, and a head of labels of its own form."""

from __future__ import annotations

from atom.config import ModelConfig
from atom.models.decoder.spec import HeadSpec, ModelSpec
from atom.models.encoders.build_spec import facts_of, sums_normed

_HEAD = HeadSpec(dense="classifier.dense", labels="classifier.out_proj")
_UNUSED = (
    *("lm_head.", "pooler.", "model.pooler."),
    *("embeddings.position_ids", "model.embeddings.position_ids"),
)


def spec(config: ModelConfig) -> ModelSpec:
    """Build a RoBERTa's spec from config.json."""
    head = None if facts_of(config).head is None else _HEAD
    return sums_normed(config, head, _UNUSED)
