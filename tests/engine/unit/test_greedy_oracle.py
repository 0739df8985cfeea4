"""The oracle of greedy tokens takes no guess for an answer that the model would not give."""

from __future__ import annotations

import pytest
import torch
import transformers

from tests.support.models.greedy_oracle import GreedyAnswers, greedy, token_by_token
from tests.support.models.tiny_model import make_tiny_checkpoint

PROMPTS = [[5, 7, 9], [11] * 20, [3]]
COUNT = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> transformers.PreTrainedModel:
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("oracle"))
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


@pytest.fixture(scope="module")
def answers(model: transformers.PreTrainedModel) -> list[list[int]]:
    return [token_by_token(model, prompt, COUNT) for prompt in PROMPTS]


@pytest.mark.parametrize("place", range(COUNT))
def test_a_guess_that_is_wrong_at_any_place_changes_nothing(
    model: transformers.PreTrainedModel, answers: list[list[int]], place: int
) -> None:
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        wrong = [*answer]
        wrong[place] = (wrong[place] + 1) % model.config.vocab_size
        assert greedy(model, prompt, wrong) == answer
        assert greedy(model, prompt, answer) == answer


def test_a_right_guess_takes_one_pass(
    model: transformers.PreTrainedModel, answers: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[torch.Tensor] = []
    forward = model.forward
    monkeypatch.setattr(
        model, "forward", lambda **given: passes.append(given["input_ids"]) or forward(**given)
    )
    expected = GreedyAnswers(model, PROMPTS, COUNT)
    for _ in range(2):  # the second time nothing is asked
        assert expected.answers(answers) == answers
    assert len(passes) == len(PROMPTS)


@pytest.mark.parametrize("told", [[], [[]], [[1, 2]]], ids=["none", "empty", "too few tokens"])
def test_answers_that_are_missing_are_the_models_own(
    model: transformers.PreTrainedModel, answers: list[list[int]], told: list[list[int]]
) -> None:
    assert GreedyAnswers(model, PROMPTS, COUNT).answers(told) == answers


def test_a_change_of_the_logits_is_seen_with_the_answer_so_far(
    model: transformers.PreTrainedModel,
) -> None:
    def never_twice(logits: torch.Tensor, prompt: list[int], answer: list[int]) -> torch.Tensor:
        found = logits.clone()
        found[[*prompt, *answer]] = -torch.inf
        return found

    slow = token_by_token(model, PROMPTS[1], COUNT, never_twice)
    assert len({*slow, *PROMPTS[1]}) == COUNT + 1
    assert greedy(model, PROMPTS[1], slow, never_twice) == slow
    assert greedy(model, PROMPTS[1], [11] * COUNT, never_twice) == slow
