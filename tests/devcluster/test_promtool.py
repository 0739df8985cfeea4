"""Where promtool comes from; what it is for is tested where metrics and rules are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from devcluster.errors import DevclusterError
from devcluster.programs.promtool import ensure_promtool
from devcluster.settings import Settings, read_settings
from devcluster.shell import run


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_an_installed_one_is_used_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = program(tmp_path / "bin" / "promtool", "exit 0")
    monkeypatch.setenv("PATH", str(installed.parent))
    settings = Settings(cache=tmp_path / "cache", state=tmp_path)
    assert ensure_promtool(settings) == installed
    assert not settings.cache.exists()


def test_without_apt_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DevclusterError, match="put it on PATH"):
        ensure_promtool(Settings(cache=tmp_path / "cache", state=tmp_path))


def test_one_that_cannot_be_fetched_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "bin" / "apt-get", "echo 'no such package' >&2; exit 100")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    settings = Settings(cache=tmp_path / "cache", state=tmp_path)
    with pytest.raises(DevclusterError, match="no such package"):
        ensure_promtool(settings)
    assert list((settings.cache / "bin").iterdir()) == []


def test_the_fetched_one_is_promtool() -> None:
    if shutil.which("apt-get") is None:
        pytest.skip("there is no apt-get here")
    try:
        found = ensure_promtool(read_settings(os.environ))
    except DevclusterError as error:
        pytest.skip(f"apt cannot reach its archive: {error}")
    assert run([found, "--version"]).startswith("promtool, version")
