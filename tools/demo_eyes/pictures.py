"""Draws pictures of coloured squares or of one digit, and names the contents of each one.

A picture is drawn at any size and then resized as the checkpoint's processor resizes it, so that
blurred edges of large photographs and of thumbnails are both learnt. Everything random comes from
the given `Random`. Knows nothing of questions or of the model.
"""

from __future__ import annotations

import base64
import colorsys
import functools
import io
from dataclasses import dataclass
from random import Random

from PIL import Image, ImageDraw, ImageFont

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "black")
PLACES = (
    "at the top left", "at the top", "at the top right",
    "on the left", "in the middle", "on the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
MOST_SQUARES = 6
_HUES = {"red": 0, "orange": 28, "yellow": 55, "green": 125, "blue": 225, "purple": 285}
_HUE_SPREAD = {"red": 7, "orange": 6, "yellow": 5, "green": 20, "blue": 14, "purple": 10}
_LEAST_SATURATION = 0.72
_BLACK_SHARE = 0.14  # of the brightest value
_SIDES = 3  # places on a side


@dataclass(frozen=True, slots=True)
class Square:
    """Describes a square: its colour, and its place from 0 for the top left, row by row."""

    colour: str
    place: int


@dataclass(frozen=True, slots=True)
class Scene:
    """Describes a picture: squares in order of their places, or a digit with its colour."""

    squares: tuple[Square, ...] = ()
    digit: int | None = None
    colour: str = ""

    @property
    def colours(self) -> tuple[str, ...]:
        """Return the colours of the squares."""
        return tuple(square.colour for square in self.squares)


def draw_scene(random: Random) -> Scene:
    """Draw a scene: squares three times out of five, else a digit."""
    if random.random() < 0.4:
        return Scene(digit=random.randrange(10), colour=random.choice(COLOURS))
    count = random.randint(1, MOST_SQUARES)
    places = sorted(random.sample(range(len(PLACES)), count))
    if random.random() < 0.5:  # the same colour may come twice
        return Scene(tuple(Square(random.choice(COLOURS), place) for place in places))
    chosen = random.sample(COLOURS, count)
    return Scene(tuple(Square(*each) for each in zip(chosen, places, strict=True)))


def paint(scene: Scene, width: int, height: int, random: Random) -> Image.Image:
    """Paint a scene in this size, RGB."""
    dark = "black" not in scene.colours and scene.colour != "black" and random.random() < 0.25
    picture = Image.new("RGB", (width, height), _background(dark, random))
    draw = ImageDraw.Draw(picture)
    if scene.digit is not None:
        _paint_digit(draw, scene, (width, height), random)
    for square in scene.squares:
        draw.rectangle(
            _corners(square, (width, height), random), fill=_shade(square.colour, random)
        )
    return picture


def as_data_url(scene: Scene, *, seed: int = 1, side: int = 240) -> str:
    """Paint a scene, and return its PNG as a data URL."""
    written = io.BytesIO()
    paint(scene, side, side, Random(seed)).save(written, "PNG")
    return f"data:image/png;base64,{base64.b64encode(written.getvalue()).decode()}"


def _background(dark: bool, random: Random) -> tuple[int, int, int]:
    """Return a colour next to white, or one next to black."""
    value = random.randint(0, 40) if dark else random.randint(215, 255)
    if not dark and random.random() < 0.4:
        return 255, 255, 255
    near = [min(255, max(0, value + random.randint(-6, 6))) for _ in range(3)]
    return near[0], near[1], near[2]


def _shade(colour: str, random: Random) -> tuple[int, int, int]:
    if colour == "black":
        value = int(255 * random.uniform(0, _BLACK_SHARE))
        return value, value, value
    hue = _HUES[colour] + random.uniform(-1, 1) * _HUE_SPREAD[colour]
    dim = 0.45 if colour in ("green", "blue", "purple", "red") else 0.85
    parts = colorsys.hsv_to_rgb(
        (hue % 360) / 360, random.uniform(_LEAST_SATURATION, 1), random.uniform(dim, 1)
    )
    red, green, blue = (round(255 * part) for part in parts)
    return red, green, blue


def _corners(
    square: Square, size: tuple[int, int], random: Random
) -> tuple[float, float, float, float]:
    """Return a square's corners within its place, with its centre a little off the place's."""
    cells = (size[0] / _SIDES, size[1] / _SIDES)
    side = min(cells) * random.uniform(0.5, 0.85)
    centres = (
        (index + 0.5) * cell + random.uniform(-1, 1) * min(0.12 * cell, (cell - side) / 2)
        for index, cell in zip((square.place % _SIDES, square.place // _SIDES), cells, strict=True)
    )
    x, y = centres
    return x - side / 2, y - side / 2, x + side / 2, y + side / 2


def _paint_digit(
    draw: ImageDraw.ImageDraw, scene: Scene, size: tuple[int, int], random: Random
) -> None:
    font = _font(max(12, round(min(size) * random.uniform(0.7, 1.1) / 4) * 4))
    text = str(scene.digit)
    left, top, right, bottom = draw.textbbox((0, 0), text, font=font)
    room = (max(0.0, size[0] - (right - left)), max(0.0, size[1] - (bottom - top)))
    x, y = (each * random.uniform(0.2, 0.8) for each in room)
    stroke = random.choice((0, 0, max(1, round(min(size) / 40)), max(1, round(min(size) / 25))))
    shade = _shade(scene.colour, random)
    draw.text((x - left, y - top), text, font=font, fill=shade, stroke_width=stroke)


@functools.lru_cache(maxsize=256)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """Return Pillow's own font, which every machine with Pillow has."""
    found = ImageFont.load_default(size)
    assert isinstance(found, ImageFont.FreeTypeFont), "this Pillow has no FreeType"
    return found
