"""Turns the corpus into training samples: token ids and how much each of them counts.

The learner is graded on what the assistant says; the user's words count a little, so that the
model also learns to read them. Every epoch draws new wordings, system prompts and histories from
a seeded generator. Knows no model and no optimiser.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from tools.demo_model.corpus import Corpus, Entry, Turn
from tools.demo_model.variation import as_typed, ask_definition, pick_system
from tools.demo_model.vocabulary import END_OF_TEXT, encode, encode_turn

READING_WEIGHT = 0.1
HISTORY_CHANCE = 0.15
MAX_SAMPLE_TOKENS = 512
PARAGRAPHS_PER_EPOCH = 100  # however long the documentation grows, answers stay the main matter


@dataclass(frozen=True, slots=True)
class Sample:
    ids: list[int]
    weights: list[float]  # of each id as a prediction target


@dataclass(frozen=True, slots=True)
class Batch:
    """Right-padded rows: inputs, targets and target weights, each [samples, tokens]."""

    inputs: Tensor
    targets: Tensor
    weights: Tensor


def chat_sample(tokenizer: Tokenizer, turns: list[Turn]) -> Sample:
    ids: list[int] = []
    weights: list[float] = []
    newline = encode(tokenizer, "\n")
    for turn in turns:
        opening, said = encode_turn(tokenizer, turn)
        weight = 1.0 if turn.role == "assistant" else READING_WEIGHT
        ids += opening + said + newline
        weights += [0.0] * len(opening) + [weight] * len(said) + [0.0] * len(newline)
    return Sample(ids[:MAX_SAMPLE_TOKENS], weights[:MAX_SAMPLE_TOKENS])


def text_sample(tokenizer: Tokenizer, text: str) -> Sample:
    ids = encode(tokenizer, text + END_OF_TEXT)[:MAX_SAMPLE_TOKENS]
    return Sample(ids, [0.3] * len(ids))


def _exchange(entry: Entry, question: str, random: Random) -> list[Turn]:
    return [Turn("user", as_typed(question, random)), Turn("assistant", entry.answer)]


def _any_question(entry: Entry, random: Random) -> str:
    asked = random.choice((*entry.questions, *entry.terms))
    return ask_definition(asked, random) if asked in entry.terms else asked


def _with_context(turns: list[Turn], corpus: Corpus, random: Random) -> list[Turn]:
    """Earlier exchanges on other topics, and a system prompt or none, before `turns`."""
    before: list[Turn] = []
    if random.random() < HISTORY_CHANCE:
        for entry in random.choices(corpus.entries, k=random.choice((1, 1, 2, 3))):
            before += _exchange(entry, _any_question(entry, random), random)
    system = pick_system(random)
    return [*([Turn("system", system)] if system else []), *before, *turns]


def epoch(corpus: Corpus, tokenizer: Tokenizer, random: Random) -> list[Sample]:
    """Every question once, every term three times and some paragraphs, freshly worded."""
    paragraphs = random.sample(corpus.documents, min(len(corpus.documents), PARAGRAPHS_PER_EPOCH))
    samples = [text_sample(tokenizer, text) for text in paragraphs]
    for entry in corpus.entries:
        asked = list(entry.questions)
        asked += [ask_definition(term, random) for term in entry.terms for _ in range(3)]
        for question in asked:
            turns = _with_context(_exchange(entry, question, random), corpus, random)
            samples.append(chat_sample(tokenizer, turns))
        if random.random() < 0.3:
            samples.append(text_sample(tokenizer, entry.answer))
    for dialogue in corpus.conversations:
        for _ in range(4):
            turns = [
                Turn("user", as_typed(turn.content, random)) if turn.role == "user" else turn
                for turn in dialogue
            ]
            samples.append(chat_sample(tokenizer, _with_context(turns, corpus, random)))
    return samples


def collate(samples: list[Sample]) -> Batch:
    longest = max(len(sample.ids) for sample in samples) - 1
    ids = torch.zeros(len(samples), longest + 1, dtype=torch.long)
    weights = torch.zeros(len(samples), longest + 1)
    for row, sample in enumerate(samples):
        ids[row, : len(sample.ids)] = torch.tensor(sample.ids)
        weights[row, : len(sample.ids)] = torch.tensor(sample.weights)
    return Batch(ids[:, :-1], ids[:, 1:], weights[:, 1:])


def batches(corpus: Corpus, tokenizer: Tokenizer, size: int, random: Random) -> Iterator[Batch]:
    """Endless batches of `size` samples of similar length, so that little is padding."""
    while True:
        samples = epoch(corpus, tokenizer, random)
        random.shuffle(samples)
        window = size * 24
        for start in range(0, len(samples), window):
            near = sorted(samples[start : start + window], key=lambda sample: len(sample.ids))
            groups = [near[at : at + size] for at in range(0, len(near), size)]
            random.shuffle(groups)
            yield from (collate(group) for group in groups)
