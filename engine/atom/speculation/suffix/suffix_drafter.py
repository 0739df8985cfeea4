"""SuffixDrafter: foretell a row's next tokens by the longest earlier occurrence of its last ones.

The method of SuffixDecoding (Oliaro et al., 2024), whose options have vLLM's names. Texts are
the row's own prompt and answer, and earlier answers of the same scope (AnswerStore). Of the
occurrences with the longest match, the most frequent next token is taken, step by step, while the
share of the occurrences that continue so is probable enough; the longer the match, the longer the
draft. The host may lack the tokens of a step that is on its way: the first `unknown` foretold
tokens guess them, and the device, which knows them, drops foretold tokens that do not continue
them (ContinuationProposer). Pure: numbers in, numbers out. Called by AcceptedTokens.

A step does a bounded amount of work: it searches for at most 64 rows, and indexes at most 8192
tokens of rows' texts. A row whose text is not indexed yet waits for a later step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.speculation.suffix.answer_store import AnswerStore
from atom.speculation.suffix.token_index import SEPARATOR, Occurrences, TokenIndex
from atom.speculative_config import SuffixOptions

MOST_SEARCHES = 64  # rows of a step
MOST_INDEXED = 8192  # tokens of rows' own texts in a step
_ROOM = 256  # tokens of an answer that a row's index has room for at first


@dataclass(slots=True)
class _Row:
    """A row's own text. scope: of its request."""

    scope: Hashable
    index: TokenIndex | None = None
    indexed: int = 0  # tokens of the text


class SuffixDrafter:
    def __init__(self, options: SuffixOptions) -> None:
        self._options = options
        self._rows: dict[int, _Row] = {}
        self._indexable = MOST_INDEXED  # tokens, in the present step
        self._turn = 0  # of rows, if there are more than a step may search for
        self.answers = AnswerStore(options.max_cached_requests)

    # ---- rows -----------------------------------------------------------------------------------

    def enter(self, slot: int, scope: Hashable) -> None:
        """Note that another sequence has the slot."""
        self._rows[slot] = _Row(scope)

    def end(self, slot: int, text: NDArray[np.int32], num_prompt_tokens: int) -> None:
        """Store the answer of a row that ends, with the last tokens of its prompt, by which the
        beginning of an equal answer is found. text: all known tokens."""
        row = self._rows.pop(slot)
        if len(text) > num_prompt_tokens + 1:
            before = max(0, num_prompt_tokens - self._options.max_tree_depth)
            self.answers.add(row.scope, text[before:])

    # ---- drafts ---------------------------------------------------------------------------------

    def begin_step(self, num_rows: int) -> list[int]:
        """Begin a step that so many rows want drafts for; return the rows to search for, by their
        place, of which each has its turn."""
        self._indexable = MOST_INDEXED
        if num_rows <= MOST_SEARCHES:
            return list(range(num_rows))
        first = self._turn % num_rows
        self._turn = first + MOST_SEARCHES
        return [(first + each) % num_rows for each in range(MOST_SEARCHES)]

    def foretell(self, slot: int, text: NDArray[np.int32], wanted: int, unknown: int) -> list[int]:
        """Return the tokens that probably follow a row's known ones: up to `unknown` that a step on
        its way may have drawn, and up to `wanted` drafts; none without an occurrence."""
        row, options = self._rows[slot], self._options
        tail: list[int] = text[-options.max_tree_depth :].tolist()
        best: list[int] = []
        best_rank = (0, 0.0)
        if self._index_text(row, text) and row.index is not None:
            own = row.index.find(tail)
            if own is not None:
                best, best_rank = self._path(row.index, own, wanted, unknown, repeat=True)
        stored = self.answers.index_of(row.scope)
        if stored is not None:
            earlier = stored.find(tail)
            if earlier is not None and earlier.matched >= best_rank[0]:
                path, rank = self._path(stored, earlier, wanted, unknown, repeat=False)
                if rank > best_rank:
                    best = path
        return best

    def _index_text(self, row: _Row, text: NDArray[np.int32]) -> bool:
        """Index the new tokens of a row's text, within the step's bound; return whether the whole
        text is indexed now."""
        if row.index is None or len(text) > row.index.capacity:
            row.index, row.indexed = TokenIndex(len(text) + _ROOM), 0
        new = text[row.indexed : row.indexed + self._indexable]
        row.index.append(new)
        row.indexed += len(new)
        self._indexable -= len(new)
        return row.indexed == len(text)

    def _path(
        self, index: TokenIndex, found: Occurrences, wanted: int, unknown: int, *, repeat: bool
    ) -> tuple[list[int], tuple[int, float]]:
        """Return the most probable continuation of occurrences, and its rank: the matched tokens,
        and the sum of the probabilities of its drafts."""
        longest = int(self._options.max_spec_factor * found.matched)
        length = unknown + min(wanted, longest)
        alive = index.continuations(found.behind, length, repeat=repeat).tolist()
        path: list[int] = []
        probability, score = 1.0, 0.0
        for place in range(length):
            nexts = Counter(each[place] for each in alive)
            del nexts[SEPARATOR]  # there the text ends
            if not nexts:
                break
            ((token, count),) = nexts.most_common(1)
            if place >= unknown:  # the device compares those before with the tokens themselves
                probability *= count / len(alive)
                if probability < self._options.min_token_prob:
                    break
                score += probability
            path.append(token)
            alive = [each for each in alive if each[place] == token]
        return path, (found.matched, score)
