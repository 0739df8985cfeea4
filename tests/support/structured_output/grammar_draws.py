"""Texts drawn at random from grammars, byte by byte, without a model."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import numpy as np

from atom.model_engine.structured_output.compile_messages import CompilerSetup
from atom.model_engine.structured_output.grammar_library import GrammarLibrary
from atom.structured_outputs import GrammarSpec
from atom.structured_outputs.library_grammar import library_grammar

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
        tokens = [bytes([byte]) for byte in range(256)] + [b""]
        setup = CompilerSetup(tokenizer_folder="", vocab_size=len(tokens), end_token_ids=[_END])
        self.library = GrammarLibrary(tokens, setup, lambda text: list(text.encode()))

    def compile(self, spec: GrammarSpec) -> str:
        """The library's grammar. Raises ValueError."""
        return library_grammar(spec, self.library.check, self.library.to_rules)

    def schema(self, schema: Any, *, one_line: bool = False) -> str:
        """The same of a JSON schema."""
        return self.compile(GrammarSpec("json", json.dumps(schema), compact=one_line))

    def draw(self, grammar: str, random: Random) -> str:
        """A whole text. Bytes are drawn evenly from those allowed, those that close something more
        often, so that texts end."""
        matcher = self.library.matcher(grammar)
        found = bytearray()
        while len(found) < _MOST_BYTES:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if "NoExtensionBias" in (matcher.stop_reason(), *matcher.get_error().split()):
                raise NoEndError(bytes(found[:200]))  # the text leads nowhere; nothing is answered
            assert not matcher.get_error(), matcher.get_error()
            allowed = np.unpackbits(bits, bitorder="little").nonzero()[0]
            token = self._choose(allowed[allowed <= _END].tolist(), len(found), random)
            assert matcher.consume_token(token)
            if token == _END:
                return found.decode()
            found.append(token)
        raise NoEndError(bytes(found[:200]))

    def accepts(self, grammar: str, text: str) -> bool:
        """Whether a text is one of the grammar's."""
        matcher = self.library.matcher(grammar)
        tokens = list(text.encode())
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

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
