"""Prompts with a few common prefixes, as of applications that each have a system prompt.

Named after the dataset of `vllm bench serve`. Pure.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from atom.entrypoints.bench.workload import Ask
from atom.errors import ConfigError


@dataclass(frozen=True, slots=True)
class PrefixRepetition:
    """Configure the tokens of each prefix, of each prompt's suffix, and of each answer; prefixes:
    the number of different ones."""

    prefix_tokens: int
    suffix_tokens: int
    output_tokens: int
    prefixes: int


def prefix_repetition_asks(
    count: int, lengths: PrefixRepetition, vocab_size: int, seed: int
) -> list[Ask]:
    """Every prefix as often as every other, or once more, in a drawn order; the rest of each
    prompt is its own. The same for the same arguments. Raises `ConfigError`."""
    if count < lengths.prefixes:
        raise ConfigError(
            f"--num-prompts {count} has not one prompt for each of "
            f"--prefix-repetition-num-prefixes {lengths.prefixes}; ask for more prompts or fewer "
            f"prefixes"
        )
    source = random.Random(seed)

    def tokens(number: int) -> list[int]:
        return [source.randrange(vocab_size) for _ in range(number)]

    prefixes = [tokens(lengths.prefix_tokens) for _ in range(lengths.prefixes)]
    chosen = [index % lengths.prefixes for index in range(count)]
    source.shuffle(chosen)
    return [
        Ask(prefixes[index] + tokens(lengths.suffix_tokens), lengths.output_tokens)
        for index in chosen
    ]
