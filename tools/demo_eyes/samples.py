"""Batches of conversations about pictures, each drawn from its own number and a seed.

All pictures of a batch have one size. Batches of training and of the exam come from different
seeds, so that no picture of an exam was ever trained on. Called by training and by scoring.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor
from torch.utils.data import Dataset

from tools.demo_eyes.model import EyesShape
from tools.demo_eyes.pictures import Scene, draw_scene, paint
from tools.demo_eyes.questions import NO_PICTURE, WITHOUT_PICTURE, Subject, ask, loosely
from tools.demo_eyes.vocabulary import image_text
from tools.demo_model.vocabulary import TURN_END, TURN_START, encode

MEAN, DEVIATION = 0.5, 0.5
IGNORED = -100  # of targets
_WITHOUT_PICTURE = 0.04  # share of conversations
_TURNS = 4
_SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "be brief")
_LEAST_EDGE, _MOST_EDGE = 60, 288
_LEAST_RATIO = 0.56  # of the shorter edge to the longer one, as a screen has it


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold a batch. inputs, targets: [batch, tokens]; pixels: [pictures, 3, height, width];
    subjects: of each row's first question, None without a picture."""

    inputs: Tensor
    targets: Tensor
    pixels: Tensor
    subjects: tuple[Subject | None, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    question: str
    answer: str


def grid_of(height: int, width: int, shape: EyesShape) -> tuple[int, int]:
    """Return rows and columns of a picture's tokens, as the checkpoint's processor counts them."""
    ratio = max(height, width) / shape.longest
    if ratio > 1:
        height, width = int(height / ratio), int(width / ratio)
    side = shape.patch * shape.merge
    return (height - 1) // side + 1, (width - 1) // side + 1


def values_of(picture: Image.Image, height: int, width: int) -> NDArray[np.float32]:
    """Resize and normalise as the checkpoint's processor does: [3, height, width]."""
    if picture.size != (width, height):
        picture = picture.resize((width, height), Image.Resampling.BICUBIC)
    values = np.asarray(picture, dtype=np.float32).transpose(2, 0, 1) / 255
    return ((values - MEAN) / DEVIATION).astype(np.float32)


class Conversations(Dataset[Batch]):
    """Batches by number. exam: one question to each picture, and always a picture."""

    def __init__(
        self, tokenizer: Tokenizer, shape: EyesShape, seed: str, *, batches: int, size: int,
        exam: bool = False,
    ) -> None:  # fmt: skip
        self._tokenizer, self._shape, self._seed = tokenizer, shape, seed
        self._batches, self._size, self._exam = batches, size, exam

    def __len__(self) -> int:
        return self._batches

    def __getitem__(self, number: int) -> Batch:
        random = Random(f"{self._seed} {number}")
        height, width = _size(random)
        rows, columns = grid_of(height, width, self._shape)
        side = self._shape.patch * self._shape.merge
        lines: list[tuple[list[int], list[int]]] = []
        pixels: list[NDArray[np.float32]] = []
        subjects: list[Subject | None] = []
        for place in range(self._size):
            # The first row has a picture, so that no batch is without one.
            if place and not self._exam and random.random() < _WITHOUT_PICTURE:
                asked = Turn(loosely(random.choice(WITHOUT_PICTURE), random), NO_PICTURE)
                lines.append(self._encoded("", [asked], random))
                subjects.append(None)
                continue
            scene = draw_scene(random)
            picture = paint(scene, width, height, random)
            pixels.append(values_of(picture, rows * side, columns * side))
            drawn = self._subjects(scene, random)
            turns = [_turn(subject, scene, random) for subject in drawn]
            lines.append(self._encoded(image_text(rows, columns), turns, random))
            subjects.append(drawn[0])
        return _padded(lines, np.stack(pixels), tuple(subjects))

    def _subjects(self, scene: Scene, random: Random) -> list[Subject]:
        """Draw what is asked: of a digit, mostly which one it is."""
        subjects = list(Subject)
        random.shuffle(subjects)
        if scene.digit is not None and subjects[0] is not Subject.WHOLE:
            subjects = [Subject.DIGIT, *(each for each in subjects if each is not Subject.DIGIT)]
        return subjects[: 1 if self._exam else _TURNS]

    def _encoded(
        self, image: str, turns: list[Turn], random: Random
    ) -> tuple[list[int], list[int]]:
        """Return ids, and the token that follows each as its target if an answer has it."""
        ids: list[int] = []
        spoken: list[bool] = []
        parts: list[tuple[str, bool]] = []
        if random.random() < 0.1:
            parts.append((f"{TURN_START}system\n{random.choice(_SYSTEM)}{TURN_END}\n", False))
        for turn in turns:
            content = image + turn.question if random.random() < 0.5 else turn.question + image
            image = ""
            opening = f"{TURN_START}user\n{content}{TURN_END}\n{TURN_START}assistant\n"
            parts += [(opening, False), (f"{turn.answer}{TURN_END}", True), ("\n", False)]
        for text, says in parts:
            more = encode(self._tokenizer, text)
            ids += more
            spoken += [says] * len(more)
        targets = [
            token if says else IGNORED for token, says in zip(ids[1:], spoken[1:], strict=True)
        ]
        return ids[:-1], targets


def _size(random: Random) -> tuple[int, int]:
    """Draw height and width of a batch's pictures: squares three times out of five."""
    longer = random.randint(_LEAST_EDGE, _MOST_EDGE)
    shorter = longer
    if random.random() < 0.4:
        shorter = max(_LEAST_EDGE * 2 // 3, round(longer * random.uniform(_LEAST_RATIO, 1)))
    return (shorter, longer) if random.random() < 0.6 else (longer, shorter)


def _turn(subject: Subject, scene: Scene, random: Random) -> Turn:
    asked = ask(subject, scene, random)
    return Turn(loosely(asked.question, random), asked.answer)


def _padded(
    lines: list[tuple[list[int], list[int]]],
    pixels: NDArray[np.float32],
    subjects: tuple[Subject | None, ...],
) -> Batch:
    longest = max(len(ids) for ids, _ in lines)
    inputs = torch.zeros(len(lines), longest, dtype=torch.long)
    targets = torch.full((len(lines), longest), IGNORED)
    for index, (ids, wanted) in enumerate(lines):
        inputs[index, : len(ids)] = torch.tensor(ids)
        targets[index, : len(wanted)] = torch.tensor(wanted)
    return Batch(inputs, targets, torch.from_numpy(pixels), subjects)
