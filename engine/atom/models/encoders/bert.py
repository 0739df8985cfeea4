"""BERT (Devlin et al. 2018): learned positions, segments, and a norm after each sum.

The head of labels reads the pooler's output, the first token's state through a matrix and tanh.
"""

from __future__ import annotations

from atom.config import ModelConfig
from atom.models.decoder.spec import HeadSpec, ModelSpec
from atom.models.encoders.build_spec import facts_of, sums_normed

_HEAD = HeadSpec(dense="pooler.dense", labels="classifier")
# The heads of other tasks, and a table of positions' numbers that older checkpoints have.
_UNUSED = ("cls.", "embeddings.position_ids", "model.embeddings.position_ids")
_POOLER = ("pooler.", "model.pooler.")


def spec(config: ModelConfig) -> ModelSpec:
    """Build a BERT's spec from config.json."""
    if facts_of(config).head is None:
        return sums_normed(config, None, (*_UNUSED, *_POOLER))
    return sums_normed(config, _HEAD, _UNUSED)
