"""Prompts of one request to their vectors: what the endpoints of pooling models have in common.

Parses no body and knows no answer's shape; everything goes through the engine's queue.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atom.entrypoints.pooling.answers import CachedTokens, PoolingUsage
from atom.entrypoints.pooling.requests import PoolingRequest
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_processor import Prompt
from atom.pooling_config import PoolingConfig, PoolingKind, Similarity
from atom.pooling_config.embedding_prompts import EmbeddingPrompts
from atom.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Asked:
    """A request at an engine that may serve it. id: of its answer; client_id: whose it is."""

    engine: AsyncLLMEngine
    request: PoolingRequest
    id: str
    created: int
    client_id: str
    timeout_seconds: float | None

    @property
    def model(self) -> str:
        return self.engine.answering(self.request.model)

    @property
    def kind(self) -> PoolingKind:
        """Return the pooling kind of the model. Raises `RequestError` if the model generates."""
        return self._pooling.kind

    @property
    def prompts(self) -> EmbeddingPrompts:
        """Return the prompts of an embedding model. Raises `RequestError` as `kind` does."""
        return self._pooling.prompts

    @property
    def similarity(self) -> Similarity:
        """Return the similarity of two embeddings. Raises `RequestError` as `kind` does."""
        return self._pooling.similarity

    @property
    def _pooling(self) -> PoolingConfig:
        self.engine.processor.inputs.check_pools(True)
        pooling = self.engine.config.model.pooling
        assert pooling is not None
        return pooling


@dataclass(frozen=True, slots=True)
class Pooled:
    """Hold the vectors [prompts, size] float32 of a request, and its counted tokens."""

    vectors: NDArray[np.float32]
    usage: PoolingUsage


async def pool(
    asked: Asked, prompts: Sequence[Prompt], *, add_special_tokens: bool, truncates: bool = True
) -> Pooled:
    """Pool each prompt. truncates: prompts are cut as the request asks; otherwise they have
    been."""
    request = asked.request
    cut = request.truncate_prompt_tokens if truncates else None
    group = await asked.engine.add_requests(
        prompts,
        SamplingParams(
            max_tokens=1,
            temperature=0.0,
            truncate_prompt_tokens=cut,
            truncation_side=request.truncation_side,
        ),
        request_id=asked.id,
        add_special_tokens=add_special_tokens,
        priority=request.priority or 0,
        timeout_seconds=asked.timeout_seconds,
        cache_salt=request.cache_salt or "",
        client_id=asked.client_id,
        model=request.model,
        pools=True,
    )
    try:
        lasts = {index: output async for found in group for index, output in found}
    finally:
        group.close()
    outputs = [lasts[index] for index in range(len(prompts))]
    for output in outputs:
        if output.pooled is None:
            raise RequestError(f"an input was not pooled: {output.finish_detail}", status=503)
    vectors = [np.frombuffer(output.pooled or b"", dtype="<f4") for output in outputs]
    tokens = sum(output.num_prompt_tokens for output in outputs)
    cached = CachedTokens(sum(output.num_cached_tokens for output in outputs))
    return Pooled(np.stack(vectors), PoolingUsage(tokens, tokens, cached))


@contextlib.contextmanager
def naming(field: str) -> Iterator[None]:
    """Name this field of the request in errors about the prompt."""
    try:
        yield
    except RequestError as error:
        if error.param == "prompt":
            error.param = field
        raise
