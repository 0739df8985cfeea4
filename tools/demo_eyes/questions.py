"""Questions about a picture, and their answers. Knows scenes and words, nothing of pixels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random

from tools.demo_eyes.pictures import COLOURS, PLACES, Scene

NO_PICTURE = "I see no picture. Add one of coloured squares or of a digit."
_NUMBERS = ("no", "one", "two", "three", "four", "five", "six")


class Subject(Enum):
    """Name the subject of a question."""

    WHOLE = "whole"
    NUMBER = "number"
    PLACE = "place"
    COLOUR = "colour"
    DIGIT = "digit"


@dataclass(frozen=True, slots=True)
class Asked:
    """Hold a question and its answer."""

    subject: Subject
    question: str
    answer: str


_WHOLE = (
    "What is in this picture?", "What do you see?", "Describe the picture.", "What is this?",
    "What does the picture show?", "Describe this image.", "What is in the image?",
    "What is shown here?", "Tell me about the picture.", "Which things do you see?",
)  # fmt: skip
_NUMBER = (
    "How many squares are there?", "How many squares do you see?", "Count the squares.",
    "What is the number of squares?", "How many squares are in the picture?",
    "How many are there?",
)  # fmt: skip
_PLACE = (
    "Where is the {} square?", "Where do you see the {} square?",
    "In which place is the {} square?", "What is the place of the {} square?",
    "Where is the {} one?",
)  # fmt: skip
_COLOUR = (
    "What colour is the square {}?", "Which colour has the square {}?", "What is {}?",
    "What color is the square {}?", "What is the colour of the square {}?",
)  # fmt: skip
_DIGIT = (
    "Which digit is this?", "What digit do you see?", "Read the digit.", "Which number is this?",
    "What number do you see?", "What is the digit?", "Which digit is in the picture?",
)  # fmt: skip
WITHOUT_PICTURE = (*_WHOLE, *_NUMBER, *_DIGIT, "Hello!", "Hi", "Who are you?", "What can you do?",
                   "What is ATOM?", "Help", "Tell me a story.", "What is Kubernetes?")  # fmt: skip


def describe(scene: Scene) -> str:
    """Say everything that a picture shows."""
    if scene.digit is not None:
        return f"The digit {scene.digit} in {scene.colour}."
    each = ", ".join(f"{square.colour} {PLACES[square.place]}" for square in scene.squares)
    count = len(scene.squares)
    return f"{_NUMBERS[count].capitalize()} square{'s' if count > 1 else ''}: {each}."


def ask(subject: Subject, scene: Scene, random: Random) -> Asked:
    """Draw a question about this subject."""
    question, answer = _ASKING[subject](scene, random)
    return Asked(subject, question, answer)


def _whole(scene: Scene, random: Random) -> tuple[str, str]:
    return random.choice(_WHOLE), describe(scene)


def _number(scene: Scene, random: Random) -> tuple[str, str]:
    count = len(scene.squares)
    verb = "is" if count == 1 else "are"
    words = f"There {verb} {_NUMBERS[count]} square{'' if count == 1 else 's'}."
    return random.choice(_NUMBER), words


def _place(scene: Scene, random: Random) -> tuple[str, str]:
    single = [square for square in scene.squares if scene.colours.count(square.colour) == 1]
    absent = [colour for colour in COLOURS if colour not in scene.colours]
    form = random.choice(_PLACE)
    if single and random.random() < 0.85:
        square = random.choice(single)
        answer = f"The {square.colour} square is {PLACES[square.place]}."
        return form.format(square.colour), answer
    colour = random.choice(absent)
    return form.format(colour), f"There is no {colour} square."


def _colour(scene: Scene, random: Random) -> tuple[str, str]:
    filled = {square.place: square.colour for square in scene.squares}
    form = random.choice(_COLOUR)
    if filled and random.random() < 0.85:
        place = random.choice(sorted(filled))
        return form.format(PLACES[place]), f"The square {PLACES[place]} is {filled[place]}."
    place = random.choice([place for place in range(len(PLACES)) if place not in filled])
    return form.format(PLACES[place]), f"There is no square {PLACES[place]}."


def _digit(scene: Scene, random: Random) -> tuple[str, str]:
    if scene.digit is None:
        return random.choice(_DIGIT), "There is no digit."
    return random.choice(_DIGIT), f"It is the digit {scene.digit}."


_ASKING: dict[Subject, Callable[[Scene, Random], tuple[str, str]]] = {
    Subject.WHOLE: _whole,
    Subject.NUMBER: _number,
    Subject.PLACE: _place,
    Subject.COLOUR: _colour,
    Subject.DIGIT: _digit,
}


def loosely(text: str, random: Random) -> str:
    """Write a question as people type: lower case, without its mark, or as it is."""
    kind = random.random()
    if kind < 0.2:
        text = text[0].lower() + text[1:]
    return text.rstrip("?.!") if 0.1 < kind < 0.3 else text
