"""Texts drawn at random from compiled grammars, byte by byte, without a model."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np

_END = 256
_CLOSING = frozenset((_END, *b'"}]'))
_TEXT_ENDS = frozenset((_END, *b'"'))
_HANDY = frozenset(b'"\\abnrtu01,/x@.-')  # what expressions often wait for
_MOST_BYTES = 6_000


class NoEndError(Exception):
    """Chance did not find a way to the end of a text."""


class GrammarDraws:
    """Every byte is a token, and there is one that ends the text."""

    def __init__(self) -> None:
        import xgrammar  # with what it imports, a second

        tokens = [bytes([byte]) for byte in range(256)] + [b""]
        self._info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=len(tokens), stop_token_ids=[_END]
        )
        self._compiler = xgrammar.GrammarCompiler(self._info, max_threads=1, cache_enabled=False)
        self._matcher_of = xgrammar.GrammarMatcher
        self._bits = np.zeros((1, -(-len(tokens) // 32)), dtype=np.int32)

    def compile(self, grammar: str) -> Any:
        return self._compiler.compile_grammar(grammar)

    def draw(self, compiled: Any, random: Random) -> str:
        """A whole text. Bytes are drawn evenly from those allowed, those that close something more
        often, so that texts end."""
        matcher = self._matcher_of(compiled)
        found = bytearray()
        while len(found) < _MOST_BYTES:
            matcher.fill_next_token_bitmask(self._bits)
            allowed = np.unpackbits(self._bits.view(np.uint8), bitorder="little").nonzero()[0]
            token = self._choose(allowed[allowed <= _END].tolist(), len(found), random)
            assert matcher.accept_token(token)
            if token == _END:
                return found.decode()
            found.append(token)
        raise NoEndError(bytes(found[:200]))

    def accepts(self, compiled: Any, text: str) -> bool:
        """Whether a text is one of the grammar's."""
        matcher = self._matcher_of(compiled)
        return matcher.accept_string(text) and matcher.accept_token(_END)

    def _choose(self, allowed: list[int], length: int, random: Random) -> int:
        assert allowed, "the grammar leads nowhere"
        # Within a text braces close nothing.
        ends = _CLOSING if len(allowed) < 60 else _TEXT_ENDS
        closing = [token for token in allowed if token in ends]
        if closing and random.random() < (0.2 if length < 100 else 0.95):
            return random.choice(closing)
        handy = [token for token in allowed if token in _HANDY]
        if handy and length > 60 and random.random() < 0.8:
            return random.choice(handy)
        return random.choice(allowed)
