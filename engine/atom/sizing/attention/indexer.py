"""The indexer of sparse attention: heads that choose the tokens or entries to attend to. Pure."""

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
