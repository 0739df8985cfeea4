"""A folder of pages is listed, cleared and written to at the same time, by several servers."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.kv_disk.disk_folder import ROOT, DiskFolder
from atom.model_engine.kv_disk.page_file import PageLabel, page_path, write_page

LAYOUTS = "0123456789abcdef" * 2, "f" * 32
NAMES = [bytes([part, number]) * 8 for part in (1, 2) for number in (3, 4)]
PAGE = 100


@pytest.fixture
def folder(tmp_path: Path) -> DiskFolder:
    """A folder of two layouts, whose pages were listed."""
    own, other = (DiskFolder(tmp_path, each, 1 << 20, lambda: 0.0) for each in LAYOUTS)
    for each in (own, other):
        each.open()
        for name in NAMES:
            path = page_path(each.path, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(bytes(PAGE))
    assert own.list_pages() == []
    assert own.names == set(NAMES)
    return own


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("place", [ROOT, f"{ROOT}/{LAYOUTS[0]}", f"{ROOT}/{LAYOUTS[0]}/01"])
def test_a_listing_passes_over_entries_that_another_server_removes(
    folder: DiskFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, which: int
) -> None:
    listed, scandir = tmp_path / place, os.scandir
    assert len(list(listed.iterdir())) == 2

    def then_removed(path: Any) -> Any:
        """List a folder; before the list is used, one of its entries is removed."""
        if path != listed:
            return scandir(path)
        with scandir(path) as entries:
            found = list(entries)
        gone = Path(found[which].path)
        shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        return contextlib.nullcontext(found)

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", then_removed)
        gone = folder.list_pages()
    assert len(list(listed.iterdir())) == 1
    left = {name for name in NAMES if page_path(folder.path, name).exists()}
    assert folder.names == left
    assert set(gone) == set(NAMES) - left
    assert folder.used_bytes == PAGE * len(list(tmp_path.rglob("*.page")))


def test_a_page_whose_writing_began_before_the_layout_is_cleared_is_written(
    folder: DiskFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def replaced_late(self: Path, target: Path) -> Path:
        folder.clear()
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", replaced_late)
    label = PageLabel(folder.layout, NAMES[0], kind=0, tokens=16)
    write_page(folder.path, label, memoryview(bytes(PAGE)), "mark")
    own = [path for path in tmp_path.rglob("*.page") if folder.path in path.parents]
    assert own == [page_path(folder.path, NAMES[0])]
    assert len(list(tmp_path.rglob("*.page"))) == 1 + len(NAMES), "another layout keeps its pages"
