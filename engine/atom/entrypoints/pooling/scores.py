"""/v1/score and /v1/rerank: how relevant texts are to each other.

A reranker reads each pair in one prompt, Qwen3-Reranker's, and says yes or no; a cross-encoder
reads both texts as two segments, and its head gives the score; an embedding model reads each text
once, and the similarity of the two vectors is the score: their cosine, unless the model's files
name another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.pooling.answers import (
    PoolingUsage,
    Ranked,
    RankedText,
    Ranking,
    Score,
    Scores,
)
from atom.entrypoints.pooling.pooled_prompts import Asked, naming, pool
from atom.entrypoints.pooling.requests import RerankRequest, ScoreRequest
from atom.entrypoints.pooling.reranker_prompt import reranker_parts
from atom.errors import RequestError
from atom.pooling_config import Similarity

_Vector = NDArray[np.float32]
# As in sentence-transformers: a larger number is nearer.
_SIMILARITIES: Mapping[Similarity, Callable[[_Vector, _Vector], Any]] = {
    "cosine": lambda one, other: np.clip(_unit(one) @ _unit(other), -1, 1),
    "dot": lambda one, other: one @ other,
    "euclidean": lambda one, other: -np.linalg.norm(one - other),
    "manhattan": lambda one, other: -np.abs(one - other).sum(),
}
_Pairs = Sequence[tuple[str, str]]


class _Scored(NamedTuple):
    scores: list[float]
    usage: PoolingUsage


async def score(asked: Asked, request: ScoreRequest) -> bytes:
    """Compute the answer as JSON, a score for each pair. Raises `RequestError`."""
    scored = await _scores(asked, _pairs(request), request.instruction, "text_2")
    data = [Score(index=index, score=value) for index, value in enumerate(scored.scores)]
    return to_json(
        Scores(id=asked.id, created=asked.created, model=asked.model, data=data, usage=scored.usage)
    )


async def rerank(asked: Asked, request: RerankRequest) -> bytes:
    """Compute the answer as JSON, the most relevant documents first. Raises `RequestError`."""
    texts = request.texts
    with naming("query"):
        query = await _beginning(asked, request.query, request.max_tokens_per_query)
    with naming("documents"):
        read = [await _beginning(asked, text, request.max_tokens_per_doc) for text in texts]
    pairs = [(query, text) for text in read]
    scored = await _scores(asked, pairs, request.instruction, "documents")
    shown = request.return_documents is not False
    ranked = [
        Ranked(index=index, relevance_score=value, document=RankedText(texts[index]))
        if shown
        else Ranked(index=index, relevance_score=value)
        for index, value in enumerate(scored.scores)
    ]
    ranked.sort(key=lambda each: -each.relevance_score)  # equal ones stay in order
    most = request.top_n or len(ranked)
    return to_json(
        Ranking(id=asked.id, model=asked.model, usage=scored.usage, results=ranked[:most])
    )


async def _beginning(asked: Asked, text: str, most: int | None) -> str:
    """Return the first `most` tokens of a text; all of it for None."""
    if most is None or len(text.encode()) <= most:  # a token is a byte at least
        return text
    engine, client = asked.engine, asked.client_id
    token_ids = await engine.tokenize(text, add_special_tokens=False, client_id=client)
    if len(token_ids) <= most:
        return text
    return await engine.detokenize(token_ids[:most], client_id=client)


def _pairs(request: ScoreRequest) -> _Pairs:
    first = [request.text_1] if isinstance(request.text_1, str) else request.text_1
    second = [request.text_2] if isinstance(request.text_2, str) else request.text_2
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise RequestError(
            f"text_1 has {len(first)} texts and text_2 {len(second)}; send one text_1 for all, or "
            "as many of both",
            param="text_1",
        )
    return list(zip(first, second, strict=True))


async def _scores(asked: Asked, pairs: _Pairs, instruction: str | None, field: str) -> _Scored:
    with naming(field):
        is_encoder = asked.engine.config.model.facts.is_encoder
        if asked.kind == "classify" and not is_encoder:
            return await _judged(asked, pairs, instruction)
        if instruction is not None:
            reads = "reads texts alone" if asked.kind == "classify" else "embeds each text"
            raise RequestError(
                f"instruction is for rerankers that generate, and {asked.model} {reads}; write it "
                "into the query",
                param="instruction",
            )
        return await (_labelled if asked.kind == "classify" else _compared)(asked, pairs)


async def _labelled(asked: Asked, pairs: _Pairs) -> _Scored:
    """Return a cross-encoder's score of each pair."""
    text = asked.engine.text
    prompts = await text.tokenize_pairs(
        pairs, asked.client_id, most=_most_tokens(asked), side=asked.request.truncation_side
    )
    pooled = await pool(asked, prompts, add_special_tokens=False, truncates=False)
    return _Scored(pooled.vectors[:, 0].tolist(), pooled.usage)


def _most_tokens(asked: Asked) -> int | None:
    """Return how many tokens of a pair the request keeps, None for all."""
    most, longest = asked.request.truncate_prompt_tokens, asked.engine.config.model.max_model_len
    return most if most is None else longest if most == -1 else min(most, longest)


async def _judged(asked: Asked, pairs: _Pairs, instruction: str | None) -> _Scored:
    """Return a reranker's score of each pair."""
    engine, most = asked.engine, _most_tokens(asked)
    side = asked.request.truncation_side or engine.processor.inputs.truncation_side
    prompts = []
    for query, document in pairs:
        parts = [
            await engine.tokenize(text, add_special_tokens=False, client_id=asked.client_id)
            for text in reranker_parts(query, document, instruction)
        ]
        before, judged, behind = parts
        if most is not None:
            room = most - len(before) - len(behind)
            if room < 1:
                raise RequestError(
                    f"truncate_prompt_tokens leaves no room for a document: the prompt around it "
                    f"has {len(before) + len(behind)} tokens",
                    param="truncate_prompt_tokens",
                )
            judged = judged[:room] if side == "right" else judged[-room:]
        prompts.append([*before, *judged, *behind])
    pooled = await pool(asked, prompts, add_special_tokens=False, truncates=False)
    return _Scored(pooled.vectors[:, 0].tolist(), pooled.usage)


async def _compared(asked: Asked, pairs: _Pairs) -> _Scored:
    """Return the similarity of each pair's embeddings; a text in several pairs is embedded
    once."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    prompt = asked.prompts.text(None, None)
    pooled = await pool(asked, [prompt + text for text in texts], add_special_tokens=True)
    of = dict(zip(texts, pooled.vectors, strict=True))
    similarity = _SIMILARITIES[asked.similarity]
    return _Scored([float(similarity(of[one], of[other])) for one, other in pairs], pooled.usage)


def _unit(vector: _Vector) -> _Vector:
    unit: _Vector = vector / max(np.linalg.norm(vector), np.finfo(np.float32).tiny)
    return unit
