"""Sockets find a place however long the folder for temporary files is."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from atom.errors import ConfigError
from atom.utils import socket_folder
from atom.utils.socket_folder import make_socket_folder


@pytest.fixture
def made() -> Iterator[list[Path]]:
    folders: list[Path] = []
    yield folders
    for folder in folders:
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()


def bind_in(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "client-64-requests"))


def test_it_is_ours_alone_and_below_the_folder_for_temporary_files() -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", short)
            folder = make_socket_folder("atom-")
        assert folder.parent == Path(short)
        assert folder.stat().st_mode & 0o777 == 0o700
        bind_in(folder)


def test_a_long_folder_for_temporary_files_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, made: list[Path]
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    made.append(make_socket_folder("atom-grammar-"))
    bind_in(made[0])


def test_without_a_place_the_remedy_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    monkeypatch.setattr(socket_folder, "_USUAL", str(tmp_path / "nowhere either"))
    with pytest.raises(ConfigError, match="set TMPDIR"):
        make_socket_folder("atom-")
