"""Answers of the endpoints of pooling models, as they are sent."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

_Id = Annotated[str, Meta(description="Its name; ends with the request's request_id.")]
_Created = Annotated[int, Meta(description="When it was made, in seconds since 1970.")]
_Model = Annotated[str, Meta(description="The model that is served.")]
_List = Annotated[Literal["list"], Meta(description="Always list.")]


class CachedTokens(msgspec.Struct, frozen=True):
    """Count the tokens of the prompts that the prefix cache spared."""

    cached_tokens: Annotated[int, Meta(description="Tokens that were in the prefix cache already.")]


class PoolingUsage(msgspec.Struct, frozen=True):
    prompt_tokens: Annotated[int, Meta(description="Tokens of all inputs together.")]
    total_tokens: Annotated[int, Meta(description="The same: nothing is generated.")]
    prompt_tokens_details: Annotated[CachedTokens, Meta(description="Of these.")]


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one vector: numbers, or base64 of them as little-endian float32."""

    object: Annotated[Literal["embedding"], Meta(description="Always embedding.")] = "embedding"
    index: Annotated[int, Meta(description="Which of those that were sent.")]
    embedding: Annotated[
        list[float] | str, Meta(description="The vector, or base64 of its float32.")
    ]


class Embeddings(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v1/embeddings."""

    id: _Id
    object: _List = "list"
    created: _Created
    model: _Model
    data: Annotated[list[Embedding], Meta(description="A vector for each input, in order.")]
    usage: Annotated[PoolingUsage, Meta(description="Counted tokens.")]


class Score(msgspec.Struct, frozen=True, kw_only=True):
    object: Annotated[Literal["score"], Meta(description="Always score.")] = "score"
    index: Annotated[int, Meta(description="Which of those that were sent.")]
    score: Annotated[float, Meta(description="A reranker's, or the similarity of embeddings.")]


class Scores(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v1/score."""

    id: _Id
    object: _List = "list"
    created: _Created
    model: _Model
    data: Annotated[list[Score], Meta(description="A score for each pair, in order.")]
    usage: Annotated[PoolingUsage, Meta(description="Counted tokens.")]


class RankedText(msgspec.Struct, frozen=True):
    text: Annotated[str, Meta(description="The document's text.")]


class Ranked(msgspec.Struct, frozen=True, kw_only=True):
    """Hold one document's place among the request's documents, and its score."""

    index: Annotated[int, Meta(description="Which of those that were sent.")]
    document: Annotated[RankedText | UnsetType, Meta(description="The document itself.")] = UNSET
    relevance_score: Annotated[float, Meta(description="As the score of /v1/score.")]


class Ranking(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of /v1/rerank; results: the most relevant first."""

    id: _Id
    model: _Model
    usage: Annotated[PoolingUsage, Meta(description="Counted tokens.")]
    results: Annotated[list[Ranked], Meta(description="The most relevant first.")]
