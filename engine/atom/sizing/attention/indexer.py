"""The indexers of sparse attention: heads that choose the tokens, entries or spans of tokens to
attend to. Pure."""

from __future__ import annotations

import msgspec


class Indexer(msgspec.Struct, frozen=True, tag=True):
    """An indexer of a layer. `heads`: of its queries; `dim`: elements of a head and of a key;
    `top_k`: the number of selected tokens or entries."""

    heads: int
    dim: int
    top_k: int


class SharedIndexer(msgspec.Struct, frozen=True, tag=True):
    """The selection of the last indexer before the layer. `top_k`: the number of tokens in it."""

    top_k: int


class SpanIndexer(msgspec.Struct, frozen=True, tag=True):
    """An indexer of grouped-query heads (MiniMax-M3). `heads`: of its queries, one per KV head;
    `dim`: elements of a head and of the one key of a token; `span`: tokens that are chosen
    together, by the highest score among them; `top_k`: the number of selected spans; `newest`:
    spans of these that end with the query's own, whatever their scores."""

    heads: int
    dim: int
    span: int
    top_k: int
    newest: int
