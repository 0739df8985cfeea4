"""Odd but well-typed messages for an engine core: every field of a request may have any value of
its type, and so may calls and aborts.

Plain dicts, since the types themselves refuse some of these values: the wire does not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from atom.model_engine.wire.engine_protocol import EngineCoreRequestType

_INTS = (
    -(2**63), -(2**31) - 1, -(2**31), -1, 0, 1, 2, 3, 7, 63, 191, 192, 193, 255, 256, 1000, 2**15,
    2**31 - 1, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, 2**64 - 1,
)  # fmt: skip
_FLOATS = (
    float("nan"), float("inf"), float("-inf"), -0.0, 0.0, 1e-320, 1e-6, 0.3, 1.0, -1.0, 2.0, 99.0,
    101.0, 1e308, -1e308,
)  # fmt: skip
_TEXTS = ("", "a", "é", "\x00", "\n", "‮", "a" * 64, "a" * 65, "a" * 257, "<script>", "key-bob")


class OddMessages:
    """Draws them. vocab_size: of the model, near whose edge ids are drawn too."""

    def __init__(self, seed: int, vocab_size: int) -> None:
        self._draw = random.Random(seed)
        self._ids = (*range(3, 12), 0, vocab_size - 1, vocab_size, vocab_size + 1, -1, 2**31, 2**63)
        self._number = 10_000
        self.asked: set[int] = set()

    def message(self) -> tuple[bytes, bytes]:
        """Return the next one's frames."""
        kind = self._draw.random()
        if kind < 0.9:
            requests = [self._request() for _ in range(self._draw.choice((1, 1, 1, 2, 3)))]
            return _framed(EngineCoreRequestType.ADD, {"requests": requests})
        if kind < 0.97:
            numbers = [self._int() for _ in range(3)]
            if self.asked:
                numbers.append(self._number)
            return _framed(EngineCoreRequestType.ABORT, {"request_ids": numbers})
        method = self._draw.choice(("check_integrity", "reset_prefix_cache", "", "load_lora", "x"))
        args = [self._draw.choice((*_INTS[:9], *_TEXTS, None)) for _ in range(self._small())]
        call = {"call_id": self._number, "method": method, "args": args}
        return _framed(EngineCoreRequestType.UTILITY, call)

    def _request(self) -> dict[str, Any]:
        self._number += 1
        prompt = [self._draw.randrange(3, 60) for _ in range(self._draw.randrange(1, 9))]
        count = self._draw.randrange(1, 6)
        request: dict[str, Any] = {
            "id": self._number,
            "prompt_token_ids": prompt,
            "params": {"temperature": 0.0, "max_tokens": count},
            "max_total_tokens": len(prompt) + count,
            "arrive_time": 0.0,
        }
        self.asked.add(self._number)
        for _ in range(self._draw.choice((0, 1, 1, 2, 3))):
            name, make = self._draw.choice(_REQUEST_FIELDS)
            request[name] = make(self)
        for _ in range(self._draw.choice((0, 0, 1, 1, 2, 4))):
            name, make = self._draw.choice(_PARAM_FIELDS)
            request["params"][name] = make(self)
        return request

    def _int(self) -> int:
        return self._draw.choice(_INTS)

    def _float(self) -> float:
        return self._draw.choice(_FLOATS)

    def _text(self) -> str:
        return self._draw.choice(_TEXTS)

    def _small(self) -> int:
        return self._draw.choice((0, 1, 1, 2, 3, 17))

    def _token_ids(self) -> list[int]:
        """Mostly ids that there are."""
        few = self._ids if self._draw.random() < 0.3 else self._ids[:9]
        return [self._draw.choice(few) for _ in range(self._small())]

    def _words(self) -> list[list[int]]:
        return [self._token_ids() for _ in range(self._small())]

    def _biases(self) -> dict[int, float] | None:
        return {token: self._float() for token in self._token_ids()} or None

    def _flag(self) -> bool:
        return self._draw.random() < 0.5

    def _texts(self) -> list[str]:
        return [self._text() for _ in range(self._small())]

    def _lora(self) -> list[Any]:
        return [self._text(), self._int()]

    def _thinking(self) -> dict[str, Any]:
        return {
            "tokens": self._draw.choice((0, 1, 2, self._int())),
            "opened": self._flag(),
            "opening": self._token_ids(),
            "closing": self._token_ids(),
            "then": self._token_ids(),
            "excluded": self._draw.choice((None, *self._ids)),
            "reopens": self._flag(),
        }

    def _own_total(self) -> int:
        return self._draw.choice((*_INTS, *range(1, 20)))


_Make = Callable[[OddMessages], Any]
_REQUEST_FIELDS: tuple[tuple[str, _Make], ...] = (
    ("prompt_token_ids", OddMessages._token_ids),
    ("output_token_ids", OddMessages._token_ids),
    ("max_total_tokens", OddMessages._own_total),
    ("arrive_time", OddMessages._float),
    ("priority", OddMessages._int),
    ("cache_salt", OddMessages._text),
    ("client_id", OddMessages._text),
    ("lora", OddMessages._lora),
    ("num_losses", OddMessages._int),
)
_PARAM_FIELDS: tuple[tuple[str, _Make], ...] = (
    *((name, OddMessages._int) for name in (
        "n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs",
        "truncate_prompt_tokens",
    )),
    *((name, OddMessages._float) for name in (
        "temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty",
    )),
    *((name, OddMessages._flag) for name in (
        "ignore_eos", "include_stop_str_in_output", "skip_special_tokens",
        "return_prompt_token_ids",
    )),
    *((name, OddMessages._token_ids) for name in (
        "stop_token_ids", "allowed_token_ids", "shown_special_token_ids",
    )),
    *((name, OddMessages._texts) for name in ("stop_strings", "bad_words")),
    ("bad_words_token_ids", OddMessages._words),
    ("logit_bias", OddMessages._biases),
    ("thinking", OddMessages._thinking),
    ("thinking", OddMessages._thinking),
)  # fmt: skip


def _framed(kind: EngineCoreRequestType, body: dict[str, Any]) -> tuple[bytes, bytes]:
    return kind.value, msgspec.msgpack.encode(body)
