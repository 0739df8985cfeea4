"""GrammarLibrary: the grammar library (llguidance) with one model's vocabulary.

Checks grammars, and makes the matchers that follow them. The library counts its work and ends a
call that takes too much; its limits here are far below its defaults, so that a call takes
milliseconds. Only the compile server and the processes that it forks import it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from atom.errors import AtomError
from atom.model_engine.structured_output.compile_messages import CompilerSetup

# Of one call: Earley items, and steps of building the automata of expressions.
_STEP_ITEMS = 20_000
_STEP_FUEL = 100_000
_ROW_ITEMS = 8_000
_STATES = 50_000  # of automata, in all; 1 to 2 KiB each
_END = b"\xffend"  # in UTF-8 the first byte is never


class LibraryMissingError(AtomError):
    """The library cannot be imported; structured output is refused, all else works."""


class _Vocabulary:
    """A vocabulary as the library's tokenizer takes it. encode: of texts that are forced."""

    bos_token_id = None

    def __init__(
        self, tokens: Sequence[bytes], end: int, encode: Callable[[str], list[int]]
    ) -> None:
        self.tokens = tokens
        self.eos_token_id = end
        self.special_token_ids: list[int] = []  # known by their bytes
        self._encode = encode

    def __call__(self, text: str | bytes) -> list[int]:
        found = text if isinstance(text, str) else text.decode(errors="replace")
        return self._encode(found)


class GrammarLibrary:
    def __init__(
        self,
        vocabulary: Sequence[bytes],
        setup: CompilerSetup,
        encode: Callable[[str], list[int]],
    ) -> None:
        """vocabulary: bytes of each token id; a token without bytes is never part of a text. Raises
        `LibraryMissingError`."""
        try:
            self._library = importlib.import_module("llguidance")
            self._to_rules = importlib.import_module("llguidance.gbnf_to_lark").gbnf_to_lark
        except Exception as error:  # a library that fails while loading may raise anything
            raise LibraryMissingError(
                f"structured output is not available on this server: llguidance cannot be imported "
                f"({type(error).__name__}: {error}); install it with pip install llguidance"
            ) from error
        tokens = list(vocabulary)
        ends = list(setup.end_token_ids)
        for number, end in enumerate(ends):
            tokens[end] = _END + str(number).encode()
        if not ends:  # the library needs one
            ends = [len(tokens)]
            tokens.append(_END)
        wrapped = self._library.TokenizerWrapper(_Vocabulary(tokens, ends[0], encode))
        self._tokenizer = self._library.LLTokenizer(wrapped, n_vocab=len(tokens), eos_token=ends)
        self._limits = self._library.LLParserLimits(
            step_max_items=_STEP_ITEMS,
            step_lexer_fuel=_STEP_FUEL,
            max_items_in_row=_ROW_ITEMS,
            max_lexer_states=_STATES,
            verbose_errors=False,
        )

    def matcher(self, grammar: str) -> Any:
        """Return a matcher at the beginning of an answer. grammar: the library's, as JSON text."""
        return self._library.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)

    def check(self, grammar: str) -> str:
        """Return the reason against a grammar, or nothing."""
        reason: str = self.matcher(grammar).get_error()
        return reason.replace("<non-verbose/>", "").partition("\n")[0].strip()

    def to_rules(self, grammar: str) -> str:
        """Return the library's rules of an EBNF grammar in llama.cpp's notation. Raises ValueError
        with the reason."""
        try:
            found: str = self._to_rules(grammar)
        except RecursionError:
            raise ValueError("the grammar is nested too deep; flatten it into rules") from None
        except Exception as error:  # the library's own, and plain ones
            raise ValueError(f"the grammar cannot be read: {error}") from None
        return found


def is_too_costly(matcher: Any) -> bool:
    """Return whether a matcher has ended because following its grammar takes too much."""
    stopped = matcher.stop_reason() in ("ParserTooComplex", "LexerTooComplex")
    return stopped or any(words in matcher.get_error().lower() for words in ("too many", "max is"))
