"""A page file is the page of its name, or it is not read.

Files are damaged in every way by a seed, and a writer is killed at every step that it takes with a
file. What a reader gets is the page to the byte, or an error.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from atom.model_engine.kv_disk.disk_folder import STALE_SECONDS, DiskFolder
from atom.model_engine.kv_disk.page_file import (
    HEADER,
    TEMPORARY,
    DamagedPageError,
    PageLabel,
    page_path,
    read_page,
    write_page,
)
from atom.model_engine.kv_disk.page_names import block_name
from tests.support.engine_core.damaged_files import DAMAGES

LAYOUT = "0123456789abcdef" * 2
SIZE = 216


def label(number: int, kind: int = 0) -> PageLabel:
    name = block_name(number, number + 1, number.to_bytes(4, "little"))
    return PageLabel(bytes.fromhex(LAYOUT), name, kind, 16)


def content(number: int) -> bytes:
    return random.Random(number).randbytes(SIZE)


def save(folder: Path, number: int) -> None:
    write_page(folder, label(number), memoryview(content(number)), "mark")


def load(folder: Path, number: int) -> bytes:
    page = bytearray(SIZE)
    read_page(folder, label(number), memoryview(page))
    return bytes(page)


def test_a_page_returns_to_the_byte(tmp_path: Path) -> None:
    for number in range(20):
        save(tmp_path, number)
        assert load(tmp_path, number) == content(number)
        found = page_path(tmp_path, label(number).name).stat()
        assert found.st_mode & 0o777 == 0o600
        assert found.st_size == HEADER.size + SIZE == 64 + SIZE
    with pytest.raises(FileNotFoundError):
        load(tmp_path, 20)


def test_a_thousand_damaged_files_are_never_believed(tmp_path: Path) -> None:
    draw, damaged = random.Random(0), 0
    for round_number in range(50):
        numbers = range(round_number * 40, round_number * 40 + 40)
        for number in numbers:
            save(tmp_path, number)
        for number in draw.sample(numbers, 24):
            path = page_path(tmp_path, label(number).name)
            if path.is_file():
                draw.choice(DAMAGES)(path, draw)
                damaged += 1
        for number in numbers:
            try:
                found = load(tmp_path, number)
            except (DamagedPageError, FileNotFoundError):
                continue
            assert found == content(number)
    assert damaged > 1000


@pytest.mark.parametrize("at", range(HEADER.size))
def test_every_byte_of_a_header_counts(tmp_path: Path, at: int) -> None:
    save(tmp_path, 1)
    path = page_path(tmp_path, label(1).name)
    whole = bytearray(path.read_bytes())
    whole[at] ^= 1
    path.write_bytes(whole)
    with pytest.raises(DamagedPageError):
        load(tmp_path, 1)


def test_a_page_of_another_kind_layout_or_name_is_another_page(tmp_path: Path) -> None:
    save(tmp_path, 1)
    own = label(1)
    path = page_path(tmp_path, own.name)
    others = (
        PageLabel(own.layout, own.name, 1, 16),
        PageLabel(own.layout, own.name, 0, 32),
        PageLabel(bytes(16), own.name, 0, 16),
        label(2),
    )
    for other in others:
        moved = page_path(tmp_path, other.name)
        moved.parent.mkdir(exist_ok=True)
        path.rename(moved)
        with pytest.raises(DamagedPageError, match="another"):
            read_page(tmp_path, other, memoryview(bytearray(SIZE)))
        moved.rename(path)
    assert load(tmp_path, 1) == content(1)


_AS_COPY = (sys.executable, "-m", "tests.support.preloaded.script")
_WRITER = """
import os, sys, pathlib
sys.path[:0] = {path!r}
from tests.engine.unit.model_engine.kv_disk.test_page_files import save
steps = 0
def counted(call):
    def wrapped(*args, **kwargs):
        global steps
        if steps == {before}:
            os._exit(9)
        steps += 1
        done = call(*args, **kwargs)
        return done
    return wrapped
write = os.write
os.write = counted(lambda descriptor, data: write(descriptor, bytes(data)[:50]))
for name in ("open", "close"):
    setattr(os, name, counted(getattr(os, name)))
for name in ("mkdir", "replace"):
    setattr(pathlib.Path, name, counted(getattr(pathlib.Path, name)))
for number in range(3):
    save(pathlib.Path({folder!r}), number)
"""


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.whole)])
def test_a_writer_that_is_killed_at_any_step_leaves_whole_pages_alone(
    tmp_path: Path, every: int
) -> None:
    now, killed = [0.0], 0
    for before in range(0, 200, every):
        root = tmp_path / str(before)
        root.mkdir()
        folder = DiskFolder(root, LAYOUT, 10**6, lambda: now[0])
        folder.open()
        script = _WRITER.format(path=sys.path, before=before, folder=str(folder.path))
        code = subprocess.run([*_AS_COPY, script], check=False).returncode
        assert code in (0, 9)
        folder.list_pages()
        for number in range(3):
            if label(number).name in folder.names:
                assert load(folder.path, number) == content(number)
            else:
                assert code == 9
        now[0] = root.stat().st_mtime + 2 * STALE_SECONDS
        folder.list_pages()
        assert not list(root.rglob(f"{TEMPORARY}*"))
        now[0] = 0.0
        if not code:
            break
        killed += 1
    assert killed >= 15 // every
