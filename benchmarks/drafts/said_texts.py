"""Texts whose answers are given: what a model that does as it is asked would say to them.

edit: a source file of this repository again, with a name changed; json: a table's rows as objects;
quote: sentences of the LICENSE, which stays as it is, between words of the answer's own. Tokens are
words with the space before them, up to three digits, or runs of signs, about what the vocabularies
of large models have. The engine computes every step, with weights that were never trained, and then
what it drew is replaced: how many drafts hold is the text's, what a step takes the model's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from atom.model_ops.backends.interface import SamplingTensors
from benchmarks.drafts.drafter_time import capture_anew

_ROOT = Path(__file__).resolve().parents[2]
_SOURCE = _ROOT / "engine" / "atom" / "model_engine" / "schedule" / "accepted_tokens.py"
_PIECE = re.compile(r" ?[A-Za-z]+| ?\d{1,3}| ?[^\sA-Za-z\d]+|\s+")
_ZONES = ("north", "east", "south", "west")


@dataclass(frozen=True, slots=True)
class SaidText:
    """Token ids of a prompt, and of what is said to it."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True, slots=True)
class TextSize:
    """Sizes of the texts that are said. longest: tokens of prompt and answer together, at most;
    vocabulary: of what they are."""

    longest: int
    answer: int
    vocabulary: int


def said_text(name: str, size: TextSize, draw: np.random.Generator) -> SaidText:
    """Make a prompt and its answer; `draw` decides what may vary."""
    asked, text, answer = _TEXTS[name](draw)
    ids: dict[str, int] = {}
    prompt, said = (
        [ids.setdefault(piece, len(ids) % size.vocabulary) for piece in _PIECE.findall(words)]
        for words in (asked + text, answer)
    )
    return SaidText(prompt[: size.longest - size.answer], said[: size.answer])


def _edit(draw: np.random.Generator) -> tuple[str, str, str]:
    source, new = _SOURCE.read_text(), f"table{draw.integers(1000)}"
    asked = f"Say this file again, with `rows` renamed to `{new}`:\n"
    return asked, source, re.sub(r"\brows\b", new, source)


def _json(draw: np.random.Generator) -> tuple[str, str, str]:
    rows = [
        (int(draw.integers(1000)), _ZONES[draw.integers(4)], int(draw.integers(100, 999)))
        for _ in range(60)
    ]
    table = "".join(f"{node},{zone},{free}\n" for node, zone, free in rows)
    objects = ",\n".join(
        f'  {{"node": {node}, "zone": "{zone}", "free": {free}}}' for node, zone, free in rows
    )
    return "These rows as a list of JSON objects, please:\nnode,zone,free\n", table, f"[\n{objects}"


def _quote(draw: np.random.Generator) -> tuple[str, str, str]:
    text = " ".join((_ROOT / "LICENSE").read_text().split())[:6000]
    sentences = re.findall(r"[A-Z][^.|`]{60,240}\.", text)
    chosen = draw.permutation(len(sentences))
    own = (
        "On point {} the page is explicit, and it is worth reading twice:",
        "Much later, under number {}, one finds this remark:",
        "Number {} matters to those who pay for machines:",
    )
    said = (f'{own[n % 3].format(n)} "{sentences[index]}"\n' for n, index in enumerate(chosen))
    return "Quote what this says of its subject, point by point.\n", text, "".join(said)


_TEXTS: dict[str, Callable[[np.random.Generator], tuple[str, str, str]]] = {
    "edit": _edit,
    "json": _json,
    "quote": _quote,
}
SAID = tuple(_TEXTS)


class Sayer:
    """Lets a runner of this process say what it is told, by places of a sequence."""

    def __init__(self, steps: Any, longest: int) -> None:
        head = steps.model.lm_head
        draw = head.draw
        device = steps.slots.device.last_token.device
        # By place; -1: what was drawn.
        self._places = torch.full((longest,), -1, dtype=torch.int64, device=device)

        def say(hidden: torch.Tensor, sampling: SamplingTensors) -> torch.Tensor:
            drawn: torch.Tensor = draw(hidden, sampling)
            said = self._places[sampling.position.clamp_max(longest - 1)]
            return torch.where(said < 0, drawn, said)

        head.draw = say
        capture_anew(steps)

    def say(self, text: SaidText | None) -> None:
        """Say these texts to every request from now on; None: what is drawn."""
        self._places.fill_(-1)
        if text is not None:
            first, answer = len(text.prompt), torch.tensor(text.answer)
            self._places[first : first + len(answer)] = answer.to(self._places.device)
