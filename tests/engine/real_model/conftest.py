"""SmolLM2-135M-Instruct as one GGUF file, and what transformers makes of the same file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from tools import smollm2

QUESTIONS = (
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Name three colours.",
    "What is 2 + 2?",
    "Who wrote Romeo and Juliet?",
    "Translate 'good morning' into Spanish.",
    "Explain what a computer is to a child.",
    "Give me a recipe for pancakes.",
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "List the planets of the solar system.",
    "What should I pack for a day in the mountains?",
)


class Oracle:
    """Transformers, which dequantises the file by itself and makes its own tokenizer of it."""

    def __init__(self, file: Path) -> None:
        self.model, self.tokenizer = smollm2.by_transformers(file)

    def chat_ids(self, question: str) -> list[int]:
        """Token ids of a conversation's beginning, by the file's template."""
        chat = [{"role": "user", "content": question}]
        text = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def greedy(self, ids: Sequence[int], count: int) -> list[int]:
        """The tokens that follow, up to the end token, which is left out."""
        end = self.tokenizer.eos_token_id
        with torch.inference_mode():
            found = self.model.generate(
                torch.tensor([ids]), do_sample=False, max_new_tokens=count, eos_token_id=end,
                pad_token_id=end,
            )  # fmt: skip
        new = found[0, len(ids) :].tolist()
        return new[: new.index(end)] if end in new else new

    def logprobs(self, ids: Sequence[int]) -> torch.Tensor:
        """Log-probabilities [T, V] of what follows each token."""
        with torch.inference_mode():
            return self.model(torch.tensor([ids])).logits[0].log_softmax(dim=-1)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))


@pytest.fixture(scope="session")
def smollm2_file() -> Path:
    return smollm2.fetch()


@pytest.fixture(scope="session")
def oracle(smollm2_file: Path) -> Oracle:
    return Oracle(smollm2_file)


@pytest.fixture(scope="session")
def greedy_answers(oracle: Oracle) -> dict[str, list[int]]:
    """Transformers' answer to each question."""
    return {question: oracle.greedy(oracle.chat_ids(question), 48) for question in QUESTIONS}
