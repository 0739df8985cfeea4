"""The workload of a benchmark: prompts of random tokens, or the prompts of a file.

Files are ShareGPT's JSON (a list of conversations, of which the first question and the length of
its answer count) and JSON lines with a prompt each. Lengths in tokens come from the server, which
has the tokenizer. Used by `atom bench`; knows no HTTP.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom.config import Config
from atom.errors import ConfigError

DEFAULT_OUTPUT_TOKENS = 64
# Conversations outside of these are left out, as the field's benchmarks do.
_LEAST_TOKENS = 4
_MOST_PROMPT_TOKENS = 1024
_MOST_TOKENS = 2048

CountTokens = Callable[[str], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Ask:
    """Hold one request of a workload. prompt: text, or token ids; output_tokens: the most to
    generate."""

    prompt: str | list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class RandomLengths:
    """Tokens: of prompts and answers, each drawn evenly from length · (1 ± range_ratio); prefix:
    tokens that every prompt begins with, besides its own."""

    input_tokens: int
    output_tokens: int
    range_ratio: float = 0.0
    prefix_tokens: int = 0


def random_asks(count: int, lengths: RandomLengths, vocab_size: int, seed: int) -> list[Ask]:
    """Generate prompts of random token ids; equal arguments give equal prompts."""
    if count < 1 or lengths.input_tokens < 1:
        raise ConfigError("a benchmark needs at least one prompt of at least one token")
    source = random.Random(seed)

    def length(middle: int) -> int:
        spread = int(middle * lengths.range_ratio)
        return max(1, source.randint(middle - spread, middle + spread))

    def tokens(number: int) -> list[int]:
        return [source.randrange(vocab_size) for _ in range(number)]

    prefix = tokens(lengths.prefix_tokens)
    return [
        Ask(prefix + tokens(length(lengths.input_tokens)), length(lengths.output_tokens))
        for _ in range(count)
    ]


def random_prompts(count: int, length: int, vocab_size: int, seed: int) -> list[list[int]]:
    """Draw prompts of `length` random token ids each, for an engine without a server."""
    asks = random_asks(count, RandomLengths(length, 1), vocab_size, seed)
    return [list(ask.prompt) for ask in asks if not isinstance(ask.prompt, str)]


def adapters_in_turn(config: Config, count: int) -> list[str | None]:
    """Assign the adapters that are served from the start to `count` requests, in turn; None for the
    model alone if there are none."""
    names = [] if config.lora is None else [each.name for each in config.lora.modules]
    return [names[index % len(names)] if names else None for index in range(count)]


def custom_asks(
    path: Path, count: int, output_tokens: int | None, *, repeats: bool = True
) -> list[Ask]:
    """Read one JSON object per line: `prompt`, a text or token ids, and optionally `output_tokens`,
    which the argument `output_tokens` overrides. Returns the first `count` lines; if there are
    fewer, repeats them from the start unless `repeats` is off. Raises `ConfigError`."""
    asks = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if line.strip():
            asks.append(_custom_ask(line, f"{path}, line {number}", output_tokens))
    if not asks:
        raise ConfigError(f"{path}: has no prompt; write one JSON object with `prompt` per line")
    return _filled(asks, count, repeats=repeats)


def _custom_ask(line: str, where: str, output_tokens: int | None) -> Ask:
    try:
        entry = json.loads(line)
        prompt = entry["prompt"]
        asked = int(output_tokens or entry.get("output_tokens") or DEFAULT_OUTPUT_TOKENS)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'{where}: must be an object such as {{"prompt": "…", "output_tokens": 64}}'
        ) from error
    is_ids = isinstance(prompt, list) and all(isinstance(token, int) for token in prompt)
    if not (prompt and (isinstance(prompt, str) or is_ids)):
        raise ConfigError(f"{where}: `prompt` must be a text or token ids, and not empty")
    return Ask(prompt, asked)


async def sharegpt_asks(
    path: Path,
    count: int,
    output_tokens: int | None,
    seed: int | None,
    count_tokens: CountTokens,
    *,
    repeats: bool = True,
) -> list[Ask]:
    """Return the first question of `count` conversations drawn at random; seed: None for the first
    ones. Each is to be answered with as many tokens as it was, or `output_tokens`. Raises
    `ConfigError`."""
    pairs = list(_question_and_answer(path))
    if seed is not None:
        random.Random(seed).shuffle(pairs)
    asks: list[Ask] = []
    for question, answer in pairs:
        if len(asks) == count:
            break
        prompt_tokens = await count_tokens(question)
        wanted = output_tokens or await count_tokens(answer)
        if _is_usual(prompt_tokens, wanted, is_given=output_tokens is not None):
            asks.append(Ask(question, wanted))
    if not asks:
        raise ConfigError(
            f"{path}: no conversation has a question of {_LEAST_TOKENS} to {_MOST_PROMPT_TOKENS} "
            f"tokens with an answer"
        )
    return _filled(asks, count, repeats=repeats)


def _filled(asks: list[Ask], count: int, *, repeats: bool) -> list[Ask]:
    """Return `count` requests: the first ones, repeated from the start if there are fewer."""
    return [asks[index % len(asks)] for index in range(count if repeats else min(count, len(asks)))]


def _is_usual(prompt_tokens: int, output_tokens: int, *, is_given: bool) -> bool:
    return (
        _LEAST_TOKENS <= prompt_tokens <= _MOST_PROMPT_TOKENS
        and (is_given or output_tokens >= _LEAST_TOKENS)
        and prompt_tokens + output_tokens <= _MOST_TOKENS
    )


def _question_and_answer(path: Path) -> Iterator[tuple[str, str]]:
    try:
        conversations = json.loads(_read(path))
        for conversation in conversations:
            turns: Sequence[Any] = conversation.get("conversations", [])
            if len(turns) >= 2:
                yield str(turns[0]["value"]), str(turns[1]["value"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path}: must be ShareGPT's JSON, a list of objects with `conversations`"
        ) from error


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); check --dataset-path") from error
