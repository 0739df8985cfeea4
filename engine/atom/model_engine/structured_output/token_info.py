"""The vocabulary as xgrammar wants it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atom.model_engine.structured_output.compile_messages import CompilerSetup


def build_token_info(xgrammar: Any, vocabulary: Sequence[bytes], setup: CompilerSetup) -> Any:
    """Build xgrammar's TokenizerInfo. vocabulary: bytes of each token id; tokens without bytes
    (special ones, and ids that only pad the logits) are never part of a text. End tokens are
    allowed where a text is complete."""
    tokens = list(vocabulary)
    for end in setup.end_token_ids:
        tokens[end] = b""
    return xgrammar.TokenizerInfo(
        tokens,
        xgrammar.VocabType.RAW,
        vocab_size=setup.vocab_size,
        stop_token_ids=list(setup.end_token_ids),
    )
