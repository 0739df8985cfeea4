"""/v1/embeddings: a vector for each input, cut to the requested number of dimensions."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.pooling.answers import Embedding, Embeddings
from atom.entrypoints.pooling.pooled_prompts import Asked, Pooled, naming, pool
from atom.entrypoints.pooling.requests import EmbeddingRequest
from atom.errors import RequestError
from atom.model_engine.front.input_processor import Prompt


async def embed(asked: Asked, request: EmbeddingRequest) -> bytes:
    """Compute the answer as JSON. Raises `RequestError`."""
    pooled = await embedded(asked, request)
    as_base64 = request.encoding_format == "base64"
    data = [
        Embedding(index=index, embedding=_base64(vector) if as_base64 else vector.tolist())
        for index, vector in enumerate(pooled.vectors)
    ]
    return to_json(
        Embeddings(
            id=asked.id, created=asked.created, model=asked.model, data=data, usage=pooled.usage
        )
    )


async def embedded(asked: Asked, request: EmbeddingRequest) -> Pooled:
    """Compute the vectors of the inputs, cut to the requested dimensions. Raises
    `RequestError`."""
    if asked.kind != "embed":
        raise RequestError(
            f"{asked.model} was started for scores (--convert classify); send /v1/score or "
            "/v1/rerank, or start another server with --convert embed"
        )
    dimensions = _dimensions(asked, request)
    special = request.add_special_tokens is not False
    inputs = _inputs(request, asked.prompts.text(request.prompt_name, request.input_type))
    with naming("input"):
        pooled = await pool(asked, inputs, add_special_tokens=special)
    return Pooled(_first_numbers(pooled.vectors, dimensions), pooled.usage)


def _inputs(request: EmbeddingRequest, prompt: str) -> list[Prompt]:
    """Return the inputs, texts with the prompt in front. Token ids are whole: they get none by
    default. Raises `RequestError` if the request selects a prompt for token ids."""
    given = _prompts(request)
    selects = request.prompt_name is not None or request.input_type is not None
    if prompt and selects and not isinstance(given[0], str):
        raise RequestError(
            "a prompt is put in front of texts, and input has token ids; send texts, or leave "
            "prompt_name and input_type out",
            param="input",
        )
    return [prompt + each if isinstance(each, str) else each for each in given]


def _prompts(request: EmbeddingRequest) -> list[Prompt]:
    given = request.input
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        return [given]
    return list(given)


def _dimensions(asked: Asked, request: EmbeddingRequest) -> int | None:
    wanted = request.dimensions
    if wanted is None:
        return None
    config = asked.engine.config.model
    trained, pooling = config.hf_config.get("matryoshka_dimensions"), config.pooling
    assert pooling is not None
    size = pooling.size(config.facts.hidden_size)
    if isinstance(trained, list) and wanted not in trained:
        known = ", ".join(map(str, trained))
        raise RequestError(
            f"dimensions is {wanted}; {asked.model} was trained for {known}", param="dimensions"
        )
    if wanted > size:
        raise RequestError(
            f"dimensions is {wanted}; vectors of {asked.model} have {size}, ask for at most these",
            param="dimensions",
        )
    return wanted


def _first_numbers(vectors: NDArray[np.float32], count: int | None) -> NDArray[np.float32]:
    """Cut each vector to `count` dimensions and normalise it to length 1 again."""
    if count is None or count == vectors.shape[1]:
        return vectors
    kept = vectors[:, :count]
    lengths = np.linalg.norm(kept, axis=1, keepdims=True)
    unit: NDArray[np.float32] = kept / np.maximum(lengths, np.finfo(np.float32).tiny)
    return unit


def _base64(vector: NDArray[np.float32]) -> str:
    return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
