"""Damages of page files: all that a disk, a crash or another program may do to a file.

Each takes a file and the draws of a seed.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def cut(path: Path, draw: random.Random) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def lengthen(path: Path, draw: random.Random) -> None:
    with path.open("ab") as file:
        file.write(draw.randbytes(draw.randrange(1, 100)))


def swap(path: Path, draw: random.Random) -> None:
    others = sorted(path.parent.parent.glob("*/*.page"))
    other = draw.choice([each for each in others if each.is_file() and not each.is_symlink()])
    content = other.read_bytes()
    other.write_bytes(path.read_bytes())
    path.write_bytes(content)


def scramble(path: Path, draw: random.Random) -> None:
    path.write_bytes(draw.randbytes(path.stat().st_size))


def empty(path: Path, draw: random.Random) -> None:
    path.write_bytes(b"")


def replace_by_link(path: Path, draw: random.Random) -> None:
    other = path.with_name("other")
    path.rename(other)
    path.symlink_to(other)


def replace_by_folder(path: Path, draw: random.Random) -> None:
    path.unlink()
    path.mkdir()


def remove(path: Path, draw: random.Random) -> None:
    path.unlink()


def zero_a_part(path: Path, draw: random.Random) -> None:
    """What a crash may leave of a file that was renamed before its bytes reached the disk."""
    content = bytearray(path.read_bytes())
    first = draw.randrange(len(content))
    content[first:] = bytes(len(content) - first)
    path.write_bytes(content)


DAMAGES: list[Callable[[Path, random.Random], None]] = [
    flip, flip, cut, lengthen, swap, scramble, empty, replace_by_link, replace_by_folder, remove,
    zero_a_part,
]  # fmt: skip
