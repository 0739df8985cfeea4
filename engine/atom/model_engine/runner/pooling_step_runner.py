"""PoolingStepRunner: steps of a model whose prompts become vectors, not tokens.

The layers, slots and blocks are those of any step. In place of sampling, the hidden states of the
rows whose prompts end with the step are pooled: of a decoder that of the last token, of an encoder
the vector or the label that its layers give. Every rank of a group has all of them, so the ranks
exchange no more than they would to sample. The returned tokens are zeros: they end their rows, and
no later step computes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from atom.config import ModelConfig
from atom.errors import ModelError
from atom.model_engine.batch import ScheduledBatchOutput, TokenMask
from atom.model_engine.runner.cuda_graphs.decode_graphs import ForwardOutput
from atom.model_engine.runner.dense_layers import dense_layers
from atom.model_engine.runner.host_tokens import PendingTokens, PendingVectors
from atom.model_engine.runner.step_runner import StepRunner
from atom.model_engine.runner.submitted_step import SubmittedStep
from atom.tokenizer import Tokenizer


class PoolingStepRunner(StepRunner):
    def __init__(self, model: ModelConfig, *parts: Any) -> None:
        """parts: as StepRunner's. Raises `ModelError` if a score's tokens are unknown."""
        super().__init__(*parts)
        pooling = model.pooling
        assert pooling is not None
        self._normalized = pooling.normalized
        self._score = pooling.score if pooling.kind == "classify" else None
        by_tokens = self._score is not None and not model.facts.is_encoder
        self._token_ids = score_tokens(model) if by_tokens else None
        self._dense = dense_layers(model, self._device.torch_device)

    def _sample_rows(
        self, step: SubmittedStep, forward: ForwardOutput, mask: TokenMask | None
    ) -> PendingTokens:
        vectors = self._pool(forward.hidden)
        step.pooled = PendingVectors.send(step.request_ids, vectors)
        return PendingTokens(torch.zeros(len(vectors), dtype=torch.int32), None)

    def collect(self, step: SubmittedStep) -> ScheduledBatchOutput:
        output = super().collect(step)
        return output if step.pooled is None else replace(output, pooled=step.pooled.wait())

    def _pool(self, hidden: torch.Tensor) -> torch.Tensor:  # [R, H] → [R, size] float32
        """Return the embeddings, of length 1 if they are to be, or scores: a head's labels, or
        the lead of the second of two tokens over the first, as numbers or probabilities; in
        float32, since clients compare numbers that are nearly equal."""
        if self._score is None:
            vectors = hidden.float()
            for dense in self._dense:
                vectors = dense(vectors)
            if self._normalized:
                vectors = torch.nn.functional.normalize(vectors, dim=-1)
            return vectors
        labels = hidden.float()
        if self._token_ids is not None:
            logits = self.model.compute_logits(hidden)[:, list(self._token_ids)].float()
            labels = logits[:, 1:] - logits[:, :1]
        return labels.sigmoid() if self._score == "sigmoid" else labels


def score_tokens(model: ModelConfig) -> tuple[int, int]:
    """Return the tokens of the two answers, no and yes, from which a score is computed. Raises
    `ModelError`."""
    pooling, folder = model.pooling, model.tokenizer_path
    assert pooling is not None
    ids = pooling.token_ids
    if ids is None:
        tokenizer = Tokenizer(folder)
        found = [tokenizer.encode(text, add_special_tokens=False) for text in pooling.token_texts]
        if any(len(each) != 1 for each in found):
            no, yes = pooling.token_texts
            raise ModelError(
                f"{folder}: {no!r} and {yes!r}, of which scores are made, are not one token each; "
                "name two tokens in config.json by classifier_from_token"
            )
        ids = (found[0][0], found[1][0])
    if not all(0 <= token < model.vocab_size for token in ids):
        raise ModelError(
            f"{model.path}: the tokens {ids[0]} and {ids[1]}, of which scores are made, are not "
            f"both within the vocabulary of {model.vocab_size}; correct the model's files"
        )
    return ids
