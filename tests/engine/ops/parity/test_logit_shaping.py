"""What rows ask to be changed in their logits, and what is told of them, against plain loops; on
whatever device the matrix runs."""

from __future__ import annotations

import math

import torch

from atom.model_ops.sampling.forbidden_tokens import BadWords, forbid, forbid_bad_words
from atom.model_ops.sampling.logprobs import token_logprobs
from atom.model_ops.sampling.penalties import IN_PROMPT, Penalties, penalize

ROWS, VOCAB = 4, 50


def random_logits(device: torch.device, vocab: int = VOCAB) -> torch.Tensor:
    draw = torch.Generator().manual_seed(3)
    return (torch.randn(ROWS, vocab, generator=draw) * 4).to(device)


def test_penalties_follow_their_definition_token_by_token(device: torch.device) -> None:
    prompts = [[1, 2, 2], [], [49, 0], [7]]
    answers = [[2, 2, 5], [3], [], [7, 7, 7, 8]]
    controls = [(1.5, 0.0, 0.0), (1.0, 0.7, 0.3), (0.5, -1.0, 1.0), (2.0, 0.4, -0.6)]
    occurrences = torch.zeros((ROWS, VOCAB), dtype=torch.int32)
    for row in range(ROWS):
        for token in range(VOCAB):
            seen = IN_PROMPT if token in prompts[row] else 0
            occurrences[row, token] = seen + answers[row].count(token)
    logits = random_logits(device)
    expected = logits.tolist()
    for row, (repetition, presence, frequency) in enumerate(controls):
        for token in {*prompts[row], *answers[row]}:
            value = expected[row][token]
            value = value / repetition if value > 0 else value * repetition
            value -= frequency * answers[row].count(token)
            expected[row][token] = value - presence * (token in answers[row])
    columns = torch.tensor(controls, device=device).T
    penalize(logits, Penalties(occurrences.to(device), *columns))
    torch.testing.assert_close(logits.cpu(), torch.tensor(expected))


def test_forbidden_tokens_are_those_named_and_no_others(device: torch.device) -> None:
    logits = random_logits(device)
    expected = logits.clone()
    pairs = [(0, 3), (0, 3), (2, 49), (3, 0)]
    for row, token in pairs:
        expected[row, token] = -torch.inf
    rows, tokens = torch.tensor(pairs, device=device).T
    forbid(logits, rows, tokens)
    assert torch.equal(logits, expected)


def test_bad_words_are_kept_from_being_completed(device: torch.device) -> None:
    recent = torch.tensor([[-1, -1, 4], [9, 4, 6], [4, 6, 8], [6, 4, 4]], dtype=torch.int32)
    # (row, word): the same last token twice in one row, one of the two words having been begun.
    words = [(0, (4, 6)), (0, (6, 6)), (1, (4, 6, 7)), (1, (9, 6, 8)), (2, (4, 6, 8, 1)),
             (3, (4, 4, 5)), (3, (6, 4, 5))]  # fmt: skip
    logits = random_logits(device)
    expected = logits.clone()
    for row, word in words:
        if tuple(recent[row, -len(word) + 1 :].tolist()) == word[:-1]:
            expected[row, word[-1]] = -torch.inf
    prefixes = torch.full((len(words), 3), -1, dtype=torch.int32)
    for index, (_, word) in enumerate(words):
        prefixes[index, 3 - len(word) + 1 :] = torch.tensor(word[:-1])
    forbid_bad_words(
        logits,
        BadWords(
            rows=torch.tensor([row for row, _ in words], device=device),
            prefixes=prefixes.to(device),
            last_tokens=torch.tensor([word[-1] for _, word in words], device=device),
            recent=recent.to(device),
        ),
    )
    assert torch.equal(logits, expected)
    assert (logits == -torch.inf).sum() == 4


def test_log_probabilities_ranks_and_the_likeliest_tokens(device: torch.device) -> None:
    logits = random_logits(device, vocab=3000).to(torch.bfloat16)
    own = torch.tensor([5, 2999, 0, int(logits[3].argmax())], device=device)
    told = token_logprobs(logits, own, num_top=4)
    for row, values in enumerate(logits.double().tolist()):
        normalizer = math.log(sum(map(math.exp, values)))
        token = int(own[row])
        assert told.token_ids[row, 0] == token
        assert math.isclose(told.logprobs[row, 0], values[token] - normalizer, abs_tol=1e-4)
        assert told.ranks[row] == 1 + sum(value > values[token] for value in values)
        likeliest = sorted((value - normalizer for value in values), reverse=True)[:4]
        found = told.logprobs[row, 1:].tolist()
        assert all(map(lambda a, b: math.isclose(a, b, abs_tol=1e-4), found, likeliest))
        named = [values[token] - normalizer for token in told.token_ids[row, 1:].tolist()]
        assert all(map(lambda a, b: math.isclose(a, b, abs_tol=1e-4), named, likeliest))
