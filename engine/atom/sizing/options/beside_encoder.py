"""Refuse options that a text encoder cannot have: one table for engine and operator. Pure.

One step computes the whole of a text, whose tokens depend on the later ones too, and gives a vector
instead of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from atom.sizing.model_facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderOptions:
    """The options that encoders restrict. max_model_len: None for the model's own; chunk_tokens:
    most tokens of a prompt in a step, 0 for any; page_options: by which cached blocks are kept in
    other memory, told to routers or sent to other engines, by the names that the user knows."""

    max_model_len: int | None
    step_tokens: int
    chunk_tokens: int = 0
    lora: bool = False
    page_options: tuple[str, ...] = ()
    speculation: bool = False
    generates: bool = False


def encoder_problems(facts: ModelFacts, asked: EncoderOptions) -> Iterator[tuple[str, str]]:
    """Yield the options that prevent serving an encoder, each with the reason and the remedy; none
    for a decoder."""
    if not facts.is_encoder:
        return
    longest = asked.max_model_len or facts.max_position_embeddings
    if asked.step_tokens < longest:
        yield (
            "max_num_batched_tokens",
            f"a step computes the whole of a text, and max_num_batched_tokens {asked.step_tokens} "
            f"is less than max_model_len {longest}; raise the first, or lower the second",
        )
    if asked.chunk_tokens:
        yield (
            "long_prefill_token_threshold",
            "no text is divided over steps; leave long_prefill_token_threshold out",
        )
    if asked.lora:
        yield "lora", "adapters of encoders are not supported; leave adapters out"
    for name in asked.page_options:
        yield (
            name,
            "no prefix of a text is cached, since each token depends on the later ones; leave "
            f"{name} out",
        )
    if asked.speculation:
        yield (
            "speculation",
            "an encoder generates no tokens that could be drafted; leave speculation out",
        )
    if asked.generates:
        yield "runner", "an encoder generates nothing; leave runner out, or give another model"
