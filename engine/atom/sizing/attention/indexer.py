"""The indexer of sparse attention: heads that choose the tokens or entries to attend to. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Indexer:
    """An indexer of a layer. `heads`: of its queries; `dim`: elements of a head and of a key;
    `top_k`: the number of selected tokens or entries."""

    heads: int
    dim: int
    top_k: int


@dataclass(frozen=True, slots=True)
class SharedIndexer:
    """The selection of the last indexer before the layer. `top_k`: the number of tokens in it."""

    top_k: int
