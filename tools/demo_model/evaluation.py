"""Greedy answers of the plain model, and how many of the listed questions they get right.

The list is YAML: `question`, `expect` (phrases that a right answer contains, whatever their entry
case; a fact may stand in braces) and optionally `system`. Knows nothing of training. Called by
`--check`, after training, and by tests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import yaml
from tokenizers import Tokenizer

from tools.demo_model.corpus import Corpus, CorpusError, Turn
from tools.demo_model.facts import Fact, fill
from tools.demo_model.qwen3 import Cache, Qwen3
from tools.demo_model.variation import DEFINITION_FORMS
from tools.demo_model.vocabulary import END_OF_TEXT, TURN_END, encode, encode_prompt


@dataclass(frozen=True, slots=True)
class Question:
    question: str
    expect: tuple[str, ...]
    system: str | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    ended: bool  # the model ended its turn itself, within the limit


@dataclass(frozen=True, slots=True)
class Graded:
    question: Question
    answer: Answer
    missing: tuple[str, ...]

    @property
    def correct(self) -> bool:
        return self.answer.ended and not self.missing


def read_questions(path: Path, facts: dict[str, Fact]) -> list[Question]:
    questions = []
    for number, row in enumerate(yaml.safe_load(path.read_text(encoding="utf-8")), start=1):
        if not isinstance(row, dict) or not row.get("question") or not row.get("expect"):
            raise CorpusError(f"{path}: item {number} needs `question` and `expect`, has {row!r}")
        phrases = tuple(fill(phrase, facts) for phrase in row["expect"])
        questions.append(Question(row["question"], phrases, row.get("system")))
    return questions


@torch.inference_mode()
def greedy_ids(model: Qwen3, prompt: Sequence[int], stop: set[int], limit: int) -> list[int]:
    """The most likely continuation of `prompt`, up to and including a token of `stop`."""
    device = next(model.parameters()).device
    past: Cache | None = None
    pending = list(prompt)
    produced: list[int] = []
    while len(produced) < limit:
        logits, past = model(torch.tensor([pending], device=device), past)
        token = int(logits[0, -1].argmax())
        produced.append(token)
        pending = [token]
        if token in stop:
            break
    return produced


def answer(model: Qwen3, tokenizer: Tokenizer, turns: Sequence[Turn], limit: int = 120) -> Answer:
    stop = {encode(tokenizer, TURN_END)[0], encode(tokenizer, END_OF_TEXT)[0]}
    ids = greedy_ids(model, encode_prompt(tokenizer, turns), stop, limit)
    return Answer(tokenizer.decode(ids, skip_special_tokens=True), ids[-1] in stop)


def grade(question: Question, given: Answer) -> Graded:
    spoken = given.text.lower()
    return Graded(question, given, tuple(p for p in question.expect if p.lower() not in spoken))


def ask(model: Qwen3, tokenizer: Tokenizer, question: Question) -> Graded:
    turns = [Turn("system", question.system)] if question.system else []
    turns.append(Turn("user", question.question))
    return grade(question, answer(model, tokenizer, turns))


def known_questions(corpus: Corpus) -> set[str]:
    """Every question that training may ask before its wording is varied, in lower case."""
    asked = {question.lower() for entry in corpus.entries for question in entry.questions}
    terms = [term for entry in corpus.entries for term in entry.terms]
    return asked | {form.format(term).lower() for form in DEFINITION_FORMS for term in terms}
