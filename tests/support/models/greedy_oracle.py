"""transformers' greedy tokens, proven by one forward pass where the engine gave them first.

Token by token, each answer takes as many passes as it has tokens: most of the time of tests that
compare with transformers. A causal model gives a position the same logits whatever follows it. So
one pass over a prompt and a guessed answer says of each token whether the model would have chosen
it behind those before. If all are chosen, the guess is the model's own answer. Of another guess
nothing is proven, and the model answers token by token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import transformers

# Changes the logits behind a prompt and its answer so far.
Change = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]


def greedy(
    model: transformers.PreTrainedModel, prompt: list[int], guess: Sequence[int], *changes: Change
) -> list[int]:
    """Return the model's greedy answer, as many tokens as `guess` has; no token ends it."""
    logits = _logits(model, [*prompt, *guess])
    behind = logits[len(prompt) - 1 : len(prompt) + len(guess) - 1]
    said = list(guess)
    chosen = (_choice(row, prompt, said[:count], changes) for count, row in enumerate(behind))
    if all(token == told for token, told in zip(chosen, said, strict=True)):
        return said
    return token_by_token(model, prompt, len(said), *changes)


def token_by_token(
    model: transformers.PreTrainedModel, prompt: list[int], count: int, *changes: Change
) -> list[int]:
    """Return the model's greedy answer without any guess."""
    answer: list[int] = []
    for _ in range(count):
        row = _logits(model, [*prompt, *answer])[-1]
        answer.append(_choice(row, prompt, answer, changes))
    return answer


class GreedyAnswers:
    """The answers of one model to some prompts, `count` tokens each; an answer is found once."""

    def __init__(
        self, model: transformers.PreTrainedModel, prompts: Sequence[list[int]], count: int
    ) -> None:
        self._model = model
        self._prompts = prompts
        self._count = count
        self._found: dict[int, list[int]] = {}

    def answers(self, told: Sequence[Sequence[int]]) -> list[list[int]]:
        """Return the answers to all prompts; `told`: the engine's, in the prompts' order."""
        guesses = [*told, *[()] * (len(self._prompts) - len(told))]
        return [self.to(number, guess) for number, guess in enumerate(guesses)]

    def to(self, number: int, guess: Sequence[int]) -> list[int]:
        """Return the answer to a prompt; `guess` makes it cheap if it is right."""
        if number not in self._found:
            prompt = self._prompts[number]
            if len(guess) == self._count:
                self._found[number] = greedy(self._model, prompt, guess)
            else:
                self._found[number] = token_by_token(self._model, prompt, self._count)
        return self._found[number]


def _logits(model: transformers.PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=torch.tensor([ids])).logits[0]
    return found


def _choice(
    logits: torch.Tensor, prompt: list[int], answer: list[int], changes: Sequence[Change]
) -> int:
    for change in changes:
        logits = change(logits, prompt, answer)
    return int(logits.argmax())
